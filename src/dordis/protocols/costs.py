"""The privacy cost of a round to each client; server and clients compute it from the agreed parameters alone.

The cost is theta^2, as defined in `dordis.privacy.gdp`, summed over the releases of the round: the update, and further
releases such as a clipping bit.  The theta^2 of a release is computed for the least noise that the sum can have if no
more clients drop out than the round tolerates.  Two data sets are neighbours if one results from the other when the
update of a single client, and this client's values of all further releases, are replaced by zero.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from dordis.errors import InputError
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import SAMPLE_DISTANCE, Event, SkellamSum
from dordis.privacy.mechanisms import TABLE, Mechanism, NoiseFrom
from dordis.privacy.scaling import Sensitivity
from dordis.protocols import sparse_graph
from dordis.protocols.encoded_sums import mechanism_of, releases_of
from dordis.protocols.parameters import Parameters


class RoundCost(NamedTuple):
    """The cost of a round: its theta^2, which is infinite if no guarantee is proved, and two parts of delta.

    theta is the parameter of Gaussian differential privacy (`dordis.privacy.gdp`); the theta^2 of several rounds
    are added.  `distance` and `failure` are subtracted from the budget's delta.  `distance` bounds the total variation
    distance between the noise that is drawn and the noise that is analysed.  `failure` bounds the probability that the
    graph of the round does not keep inputs secret, or that more than T_C colluders are selected at random.
    """

    theta_squared: float
    distance: float
    failure: float = 0.0
    sampled: tuple[int, int] | None = None
    """If records are the unit of privacy: the probability that a record is sampled, times 2^32, and the planned number
    of events (tries of a round, each with its own sample of records); else None."""

    def plus(self, other: "RoundCost") -> "RoundCost":
        """Return the cost of this round and of `other` together; both protect clients, not records (`sampled` None)."""
        costs = (self.theta_squared, other.theta_squared)
        both = math.inf if math.inf in costs else gdp.compose_costs(costs)
        return RoundCost(both, self.distance + other.distance, self.failure + other.failure)


FREE = RoundCost(0.0, 0.0)
UNPROVED = RoundCost(math.inf, 0.0)
NEVER = Fraction(0)


def round_cost(
    parameters: Parameters, kind: type[Mechanism] | None = None, draw_failure: Fraction = NEVER
) -> RoundCost:
    """Return a bound on the cost of a round to each client; return `UNPROVED` if no bound is proved.

    The bound holds for any dropouts that the round tolerates.  `kind` is the class of the mechanism if a third party
    wrote it, else None.  `draw_failure` bounds the probability that more than T_C colluders are selected by public
    randomness; it is 0 if public randomness does not select the clients.
    """
    try:
        mechanism = mechanism_of(parameters, kind=kind)
        (update, least), *others = _sums(parameters)
        least += mechanism_variance(parameters)
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
    """Return a bound on the probability that a round's graph does not keep inputs secret; 0 on the complete graph."""
    return sparse_graph.failure(parameters.mode) if parameters.is_sparse else NEVER


def _sums(parameters: Parameters) -> list[tuple[Sensitivity, Fraction]]:
    """Return for each release its sensitivity, and the `protocol_variance` of the chunks in which it is summed."""
    return [(changed, protocol_variance(parameters, chunks)) for changed, chunks in releases_of(parameters)]


def _skellam(changed: Sensitivity, variance: Fraction) -> Event:
    return SkellamSum(changed.squared, changed.l1, float(variance))


def noise_ratios(parameters: Parameters) -> list[Fraction]:
    """Return for each release the least noise variance after tolerated dropouts, divided by the squared sensitivity.

    Noise that T_C colluders know does not count.  The ratio is 0 if the sensitivity is not bounded.
    """
    own = mechanism_variance(parameters)
    return [
        (least + own) / changed.squared if changed.squared > 0 else Fraction(0) for changed, least in _sums(parameters)
    ]


def least_variance(parameters: Parameters, chunks: Sequence[int]) -> Fraction:
    """Return the least noise variance that counts for privacy: `protocol_variance` plus `mechanism_variance`."""
    return protocol_variance(parameters, chunks) + mechanism_variance(parameters)


def protocol_variance(parameters: Parameters, chunks: Sequence[int]) -> Fraction:
    """Return the least variance, over `chunks` and all tolerated dropouts, of the noise of the chunks' noise plans.

    Noise that T_C colluders know does not count.
    """
    return min(plan.reserved_variance() for plan in {parameters.plans[chunk] for chunk in chunks})


def mechanism_variance(parameters: Parameters) -> Fraction:
    """Return the least variance of a built-in mechanism's own noise, which clients add while they encode updates.

    This noise is in no noise plan and is never removed.  Noise that T_C colluders know does not count.  The result is 0
    if the mechanism has no such noise, if the server adds the noise, if a third party wrote the mechanism, or if the
    round has further releases.
    """
    written = parameters.encoding
    if not written.noise or written.further_releases or written.mechanism not in TABLE:
        return Fraction(0)
    mechanism = mechanism_of(parameters)
    kept = mechanism.noise_variances(parameters.n_min, parameters.n_max, parameters.colluders)
    return Fraction(0 if mechanism.noise_from is NoiseFrom.SERVER else kept.charged)
