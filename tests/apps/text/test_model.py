"""Posterior means against integrals by quadrature, and against what is known where there is no noise."""

import numpy as np
import pytest
from scipy import integrate, stats

from dordis.apps.text.model import NoisyCounts, Zipf, lifts, word_probabilities


@pytest.mark.parametrize(("total", "deviation", "spread"), [(3.0, 1.0, 1.5), (-1.0, 2.0, 1.0), (40.0, 4.0, 1.75)])
def test_a_lift_is_its_posterior_mean(total, deviation, spread):
    independent, weights = np.array([0.02, 0.08]), np.array([2.0, 0.5])
    seen = NoisyCounts(np.array([total, 30.0]), deviation, weights)
    factor = (total / 2.0 + 30.0 / 0.5) / 0.1

    def joint(z):
        lift = np.exp(spread * z - spread**2 / 2)
        return stats.norm.pdf(z) * stats.norm.pdf((total - factor * 0.02 * 2.0 * lift) / deviation), lift

    above = integrate.quad(lambda z: joint(z)[0] * joint(z)[1], -8, 8, epsabs=0, limit=400, points=[0.0])[0]
    below = integrate.quad(lambda z: joint(z)[0], -8, 8, epsabs=0, limit=400, points=[0.0])[0]
    assert lifts(seen, independent, spread)[0] == pytest.approx(above / below, rel=2e-2)


def test_pairs_that_were_not_seen_keep_the_prior():
    seen = NoisyCounts(np.zeros(3), 1e6, np.ones(3))
    np.testing.assert_allclose(lifts(seen, np.full(3, 1e-9), 1.5), 1.0, rtol=1e-3)


def test_the_prior_of_words_is_a_distribution_whose_words_add_up_to_one():
    x, chances = Zipf(1.2, 3.0).grid(10_000)
    assert np.exp(chances).sum() == pytest.approx(1.0)
    assert 10_000 * (np.exp(chances) @ x) == pytest.approx(1.0, rel=1e-3)
    exact = 1 / (np.arange(1, 10_001) + 3.0) ** 1.2
    np.testing.assert_allclose(x.max(), exact.max() / exact.sum(), rtol=0.05)  # a step of the grid


def test_words_without_noise_are_found_and_with_noise_are_drawn_to_the_prior():
    true = 1 / (np.arange(1, 1001) + 6.0) ** 1.4
    true /= true.sum()
    weights = np.ones(1000)
    clear = word_probabilities([NoisyCounts(500.0 * true, 1e-4, weights)], Zipf())
    assert np.abs(np.log(clear / true)).max() < 0.1  # two steps of the grid
    noise = np.random.default_rng(5).normal(0.0, 1.0, 1000)
    noisy = word_probabilities([NoisyCounts(500.0 * true + noise, 1.0, weights)], Zipf())
    cut = np.maximum(500.0 * true + noise, 0.05)
    loss, naive = (float(true @ -np.log(p)) for p in (noisy, cut / cut.sum()))
    best = float(true @ -np.log(true))
    assert best < loss < naive - 0.05
    both = [NoisyCounts(500.0 * true + noise, 1.0, weights), NoisyCounts(80.0 * noisy**-0.3 * true, 1.0, noisy**-0.3)]
    assert best < float(true @ -np.log(word_probabilities(both, Zipf()))) < loss


def test_what_cannot_be_has_no_probability():
    weights = np.array([0.0, 1.0, 1.0])
    found = word_probabilities([NoisyCounts(np.array([9.0, 5.0, 1.0]), 0.1, weights)], Zipf())
    assert found[0] == 0.0
    assert found.sum() == pytest.approx(1.0)
