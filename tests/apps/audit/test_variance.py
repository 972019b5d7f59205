"""The test of variances: its law and its level, compared with every outcome of small samples."""

import itertools
import math
from collections import defaultdict
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy.stats import skellam

from dordis.apps.audit.variance import VarianceSample, centre_ring, square_law, variance_test
from dordis.errors import InputError


def ring_law(variance, bits):
    """Return the chance of every residue nearest to 0, from the two Poisson variables of the definition."""
    chances, places = defaultdict(float), np.arange(-400, 401)
    for k, chance in zip(places.tolist(), skellam.pmf(places, variance / 2, variance / 2).tolist(), strict=True):
        chances[(k + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)] += chance
    return chances


@pytest.mark.parametrize(("variance", "bits"), [(0.5, 8), (3.0, 8), (40.0, 8), (40.0, 5), (200.0, 4)])
def test_the_law_is_that_of_skellam_noise_in_the_ring(variance, bits):
    law = square_law(Fraction(variance), bits)
    expected = np.zeros(law.cut + 1)
    for k, chance in ring_law(variance, bits).items():
        expected[min(abs(k), law.cut)] += chance
    assert law.chances == pytest.approx(expected, abs=1e-12)
    assert law.cut <= 2 ** (bits - 1)


def outcomes(variance, bits, count):
    """Yield every multiset of magnitudes with its chance."""
    magnitudes = defaultdict(float)
    for k, chance in ring_law(variance, bits).items():
        magnitudes[abs(k)] += chance
    for drawn in itertools.combinations_with_replacement(sorted(magnitudes), count):
        ways = math.factorial(count)
        for k in set(drawn):
            ways //= math.factorial(drawn.count(k))
        yield drawn, ways * math.prod(magnitudes[k] for k in drawn)


STATED, BITS, COUNT = Fraction(2), 4, 3


@lru_cache
def examined(drawn):
    return variance_test([VarianceSample.from_samples(np.array(drawn), STATED, BITS)])


def refuted(true, side, level):
    """Return the chance, over every outcome, that noise of one variance is refuted as being of the stated one."""
    return sum(chance for drawn, chance in outcomes(true, BITS, COUNT) if getattr(examined(drawn), side) < level)


@pytest.mark.parametrize("level", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("side", ["too_small", "too_large"])
def test_true_noise_is_refuted_no_more_often_than_the_level_over_every_outcome(side, level):
    assert 0 <= refuted(2.0, side, level) <= level


def test_more_noise_than_stated_is_refuted_as_too_small_even_less_often():
    chances = [refuted(true, "too_small", 0.2) for true in (0.5, 1.0, 2.0, 3.0, 6.0)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.2 > chances[2] > chances[4]


def test_the_bound_is_close_to_the_chance_that_it_bounds():
    bounds, chances = {}, defaultdict(float)
    for drawn, chance in outcomes(2.0, BITS, COUNT):
        squares = sum(k**2 for k in drawn)
        chances[squares] += chance
        bounds[squares] = examined(drawn).too_large
    tails = {s: sum(chance for more, chance in chances.items() if more >= s) for s in bounds}
    assert all(tails[s] <= bounds[s] * (1 + 1e-9) for s in bounds)
    assert all(bounds[s] <= 50 * tails[s] for s in bounds if tails[s] > 1e-6)


def test_samples_of_several_variances_are_tested_together():
    rng = np.random.default_rng(7)
    draws = [(Fraction(v), rng.poisson(v / 2, 400) - rng.poisson(v / 2, 400)) for v in (10, 1000)]
    fair = variance_test([VarianceSample.from_samples(samples, v, 16) for v, samples in draws])
    assert fair.samples == 800
    assert min(fair.too_small, fair.too_large) > 1e-3
    wrong = variance_test([VarianceSample.from_samples(samples, 2 * v, 16) for v, samples in draws])
    assert wrong.too_small < 1e-9
    assert wrong.ratio == pytest.approx(fair.ratio / 2)


def test_ring_elements_are_read_as_the_numbers_nearest_to_zero():
    assert centre_ring(np.array([0, 1, 7, 8, 15], np.uint32), 4).tolist() == [0, 1, 7, -8, -1]


@pytest.mark.parametrize("variance", [0, -1, 10**10])
def test_a_variance_that_cannot_be_tested_is_refused(variance):
    with pytest.raises(InputError, match="variance"):
        square_law(Fraction(variance), 16)


def test_no_samples_test_nothing():
    with pytest.raises(InputError, match="samples"):
        variance_test([])
