"""Adaptive clipping: follow a quantile of the update norms by a noisy count of the clients that are below the bound.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", 2021, algorithm 1.
Each client adds one bit, "my norm is at most the bound", as a chunk of its own beside its update: +s or -s in the ring,
with its own noise; nothing is rounded.  Without the client there is neither, so Delta2 = Delta1 = s: half of what 0 or
2s would cost, which is the paper's shift by one half.  The number of survivors is public and undoes the shift.  The
bound of one round is made from the sums of those before it, and costs nothing more.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import SkellamSum, check_positive
from dordis.privacy.cell_table import LARGEST_VARIANCE, rounded_up
from dordis.privacy.encoding import centred
from dordis.privacy.skellam import MOST_BITS, Sensitivity

LARGEST_SCALE = 2**12
"""Beyond it the noise is Gaussian for all that the accounting can tell, and only takes room."""


class Quantile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="quantile"):
    """Say which quantile of the norms the bound follows, from where, how fast, and where it stays.

    `rate` is eta_C of the geometric update.  The bound never leaves `least` .. `most`, whatever the noise does.
    `share` is the part of the privacy budget that the bits get.
    """

    target: float = 0.5
    rate: float = 0.2
    least: float = 1e-6
    most: float = 1e6
    start: float = 1.0
    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.target <= 1:
            raise InputError(f"a quantile lies in 0..1, not at {self.target}")
        check_positive("the rate of adaptive clipping", self.rate)
        check_positive("the least clip bound", self.least)
        check_positive("the largest clip bound", self.most)
        if self.least > self.most:
            raise InputError(f"the least clip bound {self.least} is above the largest, {self.most}")
        if not self.least <= self.start <= self.most:
            raise InputError(f"the first clip bound lies in {self.least}..{self.most}, not at {self.start}")
        if not 0 < self.share < 1:
            raise InputError(
                f"the bits of adaptive clipping get a part of the budget between 0 and 1, not {self.share}"
            )


@dataclass(frozen=True)
class Clipping:
    """The clip bound of the next round, and the rule that it follows; without one it stays."""

    bound: float
    rule: Quantile | None = None

    @classmethod
    def of(cls, clip: float | Quantile) -> "Clipping":
        """Begin as a configuration says: with a bound, or with a rule for it."""
        return cls(clip.start, clip) if isinstance(clip, Quantile) else cls(clip)

    @property
    def share(self) -> float:
        """Return the part of the privacy budget that the bits get."""
        return self.rule.share if self.rule else 0.0

    def next(self, below: float | None) -> "Clipping":
        """Return the clipping of the next round, from the fraction of norms below the bound of this one."""
        if self.rule is None or below is None:
            return self
        return replace(self, bound=next_bound(self.bound, below, self.rule))


@dataclass(frozen=True)
class Bit:
    """The bit as it is summed: s, and sigma*^2 of its noise in integer units, on the grid of 2^-20."""

    scale: int
    variance: Fraction

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise InputError(f"the scale of the bit is a whole number from 1 on, not {self.scale}")
        if self.variance <= 0 or self.variance != rounded_up(self.variance):
            raise InputError("the noise of the bit has a positive variance, a multiple of 2^-20")

    @property
    def sensitivity(self) -> Sensitivity:
        """Return what one client can change: s in one coordinate."""
        return Sensitivity(self.scale**2, 1)

    @property
    def multiplier(self) -> float:
        """Return sigma / Delta2."""
        return math.sqrt(self.variance) / self.scale

    def error(self, clients: int, kappa: Fraction) -> float:
        """Return the standard deviation of the fraction below the bound, of so many clients; see `plan_bit`."""
        return self.multiplier * math.sqrt(kappa) / (2 * clients)

    def release(self, charged: Fraction | None = None) -> SkellamSum:
        """Return the event that is charged for the sum of the bits, at the noise that counts: sigma*^2 or more."""
        variance = self.variance if charged is None else charged
        return SkellamSum(self.sensitivity.squared, self.sensitivity.l1, float(variance))


def plan_bit(multiplier: float, clients: int, bits: int, headroom: float = 4.0, kappa: Fraction = Fraction(1)) -> Bit:
    """Return the bit under noise of `multiplier` times its sensitivity, at the largest scale that the ring holds.

    `kappa` is the noise left in the sum over sigma*^2, `headroom` its standard deviations that stay inside the ring.

    >>> plan_bit(multiplier=5.0, clients=100, bits=16)
    Bit(scale=273, variance=Fraction(1863225, 1))
    """
    check_positive("the noise multiplier", multiplier)
    check_positive("the headroom k", headroom)
    if clients < 1 or not 1 <= bits <= MOST_BITS or kappa < 1:
        raise InputError(f"a sum has a client or more, 1..{MOST_BITS} bits and kappa of 1 or more")
    reach = clients + headroom * multiplier * math.sqrt(kappa)
    fits = math.floor((2 ** (bits - 1) - 1) / reach)
    sampled = math.floor(math.sqrt(LARGEST_VARIANCE / kappa) / multiplier)
    scale = min(fits, sampled, LARGEST_SCALE)
    if scale < 1:
        raise InputError(f"{bits} bits do not hold the bits of {clients} clients and noise of {multiplier} times that")
    return Bit(scale, rounded_up((scale * Fraction(multiplier)) ** 2))


def encode_bit(norm: float, bound: float, scale: int, bits: int) -> Vector:
    """Return a client's bit, without noise, as a vector of one coordinate over the ring.

    `norm` is that of the update before it is clipped; one that diverged to infinity is above every bound.
    """
    check_positive("the clip bound", bound)
    if not norm >= 0:
        raise InputError("the norm of an update is 0 or more")
    value = scale if norm <= bound else -scale
    return np.array([value % 2**bits], np.uint32)


def fraction_below(total: Vector, survivors: int, scale: int, bits: int) -> float:
    """Return the fraction of U3 whose norm is at most the bound: without bias, so with noise below 0 or above 1 too."""
    if survivors < 1:
        raise InputError("nobody survived whose norm could be counted")
    if total.shape != (1,):
        raise InputError(f"the sum of the bits has one coordinate, not {total.size}")
    return (1 + int(centred(total, bits)[0]) / (scale * survivors)) / 2


def next_bound(bound: float, below: float, quantile: Quantile) -> float:
    """Return the clip bound of the next round: C exp(-eta (b - gamma)), within its limits.

    >>> next_bound(1.0, below=0.9, quantile=Quantile(target=0.5)) < 1 < next_bound(1.0, 0.1, Quantile(target=0.5))
    True
    """
    check_positive("the clip bound", bound)
    if math.isnan(below):
        raise InputError("the fraction of norms below the bound is a number")
    step = math.log(bound) - quantile.rate * (below - quantile.target)
    if step <= math.log(quantile.least):
        return quantile.least
    return quantile.most if step >= math.log(quantile.most) else math.exp(step)
