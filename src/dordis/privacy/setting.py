"""The setting of a run, from which its noise is planned: clients, rounds, dropout, colluders and ring.

The *central* variance is the noise variance from which epsilon is computed.  A theta^2 is a cost, the squared parameter
of theta-GDP (`dordis.privacy.gdp`).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from dordis.errors import InputError
from dordis.privacy import accounting, gdp, record_accounting, scaling
from dordis.privacy.accounting import Composed, Event, ParticipationSchedule, SkellamSum
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.record_accounting import RecordSampling
from dordis.privacy.scaling import MOST_BITS, Ring, Sensitivity, check_buckets
from dordis.privacy.skellam_noise import LARGEST_VARIANCE
from dordis.privacy.xnoise_components import NoisePlan, Scheme, default_tolerance

LONGEST = 2**31
FEW = 10
"""With records as the unit of privacy and at most this many clients n, the default tolerance is n - threshold."""
PROBE = Fraction(2**30)
"""A central variance so large that rounding its components to the grid of 2^-20 changes them by at most 2^-50 of it."""
SPARE = 1 - 2e-9
"""The fraction of the budget that plans use; the rest covers rounding errors: owners add up costs in another order."""
_MARGIN = 1 - 1e-12  # so that a variance rounded up to a multiple of 2^-20 stays below LARGEST_VARIANCE


@dataclass(frozen=True)
class Setting:
    """The inputs of a plan: participation, vector, ring, and the dropout and collusion that the noise must survive.

    `headroom` is k: the ring holds k standard deviations of a coordinate.  `colluders` is T_C, the number of colluders
    in a round, and `reserve` the number of dropouts for which the scheme `conservative` provides.  With `one_block` the
    whole vector is rotated as one block, as in the paper.  `further` are the values that every round releases in
    addition to the update.  With `orders`, epsilon comes from the Renyi divergences at these orders, as in the paper;
    without `orders`, from `dordis.privacy.gdp`.  `failure` is the probability that in some round of the run the graph
    loses secrecy or more than T_C colluders are selected; it is subtracted from delta.  `buckets` is the length to
    which updates are folded (`dordis.privacy.projection`), or 0 if they are not folded.  `sparse` says whether clients
    share masks on a sparse graph, as in SecAgg+.  `records` says how records are sampled, if they are the unit of
    privacy.

    Fields that are None have these defaults: `bits`, as many as are useful; `delta`, min{N^-1.1, 10^-5}, where N is the
    number of clients, or of records if they are the unit of privacy; `threshold`, `default_threshold`; `tolerance`, see
    the property `T`; `reserve`, the tolerance.
    """

    participation: ParticipationSchedule
    dim: int
    clip: float = 1.0
    delta: float | None = None
    bits: int | None = None
    headroom: float = 4.0
    scheme: Scheme = Scheme.SINGLE
    threshold: int | None = None
    tolerance: int | None = None
    colluders: int = 1
    reserve: int | None = None
    one_block: bool = False
    further: tuple[FurtherValue, ...] = ()
    orders: tuple[int, ...] | None = None
    failure: float = 0.0
    buckets: int = 0
    sparse: bool = False
    records: RecordSampling | None = None

    def __post_init__(self) -> None:
        accounting.check_delta(self.given_delta)
        check_failure(self.given_delta, self.failure)
        if not 1 <= self.dim <= LONGEST:
            raise InputError(f"a vector has 1 to 2^31 coordinates, not {self.dim}")
        check_buckets(self.dim, self.buckets)
        accounting.check_positive("the clip bound", self.clip)
        accounting.check_positive("the headroom k", self.headroom)
        if self.bits is not None and not 1 <= self.bits <= MOST_BITS:
            raise InputError(f"bits lie in 1..{MOST_BITS}, not at {self.bits}")
        check_further(self.further)
        if self.scheme is Scheme.NONE:
            raise InputError("without noise there is nothing to plan")
        n, t, T, T_C = self.clients, self.t, self.T, self.colluders
        if not 1 <= t <= n:
            raise InputError(f"the threshold lies in 1..{n}, not at {t}")
        if not 0 <= T_C < t:
            raise InputError(f"{T_C} colluders cannot be tolerated: they must be fewer than the threshold, {t}")
        if not 0 <= T <= n - t:
            raise InputError(
                f"the dropout tolerance {T} must lie in 0..{n - t}, the {n} clients of a round less the threshold {t}: "
                f"lower it, or set the threshold to {max(n - T, 0)} at most, which only a semi-honest server allows if "
                f"it is below {default_threshold(n, T_C)}"
            )
        if self.noise_delta < 16 * self.distance:
            raise InputError(
                f"delta = {self.given_delta} is too small for the noise tables: it is at least {16 * self.distance:.1g}"
            )

    @property
    def share(self) -> float:
        """Return the part of the budget that is spent on all further releases together."""
        return math.fsum(value.share for value in self.further)

    @property
    def clients(self) -> int:
        """Return n, the clients of a round."""
        return self.participation.per_round

    @property
    def given_delta(self) -> float:
        """Return the delta of the guarantee: the configured delta, or `accounting.default_delta` by default."""
        if self.delta is not None:
            return self.delta
        records = self.records.records if self.records else 1
        return accounting.default_delta(self.participation.population * records)

    @property
    def noise_delta(self) -> float:
        """Return the part of delta that is left for the noise: delta minus `failure`."""
        return self.given_delta - self.failure

    @property
    def t(self) -> int:
        """Return the threshold t: the number of clients that must answer until the end of a round."""
        return default_threshold(self.clients, self.colluders) if self.threshold is None else self.threshold

    @property
    def T(self) -> int:  # noqa: N802  the paper's name
        """Return the tolerance: how many clients may drop out of a round before their upload."""
        if self.tolerance is not None:
            return self.tolerance
        if self.records is not None and self.clients <= FEW:
            return self.clients - self.t
        return default_tolerance(self.clients, self.t, self.sparse)

    @property
    def releases(self) -> int:
        """Return the number of rounds that the plan charges to one client, or of events that it charges to a record."""
        return self.records.events if self.records else self.participation.releases

    @property
    def summed_dim(self) -> int:
        """Return how many coordinates are summed: the buckets if updates are folded, else `dim`."""
        return self.buckets or self.dim

    @cached_property
    def block(self) -> int:
        """Return the length of a rotated block."""
        return scaling.single_block_size(self.summed_dim) if self.one_block else scaling.block_size(self.summed_dim)

    @cached_property
    def padded(self) -> int:
        """Return the length of the summed vector with its padding."""
        return scaling.padded_length(self.summed_dim, self.block)

    def reserve_for(self, clients: int, tolerance: int) -> int:
        """Return the `reserve` that a round of this size and tolerance needs to cost a client no more than planned.

        `reserve` is the field of `NoisePlan`, which only the scheme `conservative` uses.  The result is 0 if the plan's
        reserve is at most its T; `RoundPlan` raises the result to `Strategy.reserve`.
        """
        beyond = (self.reserve or 0) - self.T
        if beyond <= 0:
            return 0
        honest, planned = clients - tolerance - self.colluders, self.clients - self.T - self.colluders
        return min(tolerance + -(-beyond * honest // planned), clients - self.colluders - 1)

    def noise(self, variance: Fraction, scheme: Scheme | None = None) -> NoisePlan:
        """Return the noise plan whose central variance, from which epsilon is computed, is `variance`.

        The noise scheme is `scheme`, or the setting's if `scheme` is None.
        """
        scheme = scheme or self.scheme
        provided = self.T if self.reserve is None else self.reserve
        reserve = provided if scheme is Scheme.CONSERVATIVE else 0
        return NoisePlan(scheme, self.clients, self.T, self.colluders, variance, reserve=reserve)

    @cached_property
    def _probe(self) -> NoisePlan:
        return self.noise(PROBE)

    @property
    def kappa(self) -> Fraction:
        """Return the noise variance left in a sum without dropouts, divided by the planned variance sigma*^2."""
        return self._probe.variance_left(range(self.clients), b"") / PROBE

    def ring(self, bits: int) -> Ring:
        """Return the ring of `bits` bits, with all numbers that decide whether signal and noise fit it."""
        component = max((*self._probe.base, *self._probe.removable))
        return Ring(
            bits=bits,
            clients=self.clients,
            clip=self.clip,
            dim=self.padded,
            block=self.block,
            headroom=self.headroom,
            kappa=float(self.kappa),
            largest=float(LARGEST_VARIANCE * PROBE / component) * _MARGIN,
            folded=bool(self.buckets),
        )

    @cached_property
    def distance(self) -> float:
        """Return a bound on the total variation distance between drawn and analysed noise, over a client's rounds."""
        components = len(self._probe.base) + len(self._probe.removable)
        length = self.padded + sum(value.length for value in self.further)
        return accounting.SAMPLE_DISTANCE * self.releases * length * self.clients * components

    def epsilon(self, sensitivity: Sensitivity, variance: float, *others: Event) -> float:
        """Return the epsilon of a run whose rounds make several releases.

        Each round releases a sum of this sensitivity, under noise of `variance` in integer units, and makes the further
        releases `others`.
        """
        update = SkellamSum(sensitivity.squared, sensitivity.l1, variance)
        if self.records is not None:
            return self.epsilon_for_cost(accounting.theta_squared(Composed((update, *others))))
        run = self.participation.run(Composed((update, *others)))
        if self.orders is None:
            return accounting.epsilon(run, self.noise_delta, self.distance)
        return accounting.guarantee(run, self.noise_delta, self.orders, self.distance).epsilon

    def allowance(self, epsilon: float) -> float:
        """Return the allowance of a round: the theta^2 that a round may cost so that the run stays within `epsilon`.

        With clients as the unit of privacy, the total variation distance between drawn and analysed noise is counted
        twice, because failed rounds add to it.  This distance may use at most half of delta.  At a large `epsilon` it
        would use more; then a smaller epsilon is planned.
        """
        delta, distance = self.noise_delta, 2 * self.distance
        if self.records is not None:
            given = self.records.sampling, self.records.events, self.distance / self.releases
            return record_accounting.calibrate(epsilon, delta, *given).theta_squared * SPARE
        provable = min(accounting.check_epsilon(epsilon), math.log(delta / (4 * distance)))
        budget = gdp.theta_budget(provable, delta, distance)
        return budget / self.participation.releases * SPARE

    def epsilon_for_cost(self, allowance: float) -> float:
        """Return the epsilon of a run in which every round has a theta^2 of `allowance`."""
        if self.records is not None:
            plan = self.records.plan(allowance, self.distance / self.releases)
            return record_accounting.epsilon(plan, self.noise_delta)
        return gdp.epsilon(gdp.repeat_cost(allowance, self.participation.releases), self.noise_delta, self.distance)


def check_further(further: tuple[FurtherValue, ...]) -> None:
    """Raise InputError unless further releases have different names and leave some of the budget to the update."""
    if len({value.name for value in further}) != len(further):
        raise InputError(f"further releases have different names, not {', '.join(value.name for value in further)}")
    if not math.fsum(value.share for value in further) < 1:
        raise InputError("the shares of all further releases together are below 1: the update needs some of the budget")


def check_failure(delta: float, failure: float) -> None:
    """Raise InputError unless delta exceeds `failure`.

    `failure` is the probability that in some round the graph loses secrecy, or more than T_C colluders are selected.
    """
    if not 0 <= failure < delta:
        raise InputError(
            f"delta = {delta:.3g} is not above {failure:.3g}, the probability that a round's graph or selection fails, "
            "over the run: take a larger delta, fewer rounds, or the complete graph and the selection 'balanced'"
        )


def default_threshold(clients: int, colluders: int) -> int:
    """Return the least t with 2t > n + T_C, for n clients and T_C colluders.

    Any two sets of t clients then have an honest client in common.
    """
    return min(clients, (clients + max(0, colluders)) // 2 + 1)
