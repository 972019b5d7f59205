"""Local privacy, a baseline: every client adds all the Gaussian noise that it needs, and trusts nobody."""

import math
import secrets
from fractions import Fraction
from typing import ClassVar, Self

from dordis.kernels.ring import Vector
from dordis.privacy import encoding
from dordis.privacy.accounting import Gaussian, check_positive, multiplier_of
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals
from dordis.privacy.gaussian_noise import FLOATING, gaussian_noise
from dordis.privacy.mechanisms.mechanism import KeptNoise, Mechanism, NoiseFrom, read_sigma, wide_grid
from dordis.privacy.planning import Setting


class LocalGaussian(Mechanism, frozen=True, tag="local-gaussian", kw_only=True):
    """Every client adds noise of standard deviation `sigma`, in real units, to its clipped update.

    What comes after, rounding included, cannot take privacy away, so nothing bounds the norm in the integers.
    """

    sigma: float

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.CLIENT
    words: ClassVar[str] = FLOATING

    def __post_init__(self) -> None:
        check_positive("the clip bound", self.clip)
        check_positive("sigma", self.sigma)

    @classmethod
    def within(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism with the least noise whose releases cost no more."""
        sigma = multiplier_of(allowance) * setting.clip
        return cls(wide_grid(setting, sigma * math.sqrt(setting.clients)), setting.clip, sigma=sigma)

    @classmethod
    def read(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        """Read sigma."""
        return cls(grid, clip, sensitivity, sigma=read_sigma(noise))

    @property
    def noise(self) -> str:
        """Return sigma."""
        return repr(self.sigma)

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, add noise, rotate, scale and round."""
        x = encoding.check_update(update, self.grid)
        noisy = gaussian_noise(entropy(SEED_BYTES), self.sigma, x.size)
        noisy += x * encoding.clip_factor(x, self.clip)
        return encoding.encode(noisy, self.grid, public_seed, entropy)

    def release(self, variance: Fraction) -> Gaussian:
        """Return one client's update under its own noise; the others' is not counted on, whatever the `variance`."""
        return Gaussian(self.sigma / self.clip)

    def kept(self, survivors: int, clients: int, colluders: int) -> KeptNoise:
        """Return the noise of the survivors; each counts on its own."""
        variance = (self.sigma * self.grid.scale) ** 2
        return KeptNoise(variance * clients, variance * survivors, variance)
