"""A client's journal on disk: every answer is there before it leaves, under a key that is destroyed with the round.

A round has two files that only the owner can read.  `ROUND.journal` is only ever appended to; each record is encrypted.
The nonce of a record is drawn: a number would serve twice when a record that was cut is written again.
`ROUND.key` holds the key of the round.  The round ends with one write: zeros over the key.  From then on nobody can
read the journal, which is removed.  The zeros refuse the round until the next one begins: then they give way to one
record, `left`, of the last index that this client has left in each run.  Rounds go forward: no index up to that is
entered again.

A process that is stopped anywhere leaves a record whole or not at all: a record without its end is cut when the journal
is opened again.  Nothing left on it, because `claim` and `note` return when it is on the disk.
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
from dordis.errors import Aborted, DecryptionFailed, DordisError, InputError
from dordis.federation.durable import PRIVATE, LockedFile, create, erase, remove_drafts, replace, sync_directory
from dordis.privacy.encoding import Entropy
from dordis.protocol import ENCODER, check_same_request
from dordis.protocols.parameters import RUN_BYTES

LEFT = "left"
"""File name of the record: the last round index that the client has left, by run."""
_SIZE_BYTES = 8
_LEFT = bytes(cipher.KEY_BYTES)
"""What stands in the place of the key once the client has left the round."""


class Claimed(msgspec.Struct, frozen=True, tag=True):
    """An answer: the request's place and digest, what changed in the state, and the reply."""

    key: str
    digest: bytes
    changes: bytes
    reply: bytes


class Noted(msgspec.Struct, frozen=True, tag=True):
    """An event."""

    event: bytes


Record = TypeVar("Record", Claimed, Noted)


@dataclass(frozen=True)
class FileJournals:
    """The journals of one client, in a directory of their own: calling it opens that of a round.

    A client is in one round at a time: opening a round ends every other that was not ended.
    """

    directory: Path
    entropy: Entropy = field(default=secrets.token_bytes, repr=False)

    def __call__(self, round: bytes) -> "FileJournal":
        """Open the journal of a round, or make it; a round that this client has left raises `Aborted`."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._begun():
            if other != round:
                leave(*self._files(other))
        path, key = self._files(round)
        for kept in (path, key, self._record):
            remove_drafts(kept)
        left = self._record_left(key)
        if not key.exists():  # and so nothing has left yet
            check_ahead(round, left)
            path.unlink(missing_ok=True)
            create(path, b"")
            create(key, self.entropy(cipher.KEY_BYTES))
        check_in_round(path, key)
        return FileJournal(round, path, key, self.entropy)

    def unfinished(self) -> tuple[bytes, ...]:
        """Return the rounds that were under way when the process stopped: one at most, unless it was stopped there."""
        return tuple(round for round in self._begun() if self._files(round)[1].read_bytes() != _LEFT)

    def _begun(self) -> list[bytes]:
        """Return the rounds that have a journal and a key."""
        rounds = sorted(bytes.fromhex(path.stem) for path in self.directory.glob("*.journal"))
        return [round for round in rounds if self._files(round)[1].exists()]

    @property
    def _record(self) -> Path:
        return self.directory / LEFT

    def _record_left(self, current: Path) -> dict[str, int]:
        """Add all rounds but the current one to the record, then erase their keys; return the record."""
        left = read_left(self._record)
        old_keys = [key for key in self.directory.glob("*.key") if key != current]
        for key in old_keys:
            run, index = _split(bytes.fromhex(key.stem))
            left[run] = max(index, left.get(run, index))
        if old_keys:
            replace(self._record, msgspec.json.encode(left))
        for key in old_keys:
            erase(key)  # if the journal of its round was lost, the key is not erased yet
            key.unlink()
        return left

    def _files(self, round: bytes) -> tuple[Path, Path]:
        path = self.directory / f"{round.hex()}.journal"
        return path, path.with_suffix(".key")


def read_left(path: Path) -> dict[str, int]:
    """Return the last round index that a client has left in each run; raise InputError if the record is damaged."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except msgspec.DecodeError:
        raise InputError(f"{path} is damaged: restore it, or enrol this client under a new identity") from None


def _split(round: bytes) -> tuple[str, int]:
    return round[:RUN_BYTES].hex(), int.from_bytes(round[RUN_BYTES:], "big")


def check_ahead(round: bytes, left: Mapping[str, int]) -> None:
    """The round is later than all rounds of its run that this client has left: it may have answered in those."""
    run, index = _split(round)
    if index <= left.get(run, -1):
        raise Aborted(
            f"this client has left the round or a later one of its run: index {index} is not above {left[run]}"
        )


def check_in_round(path: Path, key: Path) -> None:
    """This client has not left the round, and has not lost what it knows of it: it would answer a second time."""
    if key.read_bytes() == _LEFT:
        raise Aborted("this client has left the round")
    if not path.exists():
        raise Aborted("the journal of this round is lost: this client takes no part in the round any more")


def check_alone(descriptor: int) -> None:
    """No other process has this journal open: two would answer one request differently."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # closing releases it, as the end of the process does
    except BlockingIOError:
        raise InputError("another process of this client is in this round: stop it, or use another directory") from None


def leave(path: Path, key: Path) -> None:
    """Leave a round for ever: destroy its key, and with it what was written."""
    with path.open("rb") as file:
        check_alone(file.fileno())
        _destroy(path, key)


def _destroy(path: Path, key: Path) -> None:
    erase(key)
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
        """Return the reply stored under the key; if there is none, `respond` makes it and the changes of the state."""
        self._check_open()
        if key in self._claims:
            claimed, number = self._claims[key]
            check_same_request(key, claimed, digest)
            return self._record(number, Claimed).reply
        changes, reply = respond()
        self._append(Claimed(key, digest, changes, reply))
        return reply

    def since(self, claims: int) -> Sequence[bytes]:
        """Return the changes of the state that came with all claims but the first so many, in order."""
        numbers = [number for _, number in self._claims.values()]
        return [self._record(number, Claimed).changes for number in numbers[claims:]]

    def note(self, event: msgspec.Struct) -> None:
        """Keep an event."""
        self._check_open()
        self._append(Noted(ENCODER.encode(event)))

    def events(self, kind: Any) -> Sequence[Any]:
        """Return what was noted, in order, as structs of a kind, or of a union of kinds."""
        decoder = msgspec.msgpack.Decoder(kind)
        return [decoder.decode(self._record(number, Noted).event) for number in self._notes]

    def release(self) -> None:
        """Close the file; the journal can be opened again, here or in another process."""
        self._release()

    def close(self) -> None:
        """Leave the round for ever: destroy the key, and with it what was written."""
        if self._release.alive:
            self._claims, self._notes, self._key = {}, [], b""
            _destroy(self._path, self._key_path)
            self._release()

    def _check_open(self) -> None:
        if not self._release.alive:
            raise Aborted("this client has left the round")

    def _append(self, record: Claimed | Noted) -> None:
        """Write a record; it is on the disk when this returns."""
        nonce = self._entropy(cipher.NONCE_BYTES)
        sealed = nonce + cipher.encrypt(self._key, nonce, ENCODER.encode(record), self._bound(len(self._places)))
        try:
            self._file.append(len(sealed).to_bytes(_SIZE_BYTES, "big") + sealed)
        except OSError as error:
            raise InputError(f"the journal at {self._path.parent} cannot be written: {error.strerror}") from None
        self._keep(record, len(sealed))

    def _keep(self, record: Claimed | Noted, size: int) -> None:
        """Remember where a record is."""
        if isinstance(record, Claimed):
            self._claims[record.key] = (record.digest, len(self._places))
        else:
            self._notes.append(len(self._places))
        self._places.append((self._end + _SIZE_BYTES, size))
        self._end += _SIZE_BYTES + size

    def _find_records(self) -> None:
        """Find the records; cut the last one if it has no end."""
        total = os.fstat(self._file.descriptor).st_size
        while self._end + _SIZE_BYTES <= total:
            size = int.from_bytes(os.pread(self._file.descriptor, _SIZE_BYTES, self._end), "big")
            if self._end + _SIZE_BYTES + size > total:
                break
            self._keep(self._opened(len(self._places), self._end + _SIZE_BYTES, size, Claimed | Noted), size)
        if self._end < total:
            self._file.cut(self._end)

    def _record(self, number: int, kind: type[Record]) -> Record:
        return cast(Record, self._opened(number, *self._places[number], kind))

    def _opened(self, number: int, place: int, size: int, kind: Any) -> Any:
        """Read a record and decrypt it."""
        data = os.pread(self._file.descriptor, size, place)
        nonce, sealed = data[: cipher.NONCE_BYTES], data[cipher.NONCE_BYTES :]
        try:
            plain = cipher.decrypt(self._key, nonce, sealed, self._bound(number))
        except (DecryptionFailed, InputError):
            raise Aborted("the journal of this round is damaged: this client takes no part in it any more") from None
        return msgspec.msgpack.decode(plain, type=kind)

    def _bound(self, number: int) -> bytes:
        """Return what a record is bound to: its round, and its place in the journal."""
        return b"dordis/v1/journal" + self._round + number.to_bytes(8, "big")
