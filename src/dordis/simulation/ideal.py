"""Ideal rounds: the same clients, consent, rounding and noise distribution as in the protocol, but no masks and no
messages of the summing protocol.

A sum of independent Skellam variables is a Skellam variable, so the noise left in a sum is drawn once, and not once for
each client.  Dropouts have the same effect as in the protocol: too many dropouts raise the same errors.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dordis.dropout_models import DropoutSchedule
from dordis.errors import DordisError, InputError, UnusableUpdate
from dordis.kernels.reals import add_weighted
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Entropy
from dordis.privacy.scaling import Floats
from dordis.privacy.skellam_noise import NoiseLaw
from dordis.protocol import ClientId, Message, Party
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.noise_addition_and_removal import ChunkOutput, OneDraw
from dordis.protocols.one_message import ArrivalPrediction
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import Leaving, Prediction, SummingProtocol
from dordis.rounds.client import Client, ClientRound
from dordis.rounds.engine import AgreedRound, Gathered, RoundResult
from dordis.rounds.impossible_sums import check_possible, describe_check
from dordis.rounds.invitation import Accepted, Invitation, Train
from dordis.rounds.watch import REFUSED, StageBegan, Watch, silent

LONG = 1 << 16
"""Least length of updates that several threads encode and sum; for shorter updates one thread is faster."""
PIECE = 1 << 15
"""Number of coordinates that are summed at a time, over all clients: few enough for the processor's cache."""
NOTHING: Vector = np.zeros(0, np.uint32)


class Clients(Protocol):
    """A mapping from ids to clients."""

    def __getitem__(self, client: ClientId, /) -> Client: ...


@dataclass(frozen=True)
class PredictedRound:
    """A round whose outcome is known before anything is summed.

    `course` predicts the survivors and raises the error with which the protocol would fail.  `leaving` has the stage at
    which each dropout leaves, and `refusing` the clients whose owners refused.
    """

    course: Prediction
    leaving: Leaving
    refusing: Sequence[ClientId]


class IdealRounds:
    """Computes the result of a summing protocol without its messages.

    Owners consent and count participations as in the protocol.  If `rounds` is True, updates are always rounded to
    integers.  If it is False, updates without noise, or with the noise of a trusted server, are summed as real numbers;
    their sum differs from the protocol's sum by the rounding errors.  `available` returns the clients that can be
    selected for a round, from the round's index.  `close_at` is the number of contributions at which a round without a
    fixed list of clients closes; None is the largest number that the round's parameters allow.
    """

    def __init__(
        self,
        clients: Clients,
        protocol: SummingProtocol,
        departures: DropoutSchedule,
        available: Callable[[int], Collection[ClientId]],
        entropy: Entropy = secrets.token_bytes,
        cores: int = 1,
        rounds: bool = True,
        helpers: Mapping[ClientId, Party] | None = None,
        close_at: int | None = None,
    ) -> None:
        self._close_at = close_at
        self._helpers: Mapping[ClientId, Party] = helpers or {}
        self._clients, self._protocol, self._departures = clients, protocol, departures
        self.available = available
        self._noise, self._cores, self._rounds = OneDraw(entropy), cores, rounds

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Invite the clients, let them train, and return the ready clients.

        Clients that drop out before the round's clients U are fixed are not invited.
        For a protocol without a fixed list of clients, return only the helpers' keys: clients arrive later, in `sum`.
        """
        self._departures.begin(invitation.invite.info.index, invitation.clients)
        if not self._protocol.has_cohort:
            return Gathered({}, introductions=self._introduce(invitation.invite.round))
        watch(StageBegan("Train"))
        started = time.perf_counter()
        staying = [u for u in invitation.clients if not self._departures.is_early(u)]
        accepted = {u: proof for u in staying if (proof := self._accepted(u, invitation)) is not None}
        tell_peers(self._clients[u] for u in accepted)
        ready = {u: proof for u, proof in accepted.items() if self._trained(u)}
        return Gathered(ready, {"train": time.perf_counter() - started})

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return all ready clients: the dropout model decides later which of them are lost."""
        return ready

    def _introduce(self, round: bytes) -> dict[ClientId, Message]:
        """Return the helpers' replies to the request for their keys; empty if the protocol has no helpers."""
        introduces = self._protocol.introduces
        return {} if introduces is None else {u: h.handle(introduces(round)) for u, h in self._helpers.items()}

    def _accepted(self, u: ClientId, invitation: Invitation) -> bytes | None:
        """Invite a client and put the model into its cache; return its proof of selection.

        Return None if the client declines or is not selected.
        """
        client = self._clients[u]
        client.models.keep(invitation.model)
        try:
            accepted = client.handle(invitation.invite)
        except DordisError:
            return None
        return accepted.proof if isinstance(accepted, Accepted) and accepted.selected else None

    def _trained(self, u: ClientId) -> bool:
        """Let one client train; return False if it refuses, True otherwise."""
        try:
            self._clients[u].handle(Train())
        except UnusableUpdate:
            raise
        except DordisError:
            return False
        return True

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Return the sum of the survivors' updates with the noise that the protocol would leave in it."""
        parameters, private = agreed.parameters, DistributedDP(agreed.parameters, agreed.mechanism)
        watch(StageBegan("sum"))
        started = time.perf_counter()
        entered = self._arrive(agreed) if agreed.invitation is not None else self._enter(agreed)
        course, u3 = entered.course, entered.course.survivors()
        in_reals = private.sums_reals and not self._rounds
        ring = NOTHING if in_reals else self._add_encoded(u3, private)
        reals = self._add_reals(u3, private) if in_reals else None
        course.check_before_disclosure()
        gone, chunks = parameters.n_max - len(u3), range(len(parameters.chunks))
        agreed.gate.admit_disclosure(lambda: dict.fromkeys(chunks, gone))
        course.check_after_disclosure()
        law, counts = agreed.mechanism.law, [len(u3)] * len(chunks)
        outputs = tuple(self._output(parameters, chunk, u3, ring, course, law) for chunk in chunks)
        for chunk, output in enumerate(outputs):
            check_possible(private, chunk, output)
        aggregate = private.decode(outputs) if reals is None else private.aggregate_reals(reals, counts)
        for u in parameters.clients:
            if u not in entered.leaving:
                self._round(u).use(aggregate)
        stages = {"sum": time.perf_counter() - started}
        check = describe_check(private, outputs)
        clients = parameters.clients or tuple(u3)
        return RoundResult(outputs, aggregate, stages, self._dropped(entered), sum_check=check, clients=clients)

    def _enter(self, agreed: AgreedRound) -> "PredictedRound":
        """Ask the owners for consent, count participations, and predict the survivors and errors of the round.

        A client whose owner refuses drops out.
        """
        parameters, predict = agreed.parameters, self._protocol.predict
        if predict is None:
            raise InputError(f"the protocol '{self._protocol.name}' has no cohort: pass the round's invitation")
        leaving = {u: self._departures.leaving[u] for u in parameters.clients if u in self._departures.leaving}
        refusing = self._refusing(agreed, leaving)
        leaving |= dict.fromkeys(refusing, self._protocol.stages[0])
        course = predict(parameters, leaving)
        u3 = course.survivors()
        agreed.gate.admit_upload([u for u in parameters.clients if self._is_asked(leaving.get(u))])
        if uncounted := [u for u in u3 if not self._attends(u)]:
            refusing += uncounted
            leaving |= dict.fromkeys(uncounted, self._protocol.stages[self._protocol.upload])
            course = predict(parameters, leaving)
        return PredictedRound(course, leaving, refusing)

    def _arrive(self, agreed: AgreedRound) -> "PredictedRound":
        """Predict an assisted round: clients contribute one after the other, until the round closes."""
        invitation, stage = agreed.invitation, self._protocol.stages[self._protocol.upload]
        if invitation is None:
            raise InputError("a round without a list of clients needs its invitation: pass it with the agreed round")
        arrived: list[ClientId] = []
        for u in self._departures.coming(invitation.clients):
            if len(arrived) == (self._close_at or agreed.parameters.n_max):
                break
            if self._departures.leaving.get(u) != stage and self._contributes(u, agreed, invitation):
                agreed.gate.admit_arrival(u)
                arrived.append(u)
        return PredictedRound(ArrivalPrediction(agreed.parameters, tuple(arrived), stage), {}, [])

    def _contributes(self, u: ClientId, agreed: AgreedRound, invitation: Invitation) -> bool:
        """Let a client accept the invitation and train; let its owner consent and count the participation.

        Return False if the client or its owner refuses, or if the client's proof of selection is invalid.
        """
        proof = self._accepted(u, invitation)
        if proof is None or not self._trained(u):
            return False
        try:
            self._round(u).consent(agreed.parameters, {})
            self._round(u).attend()
            agreed.verify_client(agreed.parameters.index, u, proof)
        except DordisError:
            return False
        return True

    def _dropped(self, entered: "PredictedRound") -> dict[str, tuple[int, ...]]:
        """Return the dropouts by stage; clients whose owners refused are not under a stage, but under REFUSED."""
        leaving, refusing = entered.leaving, entered.refusing
        lost = {stage: [u for u in leaving if leaving[u] == stage] for stage in self._protocol.stages}
        dropped = {stage: tuple(int(u) for u in gone if u not in refusing) for stage, gone in lost.items()}
        dropped[REFUSED] = tuple(sorted(map(int, refusing)))
        return {stage: clients for stage, clients in dropped.items() if clients}

    def _refusing(self, agreed: AgreedRound, leaving: Leaving) -> list[ClientId]:
        """Ask the owners of all clients that do not drop out at the first stage; return the clients whose owners refuse
        the parameters.
        """
        first, refusing = self._protocol.stages[0], []
        for u in agreed.parameters.clients:
            if leaving.get(u) != first:
                try:
                    self._round(u).consent(agreed.parameters, {int(v): p for v, p in agreed.proofs.items()})
                except DordisError:
                    refusing.append(u)
        return refusing

    def _attends(self, u: ClientId) -> bool:
        """Let a client's owner count the participation; return False if the owner refuses."""
        try:
            self._round(u).attend()
        except DordisError:
            return False
        return True

    def _add_encoded(self, clients: Sequence[ClientId], private: DistributedDP) -> Vector:
        """Return the sum of the clients' encoded updates modulo 2^32; several threads encode long updates."""

        def add(part: Sequence[ClientId]) -> Vector:
            total = np.zeros(private.parameters.dim, np.uint32)
            for u in part:
                total += self._round(u).encode(private)
            return total

        cores = self._cores if private.parameters.dim >= LONG else 1
        if min(cores, len(clients)) < 2:
            return add(clients)
        with ThreadPoolExecutor(cores) as pool:
            first, *others = pool.map(add, [clients[core::cores] for core in range(min(cores, len(clients)))])
        for total in others:
            first += total
        return first

    def _add_reals(self, clients: Sequence[ClientId], private: DistributedDP) -> Floats:
        """Return the sum of the clients' clipped updates as real numbers; it is computed in pieces of `PIECE`
        coordinates.
        """
        updates = [self._round(u).take_update(private.parameters).update for u in clients]
        factors = [private.mechanism.clip_factor(update) for update in updates]
        total = np.zeros(private.mechanism.grid.dim)

        def add(start: int) -> None:
            piece = slice(start, start + PIECE)
            for update, factor in zip(updates, factors, strict=True):
                add_weighted(total[piece], update[piece], factor)

        starts = range(0, total.size, PIECE)
        if self._cores > 1 and total.size >= LONG:
            with ThreadPoolExecutor(self._cores) as pool:
                list(pool.map(add, starts))
        else:
            for start in starts:
                add(start)
        return total

    def _is_asked(self, leaving: str | None) -> bool:
        """Tell whether a client that leaves at the stage `leaving` is asked for its upload; None stands for a client
        that stays.
        """
        return leaving is None or self._protocol.stages.index(leaving) >= self._protocol.upload

    def _round(self, u: ClientId) -> ClientRound:
        taking_part = self._clients[u].round
        if taking_part is None:
            raise InputError(f"client {u} is not in this round")
        return taking_part

    def _output(
        self,
        parameters: Parameters,
        chunk: int,
        u3: Sequence[ClientId],
        total: Vector,
        course: Prediction,
        law: NoiseLaw,
    ) -> ChunkOutput:
        part, stayed = np.array(total[parameters.chunks[chunk]]), course.unreleased(parameters.due(chunk, u3))
        output = ChunkOutput.from_plan(parameters, chunk, part, tuple(u3), stayed)
        self._noise.add(parameters, output, law)
        return output


def tell_peers(clients: Iterable[Client]) -> None:
    """Give the first client's application those of all clients in the round, so that it can train them together."""
    taking_part = [client for client in clients if client.round is not None]
    if len(taking_part) > 1 and taking_part[0].round is not None:
        apps = [client.app for client in taking_part]
        apps[0].expect(taking_part[0].round.invite.info, apps)
