"""Fold a vector into k buckets with random signs, and copy the buckets back, each in one pass over memory.

Coordinate i belongs to bucket i mod k, so the kernels read the vector in rows of k coordinates and add up the rows.
"""

from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.compiler import check_array, kernel

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Real = TypeVar("Real", npt.NDArray[np.float32], npt.NDArray[np.float64])

WORD = 32
"""The number of buckets is a multiple of this, so that the sign bits of every row start with a whole 32-bit word."""


def fold(x: Reals, buckets: int, signs: npt.NDArray[np.uint8], factor: float = 1.0) -> Reals:
    """Return for each bucket `factor` times the sum of its coordinates, negated where their bit of `signs` is set.

    The bit of coordinate i is bit i % 8 of byte i // 8.  NaN and infinity are not detected.
    """
    x = check_array("x", x, np.float32, np.float64)
    signs = _check(x.size, buckets, signs)
    folded: Reals = np.zeros(buckets, x.dtype)
    _fold(x, signs, x.dtype.type(factor), folded)
    return folded


def unfold(folded: Real, size: int, signs: npt.NDArray[np.uint8]) -> Real:
    """Return `size` coordinates: each is a copy of its bucket, negated if the coordinate's bit of `signs` is set."""
    folded = check_array("folded", folded, np.float32, np.float64)
    signs = _check(size, folded.size, signs)
    x = np.empty(size, folded.dtype)
    _unfold(folded, signs, x)
    return cast("Real", x)


def _check(size: int, buckets: int, signs: npt.NDArray[np.uint8]) -> Any:
    if type(buckets) is not int or buckets < WORD or buckets % WORD:
        raise InputError(f"the number of buckets must be a multiple of {WORD}: got {buckets!r}")
    signs = check_array("signs", signs, np.uint8)
    if signs.size != (size + 7) // 8:
        raise InputError(f"{size} coordinates take {(size + 7) // 8} bytes of signs: got {signs.size}")
    return signs


@kernel
def _fold(x: Reals, signs: npt.NDArray[np.uint8], factor: np.floating[Any], folded: Reals) -> None:
    for start in range(0, x.size, folded.size):
        row = x[start : start + folded.size]
        octets = signs[start >> 3 :]
        words = row.size >> 5
        for word in range(words):
            part, sums = row[32 * word : 32 * word + 32], folded[32 * word : 32 * word + 32]
            bits = _word(octets[4 * word : 4 * word + 4])
            for place in range(32):
                scaled = part[place] * factor
                sums[place] += -scaled if (bits >> np.uint32(place)) & np.uint32(1) else scaled
        for i in range(32 * words, row.size):
            scaled = row[i] * factor
            folded[i] += -scaled if (octets[i >> 3] >> (i & 7)) & 1 else scaled


@kernel
def _unfold(folded: Reals, signs: npt.NDArray[np.uint8], x: Reals) -> None:
    for start in range(0, x.size, folded.size):
        row = x[start : start + folded.size]
        octets = signs[start >> 3 :]
        words = row.size >> 5
        for word in range(words):
            part, sums = row[32 * word : 32 * word + 32], folded[32 * word : 32 * word + 32]
            bits = _word(octets[4 * word : 4 * word + 4])
            for place in range(32):
                part[place] = -sums[place] if (bits >> np.uint32(place)) & np.uint32(1) else sums[place]
        for i in range(32 * words, row.size):
            row[i] = -folded[i] if (octets[i >> 3] >> (i & 7)) & 1 else folded[i]


@kernel
def _word(octets: npt.NDArray[np.uint8]) -> np.uint32:
    bits = np.uint32(0)
    for place in range(4):
        bits |= np.uint32(octets[place]) << np.uint32(8 * place)
    return bits
