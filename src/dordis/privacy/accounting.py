"""What noise proves: releases as frozen data, their Renyi divergence at integer orders, and epsilon from that.

The unit is a client, whose whole update is replaced by zero.  Composition adds divergences.  The conversion to epsilon
is that of dp-accounting, on our own curve: its default orders are fractions, at which the bounds are not proved.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting.rdp import compute_epsilon
from scipy.special import gammaln

from dordis.errors import InputError
from dordis.privacy import discrete_gaussian, skellam
from dordis.privacy.skellam import Floats, Orders

PAPER_ORDERS = (*range(2, 129), 256)
ORDERS = (*range(2, 129), *(round(128 * 2 ** (i / 16)) for i in range(1, 113)))
"""Up to 16,384, for small epsilon."""
TABLE_DISTANCE = 2.0**-106
"""Total variation between one sample of the noise tables and its law, at any variance they have."""
RETRIES = Fraction(1, 20)
"""Rounds that fail after an unmask request has left are paid for and tried again: one in twenty is provided for."""
CAP, ALL_ROUNDS = "cap", "all-rounds"
SERVER, OUTSIDER = "server", "outsider"
_LARGEST_EXPONENT = 700.0
_LARGEST_SAMPLED_ORDER = 256  # each takes as many terms; higher ones stay as they are without sampling


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


@dataclass(frozen=True)
class PoissonSampled:
    """An event for which every client is drawn by itself with probability `rate`, unseen by the adversary."""

    rate: float
    event: "Event"


Event = SkellamSum | DiscreteGaussianSum | Gaussian | Repeated | Composed | PoissonSampled


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
        case PoissonSampled(rate, inner):
            return _amplified(rate, inner, alpha)
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


def epsilon(event: Event, delta: float, orders: Sequence[int] = ORDERS, distance: float = 0.0) -> float:
    """Return the epsilon that an event proves at `delta`; see `guarantee`."""
    return guarantee(event, delta, orders, distance).epsilon


@dataclass(frozen=True)
class Participation:
    """Say how often one client's data is used, out of `population` clients with `per_round` in each round.

    Accounting is over the participation cap, which every client counts and keeps to, or over all rounds, as in the
    paper.  `adversary` is the server, who knows who takes part, or an outsider, who does not: that is amplified by
    sampling, and only where every client is drawn independently, nobody is cut, and there is no cap.
    """

    population: int
    per_round: int
    rounds: int
    accounting: str = CAP
    retries: Fraction = RETRIES
    adversary: str = SERVER
    independent: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.population:
            raise InputError(f"of {self.population} clients 1 to {self.population} take part, not {self.per_round}")
        if self.rounds < 1:
            raise InputError(f"there is at least one round, not {self.rounds}")
        if self.accounting not in (CAP, ALL_ROUNDS):
            raise InputError(f"accounting is over the '{CAP}' or over '{ALL_ROUNDS}', not '{self.accounting}'")
        if not 0 <= self.retries <= 1:
            raise InputError(f"the allowance for retries lies in 0..1, not {float(self.retries)}")
        if self.adversary not in (SERVER, OUTSIDER):
            raise InputError(f"the adversary is the '{SERVER}' or an '{OUTSIDER}', not '{self.adversary}'")
        if self.adversary == OUTSIDER and not (self.independent and self.accounting == ALL_ROUNDS):
            raise InputError("amplification needs clients that are drawn independently, with no cut and no cap")

    @property
    def releases(self) -> int:
        """Return how many rounds count for one client: the cap, ceil(R n / N) with the allowance, or all rounds."""
        if self.accounting == ALL_ROUNDS:
            return self.rounds
        return math.ceil((1 + self.retries) * self.rounds * Fraction(self.per_round, self.population))

    def of(self, release: Event) -> Event:
        """Return the event of a whole run that makes the same release in every round."""
        if self.adversary == OUTSIDER:
            release = PoissonSampled(self.per_round / self.population, release)
        return Repeated(release, self.releases)

    def terms(self) -> tuple[str, ...]:
        """Return what every report of an epsilon must say with it."""
        counted = "all rounds" if self.accounting == ALL_ROUNDS else "the participation cap"
        against = {
            SERVER: "against the server, who knows who takes part",
            OUTSIDER: "against OUTSIDERS only, who do not know who takes part: amplified by sampling",
        }
        return (
            f"for one client, its update replaced by zero, over {counted} ({self.releases} releases)",
            against[self.adversary],
            "dropout that depends on a client's data is outside the guarantee",
        )


def sampler_distance(samples: int) -> float:
    """Return the total variation between so many samples of the noise tables and their laws."""
    return samples * TABLE_DISTANCE


def gaussian_epsilon(multiplier: float, releases: int, delta: float) -> float:
    """Return the exact epsilon of Gaussian noise on `releases` sums: the best that central privacy can do."""
    check_delta(delta)
    noise = check_positive("the noise multiplier", multiplier) / math.sqrt(releases)
    return float(dp_accounting.get_epsilon_gaussian(noise, delta))


def gaussian_multiplier(epsilon: float, releases: int, delta: float) -> float:
    """Return the least multiplier of Gaussian noise for a budget.

    Central privacy adds it once to the sum.  Local privacy has every client add it, so that the sum of n updates has
    sqrt(n) times as much.
    """
    check_delta(delta)
    return float(dp_accounting.get_sigma_gaussian(check_epsilon(epsilon), delta)) * math.sqrt(releases)


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


def _amplified(rate: float, event: Event, orders: Orders) -> Floats:
    """Return the divergence under Poisson sampling: Zhu and Wang, "Poisson Subsampled Renyi DP", 2019, theorem 5.

    log{(1-q)^(a-1) (a q - q + 1) + sum over l = 2..a of w_l C(a, l) (1-q)^(a-l) q^l e^((l-1) eps(l))} / (a - 1),
    w_2 = 1 and w_l = 3 beyond.
    """
    if not 0 < rate <= 1:
        raise InputError(f"a sampling rate lies above 0 and at most at 1, not {rate}")
    whole = curve(event, orders.tolist())  # to be drawn or not never costs more than to be drawn
    low = orders <= _LARGEST_SAMPLED_ORDER
    if rate == 1 or not low.any():
        return whole
    a, one = orders[low, None].astype(np.float64), np.arange(2, orders[low].max() + 1)
    choose = gammaln(a + 1) - gammaln(one + 1) - gammaln(np.maximum(a - one, 0) + 1)
    terms = choose + (a - one) * math.log1p(-rate) + one * math.log(rate) + (one - 1) * curve(event, one.tolist())
    terms = np.where(one <= a, terms + np.where(one > 2, math.log(3), 0.0), -np.inf)
    first = (a - 1) * math.log1p(-rate) + np.log(a * rate - rate + 1)
    amplified = np.logaddexp(first[:, 0], np.logaddexp.reduce(terms, axis=1)) / (a[:, 0] - 1)
    whole[low] = np.minimum(whole[low], amplified)
    return whole
