"""Skellam noise of variance mu is as private as Gaussian noise of variance mu - 1/2: the theorem and its arithmetic."""

import ast
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from pathlib import Path

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from dordis.errors import InputError
from dordis.privacy import accounting, gdp
from dordis.privacy.scaling import Floats
from tests.references import gdp_certificate

DIGITS = 60
ROUNDING = 1e-14
"""What adding up a law in double precision may get wrong."""
epsilons = st.floats(math.log(1e-6), math.log(700)).map(math.exp)
deltas = st.floats(math.log(1e-300), math.log(0.5)).map(math.exp)
thetas = st.floats(math.log(1e-8), math.log(1e4)).map(math.exp)
FIGURES = [
    (1.0, 1e-5, 3.731, 1.084),
    (3.0, 1e-5, 1.391, 1.076),
    (6.0, 1e-3, 0.598, 1.094),
    (6.0, 1e-5, 0.764, 1.070),
    (8.0, 1e-6, 0.653, 1.064),
    (10.0, 1e-5, 0.500, 1.075),
]
"""Epsilon, delta, the noise multiplier at large S and for one release, and how much more integer orders need."""
SMALL_FIGURES = [
    (1, 1, 1, 1, 3.797, 1.100),
    (1, 1, 1, 10, 11.818, 1.086),
    (6, 1, 1, 1, 1.041, 0.990),
    (6, 1, 1, 10, 2.516, 1.119),
    (6, 100, 1000, 1, 0.767, 1.077),
    (6, 100, 1000, 10, 2.416, 1.070),
]
"""Epsilon at delta 1e-5, S^2, dimension and releases, then as above."""
PAGE = Path(__file__).parents[2] / "docs/accounting.md"


def exact_delta(epsilon: float, theta_squared: float) -> mpmath.mpf:
    """Return delta from its formula, at 60 digits."""
    with mpmath.workdps(DIGITS):
        spent, theta = mpmath.mpf(epsilon), mpmath.sqrt(mpmath.mpf(theta_squared))
        return upper_tail(spent / theta - theta / 2) - mpmath.exp(spent) * upper_tail(spent / theta + theta / 2)


def upper_tail(y: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(y / mpmath.sqrt(2)) / 2


def upper_quantile(tail: mpmath.mpf) -> mpmath.mpf:
    """Return the y >= 0 with P(N(0, 1) > y) = tail."""
    guess = mpmath.sqrt(-2 * mpmath.log(2 * tail))
    return mpmath.findroot(lambda y: mpmath.log(upper_tail(y)) - mpmath.log(tail), guess)


def increments(mu: float, cells: int) -> list[mpmath.mpf]:
    """Return w_0, w_1, ..: y_j is the normal quantile of P(X < j), w_j = y_{j+1} - y_j and y_0 = -y_1."""
    t = mpmath.mpf(mu)
    tails, j, term = [], 0, mpmath.mpf(1)
    masses = []
    while j <= cells + 2 or term > mpmath.mpf(10) ** (-DIGITS) * masses[cells + 1]:
        term = mpmath.besseli(j, t) * mpmath.exp(-t)
        masses.append(term)
        j += 1
    total = mpmath.mpf(0)
    for mass in reversed(masses):
        total += mass
        tails.append(total)
    tails.reverse()
    y = [upper_quantile(tails[j]) for j in range(1, cells + 2)]
    return [2 * y[0], *(after - before for before, after in pairwise(y))]


def sharp_unit_shift(mu: float) -> mpmath.mpf:
    """Return m = 2 sqrt 2 erfinv(p_0)."""
    t = mpmath.mpf(mu)
    return 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.exp(-t) * mpmath.besseli(0, t))


def law(mu: float, reach: int, shift: int = 0) -> Floats:
    """Return the probabilities of shift + Skellam(mu) on -reach..reach."""
    masses: Floats = special.ive(np.abs(np.arange(-reach, reach + 1) - shift), mu)
    return masses


def hockey_stick(left: Floats, right: Floats, epsilon: float) -> float:
    return float(np.maximum(left - math.exp(epsilon) * right, 0).sum())


def violations(mus: Sequence[float], shifts: Sequence[int], theta_squared: float) -> int:
    """Count how often, over both orders and several epsilons, the exact delta exceeds that of theta-GDP."""
    reach = max(math.ceil(9 * math.sqrt(mu) + 8 + abs(k)) for mu, k in zip(mus, shifts, strict=True))
    present: Floats = reduce(np.multiply.outer, [law(mu, reach, k) for mu, k in zip(mus, shifts, strict=True)])
    absent: Floats = reduce(np.multiply.outer, [law(mu, reach) for mu in mus])
    theta, count = math.sqrt(theta_squared), 0
    for a in (-0.5, 0.0, 1.0, 2.5):
        epsilon = min(max(0.0, theta_squared / 2 + a * theta), 600.0)
        allowed = gdp.delta(epsilon, theta_squared) + ROUNDING
        count += hockey_stick(present, absent, epsilon) > allowed
        count += hockey_stick(absent, present, epsilon) > allowed
    return count


def random_product(rng: random.Random, largest: float) -> tuple[list[float], list[int]]:
    dim = rng.choice([1, 1, 1, 1, 2, 2, 2, 3])
    mus = [0.5 + math.exp(rng.uniform(math.log(0.01), math.log(largest if dim < 3 else 1.5))) for _ in range(dim)]
    return mus, [rng.choice([-3, -2, -1, 0, 1, 2, 3]) for _ in range(dim)]


def product_violations(cases: int, seed: int) -> int:
    rng, count = random.Random(seed), 0
    for _ in range(cases):
        mus, shifts = random_product(rng, largest=12)
        cost = gdp.compose_costs(gdp.theta_squared(k * k, mu) for mu, k in zip(mus, shifts, strict=True))
        count += violations(mus, shifts, cost)
    return count


# The theorem


def test_lemma_2_is_proved_in_rational_numbers() -> None:
    gdp_certificate.check_near_one_half()
    slacks = gdp_certificate.check_grid()
    gdp_certificate.check_large()
    assert len(slacks) == 104
    assert min(slacks) > Fraction(128, 10_000)  # of the squares: 0.64 % of p_0


@pytest.mark.parametrize("t", [Fraction(17, 32), Fraction(2), Fraction(225, 32)])
def test_the_bounds_of_the_certificate_are_on_their_sides_and_close(t: Fraction) -> None:
    with mpmath.workdps(DIGITS):
        x = mpmath.mpf(t.numerator) / t.denominator
        p0, erf = mpmath.exp(-x) * mpmath.besseli(0, x), mpmath.erf(1 / mpmath.sqrt(8 * x - 4))
        above, below = gdp_certificate.p0_above(t), gdp_certificate.erf_squared_below(1 / (8 * t - 4))
        assert 0 <= above.numerator / mpmath.mpf(above.denominator) / p0 - 1 < 1e-15
        assert -5e-4 < below.numerator / mpmath.mpf(below.denominator) / erf**2 - 1 < 0  # pi is 22/7 there


def test_the_certificate_fails_for_a_larger_variance_than_is_proved() -> None:
    """p_0 < erf(1 / sqrt(8 t - 8 c)) is false with c = 0.3 in place of 1/2."""
    t = Fraction(2)
    assert gdp_certificate.p0_above(t) ** 2 > gdp_certificate.erf_squared_below(1 / (8 * t - Fraction(24, 10)))


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 0.1, 0.5, 1.0, 1.85, 10.0, 100.0, 1000.0])
def test_increments_decrease_and_the_first_is_m(mu: float) -> None:
    with mpmath.workdps(DIGITS):
        w = increments(mu, cells=12)
        assert all(after < before for before, after in pairwise(w))
        assert abs(w[0] / sharp_unit_shift(mu) - 1) < 1e-40


def test_one_half_is_above_the_sharp_constant_everywhere() -> None:
    with mpmath.workdps(30):
        gaps = {mu: mu - 1 / sharp_unit_shift(mu) ** 2 for mu in (0.51, 1.0, 1.8, 1.85, 1.9, 3.0, 10.0, 100.0, 1e4)}
        assert max(gaps, key=lambda mu: gaps[mu]) == 1.85
        assert abs(gaps[1.85] - 0.4134) < 1e-4
        assert abs(gaps[1e4] - mpmath.mpf(1) / 3) < 1e-3


def test_products_are_as_private_as_said_in_both_orders() -> None:
    assert product_violations(cases=200, seed=1) == 0


@pytest.mark.slow
def test_thousands_of_products_are_as_private_as_said_in_both_orders() -> None:
    assert product_violations(cases=4000, seed=2) == 0


def test_the_brute_force_refutes_a_bound_that_is_too_good() -> None:
    assert violations([2.0], [1], gdp.theta_squared(1, 2)) == 0
    assert violations([2.0], [1], 1 / (2 - 0.3)) > 0


@pytest.mark.parametrize("mu", [0.51, 0.8, 2.0, 7.5, 60.0])
@pytest.mark.parametrize("shift", [1, -1, 2, 5])
def test_renyi_divergences_at_real_orders_are_those_of_a_gaussian_at_most(mu: float, shift: int) -> None:
    reach = math.ceil(12 * math.sqrt(mu) + 40)
    left, right = np.log(law(mu, reach)), np.log(law(mu, reach, shift))
    m = float(sharp_unit_shift(mu))
    for alpha in (0.3, 0.5, 1.01, 1.5, math.pi, 8.25):
        terms = alpha * left + (1 - alpha) * right
        divergence = float(special.logsumexp(terms)) / (alpha - 1)
        assert terms[[0, -1]].max() < terms.max() - 40  # what is cut off does not count
        assert divergence <= alpha * (shift * m) ** 2 / 2 + 1e-12
        assert divergence <= alpha * gdp.theta_squared(shift * shift, mu) / 2 + 1e-12


# theta^2


@given(st.integers(0, 10**12), st.fractions(Fraction(1, 2), 10**12).filter(lambda mu: mu > Fraction(1, 2)))
def test_theta_squared_is_the_next_float_up(squared: int, mu: Fraction) -> None:
    exact, got = squared / (mu - Fraction(1, 2)), gdp.theta_squared(squared, mu)
    assert Fraction(got) >= exact
    assert exact == got or Fraction(math.nextafter(got, 0.0)) < exact


def test_any_variance_above_one_half_gives_a_finite_cost_and_more_noise_a_smaller_one() -> None:
    variances = [0.51, 0.6, 1.0, 10.0, 2.0**31, 2.0**32 + 1, 1e12, 1e15, 1e18]
    costs = [gdp.theta_squared(10**6, mu) for mu in variances]
    proved = [gdp.epsilon(cost, 1e-5) for cost in costs]
    assert all(0 < cost < math.inf for cost in costs)
    assert all(0 <= epsilon < math.inf for epsilon in proved)
    assert costs == sorted(set(costs), reverse=True)
    assert proved == sorted(proved, reverse=True)


@pytest.mark.parametrize("mu", [Fraction(1, 2), 0.5, 0, -1.0, math.nan, math.inf])
def test_variances_up_to_one_half_are_refused(mu: float) -> None:
    with pytest.raises(InputError):
        gdp.theta_squared(1, mu)


def test_what_cannot_be_is_refused() -> None:
    for refused in (
        lambda: gdp.theta_squared(-1, 2),
        lambda: gdp.gaussian_theta_squared(0.0),
        lambda: gdp.gaussian_theta_squared(math.nan),
        lambda: gdp.compose_costs([1.0, math.inf]),
        lambda: gdp.delta(-1.0, 1.0),
        lambda: gdp.delta(1.0, math.nan),
        lambda: gdp.epsilon(math.nan, 1e-5),
        lambda: gdp.epsilon(1.0, 0.0),
        lambda: gdp.epsilon(1.0, 1.0),
        lambda: gdp.epsilon(1.0, 1e-5, distance=-1e-9),
        lambda: gdp.theta_budget(0.0, 1e-5),
        lambda: gdp.theta_budget(1.0, 1.5),
        lambda: gdp.theta_budget(1.0, 1e-5, distance=1e-5),
    ):
        with pytest.raises(InputError):
            refused()


def test_heterogeneous_rounds_cost_what_one_release_of_their_sum_does() -> None:
    variances = [Fraction(401, 2), Fraction(1001, 2), Fraction(5001, 2)]
    run = gdp.compose_costs([*(gdp.theta_squared(100, mu) for mu in variances), gdp.gaussian_theta_squared(2.0)])
    exact = 100 * sum(1 / (mu - Fraction(1, 2)) for mu in variances) + Fraction(1, 4)
    assert 0 <= Fraction(run) - exact < Fraction(1, 10**15)
    sigma = 1 / math.sqrt(exact)
    assert gdp.epsilon(run, 1e-6) == pytest.approx(dp_accounting.get_epsilon_gaussian(sigma, 1e-6), rel=1e-8)


# delta, epsilon, budget


@settings(deadline=None, max_examples=150)
@given(thetas, st.floats(-1.5, 37))
def test_delta_is_just_above_the_exact_one(theta: float, a: float) -> None:
    squared = theta * theta
    epsilon = max(0.0, squared / 2 + a * theta)
    exact, got = exact_delta(epsilon, squared), gdp.delta(epsilon, squared)
    if exact > 1e-300:
        assert 0.9 * gdp.MARGIN < got / exact - 1 < 1.1 * gdp.MARGIN or got == 1
    assert got >= exact


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-12, 1e9), st.floats(0, 1e9))
def test_delta_is_a_bound_wherever_it_is_asked(theta_squared: float, epsilon: float) -> None:
    assert exact_delta(epsilon, theta_squared) <= gdp.delta(epsilon, theta_squared) <= 1


@pytest.mark.parametrize("multiplier", [0.3, 0.7, 1.0, 4.0, 30.0])
def test_delta_and_epsilon_are_those_of_dp_accounting(multiplier: float) -> None:
    squared = gdp.gaussian_theta_squared(multiplier)
    reference = GaussianPrivacyLoss(multiplier)
    for delta in (0.1, 1e-3, 1e-6, 1e-9, 1e-12):
        epsilon = gdp.epsilon(squared, delta)
        assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(multiplier, delta), rel=1e-7, abs=1e-9)
        if epsilon:
            assert gdp.delta(epsilon, squared) == pytest.approx(reference.get_delta_for_epsilon(epsilon), rel=1e-8)
            assert 1 / math.sqrt(gdp.theta_budget(epsilon, delta)) == pytest.approx(multiplier, rel=1e-8)


@settings(deadline=None, max_examples=150)
@given(thetas, deltas)
@pytest.mark.slow
def test_epsilon_is_never_below_the_exact_one_and_close_to_it(theta: float, delta: float) -> None:
    epsilon = gdp.epsilon(theta * theta, delta)
    exact = exact_delta(epsilon, theta * theta)
    assert exact <= delta
    assert exact >= delta * (1 - 1e-9) or epsilon == 0


@settings(deadline=None, max_examples=150)
@given(epsilons, deltas)
def test_the_budget_keeps_epsilon_and_delta_and_is_the_largest(epsilon: float, delta: float) -> None:
    budget = gdp.theta_budget(epsilon, delta)
    assert exact_delta(epsilon, budget) <= delta
    assert exact_delta(epsilon, budget * (1 + 1e-9)) > delta
    assert gdp.epsilon(budget, delta) <= epsilon


@settings(deadline=None, max_examples=100)
@given(thetas, deltas, st.floats(1e-9, 1))
def test_more_loss_or_a_smaller_delta_is_a_larger_epsilon(theta: float, delta: float, more: float) -> None:
    epsilon = gdp.epsilon(theta * theta, delta)
    assert gdp.epsilon(theta * theta * (1 + more), delta) >= epsilon
    assert gdp.epsilon(theta * theta, max(gdp.LEAST_DELTA, delta / (1 + more))) >= epsilon


def test_the_ends_of_the_range_are_safe() -> None:
    assert gdp.epsilon(0.0, 1e-5) == 0
    assert gdp.epsilon(math.inf, 1e-5) == math.inf
    assert gdp.delta(1.0, 0.0) == 0
    assert gdp.delta(700.0, 1e-300) > 0
    assert gdp.delta(1.0, 1e300) == 1
    assert gdp.epsilon(1.0, 0.9) == gdp.epsilon(1.0, 0.5)
    assert gdp.theta_budget(1e6, 1e-5) == gdp.theta_budget(gdp.LARGEST_EPSILON, 1e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.floats(0.1, 30), st.floats(1e-12, 0.1), st.floats(1e-12, 1e-3))
@example(30.0, 0.03, 0.0008897282286266888)
def test_the_samplers_distance_is_paid_for_in_delta(epsilon: float, delta: float, part: float) -> None:
    distance = part * delta / (1 + math.exp(epsilon))
    budget = gdp.theta_budget(epsilon, delta, distance)
    assert exact_delta(epsilon, budget) + (1 + mpmath.exp(epsilon)) * distance <= delta
    assert budget < gdp.theta_budget(epsilon, delta)
    proved = gdp.epsilon(budget, delta, distance)
    assert gdp.epsilon(budget, delta) <= proved
    assert exact_delta(proved, budget) + (1 + mpmath.exp(proved)) * distance <= delta
    assert proved <= epsilon


def test_noise_too_far_from_its_law_proves_nothing() -> None:
    assert gdp.epsilon(1.0, 1e-5, distance=1e-6) == math.inf
    assert gdp.epsilon(1e4, 1e-5, distance=1e-300) == math.inf
    assert gdp.epsilon(1.0, 1e-5, distance=1e-9) < gdp.epsilon(1.0, 1e-5) * 1.01


# What it gains


@pytest.mark.parametrize(("epsilon", "delta", "multiplier", "factor"), FIGURES)
def test_the_figures_of_the_documentation(epsilon: float, delta: float, multiplier: float, factor: float) -> None:
    needed = 1 / math.sqrt(gdp.theta_budget(epsilon, delta))
    assert needed == pytest.approx(multiplier, abs=5.1e-4)
    for side, is_enough in ((factor - 6e-4, False), (factor + 6e-4, True)):
        release = accounting.Gaussian(needed * side)
        assert (accounting.guarantee(release, delta).epsilon <= epsilon) is is_enough
    row = f"| {epsilon:g} | {delta:.0e} | {multiplier:.3f} | {factor:.3f} |".replace("e-0", "e-")
    assert row in PAGE.read_text()


@pytest.mark.parametrize(("epsilon", "squared", "dim", "releases", "multiplier", "factor"), SMALL_FIGURES)
def test_the_figures_of_the_documentation_for_small_sums(
    epsilon: int, squared: int, dim: int, releases: int, multiplier: float, factor: float
) -> None:
    delta = 1e-5
    needed = math.sqrt(releases / gdp.theta_budget(epsilon, delta) + 0.5 / squared)
    assert needed == pytest.approx(multiplier, abs=5.1e-4)
    l1 = math.sqrt(squared) * min(math.sqrt(dim), math.sqrt(squared))
    for side, is_enough in ((1 - 6e-4, False), (1 + 6e-4, True)):
        release = accounting.SkellamSum(squared, l1, squared * (needed * factor * side) ** 2)
        assert (accounting.guarantee(accounting.Repeated(release, releases), delta).epsilon <= epsilon) is is_enough
    row = f"| {epsilon} | {squared} | {dim} | {releases} | {multiplier:.3f} | {factor:.3f} |"
    assert row in PAGE.read_text()


def test_participants_need_no_library_for_it() -> None:
    tree = ast.parse(Path(gdp.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert modules == {"math", "sys", "collections.abc", "fractions", "functools", "dordis.errors"}
