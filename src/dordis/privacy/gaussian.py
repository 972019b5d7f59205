"""The Gaussian baselines: central privacy, where a trusted server adds the noise, and local, where every client does.

They are there to be compared with.  Their noise is made of floating-point numbers, whose low bits are known to tell
about what they hide (Mironov, "On Significance of the Least Significant Bits for Differential Privacy", 2012): do not
deploy them.  The encoding is that of the other mechanisms, so that the same protocols sum it.
"""

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.special import ndtri

from dordis.crypto import kdf, prg
from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy import encoding
from dordis.privacy.accounting import Gaussian, check_positive
from dordis.privacy.encoding import Entropy, Grid, Reals
from dordis.privacy.mechanism import WITHOUT_NOISE, check_bound, mean
from dordis.privacy.skellam import Floats
from dordis.privacy.xnoise import Scheme

SEED_BYTES = 32
_STEP = prg.CALL // 8


def gaussian_noise(seed: bytes, sigma: float, dim: int) -> Floats:
    """Return `dim` normal samples of standard deviation `sigma`, a function of the seed, by inversion.

    >>> gaussian_noise(bytes(range(32)), 1.0, 3).round(2).tolist()
    [0.13, 0.31, -0.05]
    """
    if len(seed) != SEED_BYTES:
        raise InputError(f"a noise seed has {SEED_BYTES} bytes, not {len(seed)}")
    context = prg.start(prg.Stream.of(kdf.expand(seed, b"dordis/v1/gaussian", prg.STREAM_BYTES)))
    samples = np.empty(dim, np.float64)
    words = np.empty(min(_STEP, dim + dim % 2), "<u8")
    for at in range(0, dim, _STEP):
        piece = samples[at : at + _STEP]
        used = words[: piece.size + piece.size % 2]  # the keystream comes in blocks of two words
        prg.generate(context, used.view(np.uint8))
        chance = ((used[: piece.size] >> np.uint64(12)) + 0.5) * 2.0**-52
        ndtri(chance, out=piece)
        piece *= sigma
    return samples


@dataclass(frozen=True)
class CentralGaussian:
    """A trusted server adds noise of standard deviation `sigma`, in real units, to the sum it decodes.

    Clients clip and round like those of `DSkellam`, and trust the server with the sum.  `entropy` is the server's.
    """

    grid: Grid
    clip: float
    sensitivity: int
    sigma: float
    entropy: Entropy = secrets.token_bytes

    def __post_init__(self) -> None:
        check_bound(self.grid, self.clip, self.sensitivity)
        check_positive("sigma", self.sigma)

    @property
    def name(self) -> str:
        """Return the name; how much noise there is, the server alone decides."""
        return "central-gaussian"

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return the one scheme by which the protocol adds nothing."""
        return WITHOUT_NOISE

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, rotate, scale and round."""
        return encoding.encode(update, self.grid, public_seed, entropy, self.clip, self.sensitivity)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean of the sum with the server's noise; every call draws its own."""
        noisy = mean(total, count, self.grid, public_seed)
        noisy += gaussian_noise(self.entropy(SEED_BYTES), self.sigma / count, self.grid.dim)
        return noisy

    def release(self, variance: Fraction) -> Gaussian:
        """Return a sum under the server's noise; there is no other, whatever the `variance`."""
        return Gaussian(self.sigma * self.grid.scale / math.sqrt(self.sensitivity))


@dataclass(frozen=True)
class LocalGaussian:
    """Every client adds noise of standard deviation `sigma`, in real units, to its clipped update, and trusts nobody.

    What comes after, rounding included, cannot take privacy away, so nothing bounds the norm in the integers.
    """

    grid: Grid
    clip: float
    sigma: float

    def __post_init__(self) -> None:
        check_positive("the clip bound", self.clip)
        check_positive("sigma", self.sigma)

    @property
    def name(self) -> str:
        """Return the name and the noise, which all must agree on."""
        return f"local-gaussian:{self.sigma!r}"

    @property
    def sensitivity(self) -> int:
        """Return 0: there is no bound in the integers."""
        return 0

    @property
    def schemes(self) -> frozenset[Scheme]:
        """Return the one scheme by which the protocol adds nothing."""
        return WITHOUT_NOISE

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Clip, add noise, rotate, scale and round."""
        x = encoding.check_update(update, self.grid)
        noisy = gaussian_noise(entropy(SEED_BYTES), self.sigma, x.size)
        noisy += x * encoding.clip_factor(x, self.clip)
        return encoding.encode(noisy, self.grid, public_seed, entropy)

    def decode(self, total: Vector, count: int, public_seed: bytes) -> Floats:
        """Return the mean."""
        return mean(total, count, self.grid, public_seed)

    def release(self, variance: Fraction) -> Gaussian:
        """Return one client's update under its own noise; the others' is not counted on, whatever the `variance`."""
        return Gaussian(self.sigma / self.clip)
