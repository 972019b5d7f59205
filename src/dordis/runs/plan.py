"""The plan of a run's rounds, from noise strategy and setting: parameters, cost, and noise left in the sum.

A cost, or allowance, is the theta^2 of Gaussian DP (docs/accounting.md).
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from msgspec import UNSET

from dordis.errors import InputError
from dordis.ledger.client_spending import Budget
from dordis.ledger.round_charge import Charge
from dordis.privacy import planning, projection
from dordis.privacy.accounting import (
    ALL_ROUNDS,
    ORDERS,
    PAPER_ORDERS,
    ParticipationSchedule,
    budget_warnings,
    multiplier_for_cost,
)
from dordis.privacy.encoding import DISTORTION, chunk_ends
from dordis.privacy.mechanisms import (
    Mechanism,
    NoiseFrom,
    NoiseVariances,
    check_folding,
    check_record_noise,
    find_builtin_mechanism,
    mechanism_name,
)
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.noise_strategies import Rule, Strategy
from dordis.privacy.planning import XNOISE, Plan
from dordis.privacy.projection import Alignment, Saving
from dordis.privacy.record_accounting import SampledEvents
from dordis.privacy.record_encoding import RecordEncoding
from dordis.privacy.setting import Setting, default_threshold
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, Message
from dordis.protocols import parameters as rules
from dordis.protocols.encoded_sums import Aggregate, encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import Roster
from dordis.records.manifest import Descriptions, Trust
from dordis.rounds.invitation import Terms
from dordis.runs.threat_model import ThreatModel

SLACK = 0.9
"""Noise variance that an invitation promises, as a fraction of the planned variance.

This applies only if owners cannot bound the cost of a round (`RoundPlan.counts` is False).  The variance of a round is
rounded, and the rounding depends on the number of clients, which is not known at the invitation.
"""


@dataclass(frozen=True)
class RoundPlan:
    """A noise strategy with its setting, for rounds of `setting.clients` clients; `agree_on` returns their parameters.

    `kind` is the mechanism, unless the strategy has a mechanism of its own.  `allowance` is the largest cost of a
    round; by default it is what a round may cost so that the run stays within `epsilon` (`Setting.allowance`).
    `projection` is the rule by which `setting.buckets` was chosen, the number of coordinates to which updates are
    projected.
    """

    strategy: Strategy
    setting: Setting
    epsilon: float
    agreement: ThreatModel = field(default_factory=ThreatModel)
    kind: type[Mechanism] = DSkellam
    allowance: float | None = None
    projection: str | int = projection.OFF

    def __post_init__(self) -> None:
        if self.strategy.mechanism:
            object.__setattr__(self, "kind", find_builtin_mechanism(self.strategy.mechanism))
        rounded = self.strategy.reserve(self.setting.clients)
        reserve = None if rounded is None else max(rounded, self.setting.reserve or 0)
        # `_resized` gives a plan fewer rounds: keep the larger bound, on the chance of failure of the whole run.
        failure = max(self.setting.failure, self.agreement.failure(self.setting.participation.rounds))
        setting = replace(self.setting, scheme=self.strategy.division, reserve=reserve, failure=failure)
        if self.kind.only_renyi and setting.orders is None:
            setting = replace(setting, orders=ORDERS)
        object.__setattr__(self, "setting", setting)
        check_record_noise(self.kind, self.strategy.name, setting)
        check_folding(self.kind, setting.buckets)
        if setting.further and setting.scheme not in self.kind.schemes:
            raise InputError(
                f"adaptive clipping and other further releases need noise that the protocol adds, and the noise of "
                f"'{mechanism_name(self.kind)}' is not: give the clip bound as a number, and use an application "
                "without further releases"
            )

    @cached_property
    def plan(self) -> Plan | None:
        """Return the plan of the noise, or None if the strategy has a mechanism of its own, such as `central`."""
        if self.strategy.mechanism:
            return None
        if self.setting.orders is not None:
            return planning.plan(self.setting, self.epsilon)
        return planning.plan_for_cost(self.setting, self.allowed)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Return the mechanism of the planned rounds, which encodes updates and decodes sums."""
        return self.kind.for_cost(self.setting, self.allowed) if self.plan is None else self.kind.from_plan(self.plan)

    @cached_property
    def allowed(self) -> float:
        """Return the largest theta^2 that a round may cost: `allowance`, by default `setting.allowance(epsilon)`."""
        return self.setting.allowance(self.epsilon) if self.allowance is None else self.allowance

    def for_clip(self, bound: float) -> "RoundPlan":
        """Return this plan with another clip bound; the noise is scaled with the bound, and not planned again."""
        if bound == self.setting.clip:
            return self
        other = replace(self, setting=replace(self.setting, clip=bound))
        vars(other)["plan"] = self.plan and self.plan.with_clip(bound)
        return other

    def with_projection(self, rule: str | int, alignment: Alignment | None = None) -> "RoundPlan":
        """Return this plan with updates projected by `rule`; `alignment`, if known, counts for the rule `adaptive`."""
        if self.setting.records is not None or (rule == projection.AUTO and not self.kind.may_fold):
            rule = projection.OFF
        multiplier = multiplier_for_cost(self.allowed * (1 - self.setting.share))
        buckets = projection.choose_buckets(self.setting, multiplier, rule, alignment)
        return replace(self, setting=replace(self.setting, buckets=buckets), projection=rule)

    def for_alignment(self, alignment: Alignment | None) -> "RoundPlan":
        """Return this plan; if projection is `adaptive` and `alignment` known, one of equal cost with new buckets."""
        if self.projection != projection.ADAPTIVE or alignment is None:
            return self
        return replace(self, allowance=self.allowed).with_projection(self.projection, alignment)

    def alignment(self, outputs: Sequence[ChunkOutput], aggregate: Aggregate) -> Alignment | None:
        """Return how similar a round's updates were, estimated from their sum; None unless projection is `adaptive`."""
        if self.projection != projection.ADAPTIVE or self.plan is None:
            return None
        grid, survivors = self.mechanism.grid, min(aggregate.survivors)
        update = outputs[: len(aggregate.survivors)]
        left = statistics.mean(float(output.left) for output in update) + survivors / 12
        gain = math.sqrt(1 - DISTORTION) if self.mechanism.delivered_bits else 1.0
        reach = survivors * self.setting.clip
        return Alignment.from_sum(gain * aggregate.total, grid.summed_dim, left / grid.scale**2, reach)

    @property
    def saving(self) -> Saving | None:
        """Return the bytes that projection saves in each upload, and the error it adds; None without projection."""
        return projection.estimate_saving(self.plan) if self.plan else None

    @property
    def delta(self) -> float:
        """Return the configured delta of the run."""
        return self.setting.given_delta

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings if epsilon or delta is too large; none if the run has no epsilon."""
        return budget_warnings(self.epsilon, self.delta, self.setting.participation.population) if self.proves else ()

    @property
    def sigma(self) -> float | None:
        """Return the planned standard deviation of the noise on a coordinate of a decoded sum; None without noise."""
        if self.plan is not None:
            return self.plan.sigma
        n = self.setting.clients
        wanted = self.mechanism.noise_variances(n, n, self.setting.colluders).wanted
        return math.sqrt(wanted) / self.mechanism.grid.scale if wanted else None

    @property
    def cap(self) -> int:
        """Return for how many rounds of one client, or events of one record, the noise is planned."""
        return self.setting.releases

    @property
    def least(self) -> int:
        """Return the least number of clients of a round: min{t, max{n - 2 T_C, T_C + 1}} with the threshold t.

        Up to T_C liars and T_C honest clients may have been evicted.  If no list of clients is fixed before the
        sum, the least number is n - T.
        """
        n, T_C = self.setting.clients, self.setting.colluders
        if not self.agreement.has_cohort:
            return n - self.setting.T
        return min(self.setting.t, max(n - 2 * T_C, T_C + 1))

    @property
    def proves(self) -> bool:
        """Tell whether the run has an epsilon; it has none without noise or if the strategy is only simulated."""
        return self.strategy.rule is not Rule.NOTHING

    @property
    def budget(self) -> Budget:
        """Return the ledger's budget; its epsilon is None for strategies that go on when the budget is exceeded."""
        epsilon = None if self.strategy.rule is Rule.COUNT else self.epsilon
        return Budget(epsilon, self.delta, self.sampled, self.setting.orders == PAPER_ORDERS)

    @property
    def counts(self) -> bool:
        """Tell whether owners may set budgets: not if dropouts can raise a round's cost, nor with Renyi accounting."""
        removes = bool(self.strategy.mechanism) or self.setting.scheme in XNOISE
        return self.strategy.rule is Rule.STOP and removes and self.setting.orders is None

    def for_cost(self, allowance: float) -> "RoundPlan":
        """Return this plan for rounds that cost at most `allowance`, with the same number of bits."""
        if allowance == self.allowed:
            return self
        bits = self.plan.bits if self.plan else self.setting.bits
        return replace(self, setting=replace(self.setting, bits=bits), allowance=allowance)

    def promise(self, least: int) -> Terms:
        """Return the terms of an invitation: bounds that the server promises for rounds of at least `least` clients."""
        kept = self._example_terms
        return kept.promised(least, max(self.allowed, kept.cost) if self.counts else kept.cost / SLACK)

    @cached_property
    def _example_terms(self) -> Terms:
        """Return the strictest terms that the parameters of the `example` round keep."""
        return Terms.from_parameters(self.example(), self.kind)

    def for_dim(self, dim: int) -> "RoundPlan":
        """Return this plan for updates of another length, with the same cost and bits; results are cached."""
        if dim not in self._lengths:
            bits = self.plan.bits if self.plan else self.setting.bits
            setting = replace(self.setting, dim=dim, bits=bits, buckets=0)
            other = replace(self, setting=setting, allowance=self.allowed)
            self._lengths[dim] = other.with_projection(self.projection)
        return self._lengths[dim]

    @cached_property
    def _lengths(self) -> "dict[int, RoundPlan]":
        return {self.setting.dim: self}

    def for_clients(self, clients: int) -> "RoundPlan":
        """Return this plan for rounds of `clients` clients, where each takes part in as many rounds as before."""
        if clients not in self._sizes:
            self._sizes[clients] = self._resized(clients)
        return self._sizes[clients]

    @cached_property
    def _sizes(self) -> "dict[int, RoundPlan]":
        return {self.setting.clients: self}

    def _resized(self, clients: int) -> "RoundPlan":
        given = self.setting
        t = self._threshold(clients)
        covered = given.participation.releases
        run = ParticipationSchedule(given.participation.population, clients, covered, accounting=ALL_ROUNDS)
        tolerance = min(given.T * clients // given.clients, clients - t)
        bits = self.plan.bits if self.plan else given.bits
        reserve = given.reserve_for(clients, tolerance)
        setting = replace(given, participation=run, threshold=t, tolerance=tolerance, bits=bits, reserve=reserve)
        return replace(self, setting=setting, allowance=self.allowed)

    def _threshold(self, clients: int) -> int:
        """Return the threshold for `clients`: the default if the plan has its own default, else scaled with a floor."""
        given = self.setting
        default = default_threshold(clients, given.colluders)
        usual = default_threshold(given.clients, given.colluders)
        if given.t == usual:
            return default
        scaled = -(-given.t * clients // given.clients)
        return max(scaled, default if given.t > usual else given.colluders + 1)

    def agree_on(
        self,
        *,
        run: bytes,
        index: int,
        clients: Collection[int],
        rotation: bytes,
        model: bytes = b"",
        beacon: bytes = b"",
        chunks: int = 1,
        introductions: Mapping[ClientId, Message] | None = None,
    ) -> Parameters:
        """Return the parameters of a round; every chunk of the update gets noise of the full planned variance.

        `rotation` is the public seed of the round's rotation: 32 new bytes for every round.  Each further release of
        the plan is a chunk of its own.  `introductions` has the helpers' keys for an assisted round.
        """
        if self.agreement.has_cohort and len(clients) != self.setting.clients:
            raise InputError(f"this plan is for {self.setting.clients} clients a round, not for {len(clients)}")
        setting, grid, plan = self.setting, self.mechanism.grid, self._protocol_noise
        further = plan.further if plan else ()
        ends = chunk_ends(grid.summed_dim, grid.block, chunks)
        variances = [plan.variance] * len(ends) if plan else None
        for planned in further:
            ends = [*ends, ends[-1] + planned.release.length]
        if variances:
            variances += [planned.variance for planned in further]
        common = rules.common_part(
            run=run,
            index=index,
            n_min=setting.clients - setting.T,
            n_max=setting.clients,
            colluders=setting.colluders,
            bits=grid.bits,
            ends=ends,
            scheme=setting.scheme if plan else Scheme.NONE,
            variances=variances,
            fraction=plan.noise.fraction if plan else None,
            reserve=plan.noise.reserve if plan else 0,
            mode=self.agreement.mode,
            encoding=encoding_of(
                self.mechanism, rotation, [one.release for one in further], self.record_encoding or UNSET
            ),
            model=model,
            beacon=beacon,
            participations=self.cap if self.agreement.is_open else UNSET,
        )
        if introductions is None and not self.agreement.has_cohort:  # an example of a round, not one that is run
            return rules.complete(common, self.mechanism.law)
        roster = Roster(tuple(map(ClientId, clients)), setting.t, self.agreement.sparse, introductions or {})
        return rules.complete(self.agreement.agree(common, roster), self.mechanism.law)

    @property
    def record_encoding(self) -> RecordEncoding | None:
        """Return the encoding of records; None if clients are the unit of privacy."""
        if self.plan is not None or self.setting.records is None:
            return self.plan.records if self.plan else None
        grid = self.mechanism.grid
        return RecordEncoding.for_scale(self.setting.records, grid.scale * self.setting.clip, grid.block)

    @cached_property
    def sampled(self) -> SampledEvents | None:
        """Return a record's planned events, each at the cost that `promise` allows at most; None without records."""
        if self.setting.records is None:
            return None
        cost = self.promise(self.least).cost
        return self.setting.records.plan(cost, self.setting.distance / self.setting.releases)

    @property
    def _protocol_noise(self) -> Plan | None:
        """Return the plan of the noise that clients add in the protocol; None if the mechanism adds the noise."""
        return self.plan if self.setting.scheme in self.mechanism.schemes else None

    def example(self, chunks: int = 1) -> Parameters:
        """Return the parameters of an example round, so that errors in the plan are raised before the first round."""
        clients = range(1, self.setting.clients + 1) if self.agreement.has_cohort else ()
        return self.agree_on(
            run=bytes(32), index=0, clients=clients, rotation=bytes(32), beacon=bytes(32), chunks=chunks
        )

    def charge(self, parameters: Parameters, arrived: Collection[ClientId] = ()) -> Charge | None:
        """Return the charge to a round's clients (if assisted, to `arrived`); None without clients or an epsilon."""
        if not self.proves or not (parameters.clients or arrived):
            return None
        failure = self.agreement.draw_failure
        return Charge.from_parameters(parameters, mechanism=self.mechanism, draw_failure=failure, arrived=arrived)

    def noise(self, outputs: Sequence[ChunkOutput]) -> NoiseVariances | None:
        """Return the noise variances of the chunk of the update with the least `charged`; None if nobody adds noise."""
        if self.mechanism.noise_from is NoiseFrom.NOBODY:
            return None
        update = outputs[: len(outputs) - len(self.plan.further)] if self.plan else outputs
        return min((self._kept(output) for output in update), key=lambda kept: kept.charged)

    def _kept(self, output: ChunkOutput) -> NoiseVariances:
        """Return the variances of the noise in a chunk's sum: of the protocol's and the mechanism's noise together."""
        wanted = self._protocol_noise.variance if self._protocol_noise else 0
        own = self.mechanism.noise_variances(len(output.survivors), self.setting.clients, self.setting.colluders)
        return NoiseVariances(
            float(wanted) + own.wanted, float(output.left) + own.left, float(output.charged) + own.charged
        )

    def costs(self, outputs: Sequence[ChunkOutput]) -> dict[str, float]:
        """Return, by name, the costs of a round that no simulation measures (`Strategy.costs`); mostly empty."""
        return self.strategy.costs(self.mechanism.grid, min(len(output.survivors) for output in outputs))

    def trust(self, hides_updates: bool, simulated: bool) -> Trust:
        """Return whom a run trusts; `hides_updates` tells whether the protocol hides single updates from the server."""
        stops = self.strategy.rule is Rule.STOP
        return Trust(self.proves, stops, self.mechanism.noise_from, hides_updates, simulated)

    @property
    def words(self) -> Descriptions:
        """Return the descriptions of strategy and mechanism, and the reason if no epsilon is proved."""
        return Descriptions(self.strategy.describe(self.setting), self.mechanism.description, self.strategy.unproved)

    @property
    def terms(self) -> tuple[str, ...]:
        """Return the conditions to publish with every epsilon."""
        if self.sampled is not None:
            return (
                f"for one record, its gradient replaced by zero, over all {self.sampled.events} planned events, each "
                f"of which samples it with probability {self.sampled.probability:.4g}",
                self.mechanism.noise_from.adversary,
                "it covers one record: neither a client as a whole nor a person with several records",
                "dropout that depends on a client's data is outside the guarantee",
            )
        return self.setting.participation.terms(self.mechanism.noise_from.adversary)
