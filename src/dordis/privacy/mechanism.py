"""How a client's update becomes what is summed, and the sum an aggregate: the mechanisms of differential privacy.

Over Z_{2^b} the noise of `DSkellam` is drawn by the protocol, from seeds, component by component, so that it can be
removed again.  The other mechanisms bring their own, inside `encode` or `decode`, and nothing of it is ever removed:
the protocol then adds none.
"""

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.ring import Vector
from dordis.privacy import encoding, skellam
from dordis.privacy.accounting import DiscreteGaussianSum, Event, SkellamSum
from dordis.privacy.discrete_gaussian_noise import SEED_BYTES, discrete_gaussian_noise
from dordis.privacy.encoding import Entropy, Grid, Reals
from dordis.privacy.planning import Plan
from dordis.privacy.skellam import Floats, Sensitivity
from dordis.privacy.xnoise import Scheme

_AGREE = 1 - 1e-9  # floating point may differ by a little between the machines that compute a bound

WITHOUT_NOISE = frozenset({Scheme.NONE})
"""A mechanism that brings its own noise, or none, gets none from the protocol."""


class Mechanism(Protocol):
    """Turn updates into vectors over the ring, sums of them into updates, and say what that proves."""

    @property
    def name(self) -> str:
        """Return what clients agree on: the kind of noise and, where the mechanism brings it, how much."""
        ...

    @property
    def grid(self) -> Grid:
        """Return the integer grid: dimension, block, scale and ring."""
        ...

    @property
    def clip(self) -> float:
        """Return c, the largest norm of an update in real units; 0 if it is not bounded."""
        ...

    @property
    def sensitivity(self) -> int:
        """Return Delta2^2, the largest squared norm in the integers; 0 if it is not bounded."""
        ...

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return the ways in which the protocol may add noise to this encoding."""
        ...

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum; what is secret comes from its own entropy."""
        ...

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean over `count` clients from the sum of their inputs, in real units; the sum for 1."""
        ...

    def release(self, variance: Fraction) -> Event:
        """Return the event that the ledger charges for a sum whose noise counts for this variance, in integer units."""
        ...


@dataclass(frozen=True)
class DSkellam:
    """The distributed Skellam mechanism: Agarwal, Kairouz and Liu, 2021.  The default, and the one XNoise works on."""

    grid: Grid
    clip: float
    sensitivity: int

    def __post_init__(self) -> None:
        check_bound(self.grid, self.clip, self.sensitivity)

    @classmethod
    def of(cls, plan: Plan) -> "DSkellam":
        """Return the mechanism of a plan."""
        return cls(grid_of(plan), plan.setting.clip, plan.sensitivity.squared)

    @property
    def name(self) -> str:
        """Return the name that policies of owners know."""
        return "skellam"

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return every way of adding noise."""
        return frozenset(Scheme) - WITHOUT_NOISE

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, rotate, scale and round; the protocol adds the noise."""
        return encoding.encode(update, self.grid, public_seed, entropy, self.clip, self.sensitivity)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean."""
        return mean(total, count, self.grid, public_seed)

    def release(self, variance: Fraction) -> SkellamSum:
        """Return a sum under Skellam noise."""
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        return SkellamSum(bound.squared, bound.l1, float(variance))


@dataclass(frozen=True)
class DDGauss:
    """The distributed discrete Gaussian mechanism: Kairouz, Liu and Steinke, 2021.  A baseline.

    Every client adds its even share of the noise, of `variance` (g^2, in integer units), as if nobody dropped: the
    paper's Orig.  Sums of discrete Gaussians are not discrete Gaussians, so XNoise over it is refused.
    """

    grid: Grid
    clip: float
    sensitivity: int
    variance: Fraction

    def __post_init__(self) -> None:
        check_bound(self.grid, self.clip, self.sensitivity)

    @classmethod
    def of(cls, plan: Plan) -> "DDGauss":
        """Return the mechanism with the noise of a plan, whose scheme must be `orig`."""
        if plan.setting.scheme is not Scheme.ORIG:
            raise ParametersRefused(
                f"discrete Gaussian noise cannot be removed again: the scheme must be '{Scheme.ORIG.value}', "
                f"not '{plan.setting.scheme.value}'"
            )
        (variance,) = plan.noise.base
        return cls(grid_of(plan), plan.setting.clip, plan.sensitivity.squared, variance)

    @property
    def name(self) -> str:
        """Return the name and the variance of one client's noise, which all must agree on."""
        return f"ddgauss:{self.variance}"

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return the one scheme by which the protocol adds nothing."""
        return WITHOUT_NOISE

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, rotate, scale, round, and add this client's share of the noise."""
        vector = encoding.encode(update, self.grid, public_seed, entropy, self.clip, self.sensitivity)
        vector += discrete_gaussian_noise(entropy(SEED_BYTES), self.variance, vector.size).view(np.uint32)
        vector &= np.uint32(2**self.grid.bits - 1)
        return vector

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean."""
        return mean(total, count, self.grid, public_seed)

    def charged(self, survivors: int, colluders: int) -> Fraction:
        """Return the variance that privacy may count on: one share for each survivor but the T_C who may collude."""
        return max(0, survivors - colluders) * self.variance

    def release(self, variance: Fraction) -> DiscreteGaussianSum:
        """Return a sum under as many shares of the noise as make up the variance."""
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        honest = math.floor(variance / self.variance)
        return DiscreteGaussianSum(bound.l2, bound.l1, honest, math.sqrt(self.variance), self.grid.padded)


@dataclass(frozen=True)
class NoMechanism:
    """No privacy at all: rotate, scale and round whatever comes.  A sum that does not fit the ring wraps around."""

    grid: Grid

    @property
    def name(self) -> str:
        """Return a name that policies of owners refuse by default."""
        return "none"

    @property
    def clip(self) -> float:
        """Return 0: nothing is clipped."""
        return 0.0

    @property
    def sensitivity(self) -> int:
        """Return 0: there is no bound."""
        return 0

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return the one scheme by which the protocol adds nothing."""
        return WITHOUT_NOISE

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Rotate, scale and round."""
        return encoding.encode(update, self.grid, public_seed, entropy)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean."""
        return mean(total, count, self.grid, public_seed)

    def release(self, variance: Fraction) -> Event:
        """Refuse: nothing is proved."""
        raise InputError("a release without noise proves nothing: there is no epsilon for it")


def grid_of(plan: Plan) -> Grid:
    """Return the integer grid of a plan."""
    return Grid(plan.setting.dim, plan.setting.block, plan.scale, plan.bits)


def mean(total: Vector, count: int, grid: Grid, public_seed: bytes) -> Floats:
    """Decode a sum of `count` inputs and divide by their number."""
    if count < 1:
        raise InputError(f"a mean is over at least one client, not {count}")
    decoded = encoding.decode(total, grid, public_seed)
    decoded /= count
    return decoded


def check_bound(grid: Grid, clip: float, sensitivity: int) -> None:
    """Refuse a clip or a bound on the norm that rounding could not keep to."""
    if not 0 < clip < math.inf:
        raise ParametersRefused(f"the clip bound is a number above 0, not {clip}")
    least = math.floor(_AGREE * skellam.rounded_norm(grid.scale * clip, grid.padded))
    if sensitivity < max(1, least):
        raise ParametersRefused(f"rounding at this scale and clip needs Delta2^2 = {least} at least, not {sensitivity}")
