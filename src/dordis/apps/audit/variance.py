"""A test whether noise has its stated variance, for noise samples that are known exactly.

The claim is that the samples are independent Skellam variables of a stated variance mu = sigma^2, modulo 2^b, where b
is the number of bits of the ring.  The statistic S is the sum of the squares of the samples, each square cut at about
(6 sigma)^2, so that rare large samples do not dominate E[e^(lambda S)].  For every lambda > 0 Chernoff's bounds

    P(S >= s) <= e^(-lambda s) E[e^(lambda S)]   and   P(S <= s) <= e^(lambda s) E[e^(-lambda S)],

hold, with moments computed from the exact probabilities e^-mu I_k(mu) of the values k; I_k is a modified Bessel
function.  There is no approximation by a normal variable, so the level of the test holds for any number of samples.
The least bound over lambda falls as s moves away from the mean of S, so the least bound is a p-value.

The lower tail also tests the claim "the variance is at least mu".  Noise of a larger variance is noise of variance mu
plus independent noise.  The distributions of both are symmetric, and their probabilities fall with the distance from 0
on the circle of 2^b numbers.  Hence |Z|, for a sample Z of the noise of larger variance, is stochastically larger than
for noise of variance mu, and so is S.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import ive

from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.scaling import Floats

Integers = npt.NDArray[np.int64]

LARGEST_VARIANCE = 10**9
"""Largest variance that can be tested: up to here the Bessel functions are exact to 13 digits."""
_CUT = 6
"""Number of standard deviations beyond which a sample is cut before it is squared."""
_REACH, _FURTHER = 12, 40
"""A Skellam variable is beyond 12 sigma + 40 with a probability below 10^-25, by Bernstein's inequality."""
_HALVINGS = 20
_STEEPEST = 2.0**40


@dataclass(frozen=True, eq=False)
class SquareLaw:
    """The distribution of X = min(|Z|, cut)^2 / cut^2: the square of a Skellam variable Z, cut and scaled to 0..1.

    `chances` are the probabilities of |Z| = 0, 1, .., cut - 1, and of |Z| >= cut.
    """

    cut: int
    chances: Floats

    @cached_property
    def values(self) -> Floats:
        """Return the values that X may have, from 0 to 1."""
        return (np.arange(self.cut + 1) / self.cut) ** 2

    def log_moment(self, slope: float) -> tuple[float, float]:
        """Return the logarithm of E[e^(slope X)], and its derivative with respect to `slope`."""
        exponents = slope * self.values
        top = float(exponents.max())
        weights = self.chances * np.exp(exponents - top)
        mass = float(weights.sum())
        weights *= self.values
        return top + math.log(mass), float(weights.sum()) / mass


@lru_cache(maxsize=64)
def square_law(variance: Fraction, bits: int) -> SquareLaw:
    """Return the distribution of the square of Skellam noise modulo 2^bits, cut and scaled as in `SquareLaw`.

    Raise InputError if the variance is not above 0 or exceeds `LARGEST_VARIANCE`.
    """
    if not 0 < variance <= LARGEST_VARIANCE:
        raise InputError(f"the variance of tested noise lies above 0 and up to 10^9, not at {float(variance):.3g}")
    mu, ring = float(variance), 1 << bits
    far = math.ceil(_REACH * math.sqrt(mu)) + _FURTHER
    cut = min(math.ceil(_CUT * math.sqrt(mu)) + 1, ring // 2)
    places = np.arange(-far, far + 1)
    folded = np.abs((places + ring // 2) % ring - ring // 2)
    chances = np.zeros(cut + 1)
    np.add.at(chances, np.minimum(folded, cut), ive(np.abs(places), mu))
    return SquareLaw(cut, chances)


@dataclass(frozen=True)
class VarianceSample:
    """A summary of noise samples that have the same stated variance.

    `count` is the number of samples, `cut_squares` the sum of their cut and scaled squares (`SquareLaw`), `squares` the
    sum of their squares, and `stated` the stated variance.
    """

    law: SquareLaw
    count: int
    cut_squares: float
    squares: float
    stated: float

    @classmethod
    def from_samples(cls, samples: Integers, variance: Fraction, bits: int) -> "VarianceSample":
        """Return the summary of noise samples modulo 2^bits, as `centre_ring` gives them, of the stated `variance`."""
        law = square_law(variance, bits)
        magnitudes = np.abs(samples)
        cut_squares = float(((np.minimum(magnitudes, law.cut) / law.cut) ** 2).sum())
        squares = float((magnitudes.astype(np.float64) ** 2).sum())
        return cls(law, samples.size, cut_squares, squares, float(variance))


@dataclass(frozen=True)
class VarianceTest:
    """Result of comparing noise with its stated variance.

    `ratio` is the measured variance divided by the stated variance.  `too_small` and `too_large` are p-values: if the
    stated variance is right, the probability of noise as small as measured is at most `too_small`, and of noise as
    large as measured at most `too_large`.
    """

    samples: int
    ratio: float
    too_small: float
    too_large: float


def variance_test(measured: Sequence[VarianceSample]) -> VarianceTest:
    """Return one test of all noise samples together; the summaries in `measured` may have different stated variances.

    Raise InputError if there are no samples.
    """
    count = sum(some.count for some in measured)
    if not count:
        raise InputError("a test of noise needs samples")
    ratio = sum(some.squares for some in measured) / sum(some.stated * some.count for some in measured)
    return VarianceTest(count, ratio, _chernoff(measured, -1), _chernoff(measured, 1))


def centre_ring(vector: Vector, bits: int) -> Integers:
    """Return, for each element of `vector`, its representative modulo 2^bits in -2^(bits-1) .. 2^(bits-1) - 1."""
    half = 1 << (bits - 1)
    return (vector.astype(np.int64) + half) % (2 * half) - half


def _chernoff(measured: Sequence[VarianceSample], side: int) -> float:
    """Return the least Chernoff bound on the probability that a sum of cut squares is as extreme as the observed one.

    With `side` 1, extreme means at least as large; with `side` -1, at most as large.
    """
    seen = sum(some.cut_squares for some in measured)
    counts: Counter[SquareLaw] = Counter()
    for some in measured:
        counts[some.law] += some.count

    def bound(steepness: float) -> tuple[float, float]:
        tilts = [(count, *law.log_moment(side * steepness)) for law, count in counts.items()]
        moment = math.fsum(count * log_mean for count, log_mean, _ in tilts)
        mean = math.fsum(count * tilted for count, _, tilted in tilts)
        return moment - side * steepness * seen, side * (mean - seen)

    return math.exp(min(0.0, bound(_minimum(lambda steepness: bound(steepness)[1]))[0]))


def _minimum(derivative: Callable[[float], float]) -> float:
    """Return approximately the x >= 0 at which a convex function is smallest, from its derivative, by bisection.

    The error of bisection does no harm: Chernoff's bound holds for every x.
    """
    if derivative(0.0) >= 0:
        return 0.0
    high = 1.0
    while derivative(high) < 0 and high < _STEEPEST:
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return low
