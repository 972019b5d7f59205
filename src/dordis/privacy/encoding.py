"""From model updates to vectors over Z_{2^b} and back: clip, fold, deal to blocks, rotate, scale, round, wrap.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning", 2021, algorithms 1 and
2, with three changes: an update may be folded into fewer coordinates first (`dordis.privacy.projection`), the rotation
goes block by block, which saves the padding to a power of two, and coordinates are dealt to the blocks in turn, so that
every block carries about the same energy.  *Real* units are those of the update, *integer* units are real times the
scale s.
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
from dordis.kernels.arrays import check_array, check_bits
from dordis.kernels.folding import fold, unfold
from dordis.kernels.ring import Vector
from dordis.kernels.rounding import round_stochastically, round_to_nearest, squared_norm
from dordis.privacy import skellam
from dordis.privacy.skellam import Floats, check_buckets, padded_length

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Entropy = Callable[[int], bytes]

MOST_DRAWS = 200
"""Where the bound suits scale and clip, a draw passes it with a chance of at most exp(-1/2): 200 do not in 10^-43."""
ROTATION, PROJECTION = b"dordis/v1/rotation", b"dordis/v1/projection"
"""What the public seed of a round is expanded for; no two uses share a stream."""
STOCHASTIC, NEAREST = "stochastic", "nearest"
_SHRINKING = 1 - 1e-4
_WORD = 4
_STEP = prg.CALL // _WORD
_DOT = 8192  # coordinates: BLAS would put more threads on longer ones, and wait for them

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Grid:
    """The integer grid of a round: how `dim` coordinates are dealt to blocks, the scale, and the ring of `bits` bits.

    Coordinate i is place i // B of block i mod B, with B blocks in all; places that are left are padding.  With
    `buckets`, which are fewer, the update is folded before, and its buckets are what is dealt; with 0 it is not.

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
    def kept(self) -> int:
        """Return how many coordinates are summed: k, or all of them."""
        return self.buckets or self.dim

    @property
    def padded(self) -> int:
        """Return the length of the vector in the ring."""
        return padded_length(self.kept, self.block)

    @property
    def blocks(self) -> int:
        """Return B, the number of blocks."""
        return self.padded // self.block

    def deal(self, x: Reals, factor: float = 1.0) -> Reals:
        """Return a copy in the order of the blocks, padded with zeros and multiplied by a factor."""
        dealt = np.zeros(self.padded, x.dtype)
        rows, whole, rest = self._places(dealt)
        np.multiply(x[: whole * self.blocks].reshape(whole, self.blocks).T, factor, out=rows[:, :whole])
        if rest:
            np.multiply(x[whole * self.blocks :], factor, out=rows[:rest, whole])
        return dealt

    def collect(self, dealt: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Undo `deal`: return a copy in the order of the coordinates, without padding."""
        x = np.empty(self.kept, dealt.dtype)
        self.place(x, dealt, 0)
        return x

    def place(self, x: npt.NDArray[Number], dealt: npt.NDArray[Number], start: int) -> None:
        """Write some whole blocks, which begin at a place of the vector in the ring, to where their coordinates are."""
        rows, first = dealt.reshape(-1, self.block), start // self.block
        whole, rest = divmod(self.kept, self.blocks)
        last = first + len(rows)
        x[: whole * self.blocks].reshape(whole, self.blocks)[:, first:last] = rows[:, :whole].T
        if first < rest:
            x[whole * self.blocks :][first:last] = rows[: rest - first, whole]

    def _places(self, dealt: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int, int]:
        """Return the blocks as rows, the places that are taken in all of them, and in how many one more is."""
        return dealt.reshape(self.blocks, self.block), *divmod(self.kept, self.blocks)


def chunk_ends(dim: int, block: int, chunks: int) -> list[int]:
    """Return where the chunks of a vector end: each is a run of whole blocks, no two differ by more than one block.

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
    """Return the whole update, of norm `clip` at most in real units, as a vector over the ring, without noise.

    The rotation comes from the public seed of the round, the rounding from the client's own entropy.  The squared
    norm in the integers never exceeds `bound`: the rounding is drawn again, as a whole, until it does not.
    """
    turned = rotated(update, grid, public_seed, clip)
    # What folding and floating point added to the norm on the way is clipped too: it would exceed the bound.
    scale = grid.scale * clip_factor(turned, clip)
    if bound is not None and is_nearest(turned, scale, grid, clip):
        vector = _shrunk(turned, scale, bound).view(np.uint32)
    else:
        vector = _rounded(turned, scale, entropy(SEED_BYTES), bound).view(np.uint32)
    vector &= np.uint32(2**grid.bits - 1)
    return vector


def rounding(grid: Grid, clip: float) -> str:
    """Return how updates that are clipped to this norm are rounded: folded ones to the nearest, if that errs little."""
    fine = skellam.rounds_to_nearest(grid.scale * clip, grid.padded)
    return NEAREST if grid.buckets and fine and clip < math.inf else STOCHASTIC


def is_nearest(turned: Reals, scale: float, grid: Grid, clip: float) -> bool:
    """Tell whether this vector is rounded to the nearest: a small one would be swallowed, and is rounded at random."""
    large = scale * norm(turned) >= skellam.SMALL * math.sqrt(grid.padded)
    return large and rounding(grid, clip) == NEAREST


def rotated(update: Reals, grid: Grid, public_seed: bytes, clip: float = math.inf) -> Reals:
    """Return the clipped update, folded, dealt to blocks and rotated, in real units; folding may leave it longer."""
    x = check_update(update, grid)
    dealt = grid.deal(*folded(x, grid, public_seed, clip_factor(x, clip)))
    hadamard.rotate(dealt, grid.block, signs(public_seed, 0, grid.padded))
    return dealt


def folded(x: Reals, grid: Grid, public_seed: bytes, factor: float = 1.0) -> tuple[Reals, float]:
    """Return what is summed of an update, and the factor that is still to be applied."""
    if not grid.buckets:
        return x, factor
    return fold(x, grid.buckets, signs(public_seed, 0, grid.dim, PROJECTION), factor), 1.0


def unfolded(sums: Floats, grid: Grid, public_seed: bytes) -> Floats:
    """Undo `folded`, but for the error that `dordis.privacy.projection` describes."""
    if not grid.buckets:
        return sums
    return unfold(sums, grid.dim, signs(public_seed, 0, grid.dim, PROJECTION))


def check_update(update: Reals, grid: Grid) -> Reals:
    """Return a read-only view of an update, or refuse its type or length."""
    x: Reals = check_array("an update", update, np.float32, np.float64)
    if x.size != grid.dim:
        raise InputError(f"the round takes updates of {grid.dim} coordinates, not {x.size}")
    return x


def decode(total: Vector, grid: Grid, public_seed: bytes) -> Floats:
    """Return a sum over the ring in real units."""
    if total.size != grid.padded:
        raise InputError(f"a sum of this round has {grid.padded} coordinates, not {total.size}")
    return unfolded(grid.collect(unrotated(total, grid, public_seed)), grid, public_seed)


def unrotated(total: Vector, grid: Grid, public_seed: bytes, first: int = 0) -> Floats:
    """Return a run of whole blocks in real units, still in the order of the blocks; `first` is its first coordinate."""
    total = check_array("a sum", total, np.uint32)
    if first % grid.block or total.size % grid.block or not 0 <= first <= first + total.size <= grid.padded:
        raise InputError(f"a chunk is a run of whole blocks of {grid.block} coordinates")
    return unrotated_reals(centred(total, grid.bits), grid, public_seed, first)


def unrotated_reals(total: npt.NDArray[np.int32] | Floats, grid: Grid, public_seed: bytes, first: int = 0) -> Floats:
    """Do as `unrotated` with a sum that was read already, in integer units."""
    x: Floats = np.divide(total, grid.scale)
    hadamard.unrotate(x, grid.block, signs(public_seed, first, total.size))
    return x


def centred(total: Vector, bits: int) -> npt.NDArray[np.int32]:
    """Return the representatives in -2^(b-1) .. 2^(b-1) - 1."""
    unused = 32 - bits
    signed: npt.NDArray[np.int32] = (total << np.uint32(unused)).view(np.int32)
    signed >>= np.int32(unused)
    return signed


def norm(x: Reals) -> float:
    """Return the norm in float64, whatever the type of the numbers; it may be infinite."""
    return math.sqrt(_squared(x))


def clip_factor(x: Reals, clip: float) -> float:
    """Return min{1, c / ||x||}, or refuse a vector that is not finite."""
    squared = _squared(x)
    if math.isfinite(squared):
        norm = math.sqrt(squared)
        return min(1.0, clip / norm) if norm else 1.0
    if not np.isfinite(x).all():
        raise InputError("an update must be finite: it has a coordinate that is NaN or infinite")
    peak = float(np.abs(x).max())  # finite, but its square is not
    return min(1.0, clip / peak / math.sqrt(_squared(x / x.dtype.type(peak))))


@lru_cache(maxsize=4)
def signs(public_seed: bytes, first: int, count: int, label: bytes = ROTATION) -> npt.NDArray[np.uint8]:
    """Return the random signs of a round, one bit for each coordinate from `first` on, the lowest of a byte first.

    They are public and read-only; those of the last calls are kept, as a simulation has many clients with the same.
    """
    stream = prg.from_seed(public_seed, label)
    skip = first % 8
    octets = prg.keystream(stream, first // 8, (skip + count + 7) // 8)
    if skip:  # only blocks of less than eight coordinates start inside a byte
        octets = np.packbits(np.unpackbits(octets, bitorder="little")[skip : skip + count], bitorder="little")
    octets.flags.writeable = False
    return octets


def _rounded(x: Reals, scale: float, secret: bytes, bound: int | None) -> npt.NDArray[np.int32]:
    """Round at random until the squared norm keeps to the bound, which must suit the scaled norm of x."""
    rounded = np.empty(x.size, np.int32)
    for draw in range(MOST_DRAWS):
        _round(x, scale, prg.from_seed(secret, b"dordis/v1/rounding/%d" % draw), rounded)
        if bound is None or is_bounded(rounded, bound):
            return rounded
    raise InputError(f"no rounding keeps to a squared norm of {bound}: the bound does not suit the scale and the clip")


def _shrunk(x: Reals, scale: float, bound: int) -> npt.NDArray[np.int32]:
    """Round to the nearest, shrinking the vector until its squared norm keeps to the bound."""
    rounded = np.empty(x.size, np.int32)
    for _ in range(MOST_DRAWS):
        round_to_nearest(x, scale, rounded)
        if is_bounded(rounded, bound):
            return rounded
        scale *= min(_SHRINKING, math.sqrt(bound / squared_norm(rounded)))
    raise InputError(f"no rounding keeps to a squared norm of {bound}: the bound does not suit the scale and the clip")


def is_bounded(rounded: npt.NDArray[np.int32], bound: int) -> bool:
    """Tell whether a vector keeps to Delta2^2, exactly, whatever was done to it before: privacy rests on that."""
    return squared_norm(rounded) <= bound


def _round(x: Reals, scale: float, stream: prg.Stream, out: npt.NDArray[np.int32]) -> None:
    """Round the vector piece by piece, so that the randomness stays in the cache."""
    context = prg.start(stream)
    words = np.empty(min(_STEP, -(-x.size // _WORD) * _WORD), np.uint32)
    for at in range(0, x.size, _STEP):
        piece = x[at : at + _STEP]
        used = words[: -(-piece.size // _WORD) * _WORD]  # the keystream comes in blocks of four words
        prg.generate(context, used.view(np.uint8))
        round_stochastically(piece, scale, used[: piece.size], out[at : at + _STEP])


def _squared(x: Reals) -> float:
    """Return the squared norm with float64 sums, whatever the type; it may be infinite or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks
        if x.size <= _DOT and x.dtype == np.float64:
            return float(x @ x)
        parts = (x[at : at + _DOT].astype(np.float64, copy=False) for at in range(0, x.size, _DOT))
        return sum(float(part @ part) for part in parts)
