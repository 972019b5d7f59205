"""The encoding in which a noisy sum of folded updates is delivered: four bits a coordinate, and one scale a block.

Quantising a noisy sum is post-processing and costs no privacy.  Blocks are still rotated, so their coordinates are
nearly Gaussian, and the levels are those of the Lloyd-Max quantiser (J. Max, "Quantizing for minimum distortion", 1960;
S. Lloyd, "Least squares quantization in PCM", 1982).  Rounding to the means of cells shrinks coordinates; the scale of
a block undoes that, so that a coordinate is right on average, and the error is 1 % of the variance of the noisy sum.
Server and clients use the quantised sum, bit for bit, and never the sum itself.
"""

import math

import numpy as np

from dordis.errors import InputError
from dordis.kernels.packing import Packed, pack, packed_size, unpack
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Grid, centre
from dordis.privacy.scaling import Floats

BITS = 4
_POSITIVE = (
    0.1283950299,
    0.3880482995,
    0.6567591185,
    0.9423404565,
    1.2562311973,
    1.618046386,
    2.0690172265,
    2.732589571,
)
LEVELS = np.array([-level for level in reversed(_POSITIVE)] + list(_POSITIVE))
"""The 16 values that a coordinate can take, for a standard Gaussian: the means of the quantiser's cells."""
EDGES = (LEVELS[1:] + LEVELS[:-1]) / 2
DISTORTION = 0.009501008
"""The mean squared error of the quantiser for a standard Gaussian."""
_SCALE = np.dtype("<f4")


def delivered_size(count: int, block: int) -> int:
    """Return the size in bytes of `count` quantised coordinates, which are whole blocks of `block` coordinates."""
    return count // block * _SCALE.itemsize + packed_size(count, BITS)


def quantise(total: Vector, grid: Grid) -> bytes:
    """Return whole blocks of a sum as bytes: the scales of the blocks, then four bits for each coordinate."""
    blocks = centre(total, grid.bits).astype(np.float64).reshape(-1, grid.block)
    deviations = np.sqrt(np.mean(blocks**2, axis=1))
    relative = blocks / np.where(deviations > 0, deviations, 1.0)[:, None]
    cells = np.searchsorted(EDGES, relative.ravel()).astype(np.uint32)
    scales = (deviations / (1 - DISTORTION)).astype(_SCALE)
    return bytes(scales.tobytes() + pack(cells, BITS).tobytes())


def dequantise(data: Packed, count: int, grid: Grid) -> Floats:
    """Return the `count` coordinates of a quantised sum in integer units, still rotated and in the order of the blocks.

    Raise InputError if the data have the wrong length or a scale is impossible.
    """
    if len(data) != delivered_size(count, grid.block):
        raise InputError(
            f"{count} delivered coordinates take {delivered_size(count, grid.block)} bytes, not {len(data)}"
        )
    blocks = count // grid.block
    with np.errstate(invalid="ignore"):  # signalling NaNs are refused below
        scales = np.frombuffer(data, _SCALE, blocks).astype(np.float64)
    if not (scales <= math.sqrt(2) * 2**grid.bits).all() or not (scales >= 0).all():
        raise InputError("the scale of a delivered block is negative, too large for the round's ring, or no number")
    cells = unpack(data[blocks * _SCALE.itemsize :], BITS, count)
    values: Floats = (LEVELS[cells].reshape(blocks, grid.block) * scales[:, None]).ravel()
    return values
