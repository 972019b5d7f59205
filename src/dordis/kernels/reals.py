"""Weighted sums of vectors of real numbers, in float64 whatever the type of the numbers."""

import math

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.arrays import check_array
from dordis.kernels.compiler import kernel

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def add_weighted(total: npt.NDArray[np.float64], x: Reals, weight: float) -> None:
    """Add weight * x[i] to total[i], in place."""
    total = check_array("total", total, np.float64, written=True)
    x = check_array("x", x, np.float32, np.float64)
    if total.size != x.size:
        raise InputError(f"total and x must be equally long: got {total.size} and {x.size}")
    if not math.isfinite(weight):
        raise InputError(f"weight must be finite: got {weight}")
    _add_weighted(total, x, float(weight))


@kernel
def _add_weighted(total: npt.NDArray[np.float64], x: Reals, weight: float) -> None:
    for i in range(total.size):
        total[i] += weight * np.float64(x[i])
