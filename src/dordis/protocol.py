"""The core of every protocol, free of I/O: messages, server workflows, client routines, and a client's journal.

A protocol is two state machines.  The server is a sequence of steps, each a generator that yields requests and is sent
the replies, or a computation.  The client is a table of the requests that it answers, in order.  Neither machine waits,
reads a clock or uses a network: the drivers in `dordis.pipeline.executor` do.
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
"""The registered id of a client or of a helper.  A client and a helper with the same id differ in their `Role`."""


class Role(Enum):
    """The role of a party; a client and a helper may have the same id."""

    CLIENT = "client"
    """A party that has data and contributes to sums."""
    HELPER = "helper"
    """A party without data that helps the server to unmask the sum; only some protocols have helpers."""


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message on the wire: a frozen value of numbers, strings, bytes, maps and nested structs.

    Maps are sorted by key, so that a message has only one encoding.
    """

    reply: ClassVar["type[Message] | None"] = None
    """If this message is a request, the type of its reply; None if this message is itself a reply."""
    role: ClassVar[Role] = Role.CLIENT
    """If this message is a request, the role of the parties that answer it."""
    ahead: ClassVar[bool] = False
    """Whether this request only lets a client compute early what a later request needs; a round works without it."""
    uploads: ClassVar[bool] = False
    """Whether the reply holds data of the client; if so, a participation is counted before the reply is sent."""
    discloses: ClassVar[bool] = False
    """Whether the replies let the server unmask a sum; if so, the ledger is charged before the request is sent."""
    bulk: ClassVar[str] = ""
    """Name of the large field, such as a vector or a model, that is sent beside the encoded message; empty if none."""

    longest: ClassVar[int | None] = None
    """Largest encoded size of this message in bytes, without its bulk; None if it depends on the round."""

    def __post_init__(self) -> None:
        """Raise ValueError if a map is not sorted by key, in a new or in a decoded message."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, dict) and list(value) != sorted(value):
                raise ValueError(f"the map {name} is not sorted by its keys")


class Garbled(Message, frozen=True):
    """Replaces a reply that cannot be decoded; the server counts the sender as a liar, a party that deviates."""


ENCODER = msgspec.msgpack.Encoder()


def reply_to(request: Message) -> type[Message]:
    """Return the type of the reply to a request."""
    if request.reply is None:
        raise UnexpectedRequest(f"{type(request).__name__} is no request")
    return request.reply


def requests_in(namespace: Mapping[str, Any]) -> "tuple[type[Message], ...]":
    """Return the request classes that a module defines, in the order of definition; `namespace` is `vars(module)`."""
    kinds = (kind for kind in namespace.values() if isinstance(kind, type) and issubclass(kind, Message))
    return tuple(kind for kind in kinds if kind.reply is not None)


Requests = Mapping[ClientId, Message]
"""Requests that are sent together, by the id of the receiver.  All receivers are clients, or all are helpers."""
Replies = Iterable[tuple[ClientId, Message]]
"""An iterator of replies with their senders, so that a server can add up vectors without holding them all."""
Flow = Generator[Requests, Replies, None]
"""A generator of requests; after each yield it is sent the replies."""
Admit = Callable[[ClientId, Message], None]
"""Checks a client's reply to an `OpenCall` and raises to refuse it; once it returns, the reply may be acknowledged."""


class OpenCall(Mapping[ClientId, Message]):
    """A request without addressees: any arriving client may answer it, until it has `most` replies or is closed.

    The step that yields the call gives it `admit`, a check of replies; the `RoundEngine` extends `admit`, so that it
    also counts participations and stores the reply on disk.  Once `admit` has returned, the exchange acknowledges the
    reply and passes it to the step.  `arrived` are the clients whose replies are stored already.  `visit` returns, for
    an arriving client, the server's state machine for the steps before the call, such as invitation and training; only
    clients in its output may answer the call.  An exchange with a clock calls `close` at the deadline; after that no
    reply is admitted, not even by a restarted server.
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
        """Returns the stored reply of a client; the `RoundEngine`, which stores replies, sets this function."""

    def _forgotten(self, client: ClientId) -> Message:
        raise UnexpectedRequest(f"nobody stored the reply of client {client}: run the call over a RoundEngine")

    @property
    def is_full(self) -> bool:
        """Tell whether `most` replies have arrived, so that no more are admitted."""
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
    """The resource that a step keeps busy.

    Upload and delivery are separate resources (one in the paper), because links carry both directions at once: the sum
    of one chunk is delivered while the next chunk is uploaded.
    """

    CLIENT = "c-comp"
    NETWORK = "comm"
    SERVER = "s-comp"
    DOWNLINK = "comm-down"


@dataclass(frozen=True)
class Step:
    """A step of a server, and the resource it keeps busy.

    `run` returns a generator of requests, or computes the step and returns None.
    """

    run: Callable[[], Flow | None]
    resource: Resource


class ProtocolServer(ABC, Generic[Output]):
    """The server of a protocol: steps in order, then an output."""

    @property
    @abstractmethod
    def workflow(self) -> Sequence[Step]:
        """Return the steps in the order in which they run."""

    @abstractmethod
    def output(self) -> Output:
        """Return the result of the round, after every step has run."""


@dataclass(frozen=True)
class On(Generic[Request]):
    """A type of request and the client's function that answers it; if it is `optional`, the server may skip it."""

    request: type[Request]
    respond: Callable[[Request], Message]
    optional: bool = False


class Party(Protocol):
    """A party that answers requests: a client, a helper, or an attacker in tests."""

    def handle(self, request: Message) -> Message:
        """Return the reply to a request; raise if the request is refused."""


class Journal(Protocol):
    """Stores a client's answers before they are sent, on disk in deployments, and restores the client after a restart.

    A key names a request.  For a new key `claim` calls `respond`, which returns state changes and a reply, and stores
    both with the request's digest.  For a known key it returns the stored reply if the digest is the same, and raises
    `UnexpectedRequest` if it differs.  `close` erases the stored content; after `close` every claim raises `Aborted`.
    """

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the reply stored under the key; if none is stored, store and return what `respond` computes."""

    def since(self, claims: int) -> Sequence[bytes]:
        """Return, in order, the state changes stored with the replies, except those with the first `claims` replies."""

    def note(self, event: msgspec.Struct) -> None:
        """Store an event that a restored client needs, such as a received model or a computed update."""

    def events(self, kind: Any) -> Sequence[Any]:
        """Return the stored events in order; `kind` is their struct type, or a union of struct types."""

    def release(self) -> None:
        """Close the journal and keep its content, so that another process can resume the round."""

    def close(self) -> None:
        """Refuse all later requests and forget the stored state."""


def check_same_request(key: str, claimed: bytes, digest: bytes) -> None:
    """Raise UnexpectedRequest unless `digest` is `claimed`, the digest of the request that was answered under `key`."""
    if claimed != digest:
        raise UnexpectedRequest(f"another request was answered at {key} before")


class MemoryJournal(Journal):
    """A journal that lasts as long as the process: for simulations and tests."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[bytes, bytes, bytes]] = {}
        self._closed = False

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        if self._closed:
            raise Aborted("this client has left the round")
        if key not in self._claims:
            self._claims[key] = (digest, *respond())
        claimed, _, reply = self._claims[key]
        check_same_request(key, claimed, digest)
        return reply

    def since(self, claims: int) -> Sequence[bytes]:
        return [changes for _, changes, _ in islice(self._claims.values(), claims, None)]

    def note(self, event: msgspec.Struct) -> None:
        """Store nothing: no client is restored from the memory of an ended process."""

    def events(self, kind: Any) -> Sequence[Any]:
        return ()

    def release(self) -> None:
        """Do nothing: no other process can read this memory."""

    def close(self) -> None:
        self._closed = True
        self._claims.clear()


SETUP = -1
"""The lane of the set-up; a lane is a sequence of requests that are answered in order.  Chunk k has lane k >= 0."""


class ClientState(msgspec.Struct):
    """The state of a client between requests: plain data that can be stored, sent and restored.

    `passed` maps each lane, the set-up or a chunk, to the number of its requests that were answered or skipped.  To
    answer a request, a client may set fields and map entries to new values; it never changes a value in place and never
    removes a map entry.  A journal stores only the fields and entries with new values.
    """

    answered: int = 0
    passed: dict[int, int] = msgspec.field(default_factory=dict)
    aborted: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} after {self.answered} answers>"


State = TypeVar("State", bound=ClientState)


def _contents(state: ClientState) -> dict[str, Any]:
    """Return a copy of the state's fields."""
    fields = ((name, getattr(state, name)) for name in state.__struct_fields__)
    return {name: dict(value) if isinstance(value, dict) else value for name, value in fields}


def _changes(before: Mapping[str, Any], state: ClientState) -> bytes:
    """Return the fields and the map entries in which `state` differs from `before`, encoded."""
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
    """Apply stored state changes to a state."""
    values = msgspec.msgpack.decode(changes, type=dict[str, msgspec.Raw])
    for field in msgspec.structs.fields(state):
        if field.name in values:
            value = msgspec.msgpack.decode(values[field.name], type=field.type)
            setattr(state, field.name, getattr(state, field.name) | value if isinstance(value, dict) else value)


class ProtocolClient(ABC, Generic[State]):
    """The client of a protocol: it answers the requests in `setup` once a round, those in `routine` once a chunk."""

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
        """Return a new reply if the request is next in order, or the stored reply if the request is repeated.

        Any other request raises, and makes this client leave the round.
        """
        try:
            if self.state.aborted:
                raise Aborted("this client has left the round")
            for changes in self._journal.since(self.state.answered):  # answers given before a restart
                _change(self.state, changes)
            return self._answer(request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the round, finished or not: erase this client's secrets and refuse all later requests."""
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
        """Return a request's lane (`SETUP` or its chunk) and index there; raise UnexpectedRequest if it has no lane."""
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
    """Raise UnexpectedRequest unless the request `entries[place]` is next after the first `passed` ones.

    Optional requests in between may be missing.
    """
    if place < passed or not all(entry.optional for entry in entries[passed:place]):
        raise UnexpectedRequest(f"{entries[place].request.__name__} is out of turn")


def check_setup_complete(lane: int, passed: int, needed: int) -> None:
    """Raise UnexpectedRequest for a chunk's `lane` if fewer of the set-up's requests are `passed` than are `needed`."""
    if lane != SETUP and passed < needed:
        raise UnexpectedRequest("the set-up is not complete")
