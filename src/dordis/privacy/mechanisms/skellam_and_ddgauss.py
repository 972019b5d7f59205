"""The distributed mechanisms: Skellam (Agarwal, Kairouz and Liu, 2021), and discrete Gaussian with its sampler.

Skellam noise is the default.  XNoise needs it, because a sum of Skellam noises is Skellam noise; a sum of discrete
Gaussians is not discrete Gaussian.  The discrete Gaussian mechanism (DDGauss; Kairouz, Liu and Steinke, 2021) is a
baseline.

Discrete Gaussian noise is drawn from a seed, by inversion of its distribution function in integers.  The *mass* of x is
floor(2^127 p(x)), computed in fixed point from the probability p(x); the mass of 0 is raised until all masses sum to
2^127.  So the probability of x is exactly its mass / 2^127, and the total variation distance from the discrete Gaussian
is at most 2^-105.  Unlike Skellam noise, this noise is never removed, so its format may change between versions, and it
is not optimised for speed.  The time in which a sample is drawn may depend on the sample.
"""

import math
import secrets
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from dordis.crypto import prg
from dordis.errors import InputError, ParametersRefused
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import LEAST_SCALE, DiscreteGaussianSum
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals
from dordis.privacy.mechanisms import Mechanism, check_bound, grid_from_plan
from dordis.privacy.planning import Plan
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.skellam_noise import check_variance
from dordis.privacy.xnoise_components import Scheme, parse_variance

LONGEST = 2**31
_TOTAL_BITS = 127
_POINT = 384  # fractional bits: the error of the masses is below 2^-300
_WORDS = 2  # 64-bit words for each sample: 127 random bits and a sign
_STEP = prg.CALL // 8 // _WORDS

Words = npt.NDArray[np.uint64]


class DSkellam(Mechanism, frozen=True, tag="skellam"):
    """Distributed Skellam: clients clip, fold, rotate, scale and round updates, and the protocol adds the noise."""

    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme) - {Scheme.NONE}
    has_price_list: ClassVar[bool] = False
    may_fold: ClassVar[bool] = True
    sums_records: ClassVar[bool] = True
    description: ClassVar[str] = "distributed Skellam noise, drawn in integers"

    def __post_init__(self) -> None:
        check_bound(self)


def discrete_gaussian_noise(seed: bytes, variance: Fraction | int, dim: int) -> npt.NDArray[np.int32]:
    """Return `dim` samples, a function of the seed: x has a probability proportional to exp(-x^2 / (2 variance)).

    `variance` is the square of the scale g, a multiple of 2^-20 from 1/4 to 10^10.  The variance of the samples is
    smaller than `variance`: by 14 % at 1/4, and by 0.00002 % at 1.

    >>> discrete_gaussian_noise(bytes(range(32)), 4, 8).tolist()
    [-2, -4, -3, 3, -1, 2, -2, 3]
    """
    if not 0 <= dim <= LONGEST:
        raise InputError(f"a noise vector has 0 to 2^31 samples, not {dim}")
    context = prg.open_stream(prg.from_seed(seed, b"dordis/v1/discrete-gaussian"))
    highs, lows = _cumulate_masses(_check_share_variance(variance))
    samples = np.empty(dim, np.int32)
    words = np.empty((min(_STEP, dim), _WORDS), "<u8")
    for at in range(0, dim, _STEP):
        piece = samples[at : at + _STEP]
        used = words[: piece.size]
        prg.fill_keystream(context, used.view(np.uint8).reshape(-1))
        piece[:] = _invert(highs, lows, used[:, 0] >> np.uint64(1), used[:, 1])
        np.negative(piece, out=piece, where=used[:, 0] & np.uint64(1) == 1)
    return samples


def discrete_gaussian_masses(variance: Fraction | int) -> list[int]:
    """Return the probabilities p(x) of x = 0, 1, 2, .. times 2^127, as integers, up to the last positive one.

    Before rounding, p(x + 1) / p(x) = q^(2 x + 1) with q = exp(-1 / (2 variance)).
    """
    weights = list(_weights(_check_share_variance(variance)))
    total = weights[0] + 2 * sum(weights[1:])
    shares = [(weight << _TOTAL_BITS) // total for weight in weights]
    while not shares[-1]:
        shares.pop()
    shares[0] += (1 << _TOTAL_BITS) - shares[0] - 2 * sum(shares[1:])
    return shares


def _weights(variance: Fraction) -> Iterator[int]:
    """Yield exp(-x^2 / (2 variance)), with _POINT fractional bits, for x = 0, 1, 2, .., until it is negligible."""
    q = _exp_minus(1 / (2 * variance))
    squared, ratio, weight = q * q >> _POINT, q, 1 << _POINT
    while weight >> (_POINT - _TOTAL_BITS - 8):
        yield weight
        weight = weight * ratio >> _POINT
        ratio = ratio * squared >> _POINT


def _exp_minus(z: Fraction) -> int:
    """Return exp(-z) with _POINT fractional bits, for z up to 2, by its power series."""
    total = term = 1 << _POINT
    k = 0
    while term:
        k += 1
        term = term * z.numerator // (z.denominator * k)
        total += -term if k % 2 else term
    return total


@lru_cache(maxsize=4)
def _cumulate_masses(variance: Fraction) -> tuple[Words, Words]:
    """Return the probabilities, times 2^127, of |x| <= 0, 1, 2, .. as arrays of high and of low words."""
    zero, *others = discrete_gaussian_masses(variance)
    sums = list(accumulate((zero, *(2 * mass for mass in others))))
    highs = np.array([value >> 64 for value in sums], np.uint64)
    lows = np.array([value & (2**64 - 1) for value in sums], np.uint64)
    return highs, lows


def _invert(highs: Words, lows: Words, high: Words, low: Words) -> npt.NDArray[np.int64]:
    """Return the least x whose cumulative mass exceeds the 127-bit number (`high`, `low`), for each such number."""
    x = np.searchsorted(highs, high)
    while True:  # ties in the high word have probability 2^-63 for each magnitude
        beyond = (highs[x] == high) & (lows[x] <= low)
        if not beyond.any():
            return x
        x += beyond


def _check_share_variance(variance: Fraction | int) -> Fraction:
    exact = check_variance(variance)
    if exact < Fraction(LEAST_SCALE) ** 2:
        raise InputError(f"the scale of a discrete Gaussian is at least {LEAST_SCALE}: its square is not {variance}")
    return exact


class DDGauss(Mechanism, frozen=True, tag="ddgauss", kw_only=True):
    """Distributed discrete Gaussian: every client adds an even share of the noise before the summing protocol runs.

    Shares of dropouts are missing, as in the paper's strategy Orig.  `variance` is g^2, the squared scale of one share,
    in integer units.  XNoise is refused, because sums of discrete Gaussians are not discrete Gaussian.
    """

    variance: Fraction

    only_renyi: ClassVar[bool] = True
    may_fold: ClassVar[bool] = True
    description: ClassVar[str] = "distributed discrete Gaussian noise, drawn in integers"

    def __post_init__(self) -> None:
        check_bound(self)
        if self.variance < LEAST_SCALE**2:
            raise ParametersRefused(f"a share has a variance of {LEAST_SCALE**2} or more, not {self.variance}")

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Return the mechanism with the noise of a plan, whose scheme must be `orig`."""
        if plan.setting.scheme is not Scheme.ORIG:
            raise ParametersRefused(
                f"discrete Gaussian noise cannot be removed again: the scheme must be '{Scheme.ORIG.value}', "
                f"not '{plan.setting.scheme.value}'"
            )
        (variance,) = plan.noise.base
        return cls(grid_from_plan(plan), plan.setting.clip, plan.sensitivity.squared, variance=variance)

    @classmethod
    def from_parameters(cls, grid: Grid, clip: float, sensitivity: int, noise: str) -> Self:
        return cls(grid, clip, sensitivity, variance=parse_variance(noise))

    @property
    def noise(self) -> str:
        return str(self.variance)

    @property
    def share(self) -> Fraction:
        return self.variance

    def encode(self, update: Reals, public_seed: bytes, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum: clip, fold, rotate, scale, round, and add its share of the noise."""
        vector = super().encode(update, public_seed, entropy)
        vector += discrete_gaussian_noise(entropy(SEED_BYTES), self.variance, vector.size).view(np.uint32)
        vector &= np.uint32(2**self.grid.bits - 1)
        return vector

    def release(self, variance: Fraction) -> DiscreteGaussianSum:
        """Return the release of a sum, for accounting, under the noise of floor(`variance` / g^2) clients.

        Raise InputError if `variance` is below g^2, the squared scale of one client's noise.
        """
        honest = math.floor(variance / self.variance)
        if honest < 1:
            raise InputError("a sum under discrete Gaussian noise needs more survivors than there may be colluders")
        bound = Sensitivity(self.sensitivity, self.grid.padded)
        return DiscreteGaussianSum(bound.l2, bound.l1, honest, math.sqrt(self.variance), self.grid.padded)
