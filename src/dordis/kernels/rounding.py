"""Round to the integer grid, at random and without bias or to the nearest, and measure the result exactly."""

import math

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.arrays import check_array
from dordis.kernels.compiler import kernel

_LEAST = -(2.0**31)
_MOST = 2.0**31 - 1.0


def round_stochastically(
    x: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    scale: float,
    randomness: npt.NDArray[np.uint32],
    out: npt.NDArray[np.int32],
) -> None:
    """Set out[i] to y = x[i] * scale rounded up with probability frac(y), down otherwise, in float64.

    It is rounded up where randomness[i] / 2^32 < frac(y): `randomness` is uniform, secret and used once.  A chance that
    is not a multiple of 2^-32 is exceeded by less than 2^-32.  If any result does not fit, `out` is left all zero.
    """
    x = check_array("x", x, np.float32, np.float64)
    randomness = check_array("randomness", randomness, np.uint32)
    out = check_array("out", out, np.int32, written=True)
    if not x.size == randomness.size == out.size:
        raise InputError(f"x, randomness and out must be equally long: got {x.size}, {randomness.size}, {out.size}")
    if not math.isfinite(scale):
        raise InputError(f"scale must be finite: got {scale}")
    if not _round(x, float(scale), randomness, out):
        out.fill(0)
        raise InputError("x must be finite and must fit 32-bit integers once scaled and rounded")


def round_to_nearest(
    x: npt.NDArray[np.float32] | npt.NDArray[np.float64], scale: float, out: npt.NDArray[np.int32]
) -> None:
    """Set out[i] to x[i] * scale rounded to the nearest integer; if any result does not fit, `out` is left all zero."""
    x = check_array("x", x, np.float32, np.float64)
    out = check_array("out", out, np.int32, written=True)
    if x.size != out.size:
        raise InputError(f"x and out must be equally long: got {x.size}, {out.size}")
    if not _nearest(x, float(scale), out):
        out.fill(0)
        raise InputError("x must be finite and must fit 32-bit integers once scaled and rounded")


def squared_norm(x: npt.NDArray[np.int32]) -> int:
    """Return the exact sum of squares, whatever the length and the values."""
    high, low = _squared_norm(check_array("x", x, np.int32))
    return (int(high) << 32) + int(low)


@kernel
def _round(
    x: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    scale: float,
    randomness: npt.NDArray[np.uint32],
    out: npt.NDArray[np.int32],
) -> bool:
    """Round every coordinate; return whether all results are finite and fit."""
    misfits = 0
    for i in range(x.size):
        y = np.float64(x[i]) * scale
        down = np.floor(y)  # stays a float, so that NaN and infinity reach the comparison below
        rounded = down + (1.0 if np.float64(randomness[i]) * 2.0**-32 < y - down else 0.0)
        fits = _LEAST <= rounded <= _MOST  # false for NaN
        misfits += 0 if fits else 1
        out[i] = np.int32(rounded if fits else 0.0)
    return misfits == 0


@kernel
def _nearest(x: npt.NDArray[np.float32] | npt.NDArray[np.float64], scale: float, out: npt.NDArray[np.int32]) -> bool:
    """Round every coordinate; return whether all results are finite and fit."""
    misfits = 0
    for i in range(x.size):
        rounded = np.rint(np.float64(x[i]) * scale)
        fits = _LEAST <= rounded <= _MOST  # false for NaN
        misfits += 0 if fits else 1
        out[i] = np.int32(rounded if fits else 0.0)
    return misfits == 0


@kernel
def _squared_norm(x: npt.NDArray[np.int32]) -> tuple[np.uint64, np.uint64]:
    """Sum the high and the low 32 bits of the squares apart: neither sum can pass 2^64 below 2^32 coordinates."""
    high = np.uint64(0)
    low = np.uint64(0)
    for i in range(x.size):
        square = np.uint64(np.int64(x[i]) * np.int64(x[i]))
        high += square >> np.uint64(32)
        low += square & np.uint64(0xFFFFFFFF)
    return high, low
