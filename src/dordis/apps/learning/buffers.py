"""Memory for updates, taken again from round to round: new memory costs more than a step of a small client writes."""

import sys
import threading

import numpy as np
import numpy.typing as npt

from dordis.privacy.skellam import Floats

_UNUSED = 3
"""References to an array that only the list of arrays has, while a loop looks at it."""


class UpdateBuffers:
    """Arrays that are given out again when nobody else refers to them any more; threads may share it."""

    def __init__(self) -> None:
        self._arrays: list[Floats] = []
        self._lock = threading.Lock()

    def take(self, size: int, dtype: npt.DTypeLike) -> Floats:
        """Return an array of any content that nobody else has."""
        with self._lock:
            for array in self._arrays:
                if sys.getrefcount(array) == _UNUSED and array.size == size and array.dtype == dtype:
                    return array
            array = np.empty(size, dtype)
            self._arrays.append(array)
            return array
