"""The distributed discrete Gaussian mechanism: Kairouz, Liu and Steinke, 2021.  A baseline."""

import math
import secrets
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import DiscreteGaussianSum
from dordis.privacy.discrete_gaussian import LEAST_SCALE
from dordis.privacy.discrete_gaussian_noise import discrete_gaussian_noise
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals
from dordis.privacy.mechanisms.mechanism import Mechanism, check_bound, grid_of
from dordis.privacy.planning import Plan
from dordis.privacy.skellam import Sensitivity
from dordis.privacy.xnoise import Scheme, fraction_of


class DDGauss(Mechanism, frozen=True, tag="ddgauss", kw_only=True):
    """Every client adds its even share of the noise, of `variance` (g^2, in integer units), as if nobody dropped.

    That is the paper's Orig.  Sums of discrete Gaussians are not discrete Gaussians, so XNoise over it is refused.
    """

    variance: Fraction

    renyi: ClassVar[bool] = True
    folds: ClassVar[bool] = True
    words: ClassVar[str] = "distributed discrete Gaussian noise, drawn in integers"

    def __post_init__(self) -> None:
        check_bound(self)
        if self.variance < LEAST_SCALE**2:
            raise ParametersRefused(f"a share has a variance of {LEAST_SCALE**2} or more, not {self.variance}")

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the mechanism with the noise of a plan, whose scheme must be `orig`."""
        if plan.setting.scheme is not Scheme.ORIG:
            raise ParametersRefused(
                f"discrete Gaussian noise cannot be removed again: the scheme must be '{Scheme.ORIG.value}', "
                f"not '{plan.setting.scheme.value}'"
            )
        (variance,) = plan.noise.base
        return cls(grid_of(plan), plan.setting.clip, plan.sensitivity.squared, variance=variance)

    @classmethod
    def read(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Read the share of one client."""
        return cls(grid, clip, sensitivity, variance=fraction_of(noise))

    @property
    def noise(self) -> str:
        """Return the share of one client."""
        return str(self.variance)

    @property
    def share(self) -> Fraction:
        """Return the share of one client."""
        return self.variance

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, rotate, scale, round, and add this client's share of the noise."""
        vector = super().encode(update, public_seed, entropy)
        vector += discrete_gaussian_noise(entropy(SEED_BYTES), self.variance, vector.size).view(np.uint32)
        vector &= np.uint32(2**self.grid.bits - 1)
        return vector

    def release(self, variance: Fraction) -> DiscreteGaussianSum:
        """Return a sum under as many shares of the noise as make up the variance."""
        honest = math.floor(variance / self.variance)
        if honest < 1:
            raise InputError("a sum under discrete Gaussian noise needs more survivors than there may be colluders")
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        return DiscreteGaussianSum(bound.l2, bound.l1, honest, math.sqrt(self.variance), self.grid.padded)
