"""Baselines to compare with: Gaussian noise in floating point, by a trusted server or by every client, and no noise.

The theta^2 of a release (a sum that the server learns) is its cost, the squared parameter of theta-GDP
(docs/accounting.md).

Do not deploy these mechanisms: the low bits of floating-point noise may reveal the value that it hides (Mironov, "On
Significance of the Least Significant Bits for Differential Privacy", 2012).
"""

import math
import secrets
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from dordis.crypto import prg
from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy import encoding, scaling
from dordis.privacy.accounting import Event, Gaussian, check_positive, multiplier_for_cost
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals
from dordis.privacy.mechanisms import Mechanism, NoiseFrom, NoiseVariances, check_bound, read_sigma, wide_grid
from dordis.privacy.planning import record_scale
from dordis.privacy.record_accounting import RecordSampling
from dordis.privacy.record_encoding import Integers
from dordis.privacy.record_encoding import sensitivity as record_sensitivity
from dordis.privacy.scaling import MOST_BITS, Floats
from dordis.privacy.setting import Setting

FLOATING = "Gaussian noise in floating point, whose low bits may tell what they should hide: not to be deployed"
_STEP = prg.CALL // 8


def gaussian_noise(seed: bytes, sigma: float, dim: int) -> Floats:
    """Return `dim` samples of N(0, sigma^2), a function of the seed, by inversion of the distribution function.

    >>> gaussian_noise(bytes(range(32)), 1.0, 3).round(2).tolist()
    [0.13, 0.31, -0.05]
    """
    from scipy.special import ndtri  # imported here: a client that only takes part needs no scipy

    context = prg.open_stream(prg.from_seed(seed, b"dordis/v1/gaussian"))
    samples = np.empty(dim, np.float64)
    words = np.empty(min(_STEP, dim + dim % 2), "<u8")
    for at in range(0, dim, _STEP):
        piece = samples[at : at + _STEP]
        used = words[: piece.size + piece.size % 2]  # the keystream comes in blocks of two words
        prg.fill_keystream(context, used.view(np.uint8))
        chance = ((used[: piece.size] >> np.uint64(12)) + 0.5) * 2.0**-52
        ndtri(chance, out=piece)
        piece *= sigma
    return samples


def record_grid(setting: Setting, sampled: RecordSampling, sigma: float) -> Grid:
    """Return a 32-bit grid for sums of records' gradients under noise of standard deviation `sigma` in real units."""
    scaled_clip = record_scale(setting, sampled, lambda s_c: (s_c * sigma / setting.clip) ** 2)
    return Grid(setting.dim, setting.block, scaled_clip / setting.clip, MOST_BITS)


class GaussianMechanism(Mechanism, frozen=True, kw_only=True):
    """Gaussian noise of standard deviation `sigma`, in real units, from the server or from each client."""

    sigma: float

    description: ClassVar[str] = FLOATING

    @classmethod
    def from_parameters(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        return cls(grid, clip, sensitivity, sigma=read_sigma(noise))

    @property
    def noise(self) -> str:
        return repr(self.sigma)


class CentralGaussian(GaussianMechanism, frozen=True, tag="central-gaussian", kw_only=True):
    """The server adds noise of standard deviation `sigma`, in real units, to the sum it decodes.

    Clients clip and round as with `DSkellam`, and trust the server with the sum.  The noise is drawn from `entropy`.
    """

    entropy: Entropy = secrets.token_bytes

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.SERVER
    in_ring: ClassVar[bool] = False
    sums_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bound(self)
        check_positive("sigma", self.sigma)

    @classmethod
    def for_cost(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism with the least noise at which the theta^2 of a release is at most `allowance`."""
        multiplier = multiplier_for_cost(allowance)
        if setting.records is not None:
            grid = record_grid(setting, setting.records, 0.0)
            squared = record_sensitivity(grid.scale * setting.clip, grid.padded)
            return cls(grid, setting.clip, squared, sigma=multiplier * math.sqrt(squared) / grid.scale)
        grid = wide_grid(setting, multiplier * setting.clip)
        bound = scaling.sensitivity(grid.scale, setting.clip, grid.padded)
        return cls(grid, setting.clip, bound.squared, sigma=multiplier * bound.l2 / grid.scale)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean of `count` clients' updates with the server's noise; every call draws new noise."""
        noisy = super().decode(total, count, public_seed)
        self.add_server_noise(noisy, count)
        return noisy

    def add_server_noise(self, mean: Floats, count: int = 1) -> None:
        """Add Gaussian noise of standard deviation `sigma` / `count` to the mean over `count` clients, in place."""
        mean += gaussian_noise(self.entropy(SEED_BYTES), self.sigma / count, self.grid.dim)

    def release(self, variance: Fraction) -> Gaussian:
        """Return the event of a sum under the server's noise; `variance`, that of clients' noise, is ignored."""
        return Gaussian(self.sigma * self.grid.scale / math.sqrt(self.sensitivity))

    def noise_variances(self, survivors: int, clients: int, colluders: int) -> NoiseVariances:
        """Return the variance of the server's noise, which dropout does not change: as planned, left and charged."""
        variance = (self.sigma * self.grid.scale) ** 2
        return NoiseVariances(variance, variance, variance)


class LocalGaussian(GaussianMechanism, frozen=True, tag="local-gaussian", kw_only=True):
    """Every client adds noise of standard deviation `sigma`, in real units, to its clipped update.

    Later steps, such as rounding, are post-processing, so the norm of the integer vector needs no bound.
    """

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.CLIENT
    sums_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("the clip bound", self.clip)
        check_positive("sigma", self.sigma)

    @classmethod
    def for_cost(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism with the least noise at which the theta^2 of a release is at most `allowance`."""
        sigma = multiplier_for_cost(allowance) * setting.clip
        summed = sigma * math.sqrt(setting.clients)
        sampled = setting.records
        grid = wide_grid(setting, summed) if sampled is None else record_grid(setting, sampled, summed)
        return cls(grid, setting.clip, sigma=sigma)

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum: clip, add noise, rotate, scale and round."""
        x = encoding.check_update(update, self.grid)
        noisy = gaussian_noise(entropy(SEED_BYTES), self.sigma, x.size)
        noisy += x * encoding.clip_factor(x, self.clip)
        return encoding.encode(noisy, self.grid, public_seed, entropy)

    def add_client_noise(self, total: Integers, length: int, entropy: Entropy) -> None:
        """Add a client's noise, rounded to integers, to its sum of records, in place.

        `length` is C_q, the largest norm of a quantised record.  Rounding the noise does not weaken privacy: the result
        is the same as if the noisy sum were rounded afterwards, because the sum consists of integers.
        """
        noise = gaussian_noise(entropy(SEED_BYTES), self.sigma * length / self.clip, total.size)
        total += np.rint(noise, out=noise).astype(np.int64)

    def release(self, variance: Fraction) -> Gaussian:
        """Return the event of one client's update under this client's noise; `variance`, of all noise, is ignored."""
        return Gaussian(self.sigma / self.clip)

    def noise_variances(self, survivors: int, clients: int, colluders: int) -> NoiseVariances:
        """Return the noise variance of all clients (planned), of the survivors (left), and of one client (charged)."""
        variance = (self.sigma * self.grid.scale) ** 2
        return NoiseVariances(variance * clients, variance * survivors, variance)


class NoMechanism(Mechanism, frozen=True, tag="none"):
    """No clipping, no bound and no noise; policies of owners refuse it by default."""

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.NOBODY
    in_ring: ClassVar[bool] = False
    description: ClassVar[str] = "no noise, and no bound on an update"

    @classmethod
    def for_cost(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism on a 32-bit grid; `allowance` is ignored, because there is no budget."""
        return cls(wide_grid(setting, setting.clip))

    def release(self, variance: Fraction) -> Event:
        raise InputError("a release without noise proves nothing: such a round runs without a ledger")
