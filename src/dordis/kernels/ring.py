"""Add keystreams to a vector over Z_{2^32}, lane by lane; callers reduce modulo 2^b once, at the end.

Keystreams are rows of bytes; a *lane* is the bytes of a row for one coordinate.  Four rows are added in one pass over
the vector if there are four.  A row is added with flip = 0 and subtracted with flip = 2^32 - 1, because
(x ^ flip) - flip is x or -x, without a branch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.kernels.compiler import inline_kernel, kernel

Vector = npt.NDArray[np.uint32]
Rows = npt.NDArray[Any]


@inline_kernel
def _apply_sign(value: np.uint32, flip: np.uint32) -> np.uint32:
    return (np.uint32(value) ^ flip) - flip


@kernel
def add_lanes(acc: Vector, rows: Rows, flips: Vector) -> None:
    """Add rows of one-, two- or four-byte lanes to `acc`; subtract the rows whose flip is 2^32 - 1 instead of 0."""
    fours = len(rows) // 4 * 4
    for r in range(0, fours, 4):
        f0, f1, f2, f3 = flips[r], flips[r + 1], flips[r + 2], flips[r + 3]
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        for i in range(acc.size):
            acc[i] += _apply_sign(r0[i], f0) + _apply_sign(r1[i], f1) + _apply_sign(r2[i], f2) + _apply_sign(r3[i], f3)
    for r in range(fours, len(rows)):
        f0, r0 = flips[r], rows[r]
        for i in range(acc.size):
            acc[i] += _apply_sign(r0[i], f0)


@kernel
def add_three_byte_lanes(acc: Vector, rows: Rows, flips: Vector) -> None:
    """Add rows of three-byte lanes to `acc`; subtract the rows whose flip is 2^32 - 1 instead of 0.

    Rows are words of 32 bits: three words have four lanes.  The upper 8 bits of each added word belong to the next
    lane; the caller's reduction modulo 2^b, b <= 24, removes them.
    """
    fours, groups = len(rows) // 4 * 4, acc.size // 4
    for r in range(0, fours, 4):
        f0, f1, f2, f3 = flips[r], flips[r + 1], flips[r + 2], flips[r + 3]
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        for g in range(groups):
            a0, a1, a2, a3 = _four_lanes(r0, g, f0)
            b0, b1, b2, b3 = _four_lanes(r1, g, f1)
            c0, c1, c2, c3 = _four_lanes(r2, g, f2)
            d0, d1, d2, d3 = _four_lanes(r3, g, f3)
            acc[4 * g] += a0 + b0 + c0 + d0
            acc[4 * g + 1] += a1 + b1 + c1 + d1
            acc[4 * g + 2] += a2 + b2 + c2 + d2
            acc[4 * g + 3] += a3 + b3 + c3 + d3
    for r in range(fours, len(rows)):
        f0, r0 = flips[r], rows[r]
        for g in range(groups):
            a0, a1, a2, a3 = _four_lanes(r0, g, f0)
            acc[4 * g] += a0
            acc[4 * g + 1] += a1
            acc[4 * g + 2] += a2
            acc[4 * g + 3] += a3
    if 4 * groups < acc.size:  # only then do the rows have words after the last whole group
        for r in range(len(rows)):
            lanes = _four_lanes(rows[r], groups, flips[r])
            for i in range(4 * groups, acc.size):
                acc[i] += lanes[i - 4 * groups]


@inline_kernel
def _four_lanes(words: Vector, group: int, flip: np.uint32) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    w0, w1, w2 = words[3 * group], words[3 * group + 1], words[3 * group + 2]
    return (
        _apply_sign(w0, flip),
        _apply_sign((w0 >> np.uint32(24)) | (w1 << np.uint32(8)), flip),
        _apply_sign((w1 >> np.uint32(16)) | (w2 << np.uint32(16)), flip),
        _apply_sign(w2 >> np.uint32(8), flip),
    )


@kernel
def reduce_modulo(acc: Vector, mask: np.uint32) -> None:
    """Reduce every coordinate of `acc` modulo 2^b in place; `mask` is 2^b - 1."""
    for i in range(acc.size):
        acc[i] &= mask
