"""From noise to epsilon: Renyi curves, composition, conversion, and participation schedules."""

import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.privacy import accounting
from dordis.privacy.accounting import (
    ALL_ROUNDS,
    ORDERS,
    PAPER_ORDERS,
    Composed,
    DiscreteGaussianSum,
    Gaussian,
    ParticipationSchedule,
    Repeated,
    SkellamSum,
    epsilon,
    guarantee,
    renyi_divergences,
)

RELEASE = SkellamSum(l2_squared=10_000, l1=5_000, variance=250_000.0)
multipliers = st.floats(0.3, 30)


def converted(rho: mpmath.mpf, delta: float) -> float:
    """Convert rho-zCDP at the integer orders, in high precision and from the formula alone."""
    orders = [mpmath.mpf(a) for a in ORDERS]
    result = min(a * rho + mpmath.log(1 - 1 / a) - mpmath.log(delta * a) / (a - 1) for a in orders)
    return max(0.0, float(result))


@settings(deadline=None, max_examples=30)
@given(multipliers, st.integers(1, 200), st.floats(1e-9, 1e-2))
def test_epsilon_is_the_least_over_integer_orders(z: float, count: int, delta: float) -> None:
    result = guarantee(Repeated(Gaussian(z), count), delta).epsilon
    assert result == pytest.approx(converted(mpmath.mpf(count) / (2 * mpmath.mpf(z) ** 2), delta), rel=1e-10, abs=1e-12)


@settings(deadline=None)
@given(multipliers, st.integers(1, 100), st.floats(1e-9, 1e-2))
def test_epsilon_is_the_exact_one_of_gaussian_noise(z: float, count: int, delta: float) -> None:
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(count), delta)
    assert epsilon(Repeated(Gaussian(z), count), delta) == pytest.approx(exact, rel=1e-7, abs=1e-9)
    assert guarantee(Repeated(Gaussian(z), count), delta).epsilon >= exact - 1e-9
    if 1e-6 < exact < 600:
        assert accounting.gaussian_multiplier(exact, count, delta) == pytest.approx(z, rel=1e-6)


@pytest.mark.slow
@settings(deadline=None)
@given(st.floats(1e3, 1e9), st.floats(1.0001, 10), st.integers(1, 50), st.floats(1e-8, 1e-2))
def test_more_noise_fewer_rounds_or_a_larger_delta_never_cost_more(
    variance: float, factor: float, rounds: int, delta: float
) -> None:
    run = Repeated(SkellamSum(1e4, 5e3, variance), rounds)
    spent = epsilon(run, delta)
    assert epsilon(Repeated(SkellamSum(1e4, 5e3, variance * factor), rounds), delta) <= spent
    assert epsilon(Repeated(run.event, rounds + 1), delta) >= spent
    assert epsilon(run, delta * factor) <= spent
    assert epsilon(Repeated(SkellamSum(1e4 * factor, 5e3, variance), rounds), delta) >= spent
    assert epsilon(run, delta, distance=1e-25) >= spent


def test_repeating_is_composing() -> None:
    assert renyi_divergences(Repeated(RELEASE, 3)) == pytest.approx(
        renyi_divergences(Composed((RELEASE, RELEASE, RELEASE))), rel=1e-14
    )
    assert renyi_divergences(Composed(())).tolist() == [0.0] * len(ORDERS)


def test_the_orders_are_integers_that_include_the_papers() -> None:
    assert set(PAPER_ORDERS) <= set(ORDERS)
    assert list(ORDERS) == sorted(set(ORDERS))
    assert all(type(order) is int for order in ORDERS)


def test_unknown_events_and_orders_without_a_proof_are_refused() -> None:
    with pytest.raises(InputError, match="no bound is known for str"):
        renyi_divergences("laplace")  # type: ignore[arg-type]
    for orders in ([2.5], [1], []):
        with pytest.raises(InputError, match="integers of at least 2"):
            renyi_divergences(RELEASE, orders)  # type: ignore[arg-type]


def test_the_distance_of_the_sampler_is_paid_from_delta() -> None:
    run, delta, distance = Repeated(RELEASE, 10), 1e-5, 1e-9
    for proved in (epsilon, lambda event, delta, distance=0.0: guarantee(event, delta, distance=distance).epsilon):
        result = proved(run, delta, distance=distance)
        assert proved(run, delta) < result
        assert result >= proved(run, delta - (1 + math.exp(result)) * distance) * (1 - 1e-9)
        assert proved(run, delta, distance=delta) == math.inf


def test_a_run_of_different_noise_costs_the_sum() -> None:
    run = Composed((Repeated(RELEASE, 3), Gaussian(4.0), SkellamSum(1e4, 5e3, 1e6)))
    squares = 3 * 1e4 / 249_999.5 + 1 / 16 + 1e4 / 999_999.5
    assert accounting.theta_squared(run) == pytest.approx(squares, rel=1e-12)
    assert epsilon(run, 1e-6) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(1 / math.sqrt(squares), 1e-6), rel=1e-7
    )


SHARES = DiscreteGaussianSum(l2=100.0, l1=5_000.0, clients=50, scale=70.0, dim=4096)


def test_what_has_a_renyi_divergence_only_is_added_up_at_integer_orders_with_the_smaller_curve_of_the_rest() -> None:
    """The oracle converts by hand; of a Skellam sum the Gaussian's divergence is the smaller one here."""
    run = Composed((Repeated(SHARES, 2), Repeated(RELEASE, 3), Gaussian(4.0)))
    assert accounting.theta_squared(run) == math.inf
    skellam = np.minimum(renyi_divergences(RELEASE), np.array(ORDERS) * 1e4 / (2 * 249_999.5))
    divergences = 2 * renyi_divergences(SHARES) + 3 * skellam + np.array(ORDERS) / 32
    candidates = [
        d + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1) for a, d in zip(ORDERS, divergences, strict=True)
    ]
    assert epsilon(run, 1e-6) == pytest.approx(min(candidates), rel=1e-10)
    assert (skellam < renyi_divergences(RELEASE)).any()
    assert epsilon(run, 1e-6) > epsilon(Composed(run.events[1:]), 1e-6)


def test_skellam_noise_up_to_a_half_has_a_renyi_bound_only() -> None:
    little = SkellamSum(1.0, 1.0, 0.5)
    assert accounting.theta_squared(little) == math.inf
    assert epsilon(little, 1e-5) == guarantee(little, 1e-5).epsilon < math.inf


def test_a_sample_of_the_largest_variance_is_within_the_distance() -> None:
    last = 43 + math.isqrt(41**2 + 240 * 10**10)
    assert (2 * last + 1) * Fraction(1, 2**128) + Fraction(1, 2**172) < accounting.SAMPLE_DISTANCE


@pytest.mark.parametrize(
    ("population", "per_round", "rounds", "cap"),
    [(1000, 100, 50, 5), (1000, 100, 51, 6), (100, 16, 150, 24), (100, 100, 20, 20), (7, 3, 1, 1)],
)
def test_the_cap_is_a_clients_share_of_the_rounds(population: int, per_round: int, rounds: int, cap: int) -> None:
    assert ParticipationSchedule(population, per_round, rounds).releases == cap
    assert ParticipationSchedule(population, per_round, rounds, ALL_ROUNDS).releases == rounds


def test_every_report_says_what_is_outside_the_guarantee() -> None:
    terms = " ".join(ParticipationSchedule(100, 10, 5).terms())
    assert "dropout that depends on a client's data" in terms
    assert "the server, who knows who takes part" in terms


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"per_round": 0}, "a round has 1 to 100 clients"),
        ({"per_round": 101}, "a round has 1 to 100 clients"),
        ({"rounds": 0}, "at least one round"),
        ({"accounting": "hope"}, "accounting"),
    ],
)
def test_a_participation_that_cannot_be_is_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ParticipationSchedule(**({"population": 100, "per_round": 10, "rounds": 5} | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.0, -1e-5, 1.0, 2.0, math.nan])
def test_delta_lies_between_0_and_1(delta: float) -> None:
    for ask in (
        lambda: epsilon(RELEASE, delta),
        lambda: accounting.gaussian_multiplier(1.0, 1, delta),
    ):
        with pytest.raises(InputError, match="delta"):
            ask()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_and_multipliers_are_positive(value: float) -> None:
    with pytest.raises(InputError, match="epsilon"):
        accounting.gaussian_multiplier(value, 1, 1e-5)
    with pytest.raises(InputError, match="multiplier"):
        renyi_divergences(Gaussian(value))


def test_the_default_delta_is_below_one_in_the_population() -> None:
    assert [accounting.default_delta(n) for n in (10, 10**6)] == [1e-5, pytest.approx(10**-6.6)]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.floats(0.5, 3), st.integers(2, 64))
def test_discrete_gaussians_have_the_documented_divergence(clients: int, scale: float, alpha: int) -> None:
    D2, D1, d = 30, 400, 4096
    terms = (mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(scale) ** 2 * k / (k + 1)) for k in range(1, clients))
    tau, S = 10 * mpmath.fsum(terms), mpmath.sqrt(clients) * scale
    bounds = (
        mpmath.mpf(alpha) / 2 * (D2 / S) ** 2 + tau * d,
        mpmath.mpf(alpha) / 2 * ((D2 / S) ** 2 + 2 * (D1 / S) * tau + tau**2 * d),
        mpmath.mpf(alpha) / 2 * (D2 / S + tau * mpmath.sqrt(d)) ** 2,
    )
    (result,) = renyi_divergences(DiscreteGaussianSum(D2, D1, clients, scale, d), [alpha])
    assert result == pytest.approx(float(min(bounds)), rel=1e-10)


@pytest.mark.parametrize(("clients", "scale"), [(0, 1.0), (10, 0.49), (10, math.nan)])
def test_discrete_gaussians_that_prove_nothing_are_refused(clients: int, scale: float) -> None:
    with pytest.raises(InputError):
        accounting.discrete_gaussian_rdp(np.array([2]), clients, scale, 1.0, 1.0, 4)


@settings(deadline=None)
@given(st.integers(2, 2**14), st.floats(1, 1e9), st.floats(1, 1e9), st.floats(1, 1e12))
def test_the_divergence_is_the_documented_formula(alpha: int, l2_squared: float, l1: float, variance: float) -> None:
    a, D2, D1, mu = (mpmath.mpf(x) for x in (alpha, l2_squared, l1, variance))
    exact = a * D2 / (2 * mu) + min(((2 * a - 1) * D2 + 6 * D1) / (4 * mu**2), 3 * D1 / (2 * mu))
    (result,) = accounting.skellam_rdp(np.array([alpha]), l2_squared, l1, variance)
    assert result == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("orders", [[2.5], [1], [2.0]])
def test_the_divergence_is_refused_where_it_is_not_proved(orders: list[float]) -> None:
    with pytest.raises(InputError, match="integer orders"):
        accounting.skellam_rdp(np.array(orders), 1.0, 1.0, 1.0)


def test_no_noise_hides_nothing() -> None:
    assert np.isinf(accounting.skellam_rdp(np.array([2, 3]), 1.0, 1.0, 0.0)).all()
