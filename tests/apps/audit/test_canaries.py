"""The attack with canaries, as a statistic: what guesses prove about epsilon."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dordis.apps.audit.canaries import AttackedClaim, lower_bound, p_value, toss
from dordis.errors import InputError


@pytest.mark.parametrize(
    ("guesses", "correct", "epsilon", "expected"),
    [(10, 10, 0.0, 2.0**-10), (10, 0, 3.0, 1.0), (1, 1, math.log(3), 0.75), (2, 1, math.log(3), 1 - 1 / 16)],
)
def test_without_delta_the_p_value_is_a_binomial_tail(guesses, correct, epsilon, expected):
    assert p_value(20, guesses, correct, epsilon, 0.0) == pytest.approx(expected)


def test_the_p_value_with_delta_is_that_of_the_theorem():
    m, r, v, epsilon, delta = 50, 20, 17, 1.0, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, w) * q**w * (1 - q) ** (r - w) for w in range(r + 1)]
    alpha = max(2 / i * sum(mass[max(0, v - i) : v]) for i in range(1, m + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(sum(mass[v:]) + alpha * m * delta)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_is_bounded_below_its_epsilon_as_often_as_promised(epsilon):
    guesses = 200
    right = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    bounds = [lower_bound(guesses, guesses, v, 0.0, 0.95) for v in range(guesses + 1)]
    exceeded = sum(right.pmf(v) for v in range(guesses + 1) if bounds[v] > epsilon)
    assert 0.01 < exceeded <= 0.05
    assert bounds == sorted(bounds)
    assert bounds[int(right.mean())] > epsilon / 3


def test_delta_and_confidence_lower_the_bound():
    bounds = [lower_bound(1000, 100, 95, delta, 0.95) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > bounds[3]
    assert lower_bound(1000, 100, 95, 0.0, 0.999) < bounds[0]


def test_guessing_every_coin_shows_the_most_and_guessing_half_of_them_nothing():
    claim = AttackedClaim(epsilon=1.0, delta=0.0)
    coins = np.arange(100) % 2 == 0
    assert claim.judge(coins, coins * 2.0, 1.0).shown == claim.most(100)
    blind = claim.judge(coins, np.full(100, 2.0), 1.0)
    assert (blind.shown, blind.refuted) == (0.0, False)


def test_coins_are_the_bits_of_the_entropy():
    assert toss(12, lambda size: bytes([0b10100000, 0b11111111][:size])).tolist() == [1, 0, 1, 0, 0, 0, 0, 0, *[1] * 4]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: p_value(10, 11, 5, 1.0, 0.0),
        lambda: p_value(10, 5, 6, 1.0, 0.0),
        lambda: p_value(10, 5, -1, 1.0, 0.0),
        lambda: p_value(10, 5, 5, -1.0, 0.0),
        lambda: p_value(10, 5, 5, 1.0, 2.0),
        lambda: lower_bound(10, 5, 5, 0.0, 1.0),
        lambda: lower_bound(10, 5, 5, 0.0, 0.0),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
