"""Gaussian differential privacy: theta^2 of Skellam and Gaussian releases, and epsilon and delta of their sum.

A release is theta-GDP if its outputs with and without a client are no easier to tell apart than N(theta, 1) and N(0, 1)
(Dong, Roth and Su, "Gaussian Differential Privacy", 2019).  The theta^2 of several releases add up.  An integer sum of
l2-sensitivity S under Skellam noise of variance mu in every coordinate has theta^2 = S^2 / (mu - 1/2)
(docs/proofs/accounting.md).

All results err on the safe side.  `theta_squared` is exact and rounded up.  `delta` is computed within a relative error
of 1e-11 and then raised by `MARGIN`.  `epsilon` and `theta_budget` are computed for this raised delta.
"""

import math
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

from dordis.errors import InputError

MARGIN = 1e-10
"""The relative amount by which `delta` is raised."""
LEAST_DELTA, LEAST_EPSILON, LARGEST_EPSILON, LARGEST_THETA_SQUARED = 1e-300, 1e-30, 700.0, 1e9
# To stay within the budget, `epsilon` aims at a delta lower by this fraction, `theta_budget` by twice this fraction.
_AIM = 1e-10
_QUARTILE = 0.6745  # for delta <= 1/2, epsilon >= theta^2 / 2 - _QUARTILE theta
_STEP = 0.125
_NODES = tuple(math.exp(k * _STEP) for k in range(-208, 33))


def theta_squared(l2_squared: Fraction | float, variance: Fraction | float) -> float:
    """Return theta^2 = S^2 / (mu - 1/2) of one integer sum of l2-sensitivity S under Skellam noise of variance mu.

    The result is rounded up.

    >>> theta_squared(100, Fraction(401, 2))
    0.5
    """
    squared, excess = _to_fraction(l2_squared), _to_fraction(variance) - Fraction(1, 2)
    _check(squared >= 0, f"a squared sensitivity is a number from 0 on, not {l2_squared}")
    _check(excess > 0, f"the accounting of Skellam noise needs a variance above 1/2, not {variance}")
    return _round_up(squared / excess)


def gaussian_theta_squared(multiplier: Fraction | float) -> float:
    """Return theta^2 = 1 / z^2 of one release under Gaussian noise with the noise multiplier z, rounded up."""
    exact = _to_fraction(multiplier)
    _check(exact > 0, f"the noise multiplier is a number above 0, not {multiplier}")
    return _round_up(1 / exact**2)


def compose_costs(costs: Iterable[float]) -> float:
    """Return the cost theta^2 of several releases of the same client's data: the sum of their theta^2, rounded up."""
    return _round_up(sum(map(_to_fraction, costs), Fraction(0)))


def repeat_cost(cost: float, count: int) -> float:
    """Return the cost theta^2 of `count` releases that cost `cost` each, rounded up."""
    return _round_up(count * _to_fraction(cost))


def delta(epsilon: float, theta_squared: float) -> float:
    """Return the delta that theta-GDP proves at `epsilon`, raised by `MARGIN`.

    It is Phi(-epsilon / theta + theta / 2) - e^epsilon Phi(-epsilon / theta - theta / 2), where Phi is the distribution
    function of N(0, 1) (Balle and Wang, 2018).
    """
    _check(0 <= epsilon < math.inf, f"epsilon is a number from 0 on, not {epsilon}")
    _check(0 <= theta_squared < math.inf, f"theta^2 is a number from 0 on, not {theta_squared}")
    if theta_squared == 0:
        return 0.0
    exact = math.exp(_log_delta(epsilon, theta_squared)[0])
    return min(1.0, (1 + MARGIN) * max(exact, sys.float_info.min))


@lru_cache(maxsize=1 << 10)  # cached, because the same cost is checked, charged and reported
def epsilon(theta_squared: float, delta: float, distance: float = 0.0) -> float:
    """Return the epsilon of theta-GDP at `delta`; infinity if none is proved.

    `distance` is the total variation distance between the noise that is drawn and the noise that is analysed.  It
    reduces delta by (1 + e^epsilon) `distance`; if that is more than half of delta, no epsilon is proved.

    >>> round(epsilon(compose_costs([gaussian_theta_squared(5.0)] * 10), 1e-5), 2)
    2.59
    """
    _check(theta_squared >= 0, f"theta^2 is a number from 0 on, not {theta_squared}")
    _check(LEAST_DELTA <= delta < 1, f"delta lies between {LEAST_DELTA} and 1, not at {delta}")
    if not distance:
        return _epsilon(theta_squared, delta)
    proved, charge = math.inf, delta / 2
    for _ in range(10):  # a charge for a larger epsilon suffices for a smaller one
        lower = _epsilon(theta_squared, delta - charge)
        if lower >= proved or _charge(lower, distance) > charge:
            break
        saved, proved, charge = charge - _charge(lower, distance), lower, _charge(lower, distance)
        if saved < 2.0**-50 * delta:
            break
    return proved


def unprovable(epsilon: float, delta: float, distance: float) -> str:
    """Return an error message: epsilon and delta cannot be proved with noise at this distance from its exact law."""
    return (
        f"epsilon = {epsilon:g} and delta = {delta:g} cannot be proved for noise at a distance of {distance:.2g} from "
        "its law: pass a smaller epsilon or a larger delta"
    )


def theta_budget(epsilon: float, delta: float, distance: float = 0.0) -> float:
    """Return the largest theta^2 within (epsilon, delta), times 1 - 2^-40 so that sums of costs may be rounded up.

    `distance` is the total variation distance between the noise that is drawn and the noise that is analysed.  It
    reduces delta by (1 + e^epsilon) `distance`; raise InputError if that is more than half of delta.
    """
    _check(LEAST_EPSILON <= epsilon < math.inf, f"epsilon is a number from {LEAST_EPSILON} on, not {epsilon}")
    _check(LEAST_DELTA <= delta < 1, f"delta lies between {LEAST_DELTA} and 1, not at {delta}")
    epsilon = min(epsilon, LARGEST_EPSILON)
    charge = _charge(epsilon, distance)
    _check(charge <= delta / 2, unprovable(epsilon, delta, distance))
    allowed = min(delta - charge, 0.5)
    z = math.sqrt(-2 * math.log(allowed))
    start = 2 * math.log(2 * epsilon / (z + math.sqrt(z * z + 2 * epsilon)))  # delta < Phi(-z) < allowed
    goal = math.log(allowed) - MARGIN - 2 * _AIM
    return (1 - 2.0**-40) * math.exp(_newton(lambda x: _log_delta(epsilon, math.exp(x))[::2], start, goal))


def _log_delta(epsilon: float, theta_squared: float) -> tuple[float, float, float]:
    """Return ln delta, and the derivatives of ln delta with respect to epsilon and to ln theta^2.

    The derivatives may be NaN if delta exceeds 0.68 or is 0.

    With a = epsilon / theta - theta / 2 and phi the density of N(0, 1), delta is phi(a) times the integral over s > 0
    of e^(-a s - s^2 / 2) (1 - e^(-theta s)).  No term is negative, so nothing cancels, however small theta is.  The
    integrand is analytic in ln s and falls off on both sides, so that the trapezoidal rule in ln s is exact up to an
    error of 1e-13.
    """
    theta = math.sqrt(theta_squared)
    a = (epsilon - theta_squared / 2) / theta
    if a > 1e8:
        return -math.inf, math.nan, math.nan
    log_density = -a * a / 2 - math.log(2 * math.pi) / 2
    points = [node / max(1.0, abs(a)) for node in _NODES]
    if a < -1:  # 1 - delta is phi(a) times the sum of the Mills ratios at -a and at b = a + theta
        b = (epsilon + theta_squared / 2) / theta
        ratios = _STEP * math.fsum(s * math.exp(-s * s / 2) * (math.exp(a * s) + math.exp(-b * s)) for s in points)
        return math.log1p(-math.exp(log_density) * ratios), math.nan, math.nan
    weights = [s * math.exp(-s * (a + s / 2)) * -math.expm1(-theta * s) for s in points]
    integral = _STEP * math.fsum(weights)
    mean = _STEP * math.fsum(s * weight for s, weight in zip(points, weights, strict=True)) / integral
    return log_density + math.log(integral), -(a + mean) / theta, theta / (2 * integral)


def _epsilon(theta_squared: float, delta: float) -> float:
    if theta_squared == 0 or theta_squared > LARGEST_THETA_SQUARED:
        return math.inf if theta_squared else 0.0
    goal = math.log(min(delta, 0.5)) - MARGIN - _AIM
    start = max(0.0, theta_squared / 2 - _QUARTILE * math.sqrt(theta_squared))
    if start == 0 and _log_delta(0.0, theta_squared)[0] <= goal:
        return 0.0
    return _newton(lambda x: _log_delta(x, theta_squared)[:2], start, goal)


def _newton(at: Callable[[float], tuple[float, float]], start: float, goal: float) -> float:
    """Return the epsilon, or ln theta^2, at which ln delta is `goal`; `at` returns ln delta and its derivative.

    ln delta is concave in epsilon and in ln theta^2, because delta is an integral of log-concave functions.  So every
    step of Newton's method ends where ln delta is at most `goal`, and every step after the first comes closer.
    """
    x = start
    for _ in range(100):
        value, slope = at(x)
        if abs(value - goal) <= _AIM / 2:
            return x
        x += (goal - value) / slope
    raise InputError("epsilon, delta or theta is too large or too small to be computed")


def _charge(epsilon: float, distance: float) -> float:
    _check(0 <= distance < 1, f"a total variation distance lies in 0..1, not at {distance}")
    return (1 + MARGIN) * (1 + math.exp(epsilon)) * distance if epsilon <= LARGEST_EPSILON else math.inf


def _to_fraction(value: Fraction | float) -> Fraction:
    _check(isinstance(value, Fraction) or math.isfinite(value), f"a finite number is needed, not {value}")
    return Fraction(value)


def _round_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)
