"""From model updates to vectors over Z_{2^b} and back: clip, fold, deal to blocks, rotate, scale, round, wrap.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning", 2021, algorithms 1 and
2, with three changes: an update may be folded into fewer coordinates first (`dordis.privacy.projection`), the rotation
goes block by block, which saves the padding to a power of two, and coordinates are dealt to the blocks in turn, so that
every block has about the same squared norm.  A number in *real* units has the units of the update; in *integer* units
it is multiplied by the scale s.

A noisy sum of folded updates is quantised before delivery: four bits for each coordinate, and one scale for each block.
This is post-processing and costs no privacy.  The coordinates of the blocks are still rotated and therefore nearly
Gaussian, so the levels are those of the Lloyd-Max quantiser (J. Max, "Quantizing for minimum distortion", 1960;
S. Lloyd, "Least squares quantization in PCM", 1982).  This quantiser replaces a coordinate by the mean of its cell,
which shrinks coordinates.  The scale of the block undoes the shrinking, so that a coordinate is right on average.  The
variance of the error is 1 % of the variance of the noisy sum.  Server and clients use the quantised sum, bit for bit,
and never the sum itself.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dordis.crypto import prg
from dordis.crypto.prg import SEED_BYTES as SEED_BYTES
from dordis.errors import InputError
from dordis.kernels import hadamard
from dordis.kernels.compiler import check_array, check_bits
from dordis.kernels.reals import fold, round_stochastically, round_to_nearest, sum_integer_squares, sum_squares, unfold
from dordis.kernels.ring import Packed, Vector, pack, packed_size, unpack
from dordis.privacy import scaling
from dordis.privacy.scaling import Floats, check_buckets, padded_length

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Entropy = Callable[[int], bytes]

MOST_DRAWS = 200
"""Number of random roundings to try.  Each exceeds the norm bound with a probability of at most exp(-1/2), and all of
them with a probability of at most 10^-43."""
ROTATION, PROJECTION = b"dordis/v1/rotation", b"dordis/v1/projection"
"""Labels under which keystreams are derived from the public seed of a round, one for each use."""
STOCHASTIC, NEAREST = "stochastic", "nearest"
_SHRINKING = 1 - 1e-4
_WORD = 4
_STEP = prg.CALL // _WORD
_SHORT = 8192  # up to this length BLAS sums the squares: for longer vectors it would start threads

DELIVERED_BITS = 4
"""Bits of a coordinate of a quantised sum."""
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
"""The 16 values of a quantised coordinate, in units of its standard deviation: the means of the quantiser's cells."""
EDGES = (LEVELS[1:] + LEVELS[:-1]) / 2
DISTORTION = 0.009501008
"""The mean squared error of the quantiser for a standard Gaussian."""
_BLOCK_SCALE = np.dtype("<f4")

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Grid:
    """The integer grid of a round: how `dim` coordinates are dealt to blocks, the scale, and the ring of `bits` bits.

    Coordinate i goes to place i // B of block i mod B, with B blocks in all; the remaining places are padding.  If
    `buckets` is not 0 the update is folded into that many buckets first, and the buckets are dealt to the blocks.

    >>> Grid(dim=10, block=4, scale=1.0, bits=8).deal(np.arange(10.0)).astype(int).tolist()
    [0, 3, 6, 9, 1, 4, 7, 0, 2, 5, 8, 0]
    """

    dim: int
    block: int
    scale: float
    bits: int
    buckets: int = 0

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if not self.dim >= 1:
            raise InputError(f"a vector has at least one coordinate, not {self.dim}")
        if not self.block >= 1 or self.block & (self.block - 1):
            raise InputError(f"a block has a power of two of coordinates, not {self.block}")
        if not 0 < self.scale < math.inf:
            raise InputError(f"the scale is a number above 0, not {self.scale}")
        check_buckets(self.dim, self.buckets)

    @property
    def summed_dim(self) -> int:
        """Return how many coordinates are summed: the buckets if updates are folded, else `dim`."""
        return self.buckets or self.dim

    @property
    def padded(self) -> int:
        """Return the length of an encoded vector: `summed_dim` padded to whole blocks."""
        return padded_length(self.summed_dim, self.block)

    @property
    def blocks(self) -> int:
        """Return B, the number of blocks."""
        return self.padded // self.block

    def deal(self, x: npt.NDArray[Any], factor: float = 1.0) -> npt.NDArray[Any]:
        """Return a copy of `x`, dealt to blocks: block after block, padded with zeros and multiplied by `factor`."""
        return hadamard.deal_to_blocks(x, self.block, factor)

    def collect(self, dealt: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Undo `deal`: return a copy in the original order of coordinates, without padding."""
        x = np.empty(self.summed_dim, dealt.dtype)
        self.place(x, dealt, 0)
        return x

    def place(self, x: npt.NDArray[Number], dealt: npt.NDArray[Number], start: int) -> None:
        """Write `dealt`, the blocks of a dealt vector from its position `start` on, to their original places in `x`."""
        rows, first = dealt.reshape(-1, self.block), start // self.block
        whole, rest = divmod(self.summed_dim, self.blocks)
        last = first + len(rows)
        x[: whole * self.blocks].reshape(whole, self.blocks)[:, first:last] = rows[:, :whole].T
        if first < rest:
            x[whole * self.blocks :][first:last] = rows[: rest - first, whole]


def chunk_ends(dim: int, block: int, chunks: int) -> list[int]:
    """Return the end position of each chunk of a vector: chunks are whole blocks, some one block longer than others.

    >>> chunk_ends(10, 4, 2)
    [8, 12]
    """
    blocks = padded_length(dim, block) // block
    if not 1 <= chunks <= blocks:
        raise InputError(f"a vector of {blocks} blocks has 1 to {blocks} chunks, not {chunks}")
    return [-(-blocks * k // chunks) * block for k in range(1, chunks + 1)]


def encode(
    update: Reals,
    grid: Grid,
    public_seed: bytes,
    entropy: Entropy = secrets.token_bytes,
    clip: float = math.inf,
    bound: int | None = None,
) -> Vector:
    """Return an update, clipped to norm `clip` in real units, as a vector over the ring, without noise.

    The rotation is drawn from the public seed of the round, the rounding from the client's own `entropy`.  The squared
    norm of the integer vector never exceeds `bound`, if given.  A vector that is rounded at random is rounded again as
    a whole until it keeps to `bound`.  A vector that is rounded to the nearest integers is shrunk until it does.
    """
    turned = rotate_update(update, grid, public_seed, clip)
    # Folding and floating point may have made the vector longer than the clip bound: clip it again.
    scale = grid.scale * clip_factor(turned, clip)
    if bound is not None and is_rounded_to_nearest(turned, scale, grid, clip):
        vector = _round_shrinking(turned, scale, bound).view(np.uint32)
        vector &= np.uint32(2**grid.bits - 1)
        return vector
    secret = entropy(SEED_BYTES)
    for draw in range(MOST_DRAWS):
        stream = prg.from_seed(secret, b"dordis/v1/rounding/%d" % draw)
        if draw:
            turned = rotate_update(update, grid, public_seed, clip)  # the previous draw has overwritten it
        vector, squared = _round_to_ring(turned, scale, stream, grid.bits)
        if bound is None or is_bounded(squared, bound):
            return vector
    raise InputError(f"no rounding keeps to a squared norm of {bound}: the bound does not suit the scale and the clip")


def choose_rounding(grid: Grid, clip: float) -> str:
    """Return `NEAREST` if updates are folded and the grid is fine enough at this clip bound, else `STOCHASTIC`."""
    fine = scaling.is_fine_enough(grid.scale * clip, grid.padded)
    return NEAREST if grid.buckets and fine and clip < math.inf else STOCHASTIC


def is_rounded_to_nearest(turned: Reals, scale: float, grid: Grid, clip: float) -> bool:
    """Tell whether the rotated update `turned` is rounded to the nearest integers, and not at random.

    An update of a very small norm is always rounded at random, because most of its nearest integers would be 0.
    """
    large = scale * norm(turned) >= scaling.SMALL * math.sqrt(grid.padded)
    return large and choose_rounding(grid, clip) == NEAREST


def rotate_update(update: Reals, grid: Grid, public_seed: bytes, clip: float = math.inf) -> Reals:
    """Return the update clipped, then folded, dealt to blocks and rotated; folding may take the norm beyond `clip`."""
    x = check_update(update, grid)
    factor = clip_factor(x, clip)
    if grid.buckets:
        x, factor = fold(x, grid.buckets, draw_signs(public_seed, 0, grid.dim, PROJECTION), factor), 1.0
    dealt = grid.deal(x, factor)
    hadamard.rotate(dealt, grid.block, draw_signs(public_seed, 0, grid.padded))
    return dealt


def unfold_sum(sums: Floats, grid: Grid, public_seed: bytes) -> Floats:
    """Return a sum of folded updates at full length: every bucket is copied to the coordinates folded into it.

    The errors that folding added stay (see `dordis.privacy.projection`).  A sum of unfolded updates is returned as is.
    """
    if not grid.buckets:
        return sums
    return unfold(sums, grid.dim, draw_signs(public_seed, 0, grid.dim, PROJECTION))


def check_update(update: Reals, grid: Grid) -> Reals:
    """Return a read-only view of an update; raise InputError if its type or length is wrong."""
    x: Reals = check_array("an update", update, np.float32, np.float64)
    if x.size != grid.dim:
        raise InputError(f"the round takes updates of {grid.dim} coordinates, not {x.size}")
    return x


def decode(total: Vector, grid: Grid, public_seed: bytes) -> Floats:
    """Return a sum over the ring as `dim` coordinates in real units: unrotated, collected and unfolded."""
    if total.size != grid.padded:
        raise InputError(f"a sum of this round has {grid.padded} coordinates, not {total.size}")
    return unfold_sum(grid.collect(unrotate_sum(total, grid, public_seed)), grid, public_seed)


def unrotate_sum(total: Vector, grid: Grid, public_seed: bytes, first: int = 0) -> Floats:
    """Return whole blocks of a sum, unrotated and in real units; `total` is the sum from position `first` on.

    The coordinates stay dealt to blocks: `Grid.collect` or `Grid.place` restores the original order.
    """
    total = check_array("a sum", total, np.uint32)
    if first % grid.block or total.size % grid.block or not 0 <= first <= first + total.size <= grid.padded:
        raise InputError(f"a chunk is a run of whole blocks of {grid.block} coordinates")
    return unrotate_integers(centre(total, grid.bits), grid, public_seed, first)


def unrotate_integers(total: npt.NDArray[np.int32] | Floats, grid: Grid, public_seed: bytes, first: int = 0) -> Floats:
    """Return whole blocks of a sum of signed integers, unrotated and in real units (see `unrotate_sum`).

    `total` is the sum from position `first` on.  This function does not check that blocks are whole.
    """
    x: Floats = np.divide(total, grid.scale)
    hadamard.unrotate(x, grid.block, draw_signs(public_seed, first, total.size))
    return x


def centre(total: Vector, bits: int) -> npt.NDArray[np.int32]:
    """Return a sum over the ring as signed integers in -2^(b-1) .. 2^(b-1) - 1, with b = `bits`."""
    unused = 32 - bits
    signed: npt.NDArray[np.int32] = (total << np.uint32(unused)).view(np.int32)
    signed >>= np.int32(unused)
    return signed


def delivered_size(count: int, block: int) -> int:
    """Return the number of bytes of `count` quantised coordinates and of the scales of their blocks."""
    return count // block * _BLOCK_SCALE.itemsize + packed_size(count, DELIVERED_BITS)


def quantise(total: Vector, grid: Grid) -> bytes:
    """Return whole blocks of a sum as bytes: the scales of the blocks, then four bits for each coordinate."""
    blocks = centre(total, grid.bits).astype(np.float64).reshape(-1, grid.block)
    deviations = np.sqrt(np.mean(blocks**2, axis=1))
    relative = blocks / np.where(deviations > 0, deviations, 1.0)[:, None]
    cells = np.searchsorted(EDGES, relative.ravel()).astype(np.uint32)
    scales = (deviations / (1 - DISTORTION)).astype(_BLOCK_SCALE)
    return bytes(scales.tobytes() + pack(cells, DELIVERED_BITS).tobytes())


def dequantise(data: Packed, count: int, grid: Grid) -> Floats:
    """Return the `count` coordinates of a quantised sum in integer units, still rotated and dealt to blocks.

    Raise InputError if the data have the wrong length, or if the scale of a block is no number or out of range.
    """
    if len(data) != delivered_size(count, grid.block):
        raise InputError(
            f"{count} delivered coordinates take {delivered_size(count, grid.block)} bytes, not {len(data)}"
        )
    blocks = count // grid.block
    with np.errstate(invalid="ignore"):  # signalling NaNs are refused below
        scales = np.frombuffer(data, _BLOCK_SCALE, blocks).astype(np.float64)
    if not (scales <= math.sqrt(2) * 2**grid.bits).all() or not (scales >= 0).all():
        raise InputError("the scale of a delivered block is negative, too large for the round's ring, or no number")
    cells = unpack(data[blocks * _BLOCK_SCALE.itemsize :], DELIVERED_BITS, count)
    values: Floats = (LEVELS[cells].reshape(blocks, grid.block) * scales[:, None]).ravel()
    return values


def norm(x: Reals) -> float:
    """Return the Euclidean norm, computed in float64 also for float32 numbers; it may be infinite."""
    return math.sqrt(_squared_norm(x))


def clip_factor(x: Reals, clip: float) -> float:
    """Return min{1, c / ||x||}, with c = `clip`; raise InputError if a coordinate is not finite."""
    squared = _squared_norm(x)
    if math.isfinite(squared):
        norm = math.sqrt(squared)
        return min(1.0, clip / norm) if norm else 1.0
    if not np.isfinite(x).all():
        raise InputError("an update must be finite: it has a coordinate that is NaN or infinite")
    peak = float(np.abs(x).max())  # finite, but its square would overflow
    return min(1.0, clip / peak / math.sqrt(_squared_norm(x / x.dtype.type(peak))))


@lru_cache(maxsize=4)
def draw_signs(public_seed: bytes, first: int, count: int, label: bytes = ROTATION) -> npt.NDArray[np.uint8]:
    """Return `count` random signs of a round, from coordinate `first` on, as bits: 1 stands for the sign -1.

    The lowest bit of a byte comes first.  `label` names the use of the signs.  The array is read-only.
    Recent results are cached, because all simulated clients of a round need the same signs.
    """
    stream = prg.from_seed(public_seed, label)
    skip = first % 8
    octets = prg.read_keystream(stream, first // 8, (skip + count + 7) // 8)
    if skip:  # only blocks of less than eight coordinates start inside a byte
        octets = np.packbits(np.unpackbits(octets, bitorder="little")[skip : skip + count], bitorder="little")
    octets.flags.writeable = False
    return octets


def _round_shrinking(x: Reals, scale: float, bound: int) -> npt.NDArray[np.int32]:
    """Return `scale` x rounded to the nearest integers; x is shrunk first if the squared norm would exceed `bound`."""
    rounded = np.empty(x.size, np.int32)
    for _ in range(MOST_DRAWS):
        round_to_nearest(x, scale, rounded)
        squared = sum_integer_squares(rounded)
        if is_bounded(squared, bound):
            return rounded
        scale *= min(_SHRINKING, math.sqrt(bound / squared))
    raise InputError(f"no rounding keeps to a squared norm of {bound}: the bound does not suit the scale and the clip")


def is_bounded(squared: int, bound: int) -> bool:
    """Tell whether the squared norm of a rounded vector is at most `bound`, the squared sensitivity Delta2^2."""
    return squared <= bound


def _round_to_ring(x: Reals, scale: float, stream: prg.Stream, bits: int) -> tuple[Vector, int]:
    """Return `scale` x, rounded at random, as a vector over the ring, and its exact squared norm in the integers.

    Work in pieces that fit the cache, in one pass over memory.  If x is a float32 vector, it is overwritten.
    """
    vector: Vector = x.view(np.uint32) if x.dtype == np.float32 else np.empty(x.size, np.uint32)
    context, mask, squared = prg.open_stream(stream), np.uint32(2**bits - 1), 0
    step = min(_STEP, -(-x.size // _WORD) * _WORD)
    words, integers = np.empty(step, np.uint32), np.empty(step, np.int32)
    for at in range(0, x.size, _STEP):
        piece = x[at : at + _STEP]
        used, rounded = words[: -(-piece.size // _WORD) * _WORD], integers[: piece.size]
        prg.fill_keystream(context, used.view(np.uint8))  # in blocks of four words
        round_stochastically(piece, scale, used[: piece.size], rounded)
        squared += sum_integer_squares(rounded)
        np.bitwise_and(rounded.view(np.uint32), mask, out=vector[at : at + _STEP])
    return vector, squared


def _squared_norm(x: Reals) -> float:
    """Return the squared norm of x, which is summed in float64 even if x is float32; it may be infinite or NaN."""
    if x.size <= _SHORT:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
            wide = x.astype(np.float64, copy=False)
            return float(wide @ wide)
    return sum_squares(x)
