"""A client's journal on disk: every answer is stored before it is sent, encrypted under a key drawn for the round.

Each round has two private files, named by the round id.  `ROUND.journal` is append-only and contains encrypted records,
each with a random nonce.  If the nonces were counters, one nonce could be used twice: for an incomplete record, and
for the record that is written in its place.  `ROUND.key` contains the key of the round.

To leave a round, the client overwrites the key with zeros, which makes the journal unreadable, and removes the journal.
Until the next round begins, the zeros mark the round as left.  When the next round begins, the client removes the key
file, and the file `left` records, for each run, the highest index of a round that the client has left.  In each run the
client never again enters a round with this index or a lower one.

`claim` and `note` return after the record is on disk.  If the process stops while a record is written, the incomplete
record is cut when the journal is opened again; no answer was sent for it.
"""

import fcntl
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from dordis.crypto import cipher
from dordis.durable_files import (
    PRIVATE,
    LockedFile,
    overwrite_with_zeros,
    remove_drafts,
    sync_directory,
    write_atomically,
    write_new,
)
from dordis.errors import Aborted, DecryptionFailed, DordisError, InputError
from dordis.privacy.encoding import Entropy
from dordis.protocol import ENCODER, check_same_request
from dordis.protocols.parameters import RUN_BYTES

LEFT = "left"
"""Name of the file that records, for each run, the highest index of a round that the client has left."""
_SIZE_BYTES = 8
_ZEROS = bytes(cipher.KEY_BYTES)
"""Content of the key file of a round that the client has left."""


class StoredAnswer(msgspec.Struct, frozen=True, tag="Claimed"):
    """A record of one answered request: its key (chunk and type), its digest, the changes of state, and the reply."""

    key: str
    digest: bytes
    changes: bytes
    reply: bytes


class StoredEvent(msgspec.Struct, frozen=True, tag="Noted"):
    """A record of one event of the round, such as a received model or a computed update; the event is encoded."""

    event: bytes


Record = TypeVar("Record", StoredAnswer, StoredEvent)


@dataclass(frozen=True)
class FileJournals:
    """The journals of one client in a directory; calling this object with a round id opens the journal of that round.

    A client is in one round at a time: when it opens the journal of a round, it leaves all other rounds for good.
    """

    directory: Path
    entropy: Entropy = field(default=secrets.token_bytes, repr=False)

    def __call__(self, round: bytes) -> "FileJournal":
        """Open or create the journal of a round; raise Aborted if it or a later round of the run was left."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._rounds():
            if other != round:
                leave_round(*self._files(other))
        path, key = self._files(round)
        for kept in (path, key, self._record):
            remove_drafts(kept)
        left = self._record_left(key)
        if not key.exists():  # no answer was sent, or the round was left: `check_ahead` tells
            check_ahead(round, left)
            path.unlink(missing_ok=True)
            write_new(path, b"")
            write_new(key, self.entropy(cipher.KEY_BYTES))
        check_in_round(path, key)
        return FileJournal(round, path, key, self.entropy)

    def unfinished(self) -> tuple[bytes, ...]:
        """Return the ids of the rounds that were open when the process stopped: their journals can still be read."""
        return tuple(round for round in self._rounds() if self._files(round)[1].read_bytes() != _ZEROS)

    def _rounds(self) -> list[bytes]:
        """Return the ids of the rounds that have a journal file and a key file, in ascending order."""
        rounds = sorted(bytes.fromhex(path.stem) for path in self.directory.glob("*.journal"))
        return [round for round in rounds if self._files(round)[1].exists()]

    @property
    def _record(self) -> Path:
        return self.directory / LEFT

    def _record_left(self, current: Path) -> dict[str, int]:
        """Record all rounds as left except that of the key file `current`, and destroy their keys.

        Return the content of the file `left`: by run id, the highest index of a round that the client has left.
        """
        left = read_last_left(self._record)
        old_keys = [key for key in self.directory.glob("*.key") if key != current]
        for key in old_keys:
            run, index = _split_round_id(bytes.fromhex(key.stem))
            left[run] = max(index, left.get(run, index))
        if old_keys:
            write_atomically(self._record, msgspec.json.encode(left))
        for key in old_keys:
            overwrite_with_zeros(key)  # if the journal was lost, `leave_round` has not destroyed the key
            key.unlink()
        return left

    def _files(self, round: bytes) -> tuple[Path, Path]:
        path = self.directory / f"{round.hex()}.journal"
        return path, path.with_suffix(".key")


def read_last_left(path: Path) -> dict[str, int]:
    """Return, by run id in hex, the highest index of a round that the client has left; read it from the file `path`.

    Raise InputError if the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except msgspec.DecodeError:
        raise InputError(f"{path} is damaged: restore it, or enrol this client under a new identity") from None


def _split_round_id(round: bytes) -> tuple[str, int]:
    return round[:RUN_BYTES].hex(), int.from_bytes(round[RUN_BYTES:], "big")


def check_ahead(round: bytes, left: Mapping[str, int]) -> None:
    """Raise Aborted if this client has left the round or a later round of the same run.

    When a client leaves a round, its journal of the round is destroyed.  Without it the client could answer a request
    again, and differently.
    """
    run, index = _split_round_id(round)
    if index <= left.get(run, -1):
        raise Aborted(
            f"this client has left the round or a later one of its run: index {index} is not above {left[run]}"
        )


def check_in_round(path: Path, key: Path) -> None:
    """Raise Aborted if this client has left the round, or if the journal file of the round is lost.

    `path` is the journal file, and `key` the file with its key.  Without the journal the client could answer a request
    again, and differently.
    """
    if key.read_bytes() == _ZEROS:
        raise Aborted("this client has left the round")
    if not path.exists():
        raise Aborted("the journal of this round is lost: this client leaves the round")


def check_alone(descriptor: int) -> None:
    """Lock an open journal; raise InputError if another process has locked it, which could give other answers."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock ends with the file or the process
    except BlockingIOError:
        raise InputError("another process of this client is in this round: stop it, or use another directory") from None


def leave_round(path: Path, key: Path) -> None:
    """Leave a round for good: destroy its journal and the key; raise InputError if another process has it open."""
    with path.open("rb") as file:
        check_alone(file.fileno())
        _destroy(path, key)


def _destroy(path: Path, key: Path) -> None:
    overwrite_with_zeros(key)
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


class FileJournal:
    """The journal of one round, open in one process."""

    def __init__(self, round: bytes, path: Path, key: Path, entropy: Entropy = secrets.token_bytes) -> None:
        self._round, self._path, self._key_path, self._entropy = round, path, key, entropy
        self._key = key.read_bytes()
        self._places: list[tuple[int, int]] = []
        self._end = 0
        self._claims: dict[str, tuple[bytes, int]] = {}
        self._notes: list[int] = []
        self._file = LockedFile(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
        self._release = weakref.finalize(self, os.close, self._file.descriptor)
        try:
            check_alone(self._file.descriptor)
            self._find_records()
        except DordisError:
            self._release()
            raise

    def __repr__(self) -> str:
        return f"<FileJournal of {len(self._places)} records>"

    def claim(self, key: str, digest: bytes, respond: Callable[[], tuple[bytes, bytes]]) -> bytes:
        """Return the stored reply to a request; if there is none, store and return the reply from `respond`.

        `key` is the chunk and type of the request, `digest` its hash.  `respond` returns the changes of the client's
        state and the reply.  Raise UnexpectedRequest if the stored reply answers a request with another digest, and
        Aborted if the client has left the round.
        """
        self._check_open()
        if key in self._claims:
            claimed, number = self._claims[key]
            check_same_request(key, claimed, digest)
            return self._record(number, StoredAnswer).reply
        changes, reply = respond()
        self._append(StoredAnswer(key, digest, changes, reply))
        return reply

    def since(self, claims: int) -> Sequence[bytes]:
        """Return, in order, the state changes stored with the answered requests, except the first `claims` of them."""
        numbers = [number for _, number in self._claims.values()]
        return [self._record(number, StoredAnswer).changes for number in numbers[claims:]]

    def note(self, event: msgspec.Struct) -> None:
        """Store an event of the round; it is on disk when this method returns."""
        self._check_open()
        self._append(StoredEvent(ENCODER.encode(event)))

    def events(self, kind: Any) -> Sequence[Any]:
        """Return all stored events in order, decoded as structs of the given type or union of types."""
        decoder = msgspec.msgpack.Decoder(kind)
        return [decoder.decode(self._record(number, StoredEvent).event) for number in self._notes]

    def release(self) -> None:
        """Close the file without leaving the round; the journal can be opened again, in this or another process."""
        self._release()

    def close(self) -> None:
        """Leave the round for good: destroy the journal and its encryption key."""
        if self._release.alive:
            self._claims, self._notes, self._key = {}, [], b""
            _destroy(self._path, self._key_path)
            self._release()

    def _check_open(self) -> None:
        if not self._release.alive:
            raise Aborted("this client has left the round")

    def _append(self, record: StoredAnswer | StoredEvent) -> None:
        """Append a record; it is on disk when this method returns."""
        nonce = self._entropy(cipher.NONCE_BYTES)
        sealed = nonce + cipher.encrypt(
            self._key, nonce, ENCODER.encode(record), self._associated_data(len(self._places))
        )
        try:
            self._file.append(len(sealed).to_bytes(_SIZE_BYTES, "big") + sealed)
        except OSError as error:
            raise InputError(f"the journal at {self._path.parent} cannot be written: {error.strerror}") from None
        self._index_record(record, len(sealed))

    def _index_record(self, record: StoredAnswer | StoredEvent, size: int) -> None:
        """Remember the position of a record in the file, and the key and digest of an answered request."""
        if isinstance(record, StoredAnswer):
            self._claims[record.key] = (record.digest, len(self._places))
        else:
            self._notes.append(len(self._places))
        self._places.append((self._end + _SIZE_BYTES, size))
        self._end += _SIZE_BYTES + size

    def _find_records(self) -> None:
        """Find the positions of all records in the file; cut an incomplete last record from the file."""
        total = os.fstat(self._file.descriptor).st_size
        while self._end + _SIZE_BYTES <= total:
            size = int.from_bytes(os.pread(self._file.descriptor, _SIZE_BYTES, self._end), "big")
            if self._end + _SIZE_BYTES + size > total:
                break
            self._index_record(
                self._decrypt(len(self._places), self._end + _SIZE_BYTES, size, StoredAnswer | StoredEvent), size
            )
        if self._end < total:
            self._file.truncate(self._end)

    def _record(self, number: int, kind: type[Record]) -> Record:
        return cast("Record", self._decrypt(number, *self._places[number], kind))

    def _decrypt(self, number: int, place: int, size: int, kind: Any) -> Any:
        """Return record `number` as a `kind`: decrypt `size` bytes from offset `place`; raise Aborted if damaged."""
        data = os.pread(self._file.descriptor, size, place)
        nonce, sealed = data[: cipher.NONCE_BYTES], data[cipher.NONCE_BYTES :]
        try:
            plain = cipher.decrypt(self._key, nonce, sealed, self._associated_data(number))
        except (DecryptionFailed, InputError):
            raise Aborted("the journal of this round is damaged: this client leaves the round") from None
        return msgspec.msgpack.decode(plain, type=kind)

    def _associated_data(self, number: int) -> bytes:
        """Return the associated data under which a record is encrypted: the round id, and the record's number."""
        return b"dordis/v1/journal" + self._round + number.to_bytes(8, "big")
