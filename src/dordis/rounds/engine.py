"""The one engine of a round, over any protocol that sums: gather, then set-up, chunks, decoding and delivery.

Where the clients are is the business of the exchange; the pipeline executor decides when each step runs.
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
from dordis.pipeline.executor import Compute, Timeline, execute_async, run_in_thread
from dordis.privacy.mechanisms.mechanism import Mechanism
from dordis.protocol import (
    ClientId,
    Flow,
    Garbled,
    Message,
    Resource,
    Step,
    reply_to,
)
from dordis.protocol_driver import AsyncExchange
from dordis.protocols.delivery import DeliveryServer, Dispatch
from dordis.protocols.distributed_dp import Aggregate, DecodedChunk, DistributedDP
from dordis.protocols.distributed_noise import ChunkOutput, PrivateChunk, PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.replies import collect
from dordis.protocols.summing import SummingChunk, SummingProtocol, SummingServer, SummingSetup
from dordis.protocols.vector_backend import HERE, Vectors
from dordis.rounds.arrivals import Arrivals, ArrivalStore
from dordis.rounds.catch_up import RecentSums
from dordis.rounds.gate import PrivacyGate
from dordis.rounds.impossible_sums import NOT_CHECKED, check_possible, describe_check
from dordis.rounds.invitation import Invitation, InvitationServer
from dordis.rounds.meter import MessageMeter, Traffic
from dordis.rounds.watch import Watch, WatchedExchange, silent

Execute = Callable[[Iterable[Step], Sequence[Iterable[Step]], AsyncExchange, Compute], Coroutine[Any, Any, Timeline]]
"""How steps follow each other: chunks in a pipeline, or all of them together."""


async def at_once(work: Callable[[], Any]) -> Any:
    """Compute where the round is run, and nowhere else."""
    return work()


Kind = TypeVar("Kind", bound=Parameters)


class InterruptedRound(msgspec.Struct, Generic[Kind], frozen=True):
    """State of a round whose parameters were fixed before a restart, from which the server continues it."""

    number: int
    parameters: Kind
    proofs: dict[ClientId, bytes]
    invited: int
    allowed: float
    """The largest cost that its clients can pay."""


@dataclass(frozen=True)
class AgreedRound:
    """A round whose cohort and parameters are fixed."""

    parameters: Parameters
    mechanism: Mechanism
    proofs: Mapping[ClientId, bytes] = field(default_factory=dict)
    gate: PrivacyGate = field(default_factory=PrivacyGate)
    """Counts and charges before requests of the summing protocol leave."""
    number: int = 0
    """The round's number, for people."""
    invited: int = 0
    """Clients that were asked."""
    allowed: float = 0.0
    """The largest cost that its clients can pay; stored for a restart."""
    invitation: Invitation | None = None
    """Shown to clients that come, where the protocol has no cohort."""

    def as_interrupted(self) -> InterruptedRound[Any]:
        """Return the state from which a restarted server continues this round."""
        proofs = dict(sorted(self.proofs.items()))
        return InterruptedRound(self.number, self.parameters, proofs, self.invited, self.allowed)


@dataclass(frozen=True)
class RoundResult:
    """What a round came to: the sum of every chunk, the aggregate, and what happened on the way."""

    outputs: tuple[ChunkOutput, ...]
    aggregate: Aggregate = field(repr=False)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of every step, by name."""
    dropped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Clients that stopped answering, by the first request that was not answered."""
    up: int | None = None
    down: int | None = None
    timeline: Timeline | None = None
    sum_check: str = NOT_CHECKED
    """Outcome of the check for impossible sums: `passed`, `vacuous` or `not checked` (`rounds.impossible_sums`)."""
    clients: tuple[ClientId, ...] = ()
    """U, or the clients that came."""


@dataclass(frozen=True)
class Gathered:
    """Who is ready to be in the round, with the proofs of their selection, and what it took to gather them."""

    ready: Mapping[ClientId, bytes]
    stages: Mapping[str, float] = field(default_factory=dict)
    up: int | None = None
    down: int | None = None
    model_bytes: int | None = None
    """Of `down`, what the model takes, over all clients."""
    replay_bytes: int | None = None
    """Of `down`, what sums take that clients had missed."""
    introductions: Mapping[ClientId, Message] = field(default_factory=dict)
    """Replies of helpers, from which the parameters are made."""


class RoundRunner(Protocol):
    """Whatever runs rounds with clients: the engine below, or what computes the same without messages."""

    def available(self, index: int) -> Collection[ClientId]:
        """Return the clients that can be invited."""
        ...

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Invite clients, and have them train."""
        ...

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Sum their updates, decode and deliver the sum."""
        ...


class RoundChunk(PrivateChunk):
    """One chunk: the paper's five stages."""

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
        """Return the steps that make the sum, then those that use it."""
        return *super().workflow, Step(self.decode, Resource.SERVER), *self.delivery.workflow

    def decode(self) -> Flow | None:
        """Turn the sum into real units; raise ImpossibleSum if it is too long."""
        summed = self.output()
        check_possible(self._private, self.chunk, summed)
        if self._private.mechanism.is_decoded_by_chunk:
            self._decoded = self._private.decode_chunk(self.chunk, summed.total, len(summed.survivors))
        return None

    @property
    def decoded(self) -> DecodedChunk:
        """Return the sum in real units."""
        if self._decoded is None:
            raise InputError(f"chunk {self.chunk} is not decoded yet")
        return self._decoded


class RoundServer(PrivateServer):
    """The set-up of a protocol that sums, then every chunk from its inputs to its delivery.

    The sums go to everyone who completed the set-up, or to the `receivers` that are named; where the server adds noise
    of its own to the whole sum, to nobody.
    """

    def __init__(
        self, summing: SummingServer, private: DistributedDP, receivers: Collection[ClientId] | None = None
    ) -> None:
        self._private = private
        self.setup = summing.setup
        self._by_chunk = private.mechanism.is_decoded_by_chunk
        named = receivers if self._by_chunk else ()
        self.is_public = named is None
        """Whether every client may have the sums."""

        def receiving() -> Collection[ClientId]:
            return self.setup.ready if named is None else named

        self.chunks: Sequence[RoundChunk] = [
            RoundChunk(machine, self.setup, chunk, private, receiving) for chunk, machine in enumerate(summing.chunks)
        ]

    def dropped(self) -> dict[int, int]:
        """Return |D| of every chunk whose U3 is closed."""
        n = self._private.parameters.n_max
        return {chunk.chunk: n - len(chunk.u3) for chunk in self.chunks if chunk.u3}

    def sum_check(self) -> str:
        """Return the outcome of the check for impossible sums, once every chunk is decoded."""
        return describe_check(self._private, self.output())

    def aggregate(self) -> Aggregate:
        """Return the decoded sum and its mean, once every chunk is decoded; stripes are undone here."""
        if not self._by_chunk:
            return self._private.decode(self.output())
        return self._private.assemble([chunk.decoded for chunk in self.chunks])


class RoundEngine:
    """Run rounds over an exchange; `run` and `compute` say in which time, and where the server computes.

    `execute` says in which order the steps of several chunks are run, `vectors` where the server computes on these.
    Without `delivers` the sums go to nobody: the clients hear of them in another way.  With open arrival, a round is
    closed at `close_at` contributions.
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
        vectors: Vectors = HERE,
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
        """Invite clients, send the model, or sums that lead to it, to those who lack it, and have them train."""
        self.recent_sums.begin(invitation.invite)
        if not self._protocol.has_cohort:
            introductions, traffic = self._introduce(invitation.invite.round, watch), self._traffic()
            return Gathered({}, {}, *traffic.since(traffic), introductions)
        server, before = InvitationServer(invitation, self.recent_sums.since), self._traffic()
        timeline = self._execute(server.workflow, (), WatchedExchange(self._exchange, watch))
        return Gathered(server.output(), step_seconds(timeline), *self._traffic().since(before))

    def _introduce(self, round: bytes, watch: Watch) -> dict[ClientId, Message]:
        """Have the helpers introduce themselves for a round."""
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
        """Run the summing protocol, decode, and deliver."""
        parameters, before = agreed.parameters, self._traffic()
        refused = 0 if self._meter is None else len(self._meter.errors)
        server = self.server(agreed)
        admit = partial(agreed.gate.admit, dropped=server.dropped)
        exchange = WatchedExchange(self._exchange, watch, admit, self._open(agreed))
        try:
            timeline = self._execute(server.setup.workflow, [chunk.workflow for chunk in server.chunks], exchange)
        finally:  # a failed round, too, may have shown who lies
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
        """Return the sums that clients of later rounds may have; those of clients that come go to nobody at once."""
        if self._protocol.has_cohort or not server.is_public:
            return [chunk.delivery.dispatched for chunk in server.chunks]
        return [chunk.delivery.publish() for chunk in server.chunks]

    def _open(self, agreed: AgreedRound) -> Arrivals | None:
        """Return the store of contributions to an open round; contributions on disk are read first."""
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
        """Return the server's machine of a round."""
        parameters = agreed.parameters
        summing = self._protocol.server(parameters, self._registry, agreed.proofs, self._suite)
        summing.setup.vectors, summing.setup.fix_survivors = self._vectors, self._arrivals.fix_survivors
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
    """Return the seconds of every step, over all chunks, by its name."""
    seconds: Counter[str] = Counter()
    for span in timeline.spans:
        seconds[span.step.replace("_", " ")] += span.end - span.start  # type: ignore[assignment]
    return dict(seconds)
