"""Rounds that survive a restart of the server: completed stages are stored and not requested again.

The open round is stored in one SQLite file in the directory of the run, in WAL mode, synced at every commit.  The
replies of a stage are committed before the requests that depend on them are sent.  So a server that was killed at any
time and restarted sends the same requests again.  Clients repeat the replies in their journals, and the round ends with
the sum that it would have had without the restart.  Only a round whose parameters are fixed is open: invitation and
training are not stored.
"""

import contextlib
import errno
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.durable_files import PRIVATE
from dordis.errors import InputError, ProtocolError
from dordis.kernels.ring import pack, packed_size
from dordis.network.exchange import NetworkExchange
from dordis.protocol import ENCODER, SETUP, ClientId, Garbled, Message, Replies, Requests, reply_to
from dordis.protocols.parameters import Parameters
from dordis.rounds import invitation
from dordis.rounds.engine import InterruptedRound, RoundServer

FILE = "server.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS opened (only INTEGER PRIMARY KEY CHECK (only = 0), round BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS answered (
    stage TEXT, chunk INTEGER, replies BLOB NOT NULL, total BLOB, PRIMARY KEY (stage, chunk)
);
CREATE TABLE IF NOT EXISTS invited (only INTEGER PRIMARY KEY CHECK (only = 0), round_index INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS disclosed (stage TEXT, chunk INTEGER, digest BLOB NOT NULL, PRIMARY KEY (stage, chunk));
"""

_DISK_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_IOERR: errno.EIO,  # also where a file would exceed the largest size that the system allows
}
"""By primary result code of SQLite: the error number of the operating system for the same problem."""
_GATHERING = {name for name in vars(invitation) if isinstance(vars(invitation)[name], type)}
_GARBLED = wire.encode(Garbled())

Stage = tuple[str, int]
"""Type name of a request, and its chunk, or SETUP if the request is about no single chunk."""


class CompletedStage(msgspec.Struct, frozen=True):
    """The encoded replies of a completed stage by client, without vectors; `total` is the encoded sum of vectors."""

    replies: dict[int, bytes]
    total: bytes = b""


class RoundStore:
    """The server's state of the open round, stored so that a restarted server can resume it.

    `parameters` is the class of the protocol's parameters, by which stored parameters are decoded.
    """

    def __init__(self, path: Path, parameters: type[Parameters]) -> None:
        self._lock, self._parameters, self._path = threading.Lock(), parameters, path / FILE
        self.directory = path
        try:
            os.close(
                os.open(path / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            )  # SQLite creates its other files with the same mode
            self._database = sqlite3.connect(path / FILE, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA secure_delete = ON")
            self._database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"cannot open {path / FILE}: {error}") from None

    def record_index(self, index: int) -> None:
        """Store the index of a round before its invitations are sent, because clients never accept an index twice."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO invited VALUES (0, ?)", (max(index, self._last_index()),))

    def last_index(self) -> int:
        """Return the highest round index that clients were invited to; -1 if there is none."""
        with self._lock:
            return self._last_index()

    def _last_index(self) -> int:
        row = self._database.execute("SELECT round_index FROM invited").fetchone()
        return -1 if row is None else int(row[0])

    def begin_round(self, opened: InterruptedRound[Any]) -> None:
        """Store `opened` as the open round, and delete the previous one."""
        with self._transaction() as database:
            _delete_all(database)
            database.execute("INSERT INTO opened VALUES (0, ?)", (ENCODER.encode(opened),))

    def interrupted(self) -> InterruptedRound[Any] | None:
        """Return the stored open round; None if there is none."""
        row = self._row("SELECT round FROM opened", ())
        if row is None:
            return None
        return msgspec.msgpack.decode(row[0], type=InterruptedRound[self._parameters])  # type: ignore[name-defined]

    def complete_stage(self, stage: Stage, completed: CompletedStage) -> None:
        """Store the replies of a stage; they are on disk when this returns."""
        with self._transaction() as database:
            replies = ENCODER.encode(completed.replies)
            database.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", (*stage, replies, completed.total))

    def completed_stage(self, stage: Stage) -> CompletedStage | None:
        """Return the stored replies of a stage; None if it is not complete."""
        row = self._row("SELECT replies, total FROM answered WHERE stage = ? AND chunk = ?", stage)
        return None if row is None else CompletedStage(msgspec.msgpack.decode(row[0], type=dict[int, bytes]), row[1])

    def has_completed_stage(self, chunk: int) -> bool:
        """Tell whether any stage of a chunk is complete."""
        return self._row("SELECT stage FROM answered WHERE chunk = ?", (chunk,)) is not None

    def record_disclosure(self, stage: Stage, requests: Requests) -> None:
        """Store the digest of the requests for a disclosure, before they are sent.

        Raise ProtocolError if the digest of other requests is stored for this stage.
        """
        digest = digest_requests(requests)
        row = self._row("SELECT digest FROM disclosed WHERE stage = ? AND chunk = ?", stage)
        if row is not None:
            check_same_disclosure(row[0], digest)
            return
        with self._transaction() as database:
            database.execute("INSERT INTO disclosed VALUES (?, ?, ?)", (*stage, digest))

    def erase(self) -> None:
        """Erase the stored round, when the run is over and will not be resumed."""
        with self._transaction() as database:
            _delete_all(database)
        with self._lock:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _row(self, query: str, values: tuple[object, ...]) -> tuple[bytes, ...] | None:
        with self._lock:
            row: tuple[bytes, ...] | None = self._database.execute(query, values).fetchone()
            return row

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit the statements of the block; if it raises, roll them back.

        Raise OSError if the disk is full, read-only or fails, InputError if SQLite fails for another reason.
        """
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._commit()
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back a failed commit itself
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise self._describe(error) from None
                raise

    def _describe(self, error: sqlite3.OperationalError) -> OSError | InputError:
        """Return an OSError if the disk caused an error of SQLite, otherwise an InputError."""
        number = _DISK_ERRORS.get(error.sqlite_errorcode & 0xFF)  # the low byte is the primary code
        if number is None:
            return InputError(f"cannot write {self._path}: {error}; remove the cause, then resume the run")
        return OSError(number, str(error), str(self._path))

    def _commit(self) -> None:
        """End the open transaction; its changes are on disk afterwards."""
        self._database.execute("COMMIT")


def _delete_all(database: sqlite3.Connection) -> None:
    for table in ("opened", "answered", "disclosed"):
        database.execute(f"DELETE FROM {table}")  # noqa: S608  a table of the schema


def digest_requests(requests: Requests) -> bytes:
    """Return the hash of the requests to all clients, including large (bulk) fields such as vectors."""
    encoded: dict[int, bytes] = {}
    parts: Mapping[int, bytes] = {
        int(u): encoded.setdefault(id(request), ENCODER.encode(request)) for u, request in sorted(requests.items())
    }
    return hashlib.sha256(ENCODER.encode(parts)).digest()


def check_same_disclosure(stored: bytes, digest: bytes) -> None:
    """Raise ProtocolError if `digest`, that of new requests for a disclosure, differs from the stored digest.

    Other requests could disclose the chunk's sum over other survivors, and the difference of the two sums could reveal
    the update of one client.
    """
    if stored != digest:
        raise ProtocolError("this chunk was disclosed by other requests before: the round is not continued")


@dataclass(frozen=True)
class _StoredUpload:
    """An encoded reply without its vector, and the vector's size in bytes; in memory until the stage is stored."""

    frame: bytes
    size: int


@dataclass
class ResumableExchange:
    """An exchange that returns the stored replies of completed stages, and stores a stage before it sends the next."""

    exchange: NetworkExchange
    store: RoundStore
    _machine: RoundServer | None = None
    _bits: int = 0
    _uploads: dict[int, tuple[str, dict[ClientId, _StoredUpload]]] = field(default_factory=dict)
    """For each chunk whose sum is not stored yet: the type name of the upload request, and the replies by client."""

    @property
    def machine(self) -> RoundServer:
        """Return the server's state machine of the open round; raise InputError if no round is open."""
        if self._machine is None:
            raise InputError("no round is open: call begin_round first")
        return self._machine

    def begin_round(self, machine: RoundServer, parameters: Parameters) -> None:
        """Set the server's state machine of a round, from which the sums of chunks are read."""
        self._machine, self._bits = machine, parameters.bits
        self._uploads.clear()

    async def __call__(self, requests: Requests) -> Replies:
        """Return the replies to requests: stored ones if the stage is completed, otherwise those that clients send."""
        request = next(iter(requests.values()), None)
        if request is None or type(request).__name__ in _GATHERING:
            return await self.exchange(requests)
        stage = (type(request).__name__, getattr(request, "chunk", SETUP))
        if request.ahead:  # a request to prepare an upload, not needed once a stage of the chunk is complete
            return () if self.store.has_completed_stage(stage[1]) else await self.exchange(requests)
        self._store_sum(stage[1])
        completed = self.store.completed_stage(stage)
        if completed is not None:
            self.exchange.prepare(request)
            return self._replay(request, completed)
        if request.discloses:
            self.store.record_disclosure(stage, requests)
        return self._store_replies(stage, request, await self.exchange(requests))

    def _store_replies(self, stage: Stage, request: Message, replies: Replies) -> Iterator[tuple[ClientId, Message]]:
        """Yield replies, and then store them; of uploads, store the sum of the vectors later (`_store_sum`)."""
        taken: dict[ClientId, _StoredUpload] = {}
        for u, reply in replies:
            taken[u] = _StoredUpload(wire.encode(reply), len(wire.bulk_of(reply)))
            yield u, reply
        if request.uploads:
            self._uploads[stage[1]] = stage[0], taken
        else:
            frames = {int(u): reply.frame for u, reply in sorted(taken.items())}
            self.store.complete_stage(stage, CompletedStage(frames))

    def _store_sum(self, chunk: int) -> None:
        """If the uploads of a chunk are complete and not stored, store their sum and the survivors' encoded replies.

        For a client that was blamed for a malformed upload, store the mark of a malformed reply (`Garbled`).
        """
        if chunk not in self._uploads:
            return
        name, uploads = self._uploads.pop(chunk)
        output, bits = self.machine.chunks[chunk].summing.output(), self._bits
        total = output.total & np.uint32(2**bits - 1)
        sizes = {uploads[u].size for u in output.survivors}
        packed = sizes == {packed_size(total.size, bits)}
        data = pack(total, bits).tobytes() if packed else total.astype("<u4").tobytes()
        frames = {int(u): uploads[u].frame for u in output.survivors}
        frames |= {int(u): _GARBLED for u in uploads if u in output.named and u not in output.survivors}
        self.store.complete_stage((name, chunk), CompletedStage(frames, data))

    def _replay(self, request: Message, completed: CompletedStage) -> Iterator[tuple[ClientId, Message]]:
        """Yield stored replies.

        The first reply of a stage of uploads gets the sum of all vectors as its vector, the others get zeros: their sum
        is right.  A malformed reply is yielded as `Garbled` again, so that its sender is blamed again.
        """
        zero = bytes(len(completed.total))
        for place, (u, frame) in enumerate(completed.replies.items()):
            if is_garbled(frame):
                yield ClientId(u), Garbled()
            else:
                bulk = completed.total if place == 0 else zero
                yield ClientId(u), wire.decode(frame, reply_to(request), bulk=bulk)


def is_garbled(frame: bytes) -> bool:
    """Tell whether a stored frame marks a malformed reply."""
    return frame == _GARBLED
