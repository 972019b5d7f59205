"""What a server must not lose in mid-round: the round that is open, who answered what, and each sum that was closed.

One SQLite file in the directory of the run, in WAL mode, synced at every commit.  A stage is committed before the
request that follows from it leaves.  So a server that is killed anywhere makes the same requests again, and clients,
whose answers are in their journals, give the same answers: the round goes on with the same sum.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dordis.errors import InputError, ProtocolError
from dordis.federation.durable import PRIVATE
from dordis.protocol import ENCODER, Requests
from dordis.rounds.server import InterruptedRound

FILE = "server.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS opened (only INTEGER PRIMARY KEY CHECK (only = 0), round BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS answered (
    stage TEXT, chunk INTEGER, replies BLOB NOT NULL, total BLOB, PRIMARY KEY (stage, chunk)
);
CREATE TABLE IF NOT EXISTS disclosed (stage TEXT, chunk INTEGER, digest BLOB NOT NULL, PRIMARY KEY (stage, chunk));
"""

Stage = tuple[str, int]
"""The name of a request, and the chunk."""


class Closed(msgspec.Struct, frozen=True):
    """A stage that is over: the frames of all that answered; of an upload also the sum, packed, and its form."""

    replies: dict[int, bytes]
    total: bytes = b""


class ServerState:
    """The round that is under way, on the disk."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            os.close(
                os.open(path / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            )  # SQLite's other files get the same mode
            self._database = sqlite3.connect(path / FILE, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA secure_delete = ON")
            self._database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"cannot use {path / FILE}: {error}") from None

    def begin(self, opened: InterruptedRound) -> None:
        """Open a round, in the place of the one before."""
        with self._transaction() as database:
            _empty(database)
            database.execute("INSERT INTO opened VALUES (0, ?)", (ENCODER.encode(opened),))

    def interrupted(self) -> InterruptedRound | None:
        """Return the round that was opened last."""
        row = self._row("SELECT round FROM opened", ())
        return None if row is None else msgspec.msgpack.decode(row[0], type=InterruptedRound)

    def close_stage(self, stage: Stage, closed: Closed) -> None:
        """Keep what a stage came to, durably when this returns."""
        with self._transaction() as database:
            replies = ENCODER.encode(closed.replies)
            database.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?)", (*stage, replies, closed.total))

    def closed(self, stage: Stage) -> Closed | None:
        """Return what a stage came to, if it is over."""
        row = self._row("SELECT replies, total FROM answered WHERE stage = ? AND chunk = ?", stage)
        return None if row is None else Closed(msgspec.msgpack.decode(row[0], type=dict[int, bytes]), row[1])

    def has_begun(self, chunk: int) -> bool:
        """Tell whether a stage of a chunk is over."""
        return self._row("SELECT stage FROM answered WHERE chunk = ?", (chunk,)) is not None

    def disclose(self, stage: Stage, requests: Requests) -> None:
        """Take note of requests that open a sum before they leave; others for the same chunk never do."""
        digest = digest_of(requests)
        row = self._row("SELECT digest FROM disclosed WHERE stage = ? AND chunk = ?", stage)
        if row is not None:
            check_same_disclosure(row[0], digest)
            return
        with self._transaction() as database:
            database.execute("INSERT INTO disclosed VALUES (?, ?, ?)", (*stage, digest))

    def empty(self) -> None:
        """Erase the stored round: the run is over and will not be resumed."""
        with self._transaction() as database:
            _empty(database)
        with self._lock:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def end(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _row(self, query: str, values: tuple[object, ...]) -> tuple[bytes, ...] | None:
        with self._lock:
            row: tuple[bytes, ...] | None = self._database.execute(query, values).fetchone()
            return row

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._commit()

    def _commit(self) -> None:
        """Make a transaction durable."""
        self._database.execute("COMMIT")


def _empty(database: sqlite3.Connection) -> None:
    for table in ("opened", "answered", "disclosed"):
        database.execute(f"DELETE FROM {table}")  # noqa: S608  a name of the schema


def digest_of(requests: Requests) -> bytes:
    """Return the hash of what is asked of every client."""
    encoded: dict[int, bytes] = {}
    parts: Mapping[int, bytes] = {
        int(u): encoded.setdefault(id(request), ENCODER.encode(request)) for u, request in sorted(requests.items())
    }
    return hashlib.sha256(ENCODER.encode(parts)).digest()


def check_same_disclosure(asked: bytes, digest: bytes) -> None:
    """A sum is opened for one set of survivors: two would tell what one client added."""
    if asked != digest:
        raise ProtocolError("this chunk was opened with other requests before: the round does not go on")
