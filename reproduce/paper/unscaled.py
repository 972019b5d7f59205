"""The noise of the paper's artifact: planned for updates before scaling, but added to scaled updates.

Its `dskellam.py` (lines 184-203 of commit 75ea0da) multiplies an update by `scale`, and adds Skellam noise of standard
deviation `local_stddev`.  Its accounting takes `local_stddev` for the deviation before scaling, and its `ddgauss.py`
multiplies update and noise by `scale`.  `UnscaledSkellam` leaves out the scale as `dskellam.py` does.
"""

import math
import secrets
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from dordis.errors import ParametersRefused
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals
from dordis.privacy.mechanisms import Mechanism, check_bound, grid_from_plan
from dordis.privacy.planning import Plan
from dordis.privacy.skellam_noise import GRID, noise
from dordis.privacy.xnoise_components import Scheme, parse_variance


class UnscaledSkellam(Mechanism, frozen=True, tag="reproduce.paper.unscaled:UnscaledSkellam", kw_only=True):
    """Every client adds its planned share of Skellam noise, without the scale by which the update was multiplied."""

    variance: Fraction

    description: ClassVar[str] = "Skellam noise that lacks the scale: an experiment, which protects nobody"

    def __post_init__(self) -> None:
        check_bound(self)

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Return the mechanism of a plan for `orig`, with a client's planned noise variance over the squared scale."""
        if plan.setting.scheme is not Scheme.ORIG:
            raise ParametersRefused("noise without its scale is for the scheme 'orig'")
        (share,) = plan.noise.base
        unscaled = Fraction(max(1, math.ceil(float(share) / plan.scale**2 * GRID)), GRID)
        return cls(grid_from_plan(plan), plan.setting.clip, plan.sensitivity.squared, variance=unscaled)

    @classmethod
    def from_parameters(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Return the mechanism; `noise` is the noise variance of one client."""
        return cls(grid, clip, sensitivity, variance=parse_variance(noise))

    @property
    def noise(self) -> str:
        """Return the noise variance of one client as text."""
        return str(self.variance)

    @property
    def share(self) -> Fraction:
        """Return the noise variance of one client."""
        return self.variance

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, rotate, scale and round, and add noise that was not scaled."""
        vector = super().encode(update, public_seed, entropy)
        vector += noise(entropy(SEED_BYTES), self.variance, vector.size).view(np.uint32)
        vector &= np.uint32(2**self.grid.bits - 1)
        return vector
