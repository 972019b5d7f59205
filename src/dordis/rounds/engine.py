"""The engine of the server: it runs rounds with any summing protocol.

A round has two parts.  `RoundEngine.gather` invites clients, sends them the model and lets them train.  Then
`RoundEngine.sum` runs the set-up of the summing protocol once, and sums, decodes and delivers every chunk.  The engine
sends no messages itself: an exchange carries them to the clients, in this process or over a network.  The executor of
the pipeline (`pipeline.executor`) decides when each step of a chunk runs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from dordis.crypto.suite import DEFAULT, Suite
from dordis.errors import InputError
from dordis.pipeline.executor import AsyncExchange, Compute, Timeline, execute_async, run_in_thread
from dordis.privacy.mechanisms import Mechanism
from dordis.protocol import ClientId, Flow, Garbled, Message, Resource, Step, reply_to
from dordis.protocols.delivery import DeliveryServer, Dispatch
from dordis.protocols.encoded_sums import Aggregate, DecodedChunk, DistributedDP
from dordis.protocols.noise_addition_and_removal import ChunkOutput, PrivateChunk, PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import (
    SummingChunk,
    SummingProtocol,
    SummingServer,
    SummingSetup,
    VerifyClient,
    accept_any_client,
    collect,
)
from dordis.protocols.vector_backend import LOCAL, Vectors
from dordis.rounds.arrivals import Arrivals, ArrivalStore
from dordis.rounds.catch_up import RecentSums
from dordis.rounds.impossible_sums import NOT_CHECKED, check_possible, describe_check
from dordis.rounds.invitation import Invitation, InvitationServer
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.rounds.watch import MessageMeter, Traffic, Watch, WatchedExchange, silent

Execute = Callable[[Iterable[Step], Sequence[Iterable[Step]], AsyncExchange, Compute], Coroutine[Any, Any, Timeline]]
"""Runs the steps of the set-up, and then the steps of all chunks: pipelined, or each step for all chunks at a time."""


async def at_once(work: Callable[[], Any]) -> Any:
    """Run `work` in the thread that runs the round, and return its result."""
    return work()


Kind = TypeVar("Kind", bound=Parameters)


class InterruptedRound(msgspec.Struct, Generic[Kind], frozen=True):
    """The state of a round with fixed parameters, from which a restarted server continues."""

    number: int
    parameters: Kind
    proofs: dict[ClientId, bytes]
    invited: int
    allowed: float
    """The largest cost of the round, theta^2 in Gaussian DP, that every invited client can afford."""


@dataclass(frozen=True)
class AgreedRound:
    """A round whose clients and parameters are fixed."""

    parameters: Parameters
    mechanism: Mechanism
    proofs: Mapping[ClientId, bytes] = field(default_factory=dict)
    gate: PrivacyGate = field(default_factory=PrivacyGate)
    """Counts participations and charges the ledger before requests of the summing protocol leave."""
    number: int = 0
    """The round's number: 1 plus the number of finished rounds."""
    invited: int = 0
    """Number of invited clients."""
    allowed: float = 0.0
    """The largest cost of the round, theta^2 in Gaussian DP, that every invited client can afford."""
    invitation: Invitation | None = None
    """In assisted rounds the invitation for arriving clients; otherwise None."""
    verify_client: VerifyClient = accept_any_client
    """Raises ProtocolError unless an arriving client was selected."""
    run_colluders: int | None = None
    """Largest number of clients that may collude over all rounds of the run; if None, T_C of the round is used."""

    def as_interrupted(self) -> InterruptedRound[Any]:
        """Return the state from which a restarted server continues this round."""
        proofs = dict(sorted(self.proofs.items()))
        return InterruptedRound(self.number, self.parameters, proofs, self.invited, self.allowed)


@dataclass(frozen=True)
class RoundResult:
    """The result of a round: the sum of every chunk, the aggregate, times, dropouts and bytes."""

    outputs: tuple[ChunkOutput, ...]
    aggregate: Aggregate = field(repr=False)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of every step, by name."""
    dropped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Clients that dropped out, by the stage of their first missing answer."""
    up: int | None = None
    down: int | None = None
    timeline: Timeline | None = None
    sum_check: str = NOT_CHECKED
    """Outcome of the check for impossible sums: `passed`, `vacuous` or `not checked` (`rounds.impossible_sums`)."""
    clients: tuple[ClientId, ...] = ()
    """The clients of the round: the agreed list U, or in assisted rounds the clients that contributed."""


@dataclass(frozen=True)
class Gathered:
    """The clients that are ready for a round, with proofs of selection, and the time and bytes of gathering them."""

    ready: Mapping[ClientId, bytes]
    stages: Mapping[str, float] = field(default_factory=dict)
    up: int | None = None
    down: int | None = None
    model_bytes: int | None = None
    """The part of `down` that models took, over all clients; None if not counted."""
    replay_bytes: int | None = None
    """The part of `down` that missed sums took, over all clients; None if not counted."""
    introductions: Mapping[ClientId, Message] = field(default_factory=dict)
    """The helpers' introductions: messages with their public keys for the round, which the parameters will contain."""


class RoundRunner(Protocol):
    """The interface of objects that run rounds: `RoundEngine`, or `simulation.ideal.IdealRounds` (no messages)."""

    def available(self, index: int) -> Collection[ClientId]:
        """Return the clients that can be invited to the round with this index."""

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Invite clients and let them train; return the clients that are ready."""

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return `ready` without the clients known to be disconnected, excluded or revoked since `gather` returned.

        Called before the parameters are fixed.
        """

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Sum the updates of the round's clients, decode and deliver the sum, and return the result."""


class RoundChunk(PrivateChunk):
    """The server's state machine of one chunk, from the input to the delivery of the sum: the paper's five stages."""

    def __init__(
        self,
        summing: SummingChunk,
        setup: SummingSetup,
        chunk: int,
        private: DistributedDP,
        receivers: Callable[[], Collection[ClientId]],
    ) -> None:
        super().__init__(summing, setup, private.parameters, chunk, private.mechanism.law)
        self._private = private
        self.delivery = DeliveryServer(private, chunk, self.output, receivers)
        self._decoded: DecodedChunk | None = None

    @property
    def workflow(self) -> Sequence[Step]:
        return *super().workflow, Step(self.decode, Resource.SERVER), *self.delivery.workflow

    def decode(self) -> Flow | None:
        """Decode the sum, if the mechanism decodes by chunk; raise ImpossibleSum if the norm of the sum is impossible.

        This step sends no requests, so it returns None.
        """
        summed = self.output()
        check_possible(self._private, self.chunk, summed)
        if self._private.mechanism.is_decoded_by_chunk:
            self._decoded = self._private.decode_chunk(self.chunk, summed.total, len(summed.survivors))
        return None

    @property
    def decoded(self) -> DecodedChunk:
        """Return the sum of this chunk as real numbers; raise if it is not decoded yet."""
        if self._decoded is None:
            raise InputError(f"chunk {self.chunk} is not decoded yet")
        return self._decoded


class RoundServer(PrivateServer):
    """The server's state machine of a round: set-up of the summing protocol, then every chunk from input to delivery.

    The sums of chunks are delivered to all clients that completed the set-up, or to `receivers` if given.  They are
    delivered to nobody if the server adds its own noise to the whole sum, because the sums of chunks lack this noise.
    """

    def __init__(
        self, summing: SummingServer, private: DistributedDP, receivers: Collection[ClientId] | None = None
    ) -> None:
        self._private = private
        self.setup = summing.setup
        self._by_chunk = private.mechanism.is_decoded_by_chunk
        named = receivers if self._by_chunk else ()
        self.is_public = named is None
        """Whether the sums may be sent to any client."""

        def receiving() -> Collection[ClientId]:
            return self.setup.ready if named is None else named

        self.chunks: Sequence[RoundChunk] = [
            RoundChunk(machine, self.setup, chunk, private, receiving) for chunk, machine in enumerate(summing.chunks)
        ]

    def dropped(self) -> dict[int, int]:
        """Return the number of dropouts by chunk; chunks whose survivors U3 are not fixed yet are left out."""
        n = self._private.parameters.n_max
        return {chunk.chunk: n - len(chunk.u3) for chunk in self.chunks if chunk.u3}

    def sum_check(self) -> str:
        """Return the outcome of the check for impossible sums, after every chunk is decoded."""
        return describe_check(self._private, self.output())

    def aggregate(self) -> Aggregate:
        """Return the decoded sum and its mean, in the original order of coordinates, after all chunks are decoded."""
        if not self._by_chunk:
            return self._private.decode(self.output())
        return self._private.assemble([chunk.decoded for chunk in self.chunks])


class RoundEngine:
    """Runs rounds over an exchange.

    `registry` has the members' signing keys; `available` returns the clients that can be invited under a round index.
    `execute` orders the steps of several chunks, `run` runs the resulting coroutine, and `compute` runs the server's
    computations; `vectors` is the backend for the server's vectors.  If `delivers` is False, the engine delivers no
    sums, because clients get them in another way.  An assisted round is closed at `close_at` contributions.
    """

    def __init__(
        self,
        exchange: AsyncExchange,
        protocol: SummingProtocol,
        registry: Mapping[ClientId, bytes],
        available: Callable[[int], Collection[ClientId]],
        *,
        suite: Suite = DEFAULT,
        meter: MessageMeter | None = None,
        run: Callable[[Coroutine[Any, Any, Timeline]], Timeline] = asyncio.run,
        compute: Compute = run_in_thread,
        execute: Execute = execute_async,
        delivers: bool = True,
        vectors: Vectors = LOCAL,
        helpers: Collection[ClientId] = (),
        arrivals: ArrivalStore | None = None,
        close_at: int | None = None,
    ) -> None:
        self._close_at = close_at
        self._helpers: Collection[ClientId] = helpers
        self._arrivals = ArrivalStore() if arrivals is None else arrivals
        self._execute_steps, self._receivers = execute, None if delivers else ()
        self._vectors = vectors
        self._exchange, self._protocol, self._registry = exchange, protocol, registry
        self.available = available
        self._suite, self._meter, self._run, self._compute = suite, meter, run, compute
        self.recent_sums = RecentSums()

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Invite clients, send them the model or missed sums as needed, let them train, and return the ready clients.

        For an assisted round only ask the helpers for their introductions: each client is invited when it arrives.
        """
        self.recent_sums.begin(invitation.invite)
        if not self._protocol.has_cohort:
            introductions, traffic = self._introduce(invitation.invite.round, watch), self._traffic()
            return Gathered({}, {}, *traffic.since(traffic), introductions)
        server, before = InvitationServer(invitation, self.recent_sums.since), self._traffic()
        timeline = self._execute(server.workflow, (), WatchedExchange(self._exchange, watch))
        return Gathered(server.output(), step_seconds(timeline), *self._traffic().since(before))

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return all ready clients, because this engine does not know which connections were lost."""
        return ready

    def _introduce(self, round: bytes, watch: Watch) -> dict[ClientId, Message]:
        """Return the helpers' introductions (messages with their keys for the round); empty if there are no helpers."""
        if self._protocol.introduces is None:
            return {}
        request, introductions = self._protocol.introduces(round), dict[ClientId, Message]()

        def introduce() -> Flow:
            replies = yield dict.fromkeys(self._helpers, request)
            introductions.update(dict.fromkeys(self._helpers, Garbled()))
            introductions.update(collect(self._helpers, reply_to(request), replies, lambda u, reply: reply))

        self._execute([Step(introduce, Resource.NETWORK)], (), WatchedExchange(self._exchange, watch))
        return introductions

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Run the summing protocol, decode and deliver the sums, and return the result."""
        parameters, before = agreed.parameters, self._traffic()
        refused = 0 if self._meter is None else len(self._meter.errors)
        server = self.server(agreed)
        admit = partial(agreed.gate.admit, dropped=server.dropped)
        exchange = WatchedExchange(self._exchange, watch, admit, self._open(agreed))
        try:
            timeline = self._execute(server.setup.workflow, [chunk.workflow for chunk in server.chunks], exchange)
        finally:  # complaints of a failed round are kept too
            if server.setup.standing is not None:
                self._arrivals.keep_standing(server.setup.standing)
        traffic = self._traffic().since(before)
        errors = [] if self._meter is None else self._meter.errors[refused:]
        self.recent_sums.keep(agreed.number, parameters, self._published(server))
        return RoundResult(
            outputs=server.output(),
            aggregate=server.aggregate(),
            stages=step_seconds(timeline),
            dropped=exchange.dropped(parameters.clients, [u for u, _ in errors]),
            up=traffic.up,
            down=traffic.down,
            timeline=timeline,
            sum_check=server.sum_check(),
            clients=parameters.clients or tuple(sorted(self._arrivals.clients)),
        )

    def _published(self, server: RoundServer) -> list[Dispatch | None]:
        """Return the sum of every chunk, for clients of later rounds that missed it; None if sums are not delivered."""
        if self._protocol.has_cohort or not server.is_public:
            return [chunk.delivery.dispatched for chunk in server.chunks]
        return [chunk.delivery.publish() for chunk in server.chunks]

    def _open(self, agreed: AgreedRound) -> Arrivals | None:
        """Return the object that answers the open call of an assisted round; None for other rounds."""
        invitation = agreed.invitation
        if invitation is None:
            return None
        self._arrivals.begin(agreed.as_interrupted())
        return Arrivals(
            self._arrivals,
            agreed.gate,
            lambda u: InvitationServer(replace(invitation, clients=(u,)), self.recent_sums.since),
            self._close_at,
        )

    def server(self, agreed: AgreedRound) -> RoundServer:
        """Return the server's state machine of an agreed round."""
        parameters = agreed.parameters
        summing = self._protocol.server(parameters, self._registry, agreed.proofs, self._suite)
        summing.setup.vectors, summing.setup.fix_survivors = self._vectors, self._arrivals.fix_survivors
        summing.setup.verify_client = agreed.verify_client
        summing.setup.run_colluders = agreed.run_colluders
        remembered = self._arrivals.standing(type(summing.setup.standing))
        if remembered is not None:
            summing.setup.standing = remembered
        return RoundServer(summing, DistributedDP(parameters, agreed.mechanism), self._receivers)

    def _traffic(self) -> Traffic:
        """Return the bytes exchanged so far; None values if there is no meter."""
        return Traffic() if self._meter is None else self._meter.traffic()

    def _execute(self, setup: Sequence[Step], chunks: Sequence[Sequence[Step]], exchange: AsyncExchange) -> Timeline:
        return self._run(self._execute_steps(setup, chunks, exchange, self._compute))


def step_seconds(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of every step by name, added up over all chunks."""
    seconds: Counter[str] = Counter()
    for span in timeline.spans:
        seconds[span.step.replace("_", " ")] += span.end - span.start  # type: ignore[assignment]
    return dict(seconds)
