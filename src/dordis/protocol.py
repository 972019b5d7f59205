"""The sans-I/O core: messages, the server's workflow, the client's routine, and the journal that makes it replay-safe.

A protocol is two machines.  The server's is a sequence of steps, each a generator that yields requests and is sent
the replies; the client's is a table of requests it will answer, in order.  Neither waits, sleeps, reads a clock or
touches a network: whoever drives them does.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, ClassVar, Generic, NewType, Protocol, TypeVar

import msgspec

from dordis.errors import Aborted, UnexpectedRequest

ClientId = NewType("ClientId", int)
"""The id of a party in the registry; a request says in which role the party is asked."""


class Role(Enum):
    """The role in which a party is asked; one id may have both."""

    CLIENT = "client"
    """Has data, and contributes to sums."""
    HELPER = "helper"
    """Has no data, and helps to open sums."""


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Anything that crosses the wire: a frozen value made of numbers, strings, bytes and maps.

    Lists are not used: a decoder allocates the length they announce before it sees their content.  Maps are in the
    order of their keys, so that a message has one encoding.
    """

    reply: ClassVar["type[Message] | None"] = None
    """The message that answers a request; None for a reply."""
    role: ClassVar[Role] = Role.CLIENT
    """The role in which a party answers a request."""
    ahead: ClassVar[bool] = False
    """Whether a request only asks to do early what a later one needs: it may be left undelivered."""
    uploads: ClassVar[bool] = False
    """Whether the answer to a request holds data of the client: a participation is counted before it leaves."""
    discloses: ClassVar[bool] = False
    """Whether the answers to a request open a sum: the ledger is charged before the request leaves."""
    bulk: ClassVar[str] = ""
    """The field of bytes that travels beside the frame of the message, if it has one: a vector, a model."""

    longest: ClassVar[int | None] = None
    """Bytes of the longest frame of this kind that is read; None if that depends on the round."""

    def __post_init__(self) -> None:
        """Refuse a map out of order, made here or decoded."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, dict) and list(value) != sorted(value):
                raise ValueError(f"{name} is not in the order of its keys")


class Garbled(Message, frozen=True):
    """Stands for bytes that are no valid reply; it answers no request, so the server names its sender as a liar."""


ENCODER = msgspec.msgpack.Encoder()


def reply_to(request: Message) -> type[Message]:
    """Return the kind of message that answers a request."""
    if request.reply is None:
        raise UnexpectedRequest(f"{type(request).__name__} is no request")
    return request.reply


def requests_in(namespace: Mapping[str, Any]) -> "tuple[type[Message], ...]":
    """Return the requests that a module of messages defines, in the order in which it defines them."""
    kinds = (kind for kind in namespace.values() if isinstance(kind, type) and issubclass(kind, Message))
    return tuple(kind for kind in kinds if kind.reply is not None)


Requests = Mapping[ClientId, Message]
"""Requests by client; all requests of one batch are for the same role."""
Replies = Iterable[tuple[ClientId, Message]]
"""Replies come one by one, so that a server can add up vectors without holding them all."""
Flow = Generator[Requests, Replies, None]
Admit = Callable[[ClientId, Message], None]
"""Admit a reply to an open call, or raise; an admitted reply may be acknowledged."""


class OpenCall(Mapping[ClientId, Message]):
    """A request addressed to nobody: clients that come answer it, until `most` replies are admitted or it is closed.

    A flow passes its own check of a reply as `admit`.  The engine adds that participations are counted and replies
    stored durably, so that an exchange acknowledges a reply once `admit` has returned, and yields it to the flow then.
    `arrived` are clients whose replies are there already; `visit` gives the server of the steps, such as invitation
    and training, that a client goes through before it is asked: it is ready if the output has it.  An exchange with a
    clock calls `close` when time is up: no reply is admitted after that, also not by a server that restarts.
    """

    def __init__(
        self,
        request: Message,
        most: int,
        admit: Admit,
        arrived: Collection[ClientId] = (),
        visit: "Callable[[ClientId], ProtocolServer[dict[ClientId, bytes]]] | None" = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.request, self.most, self.admit, self.visit = request, most, admit, visit
        self.arrived, self.close = arrived, close
        self.read_again: Callable[[ClientId], Message] = self._forgotten
        """Returns an admitted reply once more; the engine, which stores replies, sets it."""

    def _forgotten(self, client: ClientId) -> Message:
        raise UnexpectedRequest(f"nobody stored the reply of client {client}: run the call over a RoundEngine")

    @property
    def is_full(self) -> bool:
        """Tell whether no more replies are admitted."""
        return len(self.arrived) >= self.most

    def __getitem__(self, client: ClientId) -> Message:
        raise KeyError(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(())

    def __len__(self) -> int:
        return 0


Output = TypeVar("Output")
Request = TypeVar("Request", bound=Message)


class Resource(Enum):
    """What a step keeps busy.

    Links carry both ways at once, so the delivery of sums has a resource of its own (the paper has one for both ways):
    the sum of one chunk goes down while the next chunk comes up.
    """

    CLIENT = "c-comp"
    NETWORK = "comm"
    SERVER = "s-comp"
    DOWNLINK = "comm-down"


@dataclass(frozen=True)
class Step:
    """One round trip, or one computation of the server's own, and the resource that dominates it."""

    run: Callable[[], Flow | None]
    resource: Resource


class ProtocolServer(ABC, Generic[Output]):
    """The server's side: steps in order, then an output."""

    @property
    @abstractmethod
    def workflow(self) -> Sequence[Step]:
        """Return the steps in the order in which they run."""

    @abstractmethod
    def output(self) -> Output:
        """Return the result of the round, after every step has run."""


@dataclass(frozen=True)
class On(Generic[Request]):
    """A request the client will answer, and how; an optional one may be left out by the server."""

    request: type[Request]
    respond: Callable[[Request], Message]
    optional: bool = False


class Party(Protocol):
    """Anything that answers requests: a client of rounds, or a dishonest one."""

    def handle(self, request: Message) -> Message:
        """Answer a request, or raise."""
        ...


class Journal(Protocol):
    """Stores a client's answers durably before they are sent, and restores the client after a restart.

    `claim` calls `respond` only if the key is unclaimed, and stores digest, changes of the state and reply together; a
    key claimed for the same digest gives the stored reply; for another digest it raises `UnexpectedRequest`.  After
    `close`, every claim raises `Aborted` and what was stored is gone.
    """

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the reply stored under the key; if there is none, `respond` makes it and the changes of the state."""

    def since(self, claims: int) -> Sequence[bytes]:
        """Return the state changes of all claims after the first `claims`, in order."""

    def note(self, event: msgspec.Struct) -> None:
        """Store an event that a restored client must know: what it received, or what it computed from it."""

    def events(self, kind: Any) -> Sequence[Any]:
        """Return the stored events in order, as structs of a type or of a union of types."""

    def release(self) -> None:
        """Close the journal and keep its content, so that another process can resume the round."""

    def close(self) -> None:
        """Refuse all later requests and forget the stored state."""


def check_same_request(key: str, claimed: bytes, digest: bytes) -> None:
    """A request that was answered before is the same now: nobody gets two answers for one stage."""
    if claimed != digest:
        raise UnexpectedRequest(f"another request than this one was answered at {key}")


class MemoryJournal:
    """A journal that lasts as long as the process: for simulations and tests."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[bytes, bytes, bytes]] = {}
        self._closed = False

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the reply stored under the key; if there is none, `respond` makes it and the changes of the state."""
        if self._closed:
            raise Aborted("this client has left the round")
        if key not in self._claims:
            self._claims[key] = (digest, *respond())
        claimed, _, reply = self._claims[key]
        check_same_request(key, claimed, digest)
        return reply

    def since(self, claims: int) -> Sequence[bytes]:
        """Return the state changes of all claims after the first `claims`, in order."""
        return [changes for _, changes, _ in islice(self._claims.values(), claims, None)]

    def note(self, event: msgspec.Struct) -> None:
        """Store nothing: a process that has ended is not restored from its memory."""

    def events(self, kind: Any) -> Sequence[Any]:
        """Return nothing."""
        return ()

    def release(self) -> None:
        """Do nothing: no other process has this memory."""

    def close(self) -> None:
        """Refuse all later requests and forget the stored state."""
        self._closed = True
        self._claims.clear()


SETUP = -1
"""The lane of requests made once a round; the others are numbered by chunk."""


class ClientState(msgspec.Struct):
    """What a client remembers between requests: plain data, to be stored, shipped and restored.

    `passed` is, for the set-up and for each chunk, the number of requests already answered.  An answer changes the
    state by setting fields, or entries of those that are maps, to other values; nothing is changed in place, and no
    entry is taken out.  A journal keeps these changes alone.
    """

    answered: int = 0
    passed: dict[int, int] = msgspec.field(default_factory=dict)
    aborted: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} after {self.answered} answers>"


State = TypeVar("State", bound=ClientState)


def _contents(state: ClientState) -> dict[str, Any]:
    """Return the fields as they are now."""
    fields = ((name, getattr(state, name)) for name in state.__struct_fields__)
    return {name: dict(value) if isinstance(value, dict) else value for name, value in fields}


def _changes(before: Mapping[str, Any], state: ClientState) -> bytes:
    """Return the fields that have changed, and of maps the entries that have."""
    changed: dict[str, Any] = {}
    for name, old in before.items():
        new = getattr(state, name)
        if isinstance(new, dict):
            entries = {key: value for key, value in new.items() if old.get(key) is not value}
            if entries:
                changed[name] = entries
        elif new is not old:
            changed[name] = new
    return ENCODER.encode(changed)


def _change(state: ClientState, changes: bytes) -> None:
    """Apply the state changes of an answer to a state."""
    values = msgspec.msgpack.decode(changes, type=dict[str, msgspec.Raw])
    for field in msgspec.structs.fields(state):
        if field.name in values:
            value = msgspec.msgpack.decode(values[field.name], type=field.type)
            setattr(state, field.name, getattr(state, field.name) | value if isinstance(value, dict) else value)


class ProtocolClient(ABC, Generic[State]):
    """The client's side: a set-up, then the same routine for every chunk; any other request aborts it for good."""

    def __init__(self, state: State, journal: Journal | None = None) -> None:
        self.state = state
        self._journal: Journal = MemoryJournal() if journal is None else journal

    @property
    @abstractmethod
    def setup(self) -> Sequence[On[Any]]:
        """Return the requests answered once a round, in order."""

    @property
    @abstractmethod
    def routine(self) -> Sequence[On[Any]]:
        """Return the requests answered for every chunk, in order; each has a field `chunk`."""

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Return the number of chunks of the round."""

    def handle(self, request: Message) -> Message:
        """Answer a request in its turn, and a repeated one with the same bytes; anything else aborts this client."""
        answered = False
        try:
            if self.state.aborted:
                raise Aborted("this client has left the round")
            for changes in self._journal.since(self.state.answered):  # answers that this copy does not know of
                _change(self.state, changes)
            reply = self._answer(request)
            answered = True
            return reply
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """Leave the round, whether it ended well or not: erase its secrets, answer nothing any more."""
        self._journal.close()
        self.state = type(self.state)(answered=self.state.answered, aborted=True)

    def _answer(self, request: Message) -> Message:
        lane, place = self._locate(request)
        entry = self._entries(lane)[place]
        fresh: list[Message] = []

        def respond() -> tuple[bytes, bytes]:
            check_turn(self._entries(lane), self.state.passed.get(lane, 0), place)
            check_setup_complete(lane, self.state.passed.get(SETUP, 0), len(self.setup))
            before = _contents(self.state if self.state.answered else type(self.state)())
            fresh.append(entry.respond(request))
            self.state.passed[lane] = place + 1
            self.state.answered += 1
            return _changes(before, self.state), ENCODER.encode(fresh[0])

        digest = hashlib.sha256(ENCODER.encode(request)).digest()
        reply = self._journal.claim(f"{lane}/{type(request).__name__}", digest, respond)
        return fresh[0] if fresh else msgspec.msgpack.decode(reply, type=reply_to(request))

    def _locate(self, request: Message) -> tuple[int, int]:
        """Return the lane and the place in its routine where a request belongs."""
        kinds = [entry.request for entry in self.setup]
        if type(request) in kinds:
            return SETUP, kinds.index(type(request))
        kinds = [entry.request for entry in self.routine]
        chunk = getattr(request, "chunk", SETUP)
        if type(request) not in kinds or not 0 <= chunk < self.chunks:
            raise UnexpectedRequest(f"{type(request).__name__} has no place in this round")
        return chunk, kinds.index(type(request))

    def _entries(self, lane: int) -> Sequence[On[Any]]:
        return self.setup if lane == SETUP else self.routine


def check_turn(entries: Sequence[On[Any]], passed: int, place: int) -> None:
    """A request comes in its turn: not again, and not before another that cannot be left out."""
    if place < passed or not all(entry.optional for entry in entries[passed:place]):
        raise UnexpectedRequest(f"{entries[place].request.__name__} is out of turn")


def check_setup_complete(lane: int, passed: int, needed: int) -> None:
    """No chunk begins before the set-up is complete."""
    if lane != SETUP and passed < needed:
        raise UnexpectedRequest("the set-up is not complete")
