"""Central privacy, a baseline: a trusted server adds Gaussian noise to the sum."""

import math
import secrets
from fractions import Fraction
from typing import ClassVar, Self

from dordis.kernels.ring import Vector
from dordis.privacy import skellam
from dordis.privacy.accounting import Gaussian, check_positive, multiplier_of
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid
from dordis.privacy.gaussian_noise import FLOATING, gaussian_noise
from dordis.privacy.mechanisms.mechanism import KeptNoise, Mechanism, NoiseFrom, check_bound, read_sigma, wide_grid
from dordis.privacy.planning import Setting
from dordis.privacy.skellam import Floats


class CentralGaussian(Mechanism, frozen=True, tag="central-gaussian", kw_only=True):
    """The server adds noise of standard deviation `sigma`, in real units, to the sum it decodes.

    Clients clip and round like those of `DSkellam`, and trust the server with the sum.  `entropy` is the server's.
    """

    sigma: float
    entropy: Entropy = secrets.token_bytes

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.SERVER
    in_ring: ClassVar[bool] = False
    words: ClassVar[str] = FLOATING

    def __post_init__(self) -> None:
        check_bound(self)
        check_positive("sigma", self.sigma)

    @classmethod
    def within(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism with the least noise whose releases cost no more."""
        multiplier = multiplier_of(allowance)
        grid = wide_grid(setting, multiplier * setting.clip)
        bound = skellam.sensitivity(grid.scale, setting.clip, grid.padded)
        return cls(grid, setting.clip, bound.squared, sigma=multiplier * bound.l2 / grid.scale)

    @classmethod
    def read(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Read sigma."""
        return cls(grid, clip, sensitivity, sigma=read_sigma(noise))

    @property
    def noise(self) -> str:
        """Return sigma."""
        return repr(self.sigma)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean of the sum with the server's noise; every call draws its own."""
        noisy = super().decode(total, count, public_seed)
        self.add_server_noise(noisy, count)
        return noisy

    def add_server_noise(self, mean: Floats, count: int = 1) -> None:
        """Add Gaussian noise."""
        mean += gaussian_noise(self.entropy(SEED_BYTES), self.sigma / count, self.grid.dim)

    def release(self, variance: Fraction) -> Gaussian:
        """Return a sum under the server's noise; there is no other, whatever the `variance`."""
        return Gaussian(self.sigma * self.grid.scale / math.sqrt(self.sensitivity))

    def kept(self, survivors: int, clients: int, colluders: int) -> KeptNoise:
        """Return the server's noise: dropout takes none of it away."""
        variance = (self.sigma * self.grid.scale) ** 2
        return KeptNoise(variance, variance, variance)
