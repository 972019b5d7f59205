"""Build cell tables (noise format, version 1): the 128-bit arithmetic on a pmf that is already in integers.

A 128-bit number is two uint64, high then low; an array of them has rows (high, low).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.kernels.cells import INDEXED
from dordis.kernels.compiler import inlined, kernel

Words = npt.NDArray[np.uint64]
Wide = tuple[Any, Any]

_HALF = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@inlined
def _times(a: Wide, factor: Any) -> Wide:
    """Multiply by a factor below 2^32."""
    low = (a[1] & _HALF) * factor
    middle = (a[1] >> _32) * factor + (low >> _32)
    return a[0] * factor + (middle >> _32), (middle << _32) | (low & _HALF)


@inlined
def _plus(a: Wide, b: Wide) -> Wide:
    low = a[1] + b[1]
    return a[0] + b[0] + np.uint64(low < a[1]), low


@inlined
def _minus(a: Wide, b: Wide) -> Wide:
    return a[0] - b[0] - np.uint64(a[1] < b[1]), a[1] - b[1]


@inlined
def _above(a: Wide, b: Wide) -> Any:
    return a[0] > b[0] or (a[0] == b[0] and a[1] > b[1])


@inlined
def _at(pmf: Words, x: Any) -> Wide:
    """Return P[x], zero beyond the last."""
    if x < len(pmf):
        return pmf[x, 0], pmf[x, 1]
    return np.uint64(0), np.uint64(0)


@inlined
def _overshoot(pmf: Words, node: Any, width: Any) -> Wide:
    """Return O_H: how far the chord from P[Hw] to P[(H+1)w] rises above the pmf, times w."""
    left, right = _at(pmf, node * width), _at(pmf, (node + 1) * width)
    worst = (np.uint64(0), np.uint64(0))
    for j in range(width + 1):
        chord = _plus(_times(left, np.uint64(width - j)), _times(right, np.uint64(j)))
        curve = _times(_at(pmf, node * width + j), np.uint64(width))
        if _above(chord, curve):
            gap = _minus(chord, curve)
            if _above(gap, worst):
                worst = gap
    return worst


@kernel
def node_cells(pmf: Words, width: int) -> npt.NDArray[np.uint32]:
    """Return n_H, the cells of node H, for H = 0 .. floor(X / w)."""
    counts = np.zeros((len(pmf) - 1) // width + 1, np.uint32)
    before = _overshoot(pmf, 0, width)  # O_{-1} = O_0 by symmetry
    for node in range(counts.size):
        here = _overshoot(pmf, node, width)
        spare = before if _above(before, here) else here
        height = _times(_at(pmf, node * width), np.uint64(width))
        if _above(height, spare):
            counts[node] = _minus(height, spare)[0] >> np.uint64(48)
        before = here
    return counts


@inlined
def _count(counts: npt.NDArray[np.uint32], node: Any) -> Any:
    """Return n_H, zero beyond the last."""
    return np.uint64(counts[node]) if node < counts.size else np.uint64(0)


@kernel
def residual_masses(pmf: Words, counts: npt.NDArray[np.uint32], log_width: int) -> Words:
    """Return P[x] - D[x] for x = 0 .. X; an empty array if some D[x] exceeds P[x]."""
    width = 1 << log_width
    masses = np.empty_like(pmf)
    for x in range(len(pmf)):
        node, j = x >> log_width, x & (width - 1)
        hats = _count(counts, node) * np.uint64(width - j) + _count(counts, node + 1) * np.uint64(j)
        # hats < 2^(17 + k), so that D = hats * 2^(112 - 2k) takes bits 96.. and up: the low word is zero
        covered = (hats << np.uint64(48 - 2 * log_width), np.uint64(0))
        if _above(covered, (pmf[x, 0], pmf[x, 1])):
            return masses[:0]
        masses[x, 0], masses[x, 1] = _minus((pmf[x, 0], pmf[x, 1]), covered)
    return masses


@kernel
def accumulate(masses: Words) -> Words:
    """Return C[x] for x = -X .. X from the masses at 0 .. X of a symmetric residual."""
    largest = len(masses) - 1
    total = (np.uint64(0), np.uint64(0))
    sums = np.empty((2 * largest + 1, 2), np.uint64)
    for x in range(-largest, largest + 1):
        total = _plus(total, (masses[abs(x), 0], masses[abs(x), 1]))
        sums[x + largest, 0], sums[x + largest, 1] = total
    return sums


@kernel
def search_index(sums: Words, rows: int, shift: int) -> npt.NDArray[np.uint16]:
    """Return the index that `resolve` searches: see there; places that do not fit a row are searched for exactly."""
    index = np.full((rows, 2 + INDEXED), np.uint16(0xFFFF), np.uint16)
    at = 0
    for row in range(rows):
        while sums[at, 0] >> np.uint64(shift) < np.uint64(row):
            at += 1
        index[row, 0], index[row, 1] = at & 0xFFFF, at >> 16
        for j in range(INDEXED):
            if at + j < len(sums) and sums[at + j, 0] >> np.uint64(shift) == np.uint64(row):
                index[row, 2 + j] = (sums[at + j, 0] >> np.uint64(shift - 16)) & np.uint64(0xFFFF)
    return index
