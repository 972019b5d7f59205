"""Epsilon of one record over a run in which clients sample their records anew in every event.

An event is one try of a round.  Each of A events includes each record independently with probability p (a Poisson
sample).  For a given sample an event is theta-GDP (`dordis.privacy.gdp`).  For a random sample it is therefore
dominated by the pair of distributions ((1-p) N(0,1) + p N(theta,1), N(0,1)) and by the mirror image of this pair (Zhu,
Dong and Wang, "Optimal accounting of differential privacy via characteristic function", 2022).  The package
dp-accounting composes the pairs of all events numerically, by privacy loss distributions that are rounded up.

Such a composition holds only for parameters that are fixed beforehand.  So the epsilon of the whole plan is stated,
even if a run ended early.  For runs planned one after another, `filtered_epsilon` adds Renyi divergences at one order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.privacy import accounting, gdp

WORD = 2**32
"""The sampling probability p is a multiple of 2^-32: a record is sampled if a uniform 32-bit word is below p 2^32."""
BETA, OVERFULL = 2.0**-60, 2.0**-80
"""Bounds on two probabilities, for one client in one event: BETA, that one record changes the rounded sum by more than
the bound on this change; OVERFULL, that a sample exceeds its cap."""
LEAST_DELTA = 1e-10
"""Least delta with records as the unit of privacy: below it, errors of the numerical composition would matter."""
LEAST_RETRIES, RETRIES = 2, 0.02
_INTERVALS = (1e-3, 1e-2)  # discretisation of the privacy loss: for one sampled Gaussian, and for mixtures of several
_CLOSE = 1e-5  # relative error of a calibrated theta
_TAIL = 40.0  # the integral of a Renyi divergence ends this many standard deviations beyond the modes
_NODES = 4001


class SampledEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The releases of a run that may depend on one given record: `events` releases, each of a new Poisson sample.

    `sampling` is p 2^32, a whole number, and `theta_squared` is the theta^2 of one event for a given sample.
    `distance` is the total variation distance between the noise drawn in one event and the law that is analysed.
    """

    sampling: int
    theta_squared: float
    events: int
    distance: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.sampling <= WORD:
            raise InputError(f"the sampling word lies in 1..2^32, not at {self.sampling}")
        if not 0 < self.theta_squared < math.inf:
            raise InputError(f"theta^2 of an event is a number above 0, not {self.theta_squared}")
        if self.events < 1:
            raise InputError(f"a plan has at least one event, not {self.events}")
        if not 0 <= self.distance < 1:
            raise InputError(f"a total variation distance lies in 0..1, not at {self.distance}")

    @property
    def probability(self) -> float:
        """Return p, the probability with which a record is sampled."""
        return self.sampling / WORD

    @property
    def multiplier(self) -> float:
        """Return z = 1 / theta, the noise multiplier of one event for a given sample."""
        return 1 / math.sqrt(self.theta_squared)


@dataclass(frozen=True)
class RecordSampling:
    """How a run samples records: the sampling probability times 2^32, and the numbers of events and of records.

    `records` is the declared number of records of each client, a public upper bound.
    """

    sampling: int
    records: int
    events: int

    def __post_init__(self) -> None:
        _ = SampledEvents(self.sampling, 1.0, self.events)
        if self.records < 1:
            raise InputError(f"a client declares one record or more, not {self.records}")

    @property
    def batch(self) -> float:
        """Return the expected sample size of a client with the declared number of records."""
        return self.sampling / WORD * self.records

    def plan(self, theta_squared: float, distance: float) -> SampledEvents:
        """Return the planned events of a run.

        `theta_squared` is the theta^2 of one event for a given sample, `distance` the total variation distance between
        the noise drawn in one event and the law that is analysed.
        """
        return SampledEvents(self.sampling, theta_squared, self.events, distance)


def sampling_word(probability: float) -> int:
    """Return p 2^32 as a whole number; raise InputError unless 0 < p <= 1.

    >>> sampling_word(0.5) == 2**31
    True
    """
    if not 0 < probability <= 1:
        raise InputError(f"records are sampled with a probability above 0 and up to 1, not {probability}")
    return max(1, round(probability * WORD))


def count_events(rounds: int) -> int:
    """Return the number of events for which a run is planned: `rounds`, and max(2, 2 % of `rounds`) retries.

    >>> count_events(400), count_events(10)
    (408, 12)
    """
    return rounds + max(LEAST_RETRIES, math.ceil(RETRIES * rounds))


def epsilon(plan: SampledEvents, delta: float, clients_per_person: int = 1) -> float:
    """Return the epsilon of a plan at `delta`, for a person with one record at each of `clients_per_person` clients.

    Two terms are subtracted from `delta`.  One is the probability that a record changes a rounded sum beyond its bound,
    2^-60 for each event and each record of the person.  The other is (1 + e^epsilon) times a total variation distance:
    that of the noise from its exact law, plus the probability that a sample exceeds its cap.
    """
    return epsilon_of_plans((plan,), delta, clients_per_person)


def epsilon_of_plans(plans: Sequence[SampledEvents], delta: float, clients_per_person: int = 1) -> float:
    """Return the epsilon of several plans together, which must all be fixed before the first of them begins.

    It holds for a person with one record at each of `clients_per_person` clients (see `epsilon`).  For plans that
    depend on the results of earlier plans see `filtered_epsilon`.
    """
    check_delta(delta)
    if clients_per_person < 1:
        raise InputError(f"a person has records at one client or more, not at {clients_per_person}")
    events = sum(plan.events for plan in plans) * clients_per_person
    tau = math.fsum(plan.events * plan.distance for plan in plans) + events * OVERFULL
    ordered = tuple(sorted(plans, key=lambda plan: (plan.sampling, plan.theta_squared, plan.events)))
    return _composed_epsilon(ordered, clients_per_person, delta - events * BETA, tau)


@lru_cache(maxsize=1 << 10)
def _composed_epsilon(plans: tuple[SampledEvents, ...], persons: int, delta: float, tau: float) -> float:
    """Return the epsilon of several plans together, for a person with records at `persons` clients.

    `tau` is the total variation distance of `_with_distance`.  The result is cached, because a ledger needs it after
    every round.
    """
    return _with_distance(lambda left: _compose(plans, persons, left), delta, tau)


def _with_distance(proved: Callable[[float], float], delta: float, tau: float) -> float:
    """Return the epsilon that is proved at `delta` - (1 + e^epsilon) `tau`; infinity if `delta` loses more than half.

    `tau` is the total variation distance between the noise that is drawn and the noise that is analysed.  `proved`
    returns the epsilon at a given delta without this distance.
    """
    above = proved(delta / 2)  # a charge for this larger epsilon suffices for the smaller one returned
    charge = (1 + math.exp(min(above, gdp.LARGEST_EPSILON))) * tau
    return math.inf if charge > delta / 2 else proved(delta - charge)


def _compose(plans: tuple[SampledEvents, ...], persons: int, delta: float) -> float:
    """Return the epsilon of several plans together, for a person with records at `persons` clients.

    Plans are composed numerically, or by the formula of `gdp` if every plan uses all records in each event.
    """
    if all(plan.sampling == WORD for plan in plans):
        cost = gdp.compose_costs(gdp.repeat_cost(persons**2 * plan.theta_squared, plan.events) for plan in plans)
        return gdp.epsilon(cost, delta)
    exact = tuple(msgspec.structs.replace(plan, distance=0.0) for plan in plans)
    return float(_accountant(exact, persons).get_epsilon(delta))


@lru_cache(maxsize=64)
def _accountant(plans: tuple[SampledEvents, ...], persons: int) -> Any:
    """Return dp-accounting's composition of plans, for a person with records at `persons` clients."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    interval = _INTERVALS[0] if persons == 1 else _INTERVALS[1]
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval)
    for plan in plans:
        accountant.compose(_event(plan, persons), plan.events)
    return accountant


def _event(plan: SampledEvents, persons: int) -> object:
    """Return one event of a plan as dp-accounting's event, for a person with records at `persons` clients."""
    from dp_accounting import dp_event

    if plan.sampling == WORD:
        return dp_event.GaussianDpEvent(plan.multiplier / persons)
    if persons == 1:
        return dp_event.PoissonSampledDpEvent(plan.probability, dp_event.GaussianDpEvent(plan.multiplier))
    p = plan.probability
    weights = [math.comb(persons, i) * p**i * (1 - p) ** (persons - i) for i in range(persons + 1)]
    return dp_event.MixtureOfGaussiansDpEvent(plan.multiplier, list(range(persons + 1)), weights)


def calibrate(epsilon: float, delta: float, sampling: int, events: int, distance: float = 0.0) -> SampledEvents:
    """Return the plan of `events` events with the largest theta^2 with which all of them stay within (epsilon, delta).

    `sampling` is 2^32 times the sampling probability.  `distance` is the total variation distance between the noise
    drawn in one event and the law that is analysed; raise InputError if `delta` is too small for this distance.

    >>> plan = calibrate(6.0, 1e-5, sampling_word(500 / 10_000), 400)
    >>> round(plan.multiplier, 2)
    1.06
    """
    accounting.check_epsilon(epsilon)
    check_delta(delta)

    def excess(log_theta: float) -> float:
        plan = SampledEvents(sampling, math.exp(2 * log_theta), events, distance)
        found = epsilon_of_plans((plan,), delta)
        return math.log(found / epsilon) if 0 < found < math.inf else (-math.inf if found == 0 else math.inf)

    # A theta that is small enough without sampling is small enough for any p; `_CLOSE` covers what is taken off delta.
    low = math.log(gdp.theta_budget(epsilon, delta) / events) / 2 - _CLOSE
    high = low + math.log(2)
    if distance and excess(low) > 0:
        raise InputError(gdp.unprovable(epsilon, delta, distance))
    while excess(high) <= 0:
        low, high = high, high + math.log(2)
    return SampledEvents(sampling, math.exp(2 * _largest(excess, low, high)), events, distance)


def _largest(excess: Callable[[float], float], low: float, high: float) -> float:
    """Return the largest argument, within `_CLOSE`, at which `excess` is at most 0, by the Illinois method.

    `excess` is increasing, at most 0 at `low` and above 0 at `high`.
    """
    below, above = excess(low), excess(high)
    side = 0
    for _ in range(60):
        if high - low <= _CLOSE:
            break
        steep = math.isfinite(below) and math.isfinite(above) and above > below
        part = -below / (above - below) if steep else 0.5
        middle = low + min(max(part, 0.02), 0.98) * (high - low)
        value = excess(middle)
        if value <= 0:
            low, below, above, side = middle, value, above / 2 if side < 0 else above, -1
        else:
            high, above, below, side = middle, value, below / 2 if side > 0 else below, 1
    return low


LEAST_ORDER = 2.5
"""Least default order: at orders near 1 nothing is proved, however small the Renyi divergence is."""


def default_order(epsilon: float, delta: float) -> float:
    """Return the Renyi order at which the plans of several runs are added up: 1 + 1.5 ln(1/delta) / epsilon.

    The order is at least `LEAST_ORDER`.  `epsilon` and `delta` are an owner's budget.
    """
    order = 1 + 1.5 * math.log(1 / accounting.check_delta(delta)) / accounting.check_epsilon(epsilon)
    return max(LEAST_ORDER, order)


@lru_cache(maxsize=1 << 10)
def renyi_divergence(plan: SampledEvents, order: float) -> float:
    """Return the Renyi divergence of all events of a plan together at one order, which must be above 1.

    It is the larger of D(P || Q) and D(Q || P), where P and Q are the distributions of the results with and without
    the record.
    """
    if not 1 < order < math.inf:
        raise InputError(f"a Renyi divergence has an order above 1, not {order}")
    if plan.sampling == WORD:
        return plan.events * order * plan.theta_squared / 2
    p, theta = plan.probability, math.sqrt(plan.theta_squared)
    return plan.events * max(_moment(p, theta, order), _moment(p, theta, 1 - order)) / (order - 1)


def _moment(p: float, theta: float, power: float) -> float:
    """Return ln E_{x ~ N(0,1)} ((1-p) + p e^(theta x - theta^2/2))^power, by the trapezoidal rule in logarithms.

    The integrand is analytic and falls off like a Gaussian, so the rule is exact up to rounding errors.
    """
    reach = abs(power) * theta + _TAIL
    x, step = np.linspace(-reach, reach, max(_NODES, int(64 * reach)) | 1, retstep=True)
    ratio = np.logaddexp(math.log1p(-p), math.log(p) + theta * x - theta**2 / 2)
    exponent = power * ratio - x**2 / 2 - math.log(2 * math.pi) / 2
    peak = float(exponent.max())
    return peak + math.log(float(np.exp(exponent - peak).sum()) * float(step))


def epsilon_from_divergence(divergence: float, order: float, delta: float) -> float:
    """Return the epsilon of a Renyi divergence at one order (Canonne, Kamath and Steinke, 2020, proposition 12)."""
    check_delta(delta)
    bound = divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    return max(0.0, bound)


def filtered_epsilon(plans: Sequence[SampledEvents], order: float, delta: float) -> float:
    """Return the epsilon of plans made one after another, where each may depend on the results of earlier plans.

    Renyi divergences at one fixed order still add up, if a whole plan is counted before its first upload (Feldman and
    Zrnic, "Individual privacy accounting via a Renyi filter", 2021).
    """
    if not plans:
        return 0.0
    events = sum(plan.events for plan in plans)
    tau = math.fsum(plan.events * (plan.distance + OVERFULL) for plan in plans)
    divergence = math.fsum(renyi_divergence(plan, order) for plan in plans)
    return _with_distance(lambda left: epsilon_from_divergence(divergence, order, left), delta - events * BETA, tau)


def check_delta(delta: float) -> None:
    """Raise InputError unless delta is from `LEAST_DELTA` to below 1."""
    if not LEAST_DELTA <= accounting.check_delta(delta) < 1:
        raise InputError(f"with records as the unit delta is at least {LEAST_DELTA:g}, not {delta:g}")
