"""Accounting with clients as the unit: releases as frozen data, the cost of each, and the epsilon of a run.

Neighbouring inputs differ in one client, whose whole update is replaced by zero.  The cost of a release under Skellam
or Gaussian noise is theta^2, the squared parameter of Gaussian differential privacy; the cost of a run is the sum of
the costs of its releases (`dordis.privacy.gdp`).  For discrete Gaussian noise only Renyi divergences at integer orders
are known.  A run with such a release is accounted for by Renyi divergences alone; for each of its Skellam or Gaussian
releases, the smaller of two bounds counts: one from the law of the noise, one from theta^2.  The paper's figures use
Renyi divergences throughout (`guarantee`).  The Renyi bounds are from Agarwal, Kairouz and Liu, "The Skellam Mechanism
for Differentially Private Federated Learning", 2021, and Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian
Mechanism for Federated Learning", 2021, proposition 14.  The package dp-accounting computes epsilon from divergences.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.privacy import gdp
from dordis.privacy.scaling import Floats

Orders = npt.NDArray[np.int64]

PAPER_ORDERS = (*range(2, 129), 256)
ORDERS = (*range(2, 129), *(round(128 * 2 ** (i / 16)) for i in range(1, 113)))
"""Renyi orders up to 16,384: a small epsilon needs large orders."""
SAMPLE_DISTANCE = 2.0**-105
"""Bound on the total variation distance between the law of a drawn noise sample and the exact law, at any variance."""
LEAST_SCALE = 0.5
"""Least scale of discrete Gaussian noise for which a Renyi divergence is proved."""
CAP, ALL_ROUNDS, PAPER = "cap", "all-rounds", "paper"
_LARGEST_EXPONENT = 700.0
# The ledger recomputes the multiplier from sigma: without this margin a rounding error could put a run over budget.
_ROUNDING = 1 + 1e-12
_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class SkellamSum:
    """One sum under Skellam noise of variance `variance` or more in every coordinate, in integer units.

    `l2_squared` is the squared l2-sensitivity of the sum, Delta2^2, and `l1` its l1-sensitivity, Delta1.
    """

    l2_squared: float
    l1: float
    variance: float


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """One sum of `dim` coordinates under discrete Gaussian noise of `scale` from each of `clients` honest clients.

    At scale g, noise x has a probability proportional to exp(-x^2 / (2 g^2)).  `l2` and `l1` are Delta2 and Delta1, the
    sensitivities of the sum.  All are in integer units.
    """

    l2: float
    l1: float
    clients: int
    scale: float
    dim: int


@dataclass(frozen=True)
class Gaussian:
    """One release under Gaussian noise with this noise multiplier, as in the central and local baselines."""

    multiplier: float


@dataclass(frozen=True)
class Repeated:
    """The composition of `count` events like `event`, all with the data of the same client."""

    event: "Event"
    count: int


@dataclass(frozen=True)
class Composed:
    """The composition of `events`, all with the data of the same client."""

    events: "tuple[Event, ...]"


Event = SkellamSum | DiscreteGaussianSum | Gaussian | Repeated | Composed


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy, and the Renyi order at which it is proved."""

    epsilon: float
    delta: float
    order: int


def renyi_divergences(event: Event, orders: Sequence[int] = ORDERS) -> Floats:
    """Return an upper bound on the Renyi divergence of an event at each order; raise InputError if none is known."""
    alpha: Orders = np.asarray(orders)
    if not np.issubdtype(alpha.dtype, np.integer) or not alpha.size or alpha.min() < 2:
        raise InputError("Renyi orders are integers of at least 2")
    match event:
        case SkellamSum(l2_squared, l1, variance):
            return skellam_rdp(alpha, l2_squared, l1, variance)
        case DiscreteGaussianSum(l2, l1, clients, scale, dim):
            return discrete_gaussian_rdp(alpha, clients, scale, l2, l1, dim)
        case Gaussian(multiplier):
            return alpha / (2 * check_positive("the noise multiplier", multiplier) ** 2)
        case Repeated(inner, count):
            return renyi_divergences(inner, orders) * count
        case Composed(events):
            return sum((renyi_divergences(inner, orders) for inner in events), np.zeros(alpha.shape))
    raise InputError(f"no bound is known for {type(event).__name__}")


def skellam_rdp(orders: Orders, l2_squared: float, l1: float, variance: float) -> Floats:
    """Return a bound on the RDP of a sum under Skellam noise of variance mu, at integer orders alpha only.

    It is alpha Delta2^2 / (2 mu) + min{((2 alpha - 1) Delta2^2 + 6 Delta1) / (4 mu^2), 3 Delta1 / (2 mu)}, where Delta2
    and Delta1 are the l2- and l1-sensitivity of the sum.
    """
    if not np.issubdtype(orders.dtype, np.integer) or (orders < 2).any():
        raise InputError("the RDP of Skellam noise is known at integer orders from 2 on")
    if variance <= 0:
        return np.full(orders.shape, math.inf if l2_squared else 0.0)
    alpha = orders.astype(np.float64)
    correction = ((2 * alpha - 1) * l2_squared + 6 * l1) / (4 * variance**2)
    bound: Floats = alpha * l2_squared / (2 * variance) + np.minimum(correction, 3 * l1 / (2 * variance))
    return bound


def discrete_gaussian_distance(clients: int, scale: float) -> float:
    """Return tau = 10 sum over k = 1..n-1 of exp(-2 pi^2 g^2 k / (k + 1)), with n = `clients` and g = `scale`.

    It bounds the max-divergence between a sum of n discrete Gaussians of scale g and one of scale sqrt(n) g.
    """
    k = np.arange(1, clients, dtype=np.float64)
    return float(10 * np.exp(-2 * (math.pi * scale) ** 2 * k / (k + 1)).sum())


def discrete_gaussian_rdp(orders: Orders, clients: int, scale: float, l2: float, l1: float, dim: int) -> Floats:
    """Return a bound on the RDP of a sum under discrete Gaussian noise of scale g from each of n honest clients.

    The bound at order alpha is alpha/2 times the least of (D2/S)^2 + 2 tau d / alpha, (D2/S)^2 + 2 (D1/S) tau + tau^2 d
    and (D2/S + tau sqrt d)^2.  S is sqrt(n) g, D2 = `l2` and D1 = `l1` are the sensitivities, d is `dim`, and tau is
    `discrete_gaussian_distance`.
    """
    if clients < 1:
        raise InputError(f"noise comes from at least one honest client, not {clients}")
    if not scale >= LEAST_SCALE:
        raise InputError(f"the scale of a discrete Gaussian is at least {LEAST_SCALE} for this bound, not {scale}")
    if (orders < 2).any():
        raise InputError("orders are at least 2")
    tau, total = discrete_gaussian_distance(clients, scale), math.sqrt(clients) * scale
    half = orders.astype(np.float64) / 2
    near, ratio = (l2 / total) ** 2, l1 / total
    by_ratio: Floats = half * near + tau * dim
    by_norm = half * min(near + 2 * ratio * tau + tau**2 * dim, (l2 / total + tau * math.sqrt(dim)) ** 2)
    return np.minimum(by_ratio, by_norm)


def theta_squared(event: Event) -> float:
    """Return theta^2, the cost of an event in Gaussian differential privacy, rounded up.

    The cost is infinite if no theta^2 is proved for the noise of the event; an unknown event raises InputError.

    >>> theta_squared(Repeated(Gaussian(2.0), 10))
    2.5
    """
    match event:
        case SkellamSum(l2_squared, _, variance) if variance > _HALF:
            return gdp.theta_squared(l2_squared, variance)
        case SkellamSum() | DiscreteGaussianSum():
            return math.inf
        case Gaussian(multiplier):
            return gdp.gaussian_theta_squared(check_positive("the noise multiplier", multiplier))
        case Repeated(inner, count):
            return compose_costs([(theta_squared(inner), count)])
        case Composed(events):
            return compose_costs((theta_squared(inner), 1) for inner in events)
    raise InputError(f"no bound is known for {type(event).__name__}")


def compose_costs(costs: Iterable[tuple[float, int]]) -> float:
    """Return the theta^2 of a composition, from pairs of a release's theta^2 (or infinity) and its repetitions."""
    each = tuple(costs)
    if any(cost == math.inf for cost, _ in each):
        return math.inf
    return gdp.compose_costs(gdp.repeat_cost(cost, times) for cost, times in each)


def epsilon(event: Event, delta: float, distance: float = 0.0) -> float:
    """Return the epsilon of an event at `delta`; infinity if none is proved.

    `distance` is the total variation distance between the noise that is drawn and the noise that is analysed.  It
    reduces delta by (1 + e^epsilon) `distance`; if that is more than half of delta, no epsilon is proved.

    >>> round(epsilon(Repeated(Gaussian(5.0), 10), delta=1e-5), 2)
    2.59
    """
    check_delta(delta)
    cost = theta_squared(event)
    if cost < math.inf:
        return gdp.epsilon(cost, delta, distance)
    return _convert_to_epsilon(_smaller_divergences(event), delta, ORDERS, distance).epsilon


def guarantee(event: Event, delta: float, orders: Sequence[int] = ORDERS, distance: float = 0.0) -> Guarantee:
    """Return the guarantee of an event at `delta` by Renyi divergences; `distance` is explained at `epsilon`.

    >>> round(guarantee(Repeated(Gaussian(5.0), 10), delta=1e-5).epsilon, 2)
    2.81
    """
    check_delta(delta)
    return _convert_to_epsilon(renyi_divergences(event, orders), delta, orders, distance)


def _smaller_divergences(event: Event) -> Floats:
    """Return Renyi divergences of all releases together, with the smaller of two bounds for each (see the module)."""
    match event:
        case Repeated(inner, count):
            return _smaller_divergences(inner) * count
        case Composed(events):
            return sum((_smaller_divergences(inner) for inner in events), np.zeros(len(ORDERS)))
    return np.minimum(renyi_divergences(event), theta_squared(event) * np.asarray(ORDERS) / 2)


def _convert_to_epsilon(curve: Floats, delta: float, orders: Sequence[int], distance: float) -> Guarantee:
    """Return the guarantee that Renyi divergences `curve` at `orders` prove; for `distance` see function `epsilon`."""
    from dp_accounting.rdp import compute_epsilon

    divergences = curve.tolist()
    if distance:
        # Epsilon at delta / 2 is larger than the epsilon returned, so a charge computed from it is large enough.
        above = float(compute_epsilon(orders, divergences, delta / 2)[0])
        charge = (1 + math.exp(min(above, _LARGEST_EXPONENT))) * distance
        if charge > delta / 2:
            return Guarantee(math.inf, delta, int(orders[0]))
    spent, order = compute_epsilon(orders, divergences, delta - charge if distance else delta)
    return Guarantee(float(spent), delta, int(order))


class ReleaseCost(NamedTuple):
    """A release, and the total variation distance between the noise drawn for it and the law that is analysed."""

    event: Event
    distance: float


@lru_cache(maxsize=1 << 8)  # every round needs a few results several times, later rounds need others
def epsilon_spent(
    costs: frozenset[tuple[ReleaseCost, int]], delta: float, orders: tuple[int, ...] | None = None
) -> float:
    """Return the epsilon of all releases together, from pairs of a release and the number of its repetitions.

    Costs are added in a fixed order, so that all parties compute the same epsilon.  With `orders`, epsilon comes from
    the Renyi divergences at these orders, as in the paper.
    """
    if not costs:
        return 0.0
    ordered = sorted(costs, key=lambda paid: (type(paid[0].event).__name__, astuple(paid[0].event)))
    run = Composed(tuple(Repeated(cost.event, times) for cost, times in ordered))
    distance = math.fsum(cost.distance * times for cost, times in costs)
    return epsilon(run, delta, distance) if orders is None else guarantee(run, delta, orders, distance).epsilon


@dataclass(frozen=True)
class ParticipationSchedule:
    """The accounting of a run whose rounds each have `per_round` of `population` clients.

    `accounting` says how many rounds each client is charged for.  'cap': as many as the participation cap, which every
    client enforces itself.  'all-rounds': all.  'paper': all, by Renyi divergences at the paper's orders.  The server
    knows which clients take part, so the random selection of clients does not amplify privacy.  No budget is reserved
    for failed rounds, which clients count too: later rounds get more noise, or have fewer clients (`runs.budget`).
    """

    population: int
    per_round: int
    rounds: int
    accounting: str = CAP
    cap: int | None = None
    """The participation cap, if the configuration sets one (for open arrival or selection by VRF); None for the
    default, ceil(R n / N) for R rounds with n of N clients."""

    def __post_init__(self) -> None:
        if self.cap is not None and self.cap < 1:
            raise InputError(f"the participation cap is at least 1, not {self.cap}")
        if not 1 <= self.per_round <= self.population:
            raise InputError(f"a round has 1 to {self.population} clients, the whole population, not {self.per_round}")
        if self.rounds < 1:
            raise InputError(f"a run has at least one round, not {self.rounds}")
        if self.accounting not in (CAP, ALL_ROUNDS, PAPER):
            raise InputError(f"accounting is '{CAP}', '{ALL_ROUNDS}' or '{PAPER}', not '{self.accounting}'")

    @property
    def orders(self) -> tuple[int, ...] | None:
        """Return the Renyi orders if `accounting` is 'paper', otherwise None."""
        return PAPER_ORDERS if self.accounting == PAPER else None

    @property
    def releases(self) -> int:
        """Return the number of rounds that are charged to one client, which follows from `accounting`."""
        if self.accounting != CAP:
            return self.rounds
        if self.cap is not None:
            return min(self.cap, self.rounds)
        return -(-self.rounds * self.per_round // self.population)

    def run(self, release: Event) -> Event:
        """Return the composition of the rounds charged to one client, each of which makes the same `release`."""
        return Repeated(release, self.releases)

    def terms(self, against: str = "against the server, who knows who takes part") -> tuple[str, ...]:
        """Return the assumptions that every report of an epsilon must state; `against` names the adversary."""
        counted = "the participation cap" if self.accounting == CAP else "all rounds"
        if self.accounting == PAPER:
            counted += ", as the sum of Renyi divergences,"
        return (
            f"for one client, its update replaced by zero, over {counted} ({self.releases} releases)",
            against,
            "dropout that depends on a client's data is outside the guarantee",
        )


def gaussian_multiplier(epsilon: float, releases: int, delta: float) -> float:
    """Return the least noise multiplier of Gaussian noise at which `releases` releases are within (epsilon, delta).

    With central privacy the server adds this noise once, to the sum.  With local privacy every client adds as much, so
    the noise on the sum of n updates has a standard deviation that is larger by a factor of sqrt(n).
    """
    return multiplier_for_cost(gdp.theta_budget(check_epsilon(epsilon), check_delta(delta)) / releases)


def multiplier_for_cost(cost: float) -> float:
    """Return the least noise multiplier at which a release under Gaussian noise costs at most `cost`, a theta^2."""
    return _ROUNDING / math.sqrt(check_positive("the cost of a release", cost))


def default_delta(population: int) -> float:
    """Return the default delta, min{N^-1.1, 10^-5} for a population of N; the paper's is 1 / N."""
    return min(math.pow(population, -1.1), 1e-5)


LARGEST_DELTA = 1e-3
"""With a larger delta there is a warning that the guarantee may fail too often."""
LARGEST_EPSILON = 20.0
"""With a larger epsilon there is a warning that the guarantee says little."""


def budget_warnings(epsilon: float, delta: float, clients: int) -> tuple[str, ...]:
    """Return warnings about an epsilon that says little, or a delta that is too large for this number of clients.

    >>> budget_warnings(6.0, 1e-5, 1000)
    ()
    """
    found = []
    if epsilon > LARGEST_EPSILON:
        found.append(
            f"an epsilon of {epsilon:.3g} is above {LARGEST_EPSILON:g}: it promises a client next to nothing, even if "
            "known attacks may fail"
        )
    if delta >= 1 / clients:
        found.append(
            f"delta = {delta:.3g} is not below {1 / clients:.3g}, one over the clients: such a delta would allow "
            "publishing all data of one client"
        )
    if delta > LARGEST_DELTA:
        found.append(
            f"delta = {delta:.3g} is above {LARGEST_DELTA:g}: with that probability epsilon may not hold at all"
        )
    return tuple(found)


def check_delta(delta: float) -> float:
    """Return delta; raise InputError unless it is between 0 and 1."""
    if not isinstance(delta, Real) or not 0 < delta < 1:
        raise InputError(f"delta is a number between 0 and 1, not {delta!r}")
    return delta


def check_epsilon(epsilon: float) -> float:
    """Return epsilon; raise InputError unless it is finite and above 0."""
    return check_positive("epsilon", epsilon)


def check_positive(name: str, value: float) -> float:
    """Return `value`; raise InputError unless it is finite and above 0."""
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise InputError(f"{name} is a number above 0, not {value!r}")
    return value
