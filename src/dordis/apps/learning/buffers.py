"""Memory for updates that is reused from round to round: allocating it costs more than a small client's step."""

import sys
import threading

import numpy as np
import numpy.typing as npt

from dordis.privacy.skellam import Floats

_UNUSED = 3
"""Reference count of an unused array inside the loop of `take`."""


class UpdateBuffers:
    """Arrays that are reused once nothing else refers to them; safe for threads."""

    def __init__(self) -> None:
        self._arrays: list[Floats] = []
        self._lock = threading.Lock()

    def take(self, size: int, dtype: npt.DTypeLike) -> Floats:
        """Return an unused array; its contents are arbitrary."""
        with self._lock:
            for array in self._arrays:
                if sys.getrefcount(array) == _UNUSED and array.size == size and array.dtype == dtype:
                    return array
            array = np.empty(size, dtype)
            self._arrays.append(array)
            return array
