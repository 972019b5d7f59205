"""Audits of privacy: run full rounds with dropout and colluders, attack them with canaries, and test their noise."""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dordis.apps.audit.canaries import CONFIDENCE, AttackedClaim, CanaryRecords, Coins, GuessOutcome, toss
from dordis.apps.audit.variance import VarianceSample, VarianceTest, centre_ring, variance_test
from dordis.crypto.suite import Suite
from dordis.dropout_models import Dropout
from dordis.errors import AuditFailed, InputError
from dordis.kernels.ring import Vector
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import Entropy
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.planning import Plan
from dordis.privacy.record_accounting import RecordSampling, count_events, sampling_word
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import SKELLAM, NoiseLaw
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.noise_addition_and_removal import ChunkOutput, client_noise
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Parameters
from dordis.protocols.secagg import SECAGG
from dordis.protocols.summing import SumInput, SummingClient, SummingProtocol, SummingServer
from dordis.rounds.app import AppClient, FixedClient
from dordis.rounds.watch import StageBegan, WatchEvent
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.population import SimulatedHome
from dordis.simulation.run import home_of_clients, single_round


class KnownNoise:
    """A recorder of rounds: it records their parameters, the clients' inputs and the colluders' noise.

    Run the rounds with `KnownNoise.protocol`, which does the same as the given `protocol` and records parameters and
    inputs.  Pass the method `watch` to each round: it computes the colluders' noise before the seeds are erased.
    """

    def __init__(self, protocol: SummingProtocol, colluders: Collection[ClientId], law: NoiseLaw = SKELLAM) -> None:
        self._protocol, self._colluders, self._law = protocol, frozenset(colluders), law
        self.protocol = replace(protocol, server=self._server, client=self._client)
        self._upload = protocol.stages[protocol.upload]
        self._parameters: Parameters | None = None
        self._inputs: dict[ClientId, Vector] = {}
        self._machines: dict[ClientId, SummingClient[Any]] = {}
        self._noise: dict[ClientId, list[Sequence[Vector]]] = {}

    def _server(
        self,
        parameters: Parameters,
        registry: Mapping[ClientId, bytes],
        proofs: Mapping[ClientId, bytes],
        suite: Suite,
    ) -> SummingServer:
        self._parameters = parameters
        self._inputs, self._machines, self._noise = {}, {}, {}
        return self._protocol.server(parameters, registry, proofs, suite)

    def _client(self, me: ClientId, given: SumInput, **options: Any) -> SummingClient[Any]:
        machine = self._protocol.client(me, given, **options)
        self._inputs[me] = given.vector.copy()
        if me in self._colluders:
            self._machines[me] = machine
        return machine

    def watch(self, event: WatchEvent) -> None:
        """Record the colluders' noise when the stage begins in which clients upload."""
        if isinstance(event, StageBegan) and event.stage == self._upload and not self._noise:
            chunks = range(len(self.parameters.chunks))
            issued = {u: machine.issued for u, machine in self._machines.items()}
            self._noise = {
                u: [client_noise(self.parameters, k, told(k), self._law) for k in chunks] for u, told in issued.items()
            }

    @property
    def parameters(self) -> Parameters:
        """Return the parameters of the last round; raise InputError if no round has begun."""
        if self._parameters is None:
            raise InputError("no round has begun")
        return self._parameters

    def measure_chunk(self, chunk: int, output: ChunkOutput) -> "ChunkNoise":
        """Return the noise in the sum of a chunk of the last round: all noise, and the part unknown to the colluders.

        `output` is the server's output for this chunk.
        """
        span = self.parameters.chunks[chunk]
        inputs = (self._inputs[u][span] for u in output.survivors)
        known = np.zeros(span.stop - span.start, np.uint32)
        for u in self._noise.keys() & set(output.survivors):
            for part in self._components_in_sum(chunk, u, output):
                known += part
        added = output.total - sum(inputs, np.zeros_like(known))
        ring = np.uint32(2**self.parameters.bits - 1)
        return ChunkNoise(replace(output, total=(output.total - known) & ring), added & ring, (added - known) & ring)

    def _components_in_sum(self, chunk: int, u: ClientId, output: ChunkOutput) -> Sequence[Vector]:
        """Return the components of a colluder's noise that the server has not removed from the sum."""
        removed = set(self.parameters.due(chunk, output.survivors)[u]) - set(output.stayed.get(u, ()))
        base = len(self.parameters.plans[chunk].base)
        return [part for place, part in enumerate(self._noise[u][chunk]) if place - base not in removed]


@dataclass(frozen=True, eq=False)
class ChunkNoise:
    """The noise that was measured in the sum of one chunk, modulo 2^bits.

    `noise` is all noise in the sum, and `hidden` the part of it that the colluders do not know.  `output` is the output
    of the round for this chunk, with the colluders' noise subtracted from the sum.
    """

    output: ChunkOutput
    noise: Vector
    hidden: Vector


LEVEL = 1e-4
"""Largest probability that an audit reports a wrong variance although the noise is correct; it makes three tests."""
_TESTS = 3
LEAST_DIM = 1024
"""Least number of coordinates of an update in toy designs: enough noise samples to detect a variance that is wrong by a
factor of 2.
"""


@dataclass(frozen=True)
class FixedDropout(Dropout):
    """The same dropout in every round.

    The `dropped` clients with the largest ids leave before their upload.  The `late` clients with the next largest ids
    leave after their upload, before the disclosure.  `upload` and `disclosure` are the names of the two requests.
    """

    dropped: int
    late: int
    upload: str
    disclosure: str

    @classmethod
    def from_protocol(cls, protocol: SummingProtocol, dropped: int, late: int) -> "FixedDropout":
        """Return the dropout for rounds of a protocol, with this protocol's names of the upload and the disclosure."""
        disclosure = next(request.__name__ for request in protocol.requests if request.discloses)
        return cls(dropped, late, protocol.stages[protocol.upload], disclosure)

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        order = sorted(clients, reverse=True)
        late = order[self.dropped : self.dropped + self.late]
        return dict.fromkeys(order[: self.dropped], self.upload) | dict.fromkeys(late, self.disclosure)


@dataclass(frozen=True)
class Audit:
    """The result of an audit: measurements of the audited rounds, and the findings that follow from them.

    `canaries` is the outcome of the attack.  `noise` compares the variance of all noise in the sums with the variance
    that the rounds state.  `hidden` compares the variance of the noise that the colluders do not know with the charged
    variance, from which the ledger computes the privacy cost.  `counted` is the smallest charged variance of a round,
    divided by the variance that the plan needs.  The planned epsilon does not hold if `counted` is below 1.  `level`
    is the error probability of the tests (`LEVEL`).
    """

    canaries: GuessOutcome
    noise: VarianceTest
    hidden: VarianceTest
    counted: float
    level: float = LEVEL

    @property
    def findings(self) -> tuple[str, ...]:
        """Return a sentence for each violated claim."""
        each = self.level / _TESTS
        wrong = {
            "the noise in the sum is smaller than the round states": self.noise.too_small < each,
            "the noise in the sum is larger than the round states": self.noise.too_large < each,
            "the noise that colluders do not know is smaller than privacy counts on": self.hidden.too_small < each,
            "privacy counts on less noise than was planned": self.counted < 1,
            f"an attack shows epsilon of at least {self.canaries.shown:.4g}, {self.canaries.claimed:.4g} is claimed": (
                self.canaries.refuted
            ),
        }
        return tuple(words for words, found in wrong.items() if found)

    def check(self) -> None:
        """Raise `AuditFailed` if there are findings."""
        if self.findings:
            raise AuditFailed(self.findings)


def toy_design(
    clients: int = 300,
    rounds: int = 1,
    epsilon: float = 2.0,
    delta: float = 1e-6,
    colluders: int = 0,
    strategy: XNoise | None = None,
    protocol: SummingProtocol = SECAGG,
) -> RoundPlan:
    """Return the plan of a small run for `audit`: all clients take part in every round.

    An update has at least as many coordinates as there are clients, so that each client has a coordinate of its own.
    With `strategy` None the strategy is XNoise with its default scheme.
    """
    everyone = ParticipationSchedule(clients, clients, rounds)
    dim = max(LEAST_DIM, clients)
    setting = Setting(everyone, dim=dim, delta=delta, colluders=colluders, sparse=protocol.sparse)
    return RoundPlan(strategy or XNoise(), setting, epsilon, strongest_threat(protocol))


def toy_record_design(
    clients: int = 10,
    records: int = 100,
    rounds: int = 5,
    sampling: float = 0.5,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    colluders: int = 1,
    strategy: XNoise | None = None,
    protocol: SummingProtocol = SECAGG,
) -> RoundPlan:
    """Return the plan of a small run for `audit_records`, with records as the unit of privacy.

    Each client has `records` records, and each record has a coordinate of its own.  `sampling` is the probability with
    which a record is in a round.
    """
    sampled = RecordSampling(sampling_word(sampling), records, count_events(rounds))
    setting = Setting(
        ParticipationSchedule(clients, clients, rounds),
        dim=max(LEAST_DIM, clients * records),
        delta=delta,
        colluders=colluders,
        sparse=protocol.sparse,
        records=sampled,
    )
    return RoundPlan(strategy or XNoise(), setting, epsilon, strongest_threat(protocol))


def strongest_threat(protocol: SummingProtocol) -> ThreatModel:
    """Return the strongest threat model that a protocol supports."""
    return ThreatModel(MALICIOUS if MALICIOUS in protocol.modes else SEMI_HONEST, protocol.sparse)


def audit(
    design: RoundPlan,
    dropped: int = 0,
    late: int = 0,
    protocol: SummingProtocol = SECAGG,
    entropy: Entropy = secrets.token_bytes,
) -> Audit:
    """Run all rounds of a design with the full protocol, attack them with canaries, and test their noise.

    In every round the first `design.setting.colluders` clients collude with the server, and the last `dropped` clients
    leave before their upload.  The `late` clients before them leave after their upload, so that the others disclose
    shares of the seeds of these late clients.  All clients that upload and do not collude are canaries.  Raise
    InputError unless the design has all clients in every round and a coordinate for every client, as `toy_design` has.
    """
    check_everyone(design)
    client = partial(canary_client, design.setting)
    return _attack_rounds(design, client, 1, design.cap, 1.0, (dropped, late), protocol, entropy)


def canary_client(setting: Setting, u: ClientId, coins: Coins) -> FixedClient:
    """Return the canary `u`: its update is zero, except for the clip bound in coordinate u - 1 if its one coin is 1."""
    canary = np.zeros(setting.dim)
    canary[u - 1] = setting.clip * coins[0]
    return FixedClient(canary)


def audit_records(
    design: RoundPlan,
    dropped: int = 0,
    late: int = 0,
    protocol: SummingProtocol = SECAGG,
    entropy: Entropy = secrets.token_bytes,
) -> Audit:
    """Run all planned events with the full protocol, attack them with canaries, and test their noise.

    The planned events are the rounds, and the retries for which the plan provides.  Colluders and dropouts are as in
    `audit`.  All records of clients that upload and do not collude are canaries.  Raise InputError unless records are
    the unit of privacy and each record has a coordinate of its own, as in `toy_record_design`.
    """
    setting, plan = design.setting, find_plan(design)
    if setting.records is None or setting.dim < setting.clients * setting.records.records:
        raise InputError("an audit of records needs records as the unit of privacy, and a coordinate for each record")
    each, events = setting.records.records, setting.records.events

    def client(u: ClientId, coins: Coins) -> CanaryRecords:
        return CanaryRecords((u - 1) * each, coins, setting.dim)

    sampling = plan.records.probability if plan.records else 0.0
    return _attack_rounds(design, client, each, events, sampling, (dropped, late), protocol, entropy)


def _attack_rounds(
    design: RoundPlan,
    client: Callable[[ClientId, Coins], AppClient],
    each: int,
    count: int,
    sampling: float,
    leaving: tuple[int, int],
    protocol: SummingProtocol,
    entropy: Entropy,
) -> Audit:
    """Run `count` rounds and return their audit.

    A client has `each` canaries.  Each canary has a coordinate, and a coin that is tossed once.  A canary with the coin
    1 contributes to a round with the probability `sampling`, one with the coin 0 never.  `client` makes the application
    of a client from its id and the coins of its canaries.  `leaving` is the pair (`dropped`, `late`) of `audit`.  The
    score of a canary is the sum of its coordinate over all rounds.  The attack guesses the coin 1 if the score is above
    half its expectation for the coin 1.
    """
    plan, setting, (dropped, late) = find_plan(design), design.setting, leaving
    check_departures(design, dropped, late)
    canaries = slice(setting.colluders * each, (setting.clients - dropped) * each)
    claim = AttackedClaim(plan.epsilon, setting.given_delta, CONFIDENCE)
    claim.most(canaries.stop - canaries.start)
    known = KnownNoise(protocol, [ClientId(u) for u in range(1, setting.colluders + 1)], design.mechanism.law)
    coins = np.zeros(setting.dim, np.bool_)
    coins[canaries] = toss(canaries.stop - canaries.start, entropy)
    home = home_of_clients(
        design,
        known.protocol,
        lambda u: client(u, coins[(u - 1) * each : u * each]),
        entropy,
        FixedDropout.from_protocol(protocol, dropped, late),
    )
    rounds = [attacked_round(home, known) for _ in range(count)]
    scores = np.sum([seen.total[canaries] for seen in rounds], axis=0)
    return Audit(
        claim.judge(coins[canaries], scores, count * sampling * setting.clip / 2),
        variance_test([noise for seen in rounds for noise in seen.noise]),
        variance_test([noise for seen in rounds for noise in seen.hidden]),
        float(min(seen.charged for seen in rounds) / plan.variance),
    )


@dataclass(frozen=True, eq=False)
class AttackedRound:
    """The measurements of an audit in one round.

    `total` is the sum as the adversary sees it: in real units, after the colluders' noise was subtracted.  `noise` has
    samples of all noise in the chunks, and `hidden` samples of the noise that the colluders do not know.  `charged` is
    the smallest charged variance of a chunk (see `Audit`).
    """

    total: Floats
    noise: tuple[VarianceSample, ...]
    hidden: tuple[VarianceSample, ...]
    charged: Fraction


def attacked_round(home: SimulatedHome, known: KnownNoise) -> AttackedRound:
    """Run a round; return the sum as the adversary sees it, and samples of the noise with their stated variances."""
    result = single_round(home, watch=known.watch).result
    seen = [known.measure_chunk(chunk, output) for chunk, output in enumerate(result.outputs)]
    parameters, bits = known.parameters, known.parameters.bits
    private = DistributedDP(parameters, home.job.design.mechanism)
    return AttackedRound(
        private.decode([chunk.output for chunk in seen]).total,
        tuple(VarianceSample.from_samples(centre_ring(chunk.noise, bits), chunk.output.left, bits) for chunk in seen),
        tuple(
            VarianceSample.from_samples(centre_ring(chunk.hidden, bits), chunk.output.charged, bits) for chunk in seen
        ),
        min(output.charged for output in result.outputs),
    )


def find_plan(design: RoundPlan) -> Plan:
    """Return the noise plan of a design; raise InputError if the strategy has no noise that clients add together."""
    if design.plan is None:
        raise InputError("an audit needs noise that the clients add together")
    return design.plan


def check_everyone(design: RoundPlan) -> None:
    """Raise InputError unless all clients are in every round, and updates have a coordinate for each client."""
    setting = design.setting
    if setting.clients != setting.participation.population or setting.dim < setting.clients:
        raise InputError("an audit needs all clients in every round, and a coordinate for each client")


def check_departures(design: RoundPlan, dropped: int, late: int) -> None:
    """Raise InputError unless the rounds tolerate `dropped` dropouts before and `late` dropouts after the upload."""
    setting = design.setting
    if not 0 <= dropped <= setting.T:
        raise InputError(f"0 to {setting.T} clients drop out, not {dropped}")
    if not 0 <= late <= setting.clients - setting.t - dropped:
        most = setting.clients - setting.t - dropped
        raise InputError(f"0 to {most} clients leave after their upload, not {late}: {setting.t} are needed")
