"""Deal a vector to blocks, and rotate the blocks: random signs, then the orthonormal Walsh-Hadamard transform of each.

Transforms are in Sylvester order.  A transform of length r * c consists of transforms of length r along the columns and
of length c along the rows of an r by c matrix.  A *leaf* is a piece that fits the first-level cache.  Vector
instructions transform neighbouring columns together; so inside a leaf the matrix is transposed, and its rows are
transformed as columns too.  A block larger than a leaf is transformed in *panels*: some columns are copied to the
cache, transformed over all rows and copied back.  One such pass over memory multiplies the length of the transforms by
up to 256.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.compiler import check_array, kernel

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_LEAF = 4096
_PANEL = 64  # columns in a panel: four cache lines of float32, so that copying is limited by memory alone
_TILE = 64  # coordinates of each block that are dealt at a time
_MOST_LEVELS = 8  # doublings of length in one pass over panels: with more, a panel would not fit the cache


def rotate(x: Reals, block: int, signs: npt.NDArray[np.uint8]) -> None:
    """Rotate x in place: negate x[i] where bit i of `signs` is set, then Walsh-Hadamard transform each block.

    Bit i is bit i % 8 of byte i // 8.  `block`, the length of a block, is a power of two that divides the length of x.
    NaN and infinity are not detected here: they spread over their block, and the functions that round x refuse them.
    """
    x, signs = _check(x, block, signs)
    leaf = min(block, _LEAF)
    _rotate_leaves(x, leaf, signs, _scale(x, block))
    if block > leaf:  # a separate kernel, so that runs with short vectors need not wait for its compilation
        _transform_above(x, leaf, block)


def unrotate(x: Reals, block: int, signs: npt.NDArray[np.uint8]) -> None:
    """Undo `rotate` in place, up to floating-point error."""
    x, signs = _check(x, block, signs)
    leaf = min(block, _LEAF)
    if block > leaf:
        _transform_above(x, leaf, block)
    _unrotate_leaves(x, leaf, signs, _scale(x, block))


def rotate_integers(x: npt.NDArray[np.int64], block: int, signs: npt.NDArray[np.uint8]) -> None:
    """Rotate integers exactly and in place: as `rotate`, but without the factor 1 / sqrt(block).

    The caller ensures that the magnitudes of the coordinates of any block add up to less than 2^63.
    """
    exact, signs = _check(x, block, signs, np.int64)
    leaf, unscaled = min(block, _LEAF), exact.dtype.type(1)
    _rotate_leaves(exact, leaf, signs, unscaled)
    if block > leaf:
        _transform_above(exact, leaf, block)


def deal_to_blocks(x: npt.NDArray[Any], block: int, factor: float = 1.0) -> npt.NDArray[Any]:
    """Return factor * x, dealt to B blocks of length `block`: x[i] becomes element i // B of block i mod B.

    B is the least number of blocks that hold x; blocks are padded with zeros.  Integer vectors need an integer factor.
    """
    x = check_array("x", x, np.float32, np.float64, np.int64)
    blocks = -(-x.size // block)
    dealt = np.empty(blocks * block, x.dtype)
    _deal_to_blocks(x, block, blocks, x.dtype.type(factor), dealt)
    return dealt


def _check(x: Any, block: int, signs: npt.NDArray[np.uint8], *types: type[np.generic]) -> tuple[Any, Any]:
    x = check_array("x", x, *(types or (np.float32, np.float64)), written=True)
    if type(block) is not int or block < 1 or block & (block - 1):
        raise InputError(f"block must be a power of two: got {block!r}")
    if x.size % block:
        raise InputError(f"block must divide the length: got {block} and {x.size}")
    signs = check_array("signs", signs, np.uint8)
    if signs.size != (x.size + 7) // 8:
        raise InputError(f"{x.size} coordinates take {(x.size + 7) // 8} bytes of signs: got {signs.size}")
    return x, signs


def _scale(x: Reals, block: int) -> np.floating[Any]:
    return x.dtype.type(1.0 / math.sqrt(block))


@kernel
def _deal_to_blocks(x: Reals, block: int, blocks: int, factor: np.floating[Any], dealt: Reals) -> None:
    """Deal factor * x to `dealt`, _TILE elements of every block at a time.

    These elements are neighbours in `x`, and fill whole cache lines in `dealt`.
    """
    whole = x.size // blocks
    for start in range(0, whole, _TILE):
        stop = min(start + _TILE, whole)
        read = x[start * blocks : stop * blocks]
        for row in range(blocks):
            line = dealt[row * block + start : row * block + stop]
            for place in range(line.size):
                line[place] = read[place * blocks + row] * factor
    for row in range(blocks):
        tail = dealt[row * block + whole : (row + 1) * block]
        tail[:] = 0
        if whole * blocks + row < x.size:
            tail[0] = x[whole * blocks + row] * factor


@kernel
def _rotate_leaves(x: Reals, leaf: int, signs: npt.NDArray[np.uint8], scale: np.floating[Any]) -> None:
    scratch = np.empty(_LEAF, x.dtype)
    for start in range(0, x.size, _LEAF):
        piece = x[start : start + _LEAF]
        _flip(piece, signs[start >> 3 :], scale)
        _transform_leaves(piece, leaf, scratch)


@kernel
def _unrotate_leaves(x: Reals, leaf: int, signs: npt.NDArray[np.uint8], scale: np.floating[Any]) -> None:
    scratch = np.empty(_LEAF, x.dtype)
    for start in range(0, x.size, _LEAF):
        piece = x[start : start + _LEAF]
        _transform_leaves(piece, leaf, scratch)
        _flip(piece, signs[start >> 3 :], scale)


@kernel
def _flip(x: Reals, signs: npt.NDArray[np.uint8], scale: np.floating[Any]) -> None:
    """Multiply x by `scale`, and by -1 where the sign bit is set; the inner loop over 32 coordinates is vectorised."""
    words = x.size >> 5
    for word in range(words):
        part = x[32 * word : 32 * word + 32]
        octets = signs[4 * word : 4 * word + 4]
        bits = np.uint32(0)
        for place in range(4):
            bits |= np.uint32(octets[place]) << np.uint32(8 * place)
        for place in range(32):
            scaled = part[place] * scale
            part[place] = -scaled if (bits >> np.uint32(place)) & np.uint32(1) else scaled
    for i in range(32 * words, x.size):
        scaled = x[i] * scale
        x[i] = -scaled if (signs[i >> 3] >> (i & 7)) & 1 else scaled


@kernel
def _transform_leaves(x: Reals, leaf: int, scratch: Reals) -> None:
    """Transform each leaf of length `leaf` in place, as a nearly square matrix: first its rows, then its columns."""
    columns = 1
    while columns * columns < leaf:
        columns *= 2
    rows = leaf // columns
    for start in range(0, x.size, leaf):
        part = x[start : start + leaf]
        turned = scratch[:leaf]
        _transpose(part, rows, columns, turned)
        _transform_columns(turned, rows)
        _transpose(turned, columns, rows, part)
        _transform_columns(part, columns)


@kernel
def _transform_above(x: Reals, leaf: int, block: int) -> None:
    """Complete the transform of each block from those of its leaves, of length `leaf`, in as few passes as possible."""
    levels = 0
    while leaf << levels < block:
        levels += 1
    crossings = (levels + _MOST_LEVELS - 1) // _MOST_LEVELS
    stride = leaf
    for crossing in range(crossings, 0, -1):
        taken = (levels + crossing - 1) // crossing
        _transform_panels(x, 1 << taken, stride)
        stride <<= taken
        levels -= taken


@kernel
def _transform_panels(x: Reals, rows: int, stride: int) -> None:
    """Transform along the columns of each matrix of shape (rows, stride) in x, a panel of columns at a time."""
    panel = np.empty(rows * _PANEL, x.dtype)
    for matrix in range(0, x.size, rows * stride):
        for column in range(matrix, matrix + stride, _PANEL):
            for row in range(rows):
                at = column + row * stride
                _copy(x[at : at + _PANEL], panel[row * _PANEL : (row + 1) * _PANEL])
            _transform_columns(panel, _PANEL)
            for row in range(rows):
                at = column + row * stride
                _copy(panel[row * _PANEL : (row + 1) * _PANEL], x[at : at + _PANEL])


@kernel
def _transform_columns(x: Reals, columns: int) -> None:
    """Transform along the columns of a matrix with rows of length `columns`: four rows at a time, then two."""
    stride = columns
    while 4 * stride <= x.size:
        for start in range(0, x.size, 4 * stride):
            _combine_four(x[start : start + 4 * stride], stride)
        stride *= 4
    if stride < x.size:
        _combine_two(x, stride)


@kernel
def _combine_four(x: Reals, stride: int) -> None:
    """Transform the columns of x, four rows of `stride` numbers; slices show the compiler that rows do not overlap."""
    p, q, r, s = x[:stride], x[stride : 2 * stride], x[2 * stride : 3 * stride], x[3 * stride :]
    for j in range(stride):
        a, b, c, d = p[j] + q[j], p[j] - q[j], r[j] + s[j], r[j] - s[j]
        p[j], q[j], r[j], s[j] = a + c, b + d, a - c, b - d


@kernel
def _combine_two(x: Reals, stride: int) -> None:
    p, q = x[:stride], x[stride:]
    for j in range(stride):
        p[j], q[j] = p[j] + q[j], p[j] - q[j]


@kernel
def _copy(source: Reals, target: Reals) -> None:
    for j in range(target.size):
        target[j] = source[j]


@kernel
def _transpose(source: Reals, rows: int, columns: int, target: Reals) -> None:
    for column in range(columns):
        line = target[column * rows : (column + 1) * rows]
        for row in range(rows):
            line[row] = source[row * columns + column]
