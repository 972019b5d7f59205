"""A noise strategy in a setting: what the clients of a round agree on, what the round costs, how much noise it kept."""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from dordis.errors import InputError
from dordis.federation.account import Budget
from dordis.federation.charges import Charge
from dordis.federation.colluders import draw_failure
from dordis.federation.manifest import Trust, Words
from dordis.federation.retry import TRIES
from dordis.federation.strategies.strategy import Rule, Strategy
from dordis.privacy import planning, projection, requantising
from dordis.privacy.accounting import ALL_ROUNDS, ORDERS, ParticipationSchedule, delta_warnings, multiplier_of
from dordis.privacy.encoding import chunk_ends
from dordis.privacy.mechanisms import known
from dordis.privacy.mechanisms.mechanism import KeptNoise, Mechanism, NoiseFrom, check_folds, name_of
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.planning import XNOISE, Plan, Setting
from dordis.privacy.projection import Alignment, Saving
from dordis.privacy.xnoise import Scheme
from dordis.protocols import neighbourhood
from dordis.protocols import parameters as rules
from dordis.protocols.distributed_dp import Aggregate, encoding_of
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import Parameters
from dordis.rounds.terms import Terms

SLACK = 0.9
"""Part of the noise that is promised where it depends on who drops out: cohorts of other sizes round differently."""


@dataclass(frozen=True)
class ProtocolKind:
    """What all rounds of a run have in common: the server that is guarded against, the graph, how clients are drawn."""

    mode: str = rules.MALICIOUS
    sparse: bool = False
    """Whether clients share masks and secrets with some others only: SecAgg+."""
    drawn: bool = False
    """Whether public randomness draws the clients, by lot or permutation, so that T_C is a quantile."""
    tries: int = TRIES
    """How often every round may be tried, each time under another index."""

    @property
    def draw_failure(self) -> Fraction:
        """Return the chance that a round has more than T_C colluders."""
        return draw_failure() if self.drawn else Fraction(0)

    @property
    def round_failure(self) -> Fraction:
        """Return the chance that the graph or the draw of a round fails."""
        return self.draw_failure + (neighbourhood.failure(self.mode) if self.sparse else Fraction(0))

    def indices(self, rounds: int) -> int:
        """Return how many indices a run of so many rounds may use."""
        return self.tries * rounds

    def failure(self, rounds: int) -> float:
        """Return the chance that the graph or the draw fails in some round index of a run of `rounds` rounds."""
        return float(self.indices(rounds) * self.round_failure)


@dataclass(frozen=True)
class Design:
    """A strategy in a setting, for rounds of `setting.clients` clients.

    `kind` is the mechanism of planned noise; a strategy that brings its own mechanism takes no other.  `allowance` is
    the theta^2 that a round may cost; an even part of the budget if it is not given.  `projection` is the rule by which
    `setting.buckets` was chosen.
    """

    strategy: Strategy
    setting: Setting
    epsilon: float
    agreement: ProtocolKind = ProtocolKind()
    kind: type[Mechanism] = DSkellam
    allowance: float | None = None
    projection: str | int = projection.OFF

    def __post_init__(self) -> None:
        if self.strategy.mechanism:
            object.__setattr__(self, "kind", known(self.strategy.mechanism))
        reserve = self.strategy.reserve(self.setting.clients)
        # A design for cohorts of another size is for the same run, whatever its participation says.
        failure = max(self.setting.failure, self.agreement.failure(self.setting.participation.rounds))
        setting = replace(self.setting, scheme=self.strategy.division, reserve=reserve, failure=failure)
        if self.kind.renyi and setting.orders is None:
            setting = replace(setting, orders=ORDERS)
        object.__setattr__(self, "setting", setting)
        check_folds(self.kind, setting.buckets)
        if setting.share and setting.scheme not in self.kind.schemes:
            raise InputError(
                f"adaptive clipping needs noise that the protocol adds, and '{name_of(self.kind)}' goes without: "
                "give the clip bound as a number"
            )

    @cached_property
    def plan(self) -> Plan | None:
        """Return the noise that the clients add together, or None if it is not theirs to add."""
        if self.strategy.mechanism:
            return None
        if self.setting.orders is not None:
            return planning.plan(self.setting, self.epsilon)
        return planning.plan_within(self.setting, self.allowed)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Return how updates are encoded."""
        return self.kind.within(self.setting, self.allowed) if self.plan is None else self.kind.of(self.plan)

    @cached_property
    def allowed(self) -> float:
        """Return the theta^2 that a round may cost."""
        return self.setting.allowance(self.epsilon) if self.allowance is None else self.allowance

    def clipped(self, bound: float) -> "Design":
        """Return the same with another clip bound; the noise is in proportion to it, so nothing is planned anew."""
        if bound == self.setting.clip:
            return self
        other = replace(self, setting=replace(self.setting, clip=bound))
        vars(other)["plan"] = self.plan and self.plan.clipped(bound)
        return other

    def projected(self, rule: str | int, alignment: Alignment | None = None) -> "Design":
        """Return the same for updates that are folded by a rule: see `dordis.privacy.projection`."""
        if rule == projection.AUTO and not self.kind.folds:
            rule = projection.OFF
        multiplier = multiplier_of(self.allowed * (1 - self.setting.share))
        buckets = projection.chosen(self.setting, multiplier, rule, alignment)
        return replace(self, setting=replace(self.setting, buckets=buckets), projection=rule)

    def adapted(self, alignment: Alignment | None) -> "Design":
        """Return the same for a round after those that are known, if its rule is to adapt to them; at the same cost."""
        if self.projection != projection.ADAPTIVE or alignment is None:
            return self
        return replace(self, allowance=self.allowed).projected(self.projection, alignment)

    def alignment(self, outputs: Sequence[ChunkOutput], aggregate: Aggregate) -> Alignment | None:
        """Estimate how far the updates of a round agreed, if that is what folding adapts to."""
        if self.projection != projection.ADAPTIVE or self.plan is None:
            return None
        grid, survivors = self.mechanism.grid, min(aggregate.survivors)
        update = outputs[: len(aggregate.survivors)]
        left = statistics.mean(float(output.left) for output in update) + survivors / 12
        gain = math.sqrt(1 - requantising.DISTORTION) if self.mechanism.delivered else 1.0
        reach = survivors * self.setting.clip
        return Alignment.of(gain * aggregate.total, grid.kept, left / grid.scale**2, reach)

    @property
    def saving(self) -> Saving | None:
        """Return what folding saves and costs, where updates are folded."""
        return projection.saving(self.plan) if self.plan else None

    @property
    def delta(self) -> float:
        """Return delta."""
        return self.setting.given_delta

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about delta, if the run proves anything."""
        return delta_warnings(self.delta, self.setting.participation.population) if self.proves else ()

    @property
    def sigma(self) -> float | None:
        """Return the standard deviation of the noise on a sum, in real units, as planned; None if there is none."""
        if self.plan is not None:
            return self.plan.sigma
        n = self.setting.clients
        wanted = self.mechanism.kept(n, n, self.setting.colluders).wanted
        return math.sqrt(wanted) / self.mechanism.grid.scale if wanted else None

    @property
    def cap(self) -> int:
        """Return how many rounds of one client are covered."""
        return self.setting.participation.releases

    @property
    def least(self) -> int:
        """Return the least cohort: t, or what is left when T_C liars have gone and as many honest clients with them."""
        n, T_C = self.setting.clients, self.setting.colluders
        return min(self.setting.t, max(n - 2 * T_C, T_C + 1))

    @property
    def proves(self) -> bool:
        """Tell whether there is an epsilon; there is none for what is only simulated for its cost."""
        return self.strategy.rule is not Rule.NOTHING

    @property
    def budget(self) -> Budget:
        """Return the budget that the ledger keeps to, without an epsilon where what is spent is only counted."""
        return Budget(None if self.strategy.rule is Rule.COUNT else self.epsilon, self.delta)

    @property
    def counts(self) -> bool:
        """Tell whether owners can bound what a round costs them: not where the noise goes with those who drop out."""
        removes = bool(self.strategy.mechanism) or self.setting.scheme in XNOISE
        return self.strategy.rule is Rule.STOP and removes and not self.kind.renyi

    def within(self, allowance: float) -> "Design":
        """Return the same for rounds that may cost another theta^2, with as many bits."""
        if allowance == self.allowed:
            return self
        bits = self.plan.bits if self.plan else self.setting.bits
        return replace(self, setting=replace(self.setting, bits=bits), allowance=allowance)

    def promise(self, least: int) -> Terms:
        """Return what rounds of at least so many clients keep; where noise goes with dropouts, sizes round it."""
        kept = Terms.of(self.example(), self.kind)
        return kept.promised(least, max(self.allowed, kept.cost) if self.counts else kept.cost / SLACK)

    def of_dim(self, dim: int) -> "Design":
        """Return the same for updates of another length, at the same cost, with as many bits; each is planned once."""
        if dim not in self._lengths:
            bits = self.plan.bits if self.plan else self.setting.bits
            setting = replace(self.setting, dim=dim, bits=bits, buckets=0)
            other = replace(self, setting=setting, allowance=self.allowed)
            self._lengths[dim] = other.projected(self.projection)
        return self._lengths[dim]

    @cached_property
    def _lengths(self) -> "dict[int, Design]":
        return {self.setting.dim: self}

    def sized(self, clients: int) -> "Design":
        """Return the same for rounds of so many clients, with as many releases for each; each size is planned once."""
        if clients not in self._sizes:
            self._sizes[clients] = self._resized(clients)
        return self._sizes[clients]

    @cached_property
    def _sizes(self) -> "dict[int, Design]":
        return {self.setting.clients: self}

    def _resized(self, clients: int) -> "Design":
        given = self.setting
        t = self._threshold(clients)
        run = ParticipationSchedule(given.participation.population, clients, self.cap, accounting=ALL_ROUNDS)
        tolerance = min(given.T * clients // given.clients, clients - t)
        bits = self.plan.bits if self.plan else given.bits
        reserve = self.strategy.reserve(clients)
        setting = replace(given, participation=run, threshold=t, tolerance=tolerance, bits=bits, reserve=reserve)
        return replace(self, setting=setting, allowance=self.allowed)

    def _threshold(self, clients: int) -> int:
        """Return the threshold for so many clients: in proportion, and above what the colluders need, who stay T_C."""
        given = self.setting
        default = planning.default_threshold(clients, given.colluders)
        usual = planning.default_threshold(given.clients, given.colluders)
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
    ) -> Parameters:
        """Write down the parameters of a round; every chunk gets the whole central variance of the plan.

        `rotation` is the public seed of the round's rotation, 32 bytes, fresh every round.  Where the plan has a
        clipping bit, the round also counts whose norm is below the clip bound, in a chunk of its own.
        """
        if len(clients) != self.setting.clients:
            raise InputError(f"this design is for {self.setting.clients} clients a round, not for {len(clients)}")
        setting, grid, plan = self.setting, self.mechanism.grid, self._protocol_noise
        bit = plan.bit if plan else None
        ends = chunk_ends(grid.kept, grid.block, chunks)
        variances = [plan.variance] * len(ends) if plan else None
        if bit and variances:
            ends, variances = [*ends, ends[-1] + 1], [*variances, bit.variance]
        threshold, degree = self._graph()
        return rules.agree_on(
            run=run,
            index=index,
            clients=clients,
            threshold=threshold,
            quorum=setting.t,
            degree=degree,
            tolerance=setting.T,
            colluders=setting.colluders,
            bits=grid.bits,
            ends=ends,
            scheme=setting.scheme if plan else Scheme.NONE,
            variances=variances,
            fraction=plan.noise.fraction if plan else None,
            reserve=plan.noise.reserve if plan else 0,
            mode=self.agreement.mode,
            encoding=encoding_of(self.mechanism, rotation, bit.scale if bit else 0),
            model=model,
            beacon=beacon,
            law=self.mechanism.law,
        )

    @property
    def _protocol_noise(self) -> Plan | None:
        """Return the plan if the protocol adds its noise, and not the mechanism."""
        return self.plan if self.setting.scheme in self.mechanism.schemes else None

    def example(self, chunks: int = 1) -> Parameters:
        """Return the parameters of a round that nobody runs: what breaks a rule breaks it here."""
        clients = range(1, self.setting.clients + 1)
        return self.agree_on(
            run=bytes(32), index=0, clients=clients, rotation=bytes(32), beacon=bytes(32), chunks=chunks
        )

    def _graph(self) -> tuple[int, int]:
        """Return the shares that rebuild a secret, and the degree of the graph."""
        setting = self.setting
        if not self.agreement.sparse:
            return setting.t, 0
        graph = neighbourhood.solve(setting.clients, setting.T, setting.colluders, self.agreement.mode)
        return graph.threshold, graph.degree

    def charge(self, parameters: Parameters) -> Charge | None:
        """Return what a round may cost, or None if nothing is proved."""
        if not self.proves:
            return None
        return Charge.of(parameters, mechanism=self.mechanism, draw_failure=self.agreement.draw_failure)

    def noise(self, outputs: Sequence[ChunkOutput]) -> KeptNoise | None:
        """Return the noise that a round kept, in the chunk of the update with the least that counts."""
        if self.mechanism.noise_from is NoiseFrom.NOBODY:
            return None
        update = outputs[:-1] if self.plan and self.plan.bit else outputs
        return min((self._kept(output) for output in update), key=lambda kept: kept.charged)

    def _kept(self, output: ChunkOutput) -> KeptNoise:
        """Return the protocol's noise and the mechanism's."""
        wanted = self._protocol_noise.variance if self._protocol_noise else 0
        own = self.mechanism.kept(len(output.survivors), self.setting.clients, self.setting.colluders)
        return KeptNoise(float(wanted) + own.wanted, float(output.left) + own.left, float(output.charged) + own.charged)

    def costs(self, outputs: Sequence[ChunkOutput]) -> dict[str, float]:
        """Return what the strategy would cost on top, where that is only simulated."""
        return self.strategy.costs(self.mechanism.grid, min(len(output.survivors) for output in outputs))

    def trust(self, hides_updates: bool, simulated: bool) -> Trust:
        """Return who is trusted with what, over a protocol that hides updates from the server, or does not."""
        stops = self.strategy.rule is Rule.STOP
        return Trust(self.proves, stops, self.mechanism.noise_from, hides_updates, simulated)

    @property
    def words(self) -> Words:
        """Return what the strategy and the mechanism say of themselves."""
        return Words(self.strategy.said(self.setting), self.mechanism.words, self.strategy.unproved)

    @property
    def terms(self) -> tuple[str, ...]:
        """Return what must be said with every epsilon."""
        return self.setting.participation.terms(self.mechanism.noise_from.against)
