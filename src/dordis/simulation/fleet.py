"""Simulated clients in this process: every message of the protocol is made, encoded, sent, and can be lost."""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from dordis import drive
from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import InputError
from dordis.federation.app import AppClient
from dordis.federation.beacon import Beacon
from dordis.federation.owner import Owner
from dordis.federation.participation import Participation
from dordis.federation.policy import Policy
from dordis.federation.registry import Keys, Registry
from dordis.federation.round import Call, Sums
from dordis.federation.selection import NO_PROOFS, Proofs, Selection, Verifiable
from dordis.kernels.ring import Vector
from dordis.pipeline.executor import execute
from dordis.protocol import ClientId, Message, Replies, Requests
from dordis.protocols.distributed_dp import Aggregate, DistributedDP
from dordis.protocols.machines import SECAGG, Machines, SummingClient
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.masking import Entropy
from dordis.simulation.availability import STAGES, Dropout, has_left
from dordis.simulation.exchange import LocalExchange

REFUSED = "refused"
"""Where clients are counted that raised an error of their own, such as a cap on their participations."""

Clients = Callable[[ClientId], AppClient]
"""Gives a client of the application by its id."""


@dataclass(frozen=True)
class Population:
    """The application's clients, and who of them is there when."""

    ids: tuple[ClientId, ...]
    client: Clients
    dropout: Dropout
    choosy: bool = False
    """Whether the server selects only those who are there; if not, the others are selected and drop out at once."""
    entropy: Entropy = secrets.token_bytes
    """Decides how updates are rounded; the secrets of the protocol come from elsewhere."""

    def available(self, index: int) -> Collection[ClientId]:
        """Return who can be selected for a round."""
        return self.dropout.available(index, self.ids) if self.choosy else self.ids

    def leaving(self, index: int, clients: Collection[ClientId]) -> dict[ClientId, str]:
        """Return who of the selected clients leaves, and at which request."""
        there = self.dropout.available(index, clients)
        return {u: STAGES[0] for u in clients if u not in there} | self.dropout.leaving(
            index, [u for u in clients if u in there]
        )

    def prepare(self, call: Call, clients: Collection[ClientId]) -> Iterator[tuple[ClientId, Vector]]:
        """Yield the encoded updates of some clients; one that is not usable ends the run, as a mistake in it."""
        private = DistributedDP(call.parameters, call.mechanism)
        for u in clients:
            yield u, self._encoded(u, call, private)

    def _encoded(self, u: ClientId, call: Call, private: DistributedDP) -> Vector:
        index = call.parameters.index
        try:
            return private.encode(self.client(u).prepare_data(index, call.model), self.entropy)
        except InputError as error:
            raise InputError(f"the update of client {u} in round {index} is not usable: {error}") from None

    def use_output(self, index: int, clients: Collection[ClientId], aggregate: Aggregate) -> None:
        """Let the clients of a round use the result."""
        for u in clients:
            self.client(u).use_output(index, aggregate)


@dataclass(frozen=True)
class Owned:
    """What owners of simulated clients have: keys, one registry, a policy, and a count of their participations.

    The policy is for rounds of so many clients: where each brings a share of the noise, that depends on how many do.
    """

    keys: Mapping[ClientId, Keys]
    registry: Registry
    selection: Selection
    policy: Callable[[int], Policy]
    attended: Mapping[ClientId, Participation]
    cap: int | None
    """Participations that every owner allows."""
    beacon: Beacon | None = None

    def willing(self, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Leave out those who have taken part as often as they may, failed rounds included: they would refuse."""
        if self.cap is None:
            return clients
        return [u for u in clients if self.attended[u].count() < self.cap]

    def count(self, parameters: Parameters, clients: Collection[ClientId]) -> None:
        """Count a round for those who upload, where no message says so."""
        for u in clients:
            self.attended[u].reserve(parameters.run, parameters.index, cap=self.cap)

    def lots(self, index: int) -> Proofs:
        """Have every client draw its lot, if lots are drawn."""
        if not isinstance(self.selection, Verifiable):
            return NO_PROOFS
        drawn = {u: self.selection.draw(keys, index) for u, keys in self.keys.items()}
        return {u: proof for u, proof in drawn.items() if proof is not None}


class LocalFleet:
    """Run the whole protocol with simulated clients, who leave when the dropout model says so."""

    def __init__(
        self, population: Population, owned: Owned, machines: Machines = SECAGG, suite: Suite = DEFAULT
    ) -> None:
        self._population, self._owned = population, owned
        self._machines, self._suite = machines, suite
        self.use_output = population.use_output
        self.proofs = owned.lots

    def available(self, index: int) -> Collection[ClientId]:
        """Return who can be selected for a round."""
        return self._owned.willing(self._population.available(index))

    def sum(self, call: Call) -> Sums:
        """Prepare, then run every step of the protocol."""
        parameters = call.parameters
        stages: dict[str, float] = {}
        call.watch("prepare")
        started = time.perf_counter()
        leaving = self._population.leaving(parameters.index, parameters.clients)
        asked = [u for u in parameters.clients if leaving.get(u) != STAGES[0]]
        vectors = dict(self._population.prepare(call, asked))
        stages["prepare"] = time.perf_counter() - started
        lost = Lost(leaving)
        registry, policy = self._owned.registry.signing_keys(), self._owned.policy(len(parameters.clients))
        clients = {u: self._client(u, vector, policy, registry) for u, vector in vectors.items()}
        exchange = LocalExchange(clients, self._machines.replies, lost.request)
        server = self._machines.server(parameters, registry, call.proofs, suite=self._suite)
        timeline = execute(
            server.setup.workflow,
            [chunk.workflow for chunk in server.chunks],
            announced(exchange, self._machines.disclosing, call),
        )
        for span in timeline.spans:
            name = span.step.replace("_", " ")
            stages[name] = stages.get(name, 0.0) + span.end - span.start
        return Sums(
            outputs=[chunk.output() for chunk in server.chunks],
            stages=stages,
            dropped=lost.noticed([u for u, _ in exchange.errors]),
            up=exchange.sent.total(),
            down=exchange.received.total(),
            timeline=timeline,
        )

    def _client(self, u: ClientId, vector: Vector, policy: Policy, registry: Mapping[ClientId, bytes]) -> SummingClient:
        owned = self._owned
        return self._machines.client(
            u,
            vector,
            owner=Owner(u, policy, owned.selection, owned.attended[u], owned.beacon),
            signing=owned.keys[u].signing,
            registry=registry,
            suite=self._suite,
        )


class Lost:
    """Who leaves the round, and at which request: from then on nothing reaches that client."""

    def __init__(self, leaving: Mapping[ClientId, str]) -> None:
        self._leaving = leaving
        self._gone = {u: stage for u, stage in leaving.items() if stage == STAGES[0]}

    def request(self, u: ClientId, request: Message) -> bool:
        """Tell whether the client is gone when the request comes."""
        name = type(request).__name__
        if name in STAGES and has_left(self._leaving.get(u), name):
            self._gone.setdefault(u, name)
        return u in self._gone

    def noticed(self, refused: Collection[ClientId]) -> dict[str, tuple[int, ...]]:
        """Return who was asked and did not answer, by the first request that was lost, and who refused to."""
        gone = self._gone | dict.fromkeys(set(refused) - self._gone.keys(), REFUSED)
        by_stage = {stage: [int(u) for u, at in gone.items() if at == stage] for stage in (*STAGES, REFUSED)}
        return {stage: tuple(sorted(clients)) for stage, clients in by_stage.items() if clients}


def announced(exchange: drive.Exchange, disclosing: Collection[type[Message]], call: Call) -> drive.Exchange:
    """Tell which requests are sent; announce, once, before the first is delivered whose answer costs privacy."""
    told = threading.Event()
    turn = threading.Lock()

    def deliver(requests: Requests) -> Replies:
        kinds = {type(request) for request in requests.values()}
        with turn:
            if not told.is_set() and not kinds.isdisjoint(disclosing):
                call.unmasking()
                told.set()
        call.watch(", ".join(kind.__name__ for kind in kinds))
        return exchange(requests)

    return deliver
