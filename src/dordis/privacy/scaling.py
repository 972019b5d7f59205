"""How updates fit the ring: blocks, the sensitivity of a sum, and the largest scale in a ring of b bits.

Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021; the norm after
rounding is from Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism", 2021.  A number in *real*
units has the units of the model update.  The same number in *integer* units is multiplied by the scale s.  Sigma is a
standard deviation.  The clip bound c is in real units; all else is in integer units unless a docstring says otherwise.
The *central* variance is the noise variance from which epsilon is computed.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.reals import BUCKET_MULTIPLE

Floats = npt.NDArray[np.float64]

MOST_BITS = 32
LARGEST_BLOCK = 2**16
BLOCKS_FROM = 2**14
"""Vectors shorter than this are one block."""
MOST_PADDING = 1.04
BETA = math.exp(-0.5)
"""Largest probability with which a random rounding exceeds its norm bound and is drawn again."""
FINE, SMALL = 1.2, 0.6
"""Folded vectors of d coordinates are rounded to the nearest integers if s c, the clip bound in integer units, is at
least 1.2 sqrt d.  Even then vectors whose norm is below 0.6 sqrt d are rounded at random, because the nearest integer
of their coordinates is mostly 0."""
WITHIN = 1.01
"""A ring has enough bits if sigma, in real units, is at most this factor times the sigma with 32 bits."""
_HALVINGS = 64


def block_size(length: int) -> int:
    """Return the block length for a vector: the largest power of two up to 2^16 that adds at most 4 % of padding.

    A vector shorter than `BLOCKS_FROM` is one block, whatever the padding.

    >>> block_size(1_018_174), block_size(1000)
    (65536, 1024)
    """
    if length < BLOCKS_FROM:
        return single_block_size(length)
    block = LARGEST_BLOCK
    while padded_length(length, block) > MOST_PADDING * length:
        block //= 2
    return block


def single_block_size(length: int) -> int:
    """Return the power of two to which a vector is padded if it is rotated as one block, as in the papers."""
    if length < 1:
        raise InputError(f"a vector has at least one coordinate, not {length}")
    return 1 << (length - 1).bit_length()


def padded_length(length: int, block: int) -> int:
    """Return the length of a vector that is padded to whole blocks."""
    return -(-length // block) * block


def check_buckets(dim: int, buckets: int) -> None:
    """Raise InputError unless `buckets` is a multiple of `BUCKET_MULTIPLE` below `dim`, or 0 for no folding."""
    if buckets and (not BUCKET_MULTIPLE <= buckets < dim or buckets % BUCKET_MULTIPLE):
        raise InputError(
            f"{dim} coordinates are folded into fewer, a multiple of {BUCKET_MULTIPLE}: not into {buckets}"
        )


def rounded_norm(scaled_clip: float, dim: int, beta: float = BETA) -> float:
    """Return the bound on ||r||^2 of a stochastically rounded vector r of d = `dim` coordinates.

    `scaled_clip`, s c, is the norm before rounding.  The bound is
    min{(s c)^2 + d/4 + sqrt(2 ln 1/beta) (s c + sqrt(d)/2), (s c + sqrt d)^2};
    the second term is always a bound, and the first term is a bound except with probability beta.
    """
    certain = (scaled_clip + math.sqrt(dim)) ** 2
    if beta == 0:
        return certain
    slack = math.sqrt(-2 * math.log(beta)) * (scaled_clip + math.sqrt(dim) / 2)
    return min(scaled_clip**2 + dim / 4 + slack, certain)


def is_fine_enough(scaled_clip: float, dim: int) -> bool:
    """Tell whether vectors of `dim` coordinates may be rounded to the nearest integers: if s c >= 1.2 sqrt(dim).

    `scaled_clip`, s c, is the clip bound in integer units.
    """
    return scaled_clip >= FINE * math.sqrt(dim)


def nearest_norm(scaled_clip: float, dim: int) -> float:
    """Return the bound on ||r||^2 of a rotated vector r of d = `dim` coordinates, rounded to the nearest integers.

    s c = `scaled_clip` is the norm of the vector before rounding.  The bound is the mean of ||r||^2, which is
    (s c)^2 + d/12, plus s c / sqrt 3 and sqrt(d/180), the standard deviations of its two random terms.  Clients shrink
    a vector whose norm exceeds the bound until it fits.
    """
    return scaled_clip**2 + dim / 12 + scaled_clip / math.sqrt(3) + math.sqrt(dim / 180)


def l1_bound(l2: float, dim: int) -> float:
    """Return the l1-sensitivity Delta1 = Delta2 min{sqrt d, Delta2}; for integers Delta1 <= Delta2^2."""
    return l2 * min(math.sqrt(dim), l2)


@dataclass(frozen=True)
class Sensitivity:
    """The largest change of a sum by one client, or by one record if that is the unit of privacy.

    `squared` is Delta2^2, the largest squared l2-norm of the change.
    """

    squared: int
    dim: int

    @property
    def l2(self) -> float:
        """Return Delta2, the l2-sensitivity."""
        return math.sqrt(self.squared)

    @property
    def l1(self) -> float:
        """Return Delta1, a bound on the l1-sensitivity."""
        return l1_bound(self.l2, self.dim)


def sensitivity(scale: float, clip: float, dim: int, folded: bool = False) -> Sensitivity:
    """Return the sensitivity of a sum of rounded vectors of `dim` coordinates, padding included.

    `clip` is in real units; `folded` says whether updates are folded into fewer coordinates.
    """
    return Sensitivity(max(1, math.floor(norm_bound(scale * clip, dim, folded))), dim)


def norm_bound(scaled_clip: float, dim: int, folded: bool) -> float:
    """Return the bound on the squared norm, after rounding, of a vector whose norm before rounding is `scaled_clip`.

    Folded vectors at a fine scale (`is_fine_enough`) are rounded to the nearest integers: then it is `nearest_norm`.
    All other vectors are rounded at random: then it is `rounded_norm`.
    """
    nearest = folded and is_fine_enough(scaled_clip, dim)
    return nearest_norm(scaled_clip, dim) if nearest else rounded_norm(scaled_clip, dim)


Enough = Callable[[Sensitivity, float], bool]
"""A predicate: at this sensitivity, is noise of this central variance enough for the privacy budget?"""


@dataclass(frozen=True)
class Ring:
    """The condition that a sum fits Z_{2^b}: 2^b >= 2 k sqrt(s^2 c^2 n^2 / block + n/4 + kappa sigma^2).

    b is `bits`, s the scale, c the clip bound and n the number of clients.  `headroom` is k: the ring holds k standard
    deviations of a coordinate.  sigma^2 is the central variance, and `kappa` is the variance left in the sum divided by
    sigma^2.  `largest` is the largest central variance that the sampler can draw.  `folded` says whether updates are
    folded into fewer coordinates.
    """

    bits: int
    clients: int
    clip: float
    dim: int
    block: int
    headroom: float = 4.0
    kappa: float = 1.0
    largest: float = math.inf
    folded: bool = False

    @property
    def capacity(self) -> float:
        """Return the largest variance of a coordinate, signal and noise together, at which the sum fits the ring."""
        return 4.0**self.bits / (4 * self.headroom**2) - self.clients / 4

    @property
    def signal(self) -> float:
        """Return the largest variance, at scale 1, of a coordinate of the sum before noise is added.

        Updates reach this variance if they are equal and their whole norm lies in one block.
        """
        return (self.clip * self.clients) ** 2 / self.block

    @property
    def widest_scale(self) -> float:
        """Return the scale at which the signal alone fills the ring; 0 if rounding errors alone fill it."""
        return math.sqrt(max(0.0, self.capacity) / self.signal)

    def room(self, scale: float) -> float:
        """Return the largest central variance that fits the ring, and can be drawn, at this scale; negative if none."""
        return min((self.capacity - scale**2 * self.signal) / self.kappa, self.largest)

    @property
    def nearest_scale(self) -> float:
        """Return the least scale at which folded vectors are rounded to the nearest integers, not at random."""
        scale = FINE * math.sqrt(self.dim) / self.clip
        return scale if is_fine_enough(scale * self.clip, self.dim) else math.nextafter(scale, math.inf)

    def sensitivity(self, scale: float) -> Sensitivity:
        return sensitivity(scale, self.clip, self.dim, self.folded)

    def allows(self, enough: Enough) -> bool:
        """Tell whether the ring has room for enough noise at scale 0, where it has most; if not, it has at no scale."""
        return enough(self.sensitivity(0), self.room(0))


def largest_scale(ring: Ring, enough: Enough) -> float:
    """Return the largest scale at which the noise that fits the ring is `enough` for the privacy budget.

    If there is no such scale, raise `InputError`, which states the fewest bits that work.
    """
    low, high = 0.0, ring.widest_scale
    if ring.folded and ring.nearest_scale < high:  # rounding to the nearest needs less noise than rounding at random
        low, high = (
            (ring.nearest_scale, high)
            if enough(ring.sensitivity(ring.nearest_scale), ring.room(ring.nearest_scale))
            else (low, ring.nearest_scale)
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if enough(ring.sensitivity(middle), ring.room(middle)):
            low = middle
        else:
            high = middle
    if low == 0:
        raise InputError(_describe_too_few_bits(ring, fewest_bits(ring, enough)))
    return low


def scale_for_sigma(ring: Ring, sigma: float) -> float:
    """Return the largest scale at which the sum with its noise fits the ring, and the sampler can draw the noise.

    `sigma` is the standard deviation of the noise in real units.  Raise InputError if rounding errors alone fill the
    ring.
    """
    if ring.capacity <= 0:
        wider = (b for b in range(ring.bits + 1, MOST_BITS + 1) if replace(ring, bits=b).capacity > 0)
        raise InputError(_describe_too_few_bits(ring, next(wider, None)))
    widest = math.sqrt(ring.capacity / (ring.signal + ring.kappa * sigma**2))
    return min(widest, math.sqrt(ring.largest) / sigma)


def fewest_bits(ring: Ring, enough: Enough) -> int | None:
    """Return the fewest bits with which a ring holds enough noise at some scale; None if 32 bits are too few."""
    return next((b for b in range(1, MOST_BITS + 1) if replace(ring, bits=b).allows(enough)), None)


def enough_bits(ring: Ring, scale: Callable[[Ring], float], noise: Callable[[Ring, float], float]) -> Ring:
    """Return `ring` with the fewest bits at which the noise is at most 1 % larger than with 32 bits.

    `scale` returns the scale for a ring; `noise` returns the standard deviation of the noise, in real units, for a ring
    and a scale.  The search assumes that more bits never need more noise.
    """

    def noise_with(bits: int) -> float:
        wider = replace(ring, bits=bits)
        try:
            return noise(wider, scale(wider))
        except InputError:
            return math.inf

    most = replace(ring, bits=MOST_BITS)
    goal = WITHIN * noise(most, scale(most))
    bits = 1 + bisect_left(range(1, MOST_BITS), True, key=lambda bits: noise_with(bits) <= goal)
    return replace(ring, bits=bits)


def _describe_too_few_bits(ring: Ring, fewest: int | None) -> str:
    needed = (
        f"no number of bits up to {MOST_BITS} does" if fewest is None else f"the fewest bits that work are {fewest}"
    )
    return f"{ring.bits} bits do not hold the noise on {ring.dim} coordinates of {ring.clients} clients: {needed}"
