"""What a round costs each of its clients: one function of the hashed parameters, for clients and server alike.

The cost is a theta^2 (`dordis.privacy.gdp`), the sum over the releases of the round: the update, and further releases
such as a clipping bit.  A release counts on the least noise of its chunks that any U3 with |D| <= T leaves.  To leave a
client out means that its update is zero, and so is what it adds to every further release.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from dordis.errors import InputError
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import SAMPLE_DISTANCE, Event, SkellamSum
from dordis.privacy.mechanisms import TABLE
from dordis.privacy.mechanisms.mechanism import Mechanism, NoiseFrom
from dordis.privacy.scaling import Sensitivity
from dordis.protocols import sparse_graph
from dordis.protocols.distributed_dp import mechanism_of, releases_of
from dordis.protocols.parameters import Parameters


class RoundCost(NamedTuple):
    """A theta^2, infinite where nothing is proved, and how far the noise is from its law, in total variation.

    `failure` is the chance that the graph or the random selection of the round fails, which delta has to cover.
    """

    theta_squared: float
    distance: float
    failure: float = 0.0
    sampled: tuple[int, int] | None = None
    """p 2^32 and A, where the round is one of A events of sampled records."""

    def plus(self, other: "RoundCost") -> "RoundCost":
        """Return the cost of both."""
        costs = (self.theta_squared, other.theta_squared)
        both = math.inf if math.inf in costs else gdp.compose_costs(costs)
        return RoundCost(both, self.distance + other.distance, self.failure + other.failure)


FREE = RoundCost(0.0, 0.0)
UNPROVED = RoundCost(math.inf, 0.0)
NEVER = Fraction(0)


def round_cost(
    parameters: Parameters, kind: type[Mechanism] | None = None, draw_failure: Fraction = NEVER
) -> RoundCost:
    """Return the cost of a round to each client, for every dropout; `kind` names a mechanism of a third party.

    `draw_failure` is the chance that a random selection has more than T_C colluders; 0 if clients are not drawn.
    """
    try:
        mechanism = mechanism_of(parameters, kind=kind)
        (update, least), *others = _sums(parameters)
        least += brought_variance(parameters)
        events = [mechanism.release(least) if mechanism.has_price_list else _skellam(update, least)]
        events += [_skellam(changed, least) for changed, least in others]
    except InputError:
        return UNPROVED
    plan = parameters.plans[0]
    samples = parameters.dim * parameters.n_max * (len(plan.base) + len(plan.removable))
    cost = accounting.compose_costs((accounting.theta_squared(event), 1) for event in events)
    records = parameters.encoding.records
    sampled = (records.sampling, records.events) if records else None
    return RoundCost(cost, samples * SAMPLE_DISTANCE, float(graph_failure(parameters) + draw_failure), sampled)


def graph_failure(parameters: Parameters) -> Fraction:
    """Return the chance, at most, that the graph of a round does not keep secrecy: on the complete graph it does."""
    return sparse_graph.failure(parameters.mode) if parameters.is_sparse else NEVER


def _sums(parameters: Parameters) -> list[tuple[Sensitivity, Fraction]]:
    """Return the sensitivity of each release, and the least noise that the protocol leaves in its chunks."""
    return [(changed, protocol_variance(parameters, chunks)) for changed, chunks in releases_of(parameters)]


def _skellam(changed: Sensitivity, variance: Fraction) -> Event:
    return SkellamSum(changed.squared, changed.l1, float(variance))


def noise_ratios(parameters: Parameters) -> list[Fraction]:
    """Return for every release the least variance left, for every dropout, over the squared sensitivity.

    It is 0 where that is not bounded.
    """
    brought = brought_variance(parameters)
    return [
        (least + brought) / changed.squared if changed.squared > 0 else Fraction(0)
        for changed, least in _sums(parameters)
    ]


def least_variance(parameters: Parameters, chunks: Sequence[int]) -> Fraction:
    """Return the least noise of some chunks: the protocol's, and what clients bring beside it."""
    return protocol_variance(parameters, chunks) + brought_variance(parameters)


def protocol_variance(parameters: Parameters, chunks: Sequence[int]) -> Fraction:
    """Return the least noise of some chunks that the protocol leaves."""
    return min(plan.reserved_variance() for plan in {parameters.plans[chunk] for chunk in chunks})


def brought_variance(parameters: Parameters) -> Fraction:
    """Return the least noise that clients bring with a mechanism of dordis; none is on further releases."""
    written = parameters.encoding
    if not written.noise or written.further_releases or written.mechanism not in TABLE:
        return Fraction(0)
    mechanism = mechanism_of(parameters)
    kept = mechanism.noise_variances(parameters.n_min, parameters.n_max, parameters.colluders)
    return Fraction(0 if mechanism.noise_from is NoiseFrom.SERVER else kept.charged)
