"""Further releases: bounded values that clients upload in addition to the update, each summed under its own noise.

A further release is a chunk of its own after the chunks of the update.  The noise of this chunk comes from separate
seeds, and the ledger charges the release separately.  Neighbouring inputs differ in one client, whose value is replaced
by zero.  The bits of adaptive clipping are a further release (`dordis.privacy.clipping`); applications declare others
(`AppServer.further`).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import SkellamSum, check_positive
from dordis.privacy.encoding import centre
from dordis.privacy.scaling import MOST_BITS, Floats, Sensitivity
from dordis.privacy.skellam_noise import LARGEST_VARIANCE, round_up_variance

LARGEST_SCALE = 2**12
"""Largest scale that is planned: at a larger scale the noise would need more bits and epsilon would hardly be less."""


@dataclass(frozen=True)
class FurtherValue:
    """A value that clients release in addition to their update: `length` numbers with a Euclidean norm up to `bound`.

    `share` is the part of the privacy budget that is spent on this release.  Values that are whole numbers are encoded
    without a rounding error.
    """

    name: str
    share: float
    length: int = 1
    bound: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"the {self.name} gets a part of the budget between 0 and 1, not {self.share}")
        if not self.name or self.length < 1 or self.bound < 1:
            raise InputError("a further release has a name, and a length and a bound that are whole numbers from 1 on")


class FurtherRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A further release as the parameters of a round state it: `length` numbers with a Euclidean norm up to `bound`.

    To encode a number, it is multiplied by `scale` and rounded.
    """

    name: str
    scale: int
    length: int = 1
    bound: int = 1

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the largest change of the sum by one client, or one record if that is the unit of privacy."""
        return Sensitivity((self.scale * self.bound) ** 2, self.length)

    def encode(self, value: npt.ArrayLike, bits: int) -> Vector:
        """Return a client's value, clipped to the bound, scaled and rounded, as a vector over the ring, without noise.

        All numbers are rounded to the nearest integers, or towards zero if the norm would otherwise exceed the bound.
        Raise InputError unless `value` is `length` finite numbers.
        """
        numbers = np.atleast_1d(np.asarray(value, np.float64))
        if numbers.shape != (self.length,) or not np.isfinite(numbers).all():
            raise InputError(f"the {self.name} of a client must be {self.length} finite number(s)")
        largest = float(np.abs(numbers).max())
        unit = numbers / largest if largest else numbers  # so that no square overflows
        length = float(np.linalg.norm(unit))
        scaled = self.scale * (unit * (self.bound / length) if largest * length > self.bound else numbers)
        rounded = np.rint(scaled)
        if float(rounded @ rounded) > self.sensitivity.squared:
            rounded = np.trunc(scaled * (1 - 2**-50))
        return self._to_ring(rounded, bits)

    def encode_sum(self, value: npt.ArrayLike, bits: int) -> Vector:
        """Return `value`, whole numbers summed over a client's records, as a vector over the ring, without noise."""
        return self._to_ring(self.scale * np.atleast_1d(np.asarray(value, np.int64)), bits)

    def _to_ring(self, units: npt.NDArray[Any], bits: int) -> Vector:
        ring: Vector = (units.astype(np.int64) % 2**bits).astype(np.uint32)
        return ring


@dataclass(frozen=True, eq=False)
class FurtherSum:
    """The noisy sum of a further release over U3, the clients in the sum."""

    units: Floats
    """The sum in integer units."""
    scale: int
    count: float
    """The number of clients in the sum; with records as the unit of privacy, the expected number of sampled records."""

    @classmethod
    def from_total(cls, release: FurtherRelease, total: Vector, count: float, bits: int) -> "FurtherSum":
        """Return the sum from a vector over the ring; raise InputError if its length is wrong, or if `count` is 0."""
        if total.shape != (release.length,):
            raise InputError(f"the sum of the {release.name} has {release.length} coordinates, not {total.size}")
        if not count > 0:
            raise InputError(f"no client survived whose {release.name} could be summed")
        return cls(centre(total, bits).astype(np.float64), release.scale, count)

    @property
    def total(self) -> Floats:
        """Return the sum, in the units of the value."""
        total: Floats = self.units / self.scale
        return total

    @property
    def mean(self) -> Floats:
        """Return the sum divided by `count`, in the units of the value."""
        mean: Floats = self.units / (self.scale * self.count)
        return mean


@dataclass(frozen=True)
class PlannedRelease:
    """A further release, and the planned variance sigma*^2 of its noise in integer units, a multiple of 2^-20."""

    release: FurtherRelease
    variance: Fraction

    def __post_init__(self) -> None:
        if self.release.scale < 1:
            raise InputError(f"the scale of the {self.release.name} is a whole number from 1 on")
        if self.variance <= 0 or self.variance != round_up_variance(self.variance):
            raise InputError(f"the noise of the {self.release.name} has a positive variance, a multiple of 2^-20")

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier: the standard deviation of the noise divided by the l2-sensitivity."""
        return math.sqrt(self.variance) / (self.release.scale * self.release.bound)

    def deviation(self, kappa: Fraction) -> float:
        """Return the standard deviation of the noise on each number of the sum, in the units of the value.

        `kappa` is the variance of the noise left in the sum, divided by the planned variance.
        """
        return self.release.bound * self.multiplier * math.sqrt(kappa)

    def event(self, charged: Fraction | None = None) -> SkellamSum:
        """Return the release that the ledger charges; `charged` is its noise variance, by default the planned one."""
        variance, changed = self.variance if charged is None else charged, self.release.sensitivity
        return SkellamSum(changed.squared, changed.l1, float(variance))


def plan_release(
    value: FurtherValue,
    multiplier: float,
    clients: int,
    bits: int,
    headroom: float = 4.0,
    kappa: Fraction = Fraction(1),
) -> PlannedRelease:
    """Return the plan of a release with this noise multiplier, at the largest possible scale up to `LARGEST_SCALE`.

    The ring of `bits` bits must hold all clients' values and `headroom` standard deviations of the noise, and the
    sampler must be able to draw the noise.  Raise InputError if no scale meets these conditions.  `kappa` is the
    variance of the noise left in a sum without dropouts, divided by the planned variance.

    >>> plan_release(FurtherValue("correct answers", 0.1), multiplier=5.0, clients=100, bits=16)
    PlannedRelease(release=FurtherRelease(name='correct answers', scale=273, length=1, bound=1), \
variance=Fraction(1863225, 1))
    """
    check_positive("the noise multiplier", multiplier)
    check_positive("the headroom k", headroom)
    if clients < 1 or not 1 <= bits <= MOST_BITS or kappa < 1:
        raise InputError(f"a release needs at least one client, 1 to {MOST_BITS} bits, and a kappa of at least 1")
    reach = clients + headroom * multiplier * math.sqrt(kappa)
    fits = math.floor((2 ** (bits - 1) - 1) / (reach * value.bound))
    sampled = math.floor(math.sqrt(LARGEST_VARIANCE / kappa) / (multiplier * value.bound))
    scale = min(fits, sampled, LARGEST_SCALE)
    if scale < 1:
        raise InputError(
            f"{bits} bits do not hold the {value.name} of {clients} clients and noise of {multiplier:.4g} times its "
            f"bound of {value.bound}: take more bits, a larger share of the budget, or a smaller bound"
        )
    release = FurtherRelease(value.name, scale, value.length, value.bound)
    return PlannedRelease(release, round_up_variance((scale * value.bound * Fraction(multiplier)) ** 2))
