"""Lemma 2 of docs/proofs/accounting.md in rational numbers: p_0(t) < erf(1 / sqrt(8 t - 4)) for every t > 1/2.

p_0(t) = e^-t I_0(t) is the probability of 0 under Skellam noise of variance t.  Both sides fall in t, so that on an
interval it is enough to compare p_0 at its left end with erf at its right end.  Every bound is a partial sum, with a
bound on the terms that are left out; squares are compared, so that neither 1 / sqrt(8 t - 4) nor sqrt(pi) is needed.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

TERMS = 60
FIRST, LAST, STEP = Fraction(17, 32), Fraction(225, 32), Fraction(1, 16)
PI_ABOVE = Fraction(22, 7)


def partial_sum(first: Fraction, ratio: Callable[[int], Fraction]) -> tuple[Fraction, Fraction]:
    """Return bounds below and above a series of positive terms, term n + 1 over term n being ratio(n), which falls."""
    total, term = Fraction(0), first
    for n in range(TERMS):
        total += term
        term *= ratio(n)
    assert ratio(TERMS) < 1
    return total, total + term / (1 - ratio(TERMS))


def exp_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """Return bounds of e^x = 1 + x + x^2 / 2! + .. for x >= 0."""
    return partial_sum(Fraction(1), lambda n: x / (n + 1))


def p0_above(t: Fraction) -> Fraction:
    """Return a bound above p_0(t): the sum of (t/2)^(2n) / n!^2, over e^t."""
    bessel = partial_sum(Fraction(1), lambda n: t * t / 4 / (n + 1) ** 2)[1]
    return bessel / exp_bounds(t)[0]


def erf_squared_below(x_squared: Fraction) -> Fraction:
    """Return a bound below erf(x)^2: erf(x) = 2 / sqrt(pi) e^(-x^2) x (1 + 2 x^2 / 3 + (2 x^2)^2 / (3 * 5) + ..)."""
    series = partial_sum(Fraction(1), lambda n: 2 * x_squared / (2 * n + 3))[0]
    return 4 / PI_ABOVE * x_squared * (series / exp_bounds(x_squared)[1]) ** 2


def grid() -> list[Fraction]:
    """Return the ends of the intervals, from 1/2 + 1/32 to a little above 7."""
    return [FIRST + i * STEP for i in range(int((LAST - FIRST) / STEP) + 1)]


def slack(left: Fraction, right: Fraction) -> Fraction:
    """Return by how much erf^2 at the right end exceeds p_0^2 at the left end, at least and relative to the latter."""
    return erf_squared_below(1 / (8 * right - 4)) / p0_above(left) ** 2 - 1


def check_near_one_half() -> None:
    """Prove the lemma for 1/2 < t <= 17/32, where 1 / (8 t - 4) >= 4: p_0(1/2) < 0.65 < erf(2)."""
    assert 1 / (8 * FIRST - 4) == 4
    assert p0_above(Fraction(1, 2)) < Fraction(65, 100)
    assert erf_squared_below(Fraction(4)) > Fraction(65, 100) ** 2


def check_grid() -> list[Fraction]:
    """Prove the lemma for 17/32 <= t <= 225/32 and return the slack of every interval."""
    slacks = [slack(left, right) for left, right in pairwise(grid())]
    assert min(slacks) > 0
    return slacks


def check_large() -> None:
    """Prove the lemma for t >= 7, by the two expansions of docs/proofs/accounting.md multiplied by sqrt(2 pi t).

    p_0 is then 1 + 1/(8 t) + A / t^2 + sqrt(2 pi t) e^-t / 2 at most and erf is 1 + B / t - C / t^2 at least.  Take 1
    away and multiply by t: the former falls for t >= 7 and the latter rises, so that t = 7 is enough.
    """
    t = Fraction(7)
    root_two, root_of_2_pi_t = Fraction(141422, 100000), Fraction(67, 10)
    assert root_two**2 > 2
    assert root_of_2_pi_t**2 > 2 * PI_ABOVE * t
    A = (
        4 * (root_two - 1 - Fraction(1, 4)) * Fraction(3, 16)
    )  # (1-x)^(-1/2) <= 1 + x/2 + 4 (sqrt 2 - 5/4) x^2, x <= 1/2
    c = 1 / (12 * (1 - 1 / (2 * t)))  # x^2 / 3 <= c u with u = 1 / (2 t) <= 1/14
    B, C = (Fraction(1, 2) - c) / 2, c / 8  # (1 + u/2) (1 - c u) in powers of 1/t
    assert Fraction(1, 8) + A / t + t * root_of_2_pi_t / (2 * exp_bounds(t)[0]) < B - C / t
