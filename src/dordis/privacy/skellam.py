"""The distributed Skellam mechanism in numbers: blocks, sensitivity, the scale that a ring of b bits leaves, and RDP.

Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021; the norm after
rounding is that of Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism", 2021.  *Real* units are
those of the model update, *integer* units are real times the scale s; sigma is a standard deviation.  Everything here
but the clip bound c is in integer units.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.folding import WORD

Floats = npt.NDArray[np.float64]
Orders = npt.NDArray[np.int64]

MOST_BITS = 32
LARGEST_BLOCK = 2**16
BLOCKS_FROM = 2**14
"""Shorter vectors are one block."""
MOST_PADDING = 1.04
BETA = math.exp(-0.5)
"""Conditional rounding fails, and is drawn again, with at most this probability."""
FINE, SMALL = 1.2, 0.6
"""Folded vectors are rounded to the nearest if s c is at least 1.2 sqrt d.  Even then those whose norm is below
0.6 sqrt d are rounded at random, because the nearest integer of their coordinates is mostly 0."""
WITHIN = 1.01
"""Enough bits: sigma in real units within 1 % of what many bits would give."""
_HALVINGS = 64


def block_size(length: int) -> int:
    """Return the largest power of two up to 2^16 that pads a vector by 4 % at most; short vectors are one block.

    >>> block_size(1_018_174), block_size(1000)
    (65536, 1024)
    """
    if length < BLOCKS_FROM:
        return one_block(length)
    block = LARGEST_BLOCK
    while padded_length(length, block) > MOST_PADDING * length:
        block //= 2
    return block


def one_block(length: int) -> int:
    """Return the power of two to which the whole vector is padded if it is rotated at once, as in the papers."""
    if length < 1:
        raise InputError(f"a vector has at least one coordinate, not {length}")
    return 1 << (length - 1).bit_length()


def padded_length(length: int, block: int) -> int:
    """Return the length of a vector that is padded to whole blocks."""
    return -(-length // block) * block


def check_buckets(dim: int, buckets: int) -> None:
    """An update is folded into fewer coordinates than it has, in whole words of signs."""
    if buckets and (not WORD <= buckets < dim or buckets % WORD):
        raise InputError(f"{dim} coordinates are folded into fewer, a multiple of {WORD}: not into {buckets}")


def rounded_norm(scaled_clip: float, dim: int, beta: float = BETA) -> float:
    """Return the bound on ||r||^2 after a vector of norm s c and `dim` coordinates was rounded stochastically.

    min{(s c)^2 + d/4 + sqrt(2 ln 1/beta) (s c + sqrt(d)/2), (s c + sqrt d)^2}; the second holds with certainty.
    """
    certain = (scaled_clip + math.sqrt(dim)) ** 2
    if beta == 0:
        return certain
    slack = math.sqrt(-2 * math.log(beta)) * (scaled_clip + math.sqrt(dim) / 2)
    return min(scaled_clip**2 + dim / 4 + slack, certain)


def rounds_to_nearest(scaled_clip: float, dim: int) -> bool:
    """Tell whether the scale is fine enough that rounding to the nearest, which errs by less, swallows nothing."""
    return scaled_clip >= FINE * math.sqrt(dim)


def nearest_norm(scaled_clip: float, dim: int) -> float:
    """Return the bound on ||r||^2 after a rotated vector of norm s c was rounded to the nearest integers.

    (s c)^2 + d/12 and one standard deviation of what varies: s c / sqrt 3 and sqrt(d/180).  A vector that is longer is
    shrunk until it fits.
    """
    return scaled_clip**2 + dim / 12 + scaled_clip / math.sqrt(3) + math.sqrt(dim / 180)


def l1_bound(l2: float, dim: int) -> float:
    """Return Delta1 = Delta2 min{sqrt d, Delta2}: the second because the entries are integers."""
    return l2 * min(math.sqrt(dim), l2)


@dataclass(frozen=True)
class Sensitivity:
    """Hold how much one client changes the sum: `squared` is Delta2^2, an integer that clients keep to exactly."""

    squared: int
    dim: int

    @property
    def l2(self) -> float:
        """Return Delta2."""
        return math.sqrt(self.squared)

    @property
    def l1(self) -> float:
        """Return Delta1."""
        return l1_bound(self.l2, self.dim)


def sensitivity(scale: float, clip: float, dim: int, folded: bool = False) -> Sensitivity:
    """Return the sensitivity of the whole padded vector; ||r||^2 is an integer, so Delta2^2 is one too, from 1 on."""
    return Sensitivity(max(1, math.floor(longest(scale * clip, dim, folded))), dim)


def longest(scaled_clip: float, dim: int, folded: bool) -> float:
    """Return the bound on ||r||^2: folded vectors are rounded to the nearest where the scale is fine enough."""
    nearest = folded and rounds_to_nearest(scaled_clip, dim)
    return nearest_norm(scaled_clip, dim) if nearest else rounded_norm(scaled_clip, dim)


def rdp(orders: Orders, l2_squared: float, l1: float, variance: float) -> Floats:
    """Return the RDP of Skellam noise of this variance, mu, at integer orders: the bound is proved at no others.

    alpha Delta2^2 / (2 mu) + min{((2 alpha - 1) Delta2^2 + 6 Delta1) / (4 mu^2), 3 Delta1 / (2 mu)}.
    """
    if not np.issubdtype(orders.dtype, np.integer) or (orders < 2).any():
        raise InputError("the RDP of Skellam noise is known at integer orders from 2 on")
    if variance <= 0:
        return np.full(orders.shape, math.inf if l2_squared else 0.0)
    alpha = orders.astype(np.float64)
    correction = ((2 * alpha - 1) * l2_squared + 6 * l1) / (4 * variance**2)
    bound: Floats = alpha * l2_squared / (2 * variance) + np.minimum(correction, 3 * l1 / (2 * variance))
    return bound


Enough = Callable[[Sensitivity, float], bool]
"""Tell whether noise of a central variance hides one client of a sensitivity well enough."""


@dataclass(frozen=True)
class Ring:
    """Say what must fit Z_{2^b}: 2^b >= 2 k sqrt(s^2 c^2 n^2 / block + n/4 + kappa sigma^2).

    `headroom` is k, how many standard deviations of a coordinate stay inside; `kappa` the noise left in the sum over
    sigma^2, the central variance; `largest` the central variance at which a component meets the sampler's bound.
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
        """Return the variance of a coordinate that fits beside the error of rounding."""
        return 4.0**self.bits / (4 * self.headroom**2) - self.clients / 4

    @property
    def signal(self) -> float:
        """Return the variance of a coordinate at scale 1, at most: all clients agree, in one block."""
        return (self.clip * self.clients) ** 2 / self.block

    @property
    def widest(self) -> float:
        """Return the scale at which the signal leaves no room for noise; 0 if rounding leaves none."""
        return math.sqrt(max(0.0, self.capacity) / self.signal)

    def room(self, scale: float) -> float:
        """Return the largest central variance beside a signal of this scale, negative if there is none."""
        return min((self.capacity - scale**2 * self.signal) / self.kappa, self.largest)

    @property
    def fine(self) -> float:
        """Return the least scale at which folded vectors are rounded to the nearest."""
        scale = FINE * math.sqrt(self.dim) / self.clip
        return scale if rounds_to_nearest(scale * self.clip, self.dim) else math.nextafter(scale, math.inf)

    def sensitivity(self, scale: float) -> Sensitivity:
        """Return how much one client changes the sum at this scale."""
        return sensitivity(scale, self.clip, self.dim, self.folded)

    def allows(self, enough: Enough) -> bool:
        """Tell whether any scale leaves room for enough noise: rounding keeps Delta2^2 at d/4 + sqrt(d)/2 or more."""
        return enough(self.sensitivity(0), self.room(0))


def largest_scale(ring: Ring, enough: Enough) -> float:
    """Return the largest scale at which enough noise fits the ring, noise and scale solved for together.

    Raise `InputError` with the fewest bits that work where no scale does.
    """
    low, high = 0.0, ring.widest
    if ring.folded and ring.fine < high:  # less is needed from here on than just below
        low, high = (ring.fine, high) if enough(ring.sensitivity(ring.fine), ring.room(ring.fine)) else (low, ring.fine)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if enough(ring.sensitivity(middle), ring.room(middle)):
            low = middle
        else:
            high = middle
    if low == 0:
        raise InputError(_too_few_bits(ring, fewest_bits(ring, enough)))
    return low


def scale_of(ring: Ring, sigma: float) -> float:
    """Return the scale at which noise of standard deviation `sigma`, in real units, just fits."""
    if ring.capacity <= 0:
        wider = (b for b in range(ring.bits + 1, MOST_BITS + 1) if replace(ring, bits=b).capacity > 0)
        raise InputError(_too_few_bits(ring, next(wider, None)))
    widest = math.sqrt(ring.capacity / (ring.signal + ring.kappa * sigma**2))
    return min(widest, math.sqrt(ring.largest) / sigma)


def fewest_bits(ring: Ring, enough: Enough) -> int | None:
    """Return the fewest bits with which some scale leaves room for enough noise, or None."""
    return next((b for b in range(1, MOST_BITS + 1) if replace(ring, bits=b).allows(enough)), None)


def enough_bits(ring: Ring, scale: Callable[[Ring], float], noise: Callable[[Ring, float], float]) -> Ring:
    """Return the ring with the fewest bits whose noise, in real units, is within 1 % of that with 32.

    `scale` finds the scale of a ring and `noise` its noise at that scale; more bits never give more noise.
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


def _too_few_bits(ring: Ring, fewest: int | None) -> str:
    needed = (
        f"no number of bits up to {MOST_BITS} does" if fewest is None else f"the fewest bits that work are {fewest}"
    )
    return f"{ring.bits} bits do not hold the noise on {ring.dim} coordinates of {ring.clients} clients: {needed}"
