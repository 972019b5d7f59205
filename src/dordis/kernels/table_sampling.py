"""Build the cell tables of Skellam noise, and draw samples from them (`dordis.privacy.skellam_noise`).

A *cell* is one of 2^16 equally likely numbers.  Most cells belong to a *node*, a multiple of a width w = 2^k: the
sample is then the node plus a distance, drawn from the node's *hat*, a triangle of mass that falls to 0 at the
neighbouring nodes.  The other cells *escape*: the sample is then drawn from the *residual*, the pmf minus all hats.

Tables are built in 128-bit arithmetic from a pmf that is already in integers.  A 128-bit number is two uint64, high
then low; an array of them has rows (high, low).  X is the largest sample of the pmf.  Samples are added with flip = 0
and subtracted with flip = 2^32 - 1, because (x ^ flip) - flip is x or -x.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.kernels.compiler import inline_kernel, kernel
from dordis.kernels.vector_instructions import (
    LANES,
    STAIR,
    add_hats,
    add_nodes,
    compare_at_least,
    count_below,
    count_trailing_zeros,
)

PAGE = 1 << 16
"""Number of samples in a page.  The *escapes* of a page are its samples whose cells escape, numbered from 0."""
_RUN = 2048
"""Samples that `draw_samples` handles at a time, so that they stay in the first-level cache between its passes."""

INDEXED = 14
"""Number of entries of the residual that one row of the search index covers.

With the position of the first of these entries, a row has 32 bytes.
"""

Vector = npt.NDArray[np.uint32]
Shorts = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint64]


@kernel
def draw_samples(
    acc: Vector,
    flip: np.uint32,
    cells: Shorts,
    hats: Shorts,
    stairs: Vector,
    log_width: int,
    first_escape: int,
    first: int,
    origin: Vector,
    places: Vector,
    tops: Shorts,
    blocks: Vector,
) -> int:
    """Add to acc the samples whose cells do not escape; list the other samples (escapes), and return their number.

    `cells` has the cells of samples, and `hats` the random numbers from which distances under the hats are drawn.  Both
    start with the first sample of the page that contains sample `first`; sample `first` is added to acc[0].  `hats` is
    not used if k = `log_width` = 0.  `stairs` maps cells to nodes (`STAIR`).  Cells from `first_escape` on escape.

    For each escape `places` receives its index in acc, `tops` receives its cell minus `first_escape`, and `blocks`
    receives the 16 bytes from which a block cipher makes the random bytes of the escape.  These 16 bytes are the first
    three words of `origin` and a big-endian word: the fourth word of `origin` plus PAGE times the number of the page
    plus the number of the escape in its page.  `places` must have room for one more than the largest number of escapes.
    """
    skip = first % PAGE
    limit = np.uint16(first_escape)
    last = _node(stairs, np.uint32(PAGE - 1)) << np.uint32(log_width)
    rank = 0  # escapes of this page before the samples of this call
    for cell in cells[:skip]:
        rank += cell >= limit
    cells, hats = cells[skip:], hats[skip:]
    escapes = 0
    at = 0
    while at < cells.size:
        page = (first + at) // PAGE
        end = min((page + 1) * PAGE - first, cells.size)
        before = escapes
        for run in range(at, end, _RUN):
            stop = min(run + _RUN, end)
            listed = escapes
            escapes += _list_escapes(cells[run:stop], run, limit, places[escapes:])
            if log_width > 0:
                _add_hats(acc[run:stop], flip, cells[run:stop], hats[run:stop], stairs, np.uint32(log_width))
            else:
                _add_nodes(acc[run:stop], flip, cells[run:stop], stairs)
            for e in range(listed, escapes):
                place = places[e]
                # `last` was added for escapes too: to subtract it here is cheaper than to test every sample above.
                given = last
                if log_width > 0:
                    given += _hat(hats[place], np.uint32(log_width))
                acc[place] -= _apply_sign(given, flip)
                tops[e] = cells[place] - limit
                blocks[e, 0], blocks[e, 1], blocks[e, 2] = origin[0], origin[1], origin[2]
                blocks[e, 3] = _to_big_endian(origin[3] + np.uint32(page * PAGE + rank + e - before))
        rank = 0
        at = end
    return escapes


# The loops below count from zero over slices: numba then knows that no index is negative, and LLVM vectorises them.


@kernel
def _list_escapes(cells: Shorts, offset: int, limit: Any, places: Vector) -> Any:
    """Write the indices of cells from `limit` on, which escape, plus `offset` to `places`; return their number.

    Entries of `places` after the last escape may be overwritten.  In each group of 64 cells two entries are always
    written, without a branch for the number of escapes, which the processor could not predict.
    """
    escapes, one, nothing = np.uint64(0), np.uint64(1), np.uint64(0)
    whole = cells.size // 64 * 64
    for i in range(0, whole, 64):
        escaping = compare_at_least(cells, i, limit)
        for _ in range(2):
            places[escapes] = np.uint32(offset + i + count_trailing_zeros(escaping))
            escapes += np.uint64(escaping != nothing)
            escaping &= escaping - one
        while escaping != nothing:
            places[escapes] = np.uint32(offset + i + count_trailing_zeros(escaping))
            escapes += one
            escaping &= escaping - one
    for i in range(whole, cells.size):
        if cells[i] >= limit:
            places[escapes] = np.uint32(offset + i)
            escapes += one
    return np.int64(escapes)


@kernel
def _add_nodes(acc: Vector, flip: Any, cells: Shorts, stairs: Vector) -> None:
    whole = acc.size // LANES * LANES
    for i in range(0, whole, LANES):
        add_nodes(acc, cells, stairs, flip, i)
    for i in range(whole, acc.size):
        acc[i] += _apply_sign(_node(stairs, np.uint32(cells[i])), flip)


@kernel
def _add_hats(acc: Vector, flip: Any, cells: Shorts, hats: Shorts, stairs: Vector, log_width: Any) -> None:
    whole = acc.size // LANES * LANES
    for i in range(0, whole, LANES):
        add_hats(acc, cells, hats, stairs, log_width, flip, i)
    for i in range(whole, acc.size):
        acc[i] += _apply_sign((_node(stairs, np.uint32(cells[i])) << log_width) + _hat(hats[i], log_width), flip)


@kernel
def _node(stairs: Vector, cell: Any) -> Any:
    """Return the number of a cell's node, the node divided by the width w, from the table of stairs (see `STAIR`)."""
    stair = stairs[cell // np.uint32(STAIR)]
    node = np.uint32(np.int32(stair) >> np.int32(16))
    for step in range(1, np.int64(cell % np.uint32(STAIR)) + 1):
        node += (stair >> np.uint32(step)) & np.uint32(1)
    return node


@kernel
def _hat(pair: Any, log_width: Any) -> Any:
    """Return a sample's distance from its node: the low byte of `pair` minus the high byte, both modulo 2^log_width."""
    below = (np.uint32(1) << log_width) - np.uint32(1)
    return (np.uint32(pair) & below) - ((np.uint32(pair) >> np.uint32(8)) & below)


@kernel
def _apply_sign(value: Any, flip: Any) -> Any:
    return (value ^ flip) - flip


@kernel
def _to_big_endian(word: Any) -> Any:
    swapped = ((word & np.uint32(0xFF00FF)) << np.uint32(8)) | ((word >> np.uint32(8)) & np.uint32(0xFF00FF))
    return (swapped << np.uint32(16)) | (swapped >> np.uint32(16))


@kernel
def resolve_escapes(
    acc: Vector,
    flip: np.uint32,
    places: Vector,
    tops: Shorts,
    blocks: Words,
    residual: Words,
    index: Shorts,
    shift: int,
) -> None:
    """Add to acc, for each escape, the least x with C[x] > u, where u = top * 2^112 + the block's first fourteen bytes.

    `places` has the index of each escape in acc, and `tops` its top, its cell minus the first cell that escapes, as
    `draw_samples` lists them.  Blocks are outputs of the cipher, little-endian.  C is the cumulative residual at x = -X
    .. X; `residual` has it as rows (high word, low word).

    In most cases one row of `index` determines x: the row r = `u >> (64 + shift)`.  Its first two numbers are the least
    position p in `residual` with C >= r << (64 + shift).  The other numbers belong to the positions from p on.  Each is
    the 16 bits of C that follow the bits equal to r; for positions whose C begins with other bits it is 2^16 - 1.
    """
    largest = len(residual) // 2
    for e in range(places.size):
        low = blocks[e, 0]
        high = (np.uint64(tops[e]) << np.uint64(48)) | (blocks[e, 1] & np.uint64(0xFFFFFFFFFFFF))
        row = np.int64(high >> np.uint64(shift))
        below = count_below(index, row, np.uint16(high >> np.uint64(shift - 16)))
        x = np.int64(index[row, 0]) + (np.int64(index[row, 1]) << 16)
        if below < INDEXED:
            x += below
        else:  # 16 bits do not decide, or the row has too few places: search the residual
            while residual[x, 0] < high or (residual[x, 0] == high and residual[x, 1] <= low):
                x += 1
        acc[places[e]] += _apply_sign(np.uint32(x - largest), flip)


Wide = tuple[Any, Any]

_HALF = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@inline_kernel
def _times(a: Wide, factor: Any) -> Wide:
    """Return `a` times `factor` modulo 2^128; `factor` is below 2^32."""
    low = (a[1] & _HALF) * factor
    middle = (a[1] >> _32) * factor + (low >> _32)
    return a[0] * factor + (middle >> _32), (middle << _32) | (low & _HALF)


@inline_kernel
def _plus(a: Wide, b: Wide) -> Wide:
    low = a[1] + b[1]
    return a[0] + b[0] + np.uint64(low < a[1]), low


@inline_kernel
def _minus(a: Wide, b: Wide) -> Wide:
    return a[0] - b[0] - np.uint64(a[1] < b[1]), a[1] - b[1]


@inline_kernel
def _is_above(a: Wide, b: Wide) -> Any:
    return a[0] > b[0] or (a[0] == b[0] and a[1] > b[1])


@inline_kernel
def _mass_at(pmf: Words, x: Any) -> Wide:
    """Return the mass of x, or zero for x beyond the pmf."""
    if x < len(pmf):
        return pmf[x, 0], pmf[x, 1]
    return np.uint64(0), np.uint64(0)


@inline_kernel
def _overshoot(pmf: Words, node: Any, width: Any) -> Wide:
    """Return `width` times the largest excess over the pmf of the chord between two neighbouring nodes.

    The chord is the straight line from the pmf at node * width to the pmf at (node + 1) * width; the result is 0 if the
    chord is nowhere above the pmf.
    """
    left, right = _mass_at(pmf, node * width), _mass_at(pmf, (node + 1) * width)
    worst = (np.uint64(0), np.uint64(0))
    for j in range(width + 1):
        chord = _plus(_times(left, np.uint64(width - j)), _times(right, np.uint64(j)))
        curve = _times(_mass_at(pmf, node * width + j), np.uint64(width))
        if _is_above(chord, curve):
            gap = _minus(chord, curve)
            if _is_above(gap, worst):
                worst = gap
    return worst


@kernel
def count_node_cells(pmf: Words, width: int) -> npt.NDArray[np.uint32]:
    """Return the number of cells of each node from 0 on; with them the sum of all hats nowhere exceeds the pmf."""
    counts = np.zeros((len(pmf) - 1) // width + 1, np.uint32)
    before = _overshoot(pmf, 0, width)  # nodes -1 and 0 have the same overshoot as 0 and 1, by symmetry
    for node in range(counts.size):
        here = _overshoot(pmf, node, width)
        spare = before if _is_above(before, here) else here
        height = _times(_mass_at(pmf, node * width), np.uint64(width))
        if _is_above(height, spare):
            counts[node] = _minus(height, spare)[0] >> np.uint64(48)
        before = here
    return counts


@inline_kernel
def _count(counts: npt.NDArray[np.uint32], node: Any) -> Any:
    """Return the number of cells of a node, or zero for a node beyond the last."""
    return np.uint64(counts[node]) if node < counts.size else np.uint64(0)


@kernel
def subtract_cells(pmf: Words, counts: npt.NDArray[np.uint32], log_width: int) -> Words:
    """Return the residual at x = 0 .. X: the pmf minus all hats; an empty array if it would be negative anywhere.

    `counts` has the number of cells of each node from 0 on; the nodes are 2^`log_width` apart.
    """
    width = 1 << log_width
    masses = np.empty_like(pmf)
    for x in range(len(pmf)):
        node, j = x >> log_width, x & (width - 1)
        hats = _count(counts, node) * np.uint64(width - j) + _count(counts, node + 1) * np.uint64(j)
        # hats < 2^(17 + k), so D = hats * 2^(112 - 2k) has no bits below bit 96, and its low word is zero
        covered = (hats << np.uint64(48 - 2 * log_width), np.uint64(0))
        if _is_above(covered, (pmf[x, 0], pmf[x, 1])):
            return masses[:0]
        masses[x, 0], masses[x, 1] = _minus((pmf[x, 0], pmf[x, 1]), covered)
    return masses


@kernel
def accumulate_masses(masses: Words) -> Words:
    """Return the cumulative sums of a symmetric residual at x = -X .. X, from its masses at 0 .. X."""
    largest = len(masses) - 1
    total = (np.uint64(0), np.uint64(0))
    sums = np.empty((2 * largest + 1, 2), np.uint64)
    for x in range(-largest, largest + 1):
        total = _plus(total, (masses[abs(x), 0], masses[abs(x), 1]))
        sums[x + largest, 0], sums[x + largest, 1] = total
    return sums


@kernel
def build_search_index(sums: Words, rows: int, shift: int) -> npt.NDArray[np.uint16]:
    """Return the search index of `sums`, the cumulative residual, for `resolve_escapes`, which explains a row."""
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
