"""Contributions of clients that come by themselves: counted and durable before they are acknowledged.

A server that restarts in mid-round takes up the contributions that are stored, and goes on admitting others.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from dordis import wire
from dordis.durable_files import PRIVATE, AppendOnlyFile, write_atomically
from dordis.errors import InputError, UnexpectedRequest
from dordis.protocol import ENCODER, ClientId, Message, OpenCall, Replies, reply_to
from dordis.protocol_driver import AsyncExchange
from dordis.protocols.parameters import pack_words, unpack_words
from dordis.rounds.gate import PrivacyGate
from dordis.rounds.invitation import InvitationServer

Stored = TypeVar("Stored", bound=msgspec.Struct)
_LENGTH = 8

COMPLAINTS = "complaints.json"
"""File, beside the contributions, of what the server remembers of the parties of a run: `SummingSetup.standing`."""


class Arrival(msgspec.Struct, frozen=True):
    """One contribution, as it was on the wire."""

    client: ClientId
    frame: bytes
    bulk: bytes


class ArrivalStore:
    """Keeps the contributions to one round at a time in a file; without a `path` it keeps them until it is gone.

    The file has the round, then each contribution, then an empty record once the round takes no more, then U3.  Every
    record follows its length, and is synced before `add` returns.  A record that a crash cut short was never
    acknowledged: it is dropped.  Beside the file is another one, of what the server remembers from round to round.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._begun, self.is_closed, self._survivors = b"", False, b""
        self._places: dict[ClientId, int] = {}
        self._unnamed: IO[bytes] | None = None
        self._standing = b""
        if path is not None:
            self.open(path)

    def open(self, path: Path) -> None:
        """Store contributions in a file, and read those that it has."""
        self._path = path
        self._begun, self.is_closed, self._survivors, self._places = b"", False, b"", {}
        complaints = path.with_name(COMPLAINTS)
        self._standing = complaints.read_bytes() if complaints.exists() else b""
        for place, record in self._read():
            if not place:
                self._begun = record
            elif self.is_closed:
                self._survivors = record
            elif record:
                self._places[msgspec.msgpack.decode(record, type=Arrival).client] = place
            else:
                self.is_closed = True

    @property
    def arrivals(self) -> Iterator[Arrival]:
        """Return the contributions that are in the file of the round, read one by one."""
        records = takewhile(bool, (record for place, record in self._read() if place))
        return (msgspec.msgpack.decode(record, type=Arrival) for record in records)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Return the clients whose contributions are stored, in the order in which they came."""
        return tuple(self._places)

    def read(self, client: ClientId) -> Arrival:
        """Return the contribution of a client once more."""
        with self._opened() as file:
            file.seek(self._places[client])
            record = file.read(int.from_bytes(file.read(_LENGTH), "big"))
        return msgspec.msgpack.decode(record, type=Arrival)

    def round(self, kind: type[Stored]) -> Stored | None:
        """Return the round that was begun last."""
        return msgspec.msgpack.decode(self._begun, type=kind) if self._begun else None

    def begin(self, round: msgspec.Struct) -> None:
        """Begin a round, in the place of the one before; a round that was begun already goes on."""
        begun = ENCODER.encode(round)
        if self._begun != begun:
            self._write(begun, begin=True)
            self._begun, self.is_closed, self._survivors, self._places = begun, False, b"", {}

    def add(self, arrival: Arrival) -> None:
        """Store a contribution, durably when this returns."""
        self._places[arrival.client] = self._write(ENCODER.encode(arrival))

    def close(self) -> None:
        """Store that the round takes no more contributions."""
        if not self.is_closed:
            self._write(b"")
            self.is_closed = True

    def fix_survivors(self, survivors: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Return the U3 that was fixed for this round; if there is none, fix these, durably when this returns.

        Helpers agree on one U3 under an index: a server that restarts must not ask them for another one.
        """
        if not self._survivors and self.is_closed:
            words = pack_words(survivors)
            self._write(words)
            self._survivors = words
        return tuple(map(ClientId, unpack_words(self._survivors))) if self._survivors else survivors

    def erase(self) -> None:
        """Remove the file of contributions: the run is over and will not be resumed."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def standing(self, kind: type[Stored]) -> Stored | None:
        """Return the stored state about the parties of the run; None if nothing was stored."""
        return decode_standing(self._standing, kind, self._path) if self._standing else None

    def keep_standing(self, standing: msgspec.Struct) -> None:
        """Store what the server remembers of the parties of the run, durably when this returns."""
        encoded = msgspec.json.encode(standing, order="deterministic")
        if self._path is not None and encoded != self._standing:
            write_atomically(self._path.with_name(COMPLAINTS), encoded)
        self._standing = encoded

    def _opened(self) -> AbstractContextManager[IO[bytes]]:
        """Open what is stored for reading; without a path for writing, too."""
        if self._path is not None:
            return self._path.open("rb")
        if self._unnamed is None:
            self._unnamed = tempfile.TemporaryFile()  # noqa: SIM115  it lasts as long as the store
            weakref.finalize(self, self._unnamed.close)
        return nullcontext(self._unnamed)

    def _read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the place of every record, and the record."""
        if self._path is None or not self._path.exists():
            return
        size, place = self._path.stat().st_size, 0
        with self._opened() as file:
            while place + _LENGTH <= size:
                length = int.from_bytes(file.read(_LENGTH), "big")
                if place + _LENGTH + length > size:
                    break
                yield place, file.read(length)
                place += _LENGTH + length
        if place < size:
            with AppendOnlyFile(self._path).locked() as cut:
                cut.truncate(place)

    def _write(self, record: bytes, *, begin: bool = False) -> int:
        """Append a record, durably if the file has a name, and return its place; the first one replaces all others."""
        framed = len(record).to_bytes(_LENGTH, "big") + record
        if self._path is None:
            with self._opened() as unnamed:
                place = 0 if begin else unnamed.seek(0, os.SEEK_END)
                unnamed.truncate(place)
                unnamed.seek(place)
                unnamed.write(framed)
            return place
        with AppendOnlyFile(self._path, PRIVATE).locked() as file:
            if begin:
                file.truncate(0)
            place = os.fstat(file.descriptor).st_size
            file.append(framed)
        return place


def decode_standing(encoded: bytes, kind: type[Stored], path: Path | None) -> Stored:
    """Decode what a server stored of the parties of a run; `path` is a file of the run, for the error."""
    try:
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = COMPLAINTS if path is None else path.with_name(COMPLAINTS)
        raise InputError(f"{where} is not what dordis wrote: {error}; restore it from a backup") from None


@dataclass(frozen=True)
class Arrivals:
    """Answer the open call of a round: with the stored contributions, then with those of clients that come."""

    store: ArrivalStore
    gate: PrivacyGate
    visit: Callable[[ClientId], InvitationServer]
    """Returns the server of the steps that a client goes through before it contributes."""
    close_at: int | None = None
    """Contributions at which the call is closed, if they are fewer than its most."""

    async def take(self, call: OpenCall, exchange: AsyncExchange) -> Replies:
        """Return the contributions one by one; the call ends when it is full or the exchange has no more."""
        kind, most = reply_to(call.request), min(call.most, self.close_at or call.most)
        arrived, before = dict.fromkeys(self.store.clients), frozenset(self.store.clients)

        def decode(stored: Arrival) -> Message:
            return wire.decode(stored.frame, kind, bulk=stored.bulk)

        stored = ((found.client, decode(found)) for found in self.store.arrivals if found.client in before)
        call.read_again = lambda u: decode(self.store.read(u))
        for u in before:
            self.gate.admit_arrival(u)

        def admit(u: ClientId, reply: Message) -> None:
            check_open(self.store.is_closed, u)
            check_admissible(u, arrived, most)
            call.admit(u, reply)
            # Stored first: a server that stops in between counts what is stored when it restarts, and is not left with
            # a counted client whose contribution is lost and may never come again.
            self.store.add(Arrival(u, wire.encode(reply), bytes(wire.bulk_of(reply))))
            self.gate.admit_arrival(u)
            arrived[u] = None

        opened = OpenCall(call.request, most, admit, arrived, self.visit, self.store.close)
        coming = () if self.store.is_closed or opened.is_full else await exchange(opened)
        return self._until_closed(chain(stored, coming))

    def _until_closed(self, replies: Replies) -> Iterator[tuple[ClientId, Message]]:
        yield from replies
        self.store.close()


def check_open(is_closed: bool, client: ClientId) -> None:
    """Refuse a contribution that comes after the round was closed: U3 is fixed then."""
    if is_closed:
        raise UnexpectedRequest(f"the contribution of client {client} came after the round was closed")


def check_admissible(client: ClientId, arrived: Collection[ClientId], most: int) -> None:
    """Refuse a second contribution of a client, and any after the round has n_max of them."""
    if client in arrived or len(arrived) >= most:
        raise UnexpectedRequest(f"client {client} contributed before, or the round has all its {most} contributions")
