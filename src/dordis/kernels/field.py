"""Arithmetic modulo the prime p = 2^31 - 1: matrix products and interpolation.

Elements are uint32 below p; no kernel checks that.  A product of two elements is below 2^62, so the sum of four
products fits a uint64 and is reduced only once, by 2^31 = 1 mod p.
"""

import numpy as np
from numpy.typing import NDArray

from dordis.kernels.compiler import inline_kernel, kernel

PRIME = 2**31 - 1

Elements = NDArray[np.uint32]

_P = np.uint64(PRIME)
_BITS = np.uint64(31)
_ONE = np.uint64(1)

# Columns of the right factor handled at a time: a tile of 500 rows then stays in the second-level cache.
_TILE = 256


@inline_kernel
def _fold(value: np.uint64) -> np.uint64:
    """Return a number below 2^34 that is congruent to `value` mod p."""
    return (value & _P) + (value >> _BITS)


@kernel
def _reduce(value: np.uint64) -> np.uint64:
    """Return `value` mod p, for any uint64."""
    folded = _fold(_fold(value))
    return folded - _P if folded >= _P else folded


@kernel
def _times(left: np.uint64, right: np.uint64) -> np.uint64:
    """Return left * right mod p."""
    folded = _fold(left * right)
    return folded - _P if folded >= _P else folded


@kernel
def _minus(left: np.uint64, right: np.uint64) -> np.uint64:
    """Return left - right mod p."""
    return left - right if left >= right else left + _P - right


@kernel
def _inverse(value: np.uint64) -> np.uint64:
    """Return 1 / value mod p, computed as value^(p - 2); for 0 return 0."""
    result = _ONE
    square = value
    exponent = PRIME - 2
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result


@kernel
def _accumulate(sums: NDArray[np.uint64], row: Elements, right: Elements, start: int) -> None:
    """Add to `sums` the products of `row` and the columns of `right` from `start` on, not yet reduced to below p."""
    depth = right.shape[0]
    stop = start + sums.size
    for k in range(0, depth - 3, 4):
        a, b, c, d = np.uint64(row[k]), np.uint64(row[k + 1]), np.uint64(row[k + 2]), np.uint64(row[k + 3])
        w, x, y, z = right[k, start:stop], right[k + 1, start:stop], right[k + 2, start:stop], right[k + 3, start:stop]
        for j in range(sums.size):
            total = a * np.uint64(w[j]) + b * np.uint64(x[j]) + c * np.uint64(y[j]) + d * np.uint64(z[j])
            sums[j] += _fold(total)
    for k in range(depth - depth % 4, depth):
        a = np.uint64(row[k])
        w = right[k, start:stop]
        for j in range(sums.size):
            sums[j] += _fold(a * np.uint64(w[j]))


@kernel
def multiply(left: Elements, right: Elements) -> Elements:
    """Return the matrix product left @ right mod p; both matrices are C-contiguous."""
    rows = left.shape[0]
    width = right.shape[1]
    product = np.empty((rows, width), np.uint32)
    tile = np.empty(_TILE, np.uint64)
    for start in range(0, width, _TILE):
        sums = tile[: min(_TILE, width - start)]
        for i in range(rows):
            sums[:] = 0
            _accumulate(sums, left[i], right, start)
            for j in range(sums.size):
                product[i, start + j] = np.uint32(_reduce(sums[j]))
    return product


@kernel
def vandermonde(points: Elements, width: int) -> Elements:
    """Return the powers 0 to width - 1 of every point mod p, shape (points, width)."""
    powers = np.empty((points.size, width), np.uint32)
    for i in range(points.size):
        power = _ONE
        for k in range(width):
            powers[i, k] = np.uint32(power)
            power = _times(power, np.uint64(points[i]))
    return powers


@kernel
def barycentric(points: Elements) -> Elements:
    """Return the barycentric weight of each point x_i mod p, 1 / prod_{j != i} (x_i - x_j); points are distinct."""
    count = points.size
    weights = np.empty(count, np.uint32)
    products = np.empty(count, np.uint64)
    before = np.empty(count, np.uint64)
    running = _ONE
    for i in range(count):
        product = _ONE
        for j in range(count):
            if j != i:
                product = _times(product, _minus(np.uint64(points[i]), np.uint64(points[j])))
        products[i] = product
        before[i] = running
        running = _times(running, product)
    inverse = _inverse(running)
    for i in range(count - 1, -1, -1):
        weights[i] = np.uint32(_times(inverse, before[i]))
        inverse = _times(inverse, products[i])
    return weights


@kernel
def lagrange(nodes: Elements, targets: Elements) -> Elements:
    """Return the matrix, shape (targets, nodes), that maps a polynomial's values at the nodes to those at the targets.

    The degree of the polynomial is below the number of nodes, and the nodes are distinct.
    """
    weights = barycentric(nodes)
    matrix = np.empty((targets.size, nodes.size), np.uint32)
    for i in range(targets.size):
        target = np.uint64(targets[i])
        running = _ONE
        for j in range(nodes.size):
            matrix[i, j] = np.uint32(_times(running, np.uint64(weights[j])))
            running = _times(running, _minus(target, np.uint64(nodes[j])))
        running = _ONE
        for j in range(nodes.size - 1, -1, -1):
            matrix[i, j] = np.uint32(_times(running, np.uint64(matrix[i, j])))
            running = _times(running, _minus(target, np.uint64(nodes[j])))
    return matrix
