"""Contributions to assisted rounds: the server stores and counts each contribution before acknowledging it.

A *contribution* is the one message in which an arriving client sends its input to the sum.  A server that restarts
during a round continues with the stored contributions and admits more.
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
from dordis.pipeline.executor import AsyncExchange
from dordis.protocol import ENCODER, ClientId, Message, OpenCall, Replies, reply_to
from dordis.protocols.parameters import pack_words, unpack_words
from dordis.rounds.invitation import InvitationServer
from dordis.rounds.privacy_gate import PrivacyGate

Stored = TypeVar("Stored", bound=msgspec.Struct)
_LENGTH = 8

COMPLAINTS = "complaints.json"
"""Name of the file, in the folder of the contributions, with the complaints of helpers about clients in a run."""


class Arrival(msgspec.Struct, frozen=True):
    """One contribution as it arrived: the client, the large field of the message (`bulk`), and all else (`frame`)."""

    client: ClientId
    frame: bytes
    bulk: bytes


class ArrivalStore:
    """Stores the contributions to one round at a time in the file at `path`; without a path, in a temporary file.

    The records of the file are, in order: the round (`InterruptedRound`); one record for each contribution; an empty
    record once the round is closed; U3, the clients in the sum.  Every record is preceded by its length.  With a path,
    a record is on disk when the method that stores it returns.  A last record that a crash cut short is dropped: its
    contribution was never acknowledged.  A second file has the complaints of helpers about clients, which are kept from
    round to round.
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
        """Use the file at this path, and read the contributions in it."""
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
        """Yield the stored contributions, reading one at a time from the file."""
        records = takewhile(bool, (record for place, record in self._read() if place))
        return (msgspec.msgpack.decode(record, type=Arrival) for record in records)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Return the clients with stored contributions, in the order of their arrival."""
        return tuple(self._places)

    def read(self, client: ClientId) -> Arrival:
        """Return the stored contribution of a client."""
        with self._opened() as file:
            file.seek(self._places[client])
            record = file.read(int.from_bytes(file.read(_LENGTH), "big"))
        return msgspec.msgpack.decode(record, type=Arrival)

    def round(self, kind: type[Stored]) -> Stored | None:
        """Return the stored round, decoded as `kind`; None if none was begun."""
        return msgspec.msgpack.decode(self._begun, type=kind) if self._begun else None

    def begin(self, round: msgspec.Struct) -> None:
        """Store a round and drop the contributions to the previous one; do nothing if `round` is stored already."""
        begun = ENCODER.encode(round)
        if self._begun != begun:
            self._write(begun, begin=True)
            self._begun, self.is_closed, self._survivors, self._places = begun, False, b"", {}

    def add(self, arrival: Arrival) -> None:
        """Store a contribution; with a path, it is on disk when this returns."""
        self._places[arrival.client] = self._write(ENCODER.encode(arrival))

    def close(self) -> None:
        """Store that the round accepts no more contributions."""
        if not self.is_closed:
            self._write(b"")
            self.is_closed = True

    def fix_survivors(self, survivors: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Return the stored U3, the clients in the sum; if none is stored, return `survivors`.

        `survivors` are then stored, but only if the round is closed.  Honest helpers sign only one U3 for a round, so a
        restarted server must ask for the same U3 again.
        """
        if not self._survivors and self.is_closed:
            words = pack_words(survivors)
            self._write(words)
            self._survivors = words
        return tuple(map(ClientId, unpack_words(self._survivors))) if self._survivors else survivors

    def erase(self) -> None:
        """Remove the file of contributions, when the run is over and will not be resumed."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def standing(self, kind: type[Stored]) -> Stored | None:
        """Return the stored complaints of helpers about clients in this run as a `kind`; None if none are stored."""
        return decode_standing(self._standing, kind, self._path) if self._standing else None

    def keep_standing(self, standing: msgspec.Struct) -> None:
        """Store the complaints of helpers about clients; with a path, they are on disk when this returns."""
        encoded = msgspec.json.encode(standing, order="deterministic")
        if self._path is not None and encoded != self._standing:
            write_atomically(self._path.with_name(COMPLAINTS), encoded)
        self._standing = encoded

    def _opened(self) -> AbstractContextManager[IO[bytes]]:
        """Open the file at the path for reading, or, without a path, the temporary file for reading and writing."""
        if self._path is not None:
            return self._path.open("rb")
        if self._unnamed is None:
            self._unnamed = tempfile.TemporaryFile()  # noqa: SIM115  it lasts as long as the store
            weakref.finalize(self, self._unnamed.close)
        return nullcontext(self._unnamed)

    def _read(self) -> Iterator[tuple[int, bytes]]:
        """Yield every record with its offset in the file; cut off a last record that is incomplete."""
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
        """Append a record and return its offset; if `begin`, the record replaces the content of the file."""
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
    """Return the complaints of a run, decoded as `kind`; raise InputError if the bytes are malformed.

    `path` is a file in the same folder as the complaints, and is used for the error message only.
    """
    try:
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = COMPLAINTS if path is None else path.with_name(COMPLAINTS)
        raise InputError(f"{where} is not what dordis wrote: {error}; restore it from a backup") from None


@dataclass(frozen=True)
class Arrivals:
    """Answers an open call, a request that any client may answer: first with stored contributions, then new ones."""

    store: ArrivalStore
    gate: PrivacyGate
    visit: Callable[[ClientId], InvitationServer]
    """Returns the state machine that invites an arriving client, sends it the model and lets it train."""
    close_at: int | None = None
    """Number of contributions at which the call is closed; None for the largest number that the round allows."""

    async def take(self, call: OpenCall, exchange: AsyncExchange) -> Replies:
        """Return the stored contributions, then new ones until the call has enough or the exchange has no more."""
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
            # The reply is stored before the client is counted.  If the server stops in between, it counts the client
            # when it restarts.  In the opposite order a counted client's contribution could be lost.
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
    """Raise UnexpectedRequest for a contribution that comes after the round was closed."""
    if is_closed:
        raise UnexpectedRequest(f"the contribution of client {client} came after the round was closed")


def check_admissible(client: ClientId, arrived: Collection[ClientId], most: int) -> None:
    """Raise UnexpectedRequest if the client contributed before, or if the round has `most` contributions already."""
    if client in arrived or len(arrived) >= most:
        raise UnexpectedRequest(f"client {client} contributed before, or the round has all its {most} contributions")
