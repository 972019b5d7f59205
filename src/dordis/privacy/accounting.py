"""What noise proves: releases as frozen data, their Renyi divergence at integer orders, and epsilon from that.

The unit is a client, whose whole update is replaced by zero.  Composition adds divergences.  The conversion to epsilon
is that of dp-accounting, on our own curve: its default orders are fractions, at which the bounds are not proved.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting.rdp import compute_epsilon

from dordis.errors import InputError
from dordis.privacy import discrete_gaussian, skellam
from dordis.privacy.skellam import Floats, Orders

PAPER_ORDERS = (*range(2, 129), 256)
ORDERS = (*range(2, 129), *(round(128 * 2 ** (i / 16)) for i in range(1, 113)))
"""Up to 16,384, for small epsilon."""
SAMPLE_DISTANCE = 2.0**-105
"""Total variation between one sample of Skellam or discrete Gaussian noise and its law, at most, at any variance."""
RETRIES = Fraction(1, 20)
"""Rounds that fail after an unmask request has left are paid for and tried again: one in twenty is provided for."""
CAP, ALL_ROUNDS = "cap", "all-rounds"
_LARGEST_EXPONENT = 700.0
_ROUNDING = 1 + 1e-12  # the ledger computes the multiplier from sigma again: the last bit must not cost a round


@dataclass(frozen=True)
class SkellamSum:
    """One sum under Skellam noise; `variance` is what may be counted on, in integer units."""

    l2_squared: float
    l1: float
    variance: float


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """One sum under a discrete Gaussian of this scale from each of `clients` honest clients."""

    l2: float
    l1: float
    clients: int
    scale: float
    dim: int


@dataclass(frozen=True)
class Gaussian:
    """One release under Gaussian noise of `multiplier` times its sensitivity: the central baseline."""

    multiplier: float


@dataclass(frozen=True)
class Repeated:
    """An event that happens `count` times to the same client."""

    event: "Event"
    count: int


@dataclass(frozen=True)
class Composed:
    """Events that all happen to the same client."""

    events: "tuple[Event, ...]"


Event = SkellamSum | DiscreteGaussianSum | Gaussian | Repeated | Composed


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy, and the order that proves it."""

    epsilon: float
    delta: float
    order: int


def curve(event: Event, orders: Sequence[int] = ORDERS) -> Floats:
    """Return the Renyi divergence that an event allows, at each of the integer orders; unknown events raise."""
    alpha: Orders = np.asarray(orders)
    if not np.issubdtype(alpha.dtype, np.integer) or not alpha.size or alpha.min() < 2:
        raise InputError("orders are integers from 2 on")
    match event:
        case SkellamSum(l2_squared, l1, variance):
            return skellam.rdp(alpha, l2_squared, l1, variance)
        case DiscreteGaussianSum(l2, l1, clients, scale, dim):
            return discrete_gaussian.rdp(alpha, clients, scale, l2, l1, dim)
        case Gaussian(multiplier):
            return alpha / (2 * check_positive("the noise multiplier", multiplier) ** 2)
        case Repeated(inner, count):
            return curve(inner, orders) * count
        case Composed(events):
            return sum((curve(inner, orders) for inner in events), np.zeros(alpha.shape))
    raise InputError(f"no bound is known for {type(event).__name__}")


def guarantee(event: Event, delta: float, orders: Sequence[int] = ORDERS, distance: float = 0.0) -> Guarantee:
    """Return what an event proves at `delta`.

    `distance` is the total variation between the noise that was drawn and the noise that was analysed; it costs
    (1 + e^epsilon) of itself in delta, and where that is more than half of delta nothing is proved.

    >>> round(guarantee(Repeated(Gaussian(5.0), 10), delta=1e-5).epsilon, 2)
    2.81
    """
    check_delta(delta)
    divergences = curve(event, orders).tolist()
    if distance:
        # For delta / 2 epsilon is larger, so this charge is enough for the one returned.
        above = float(compute_epsilon(orders, divergences, delta / 2)[0])
        charge = (1 + math.exp(min(above, _LARGEST_EXPONENT))) * distance
        if charge > delta / 2:
            return Guarantee(math.inf, delta, int(orders[0]))
        spent, order = compute_epsilon(orders, divergences, delta - charge)
    else:
        spent, order = compute_epsilon(orders, divergences, delta)
    return Guarantee(float(spent), delta, int(order))


class ReleaseCost(NamedTuple):
    """A release as it is accounted for, and the total variation between the noise in it and the law of that noise."""

    event: Event
    distance: float


@lru_cache(maxsize=1 << 12)
def spent(costs: frozenset[tuple[ReleaseCost, int]], delta: float) -> float:
    """Return the epsilon of costs and how often each was paid; one order of adding up, whoever asks."""
    if not costs:
        return 0.0
    ordered = sorted(costs, key=lambda paid: (type(paid[0].event).__name__, astuple(paid[0].event)))
    run = Composed(tuple(Repeated(cost.event, times) for cost, times in ordered))
    return epsilon(run, delta, distance=math.fsum(cost.distance * times for cost, times in costs))


def epsilon(event: Event, delta: float, orders: Sequence[int] = ORDERS, distance: float = 0.0) -> float:
    """Return the epsilon that an event proves at `delta`; see `guarantee`."""
    return guarantee(event, delta, orders, distance).epsilon


@dataclass(frozen=True)
class ParticipationSchedule:
    """Say how often one client's data is used, out of `population` clients with `per_round` in each round.

    Accounting is over the participation cap, which every client counts and keeps to, or over all rounds, as in the
    paper.  The server knows who takes part: sampling amplifies nothing.
    """

    population: int
    per_round: int
    rounds: int
    accounting: str = CAP
    retries: Fraction = RETRIES

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.population:
            raise InputError(f"of {self.population} clients 1 to {self.population} take part, not {self.per_round}")
        if self.rounds < 1:
            raise InputError(f"there is at least one round, not {self.rounds}")
        if self.accounting not in (CAP, ALL_ROUNDS):
            raise InputError(f"accounting is over the '{CAP}' or over '{ALL_ROUNDS}', not '{self.accounting}'")
        if not 0 <= self.retries <= 1:
            raise InputError(f"the allowance for retries lies in 0..1, not {float(self.retries)}")

    @property
    def releases(self) -> int:
        """Return how many rounds count for one client: the cap, ceil(R n / N) with the allowance, or all rounds."""
        if self.accounting == ALL_ROUNDS:
            return self.rounds
        return math.ceil((1 + self.retries) * self.rounds * Fraction(self.per_round, self.population))

    def run(self, release: Event) -> Event:
        """Return the event of a whole run that makes the same release in every round."""
        return Repeated(release, self.releases)

    def terms(self, against: str = "against the server, who knows who takes part") -> tuple[str, ...]:
        """Return what every report of an epsilon must say with it."""
        counted = "all rounds" if self.accounting == ALL_ROUNDS else "the participation cap"
        return (
            f"for one client, its update replaced by zero, over {counted} ({self.releases} releases)",
            against,
            "dropout that depends on a client's data is outside the guarantee",
        )


def gaussian_multiplier(epsilon: float, releases: int, delta: float) -> float:
    """Return the least multiplier of Gaussian noise for a budget.

    Central privacy adds it once to the sum.  Local privacy has every client add it, so that the sum of n updates has
    sqrt(n) times as much.
    """
    check_delta(delta)
    return float(dp_accounting.get_sigma_gaussian(check_epsilon(epsilon), delta)) * math.sqrt(releases)


def calibrated(epsilon: float, releases: int, delta: float) -> float:
    """Return the least multiplier of Gaussian noise that keeps a budget as the ledger counts it.

    The ledger adds up Renyi divergences, which costs a little more than the exact figure for Gaussians alone.
    """
    low = gaussian_multiplier(epsilon, releases, delta)
    high = 2 * low
    for _ in range(50):
        middle = (low + high) / 2
        enough = guarantee(Repeated(Gaussian(middle), releases), delta).epsilon <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high * _ROUNDING


def default_delta(population: int) -> float:
    """Return the default delta, min{N^-1.1, 10^-5}; the paper's is 1 / N."""
    return min(math.pow(population, -1.1), 1e-5)


def check_delta(delta: float) -> float:
    """Return delta, or refuse it."""
    if not 0 < delta < 1:
        raise InputError(f"delta lies between 0 and 1, not at {delta}")
    return delta


def check_epsilon(epsilon: float) -> float:
    """Return epsilon, or refuse it."""
    return check_positive("epsilon", epsilon)


def check_positive(name: str, value: float) -> float:
    """Return a finite number above 0, or refuse it."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} is a number above 0, not {value}")
    return value
