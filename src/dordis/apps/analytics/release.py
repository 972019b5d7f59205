"""One private sum over simulated clients: distributed Skellam noise, XNoise, and one round in this process.

Neighbouring inputs differ in one client, whose update is replaced by zero. The number of clients is public.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dordis.dropout_models import RateDropout
from dordis.errors import InputError
from dordis.ledger.ledger import Ledger
from dordis.privacy.accounting import (
    ALL_ROUNDS,
    ParticipationSchedule,
    ReleaseCost,
    check_delta,
    check_epsilon,
    default_delta,
)
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.planning import Plan
from dordis.privacy.scaling import MOST_BITS, Floats
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import LARGEST_VARIANCE
from dordis.privacy.strategies import XNoise
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SECAGG
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.population import SimulatedHome
from dordis.simulation.run import first_ids, home_of_updates, single_round

IDEAL, FULL = "ideal", "full"
HEADROOM = 8.0
"""Number of standard deviations of a sum that fit into the ring; large, because bits cost nothing in a simulation."""
_FINE = 100.0
_MARGIN = 0.9  # the noise is planned for MOST_BITS, and its sigma is a little larger with fewer bits

Updates = Callable[[int], Floats]
"""Returns the update of the client with a zero-based index."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a round: threat model, dropout, fidelity, ledger.

    In `ideal` fidelity all randomness comes from `entropy`; in `full` the secrets of the protocol come from the
    operating system.
    """

    colluders: int = 1
    mode: str = MALICIOUS
    dropped: int = 0
    fidelity: str = IDEAL
    entropy: Entropy = field(default=secrets.token_bytes, repr=False)
    ledger: Ledger | None = None
    """Ledger to which every release is charged, if any."""
    clients: tuple[ClientId, ...] | None = None
    """The client id of each update, in order; 1, 2, .. if None."""

    def __post_init__(self) -> None:
        if self.mode not in (MALICIOUS, SEMI_HONEST):
            raise InputError(f"the mode is '{MALICIOUS}' or '{SEMI_HONEST}', not '{self.mode}'")
        if self.fidelity not in (IDEAL, FULL):
            raise InputError(f"the fidelity is '{IDEAL}' or '{FULL}', not '{self.fidelity}'")


@dataclass(frozen=True)
class QueryBudget:
    """The budget of an answer, and the part of it that one release may spend."""

    epsilon: float
    delta: float
    part: float = 1.0

    @classmethod
    def for_clients(cls, epsilon: float, delta: float | None, clients: int) -> "QueryBudget":
        """Return the budget of a query; delta is by default min{n^-1.1, 10^-5} for n clients. Raise if invalid."""
        return cls(check_epsilon(epsilon), default_delta(clients) if delta is None else check_delta(delta))

    def split(self, share: float) -> "tuple[QueryBudget, QueryBudget]":
        """Return two parts of the budget: the fraction `share` of it, and the rest."""
        return replace(self, part=share * self.part), replace(self, part=(1 - share) * self.part)


@dataclass(frozen=True, eq=False)
class PrivateSum:
    """The noisy sum over `count` clients, the standard deviation of the noise in each coordinate, and the privacy cost.

    `sum_check` is the result of the check for impossible sums (`dordis.rounds.impossible_sums`).
    """

    total: Floats = field(repr=False)
    count: int
    sigma: float
    cost: ReleaseCost
    sum_check: str


def plan_release(clients: int, dim: int, clip: float, budget: QueryBudget, how: Conditions) -> RoundPlan:
    """Plan a round of all clients, whose updates have `dim` coordinates and a norm of `clip` at most."""
    once = ParticipationSchedule(clients, clients, rounds=1, accounting=ALL_ROUNDS)
    setting = Setting(once, dim, clip, budget.delta, bits=MOST_BITS, headroom=HEADROOM, colluders=how.colluders)
    if not 0 <= how.dropped <= setting.T:
        raise InputError(f"of {clients} clients 0 to {setting.T} may drop out, not {how.dropped}")
    allowance = budget.part * setting.allowance(budget.epsilon)
    planned = RoundPlan(XNoise(), setting, budget.epsilon, ThreatModel(how.mode), allowance=allowance)
    bits = _bits(planned)
    return planned if bits == MOST_BITS else replace(planned, setting=replace(setting, bits=bits))


def _bits(planned: RoundPlan) -> int:
    """Return the bits of a coordinate of the sum: enough for a fine grid, and no more, because the tables for drawing
    noise of a large variance take seconds to compute.

    On a grid that is fine enough, rounding adds about 1 % to the norm of an update and less to the variance of the sum.
    The bits are limited by the largest variance that can be drawn at once in `ideal` fidelity.  The noise in real units
    hardly depends on the grid.
    """
    ring = planned.setting.ring(MOST_BITS)
    noise = ring.kappa * _plan(planned).sigma ** 2

    def bits(scale: float) -> float:
        return math.log2(2 * HEADROOM * math.sqrt(scale**2 * (ring.signal + noise) + ring.clients / 4))

    for_norm = _FINE * max(1.0, math.sqrt(ring.dim) / 2) / ring.clip
    for_sum = math.sqrt(max(_FINE**3, _FINE * ring.clients / 4) / noise)
    most = math.sqrt(_MARGIN * float(LARGEST_VARIANCE) / noise)
    return min(MOST_BITS, math.ceil(bits(max(for_norm, for_sum))), math.floor(bits(most)))


def _plan(planned: RoundPlan) -> Plan:
    assert planned.plan is not None  # noqa: S101  XNoise has one
    return planned.plan


def expected_sigma(planned: RoundPlan) -> float:
    """Return the standard deviation of the noise in a coordinate of the sum if nobody drops out."""
    clients = planned.setting.clients
    return deviation(planned, float(_plan(planned).noise.variance_left(range(clients), b"")), clients)


def deviation(planned: RoundPlan, left: float, count: int) -> float:
    """Return the standard deviation of the noise in a coordinate of the sum, in real units.

    `left` is the variance of the noise on the grid; rounding adds a variance of 1/4 for each of `count` clients.
    """
    return math.sqrt(left + count / 4) / planned.mechanism.grid.scale


def private_sum(planned: RoundPlan, updates: Updates, how: Conditions) -> PrivateSum:
    """Run one round, in which `how.dropped` clients drop out before the upload, and return its noisy sum."""
    result = single_round(_population(planned, updates, how), ledger=how.ledger).result
    (output,) = result.outputs
    count = len(output.survivors)
    sigma = deviation(planned, float(output.left), count)
    return PrivateSum(result.aggregate.total, count, sigma, release_cost(planned), result.sum_check)


def release_cost(planned: RoundPlan) -> ReleaseCost:
    """Return the privacy cost of a planned release."""
    return ReleaseCost(planned.mechanism.release(_plan(planned).variance), planned.setting.distance)


def _population(planned: RoundPlan, updates: Updates, how: Conditions) -> SimulatedHome:
    """Return the population of the clients, some of which drop out before the upload."""
    part = (how.dropped + 0.5) / planned.setting.clients
    vanishing = RateDropout(how.entropy(SEED_BYTES), part, SECAGG.stages[: SECAGG.upload + 1])
    ids = how.clients or first_ids(planned.setting.clients)
    place = {u: i for i, u in enumerate(ids)}
    return home_of_updates(planned, SECAGG, lambda u: updates(place[u]), how.entropy, vanishing, how.fidelity, ids)


def one_hot(places: npt.NDArray[np.int64], width: int) -> Updates:
    """Return a function from a client's index to its one-hot update: in each column, which has `width` coordinates, the
    coordinate `places[client, column]` is 1.
    """
    columns = places.shape[1]
    starts = width * np.arange(columns)

    def update(client: int) -> Floats:
        indicator = np.zeros(width * columns)
        indicator[starts + places[client]] = 1.0
        return indicator

    return update
