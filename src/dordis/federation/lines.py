"""The lines of a privacy ledger: their one encoding, the hash that covers each, and where they are kept.

A line is JSON.  It holds the SHA-256 of the line before, the first one the run id, which is the hash of the run's
manifest; and it ends with a hash of itself, so that the last line is covered too.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from dordis.errors import InputError, LedgerDamaged
from dordis.federation.charges import Charge, Fact
from dordis.federation.registry import sync_directory

_FRACTION = re.compile(r"[0-9]{1,40}(/[0-9]{1,40})?")
_LINE = re.compile(rb'(\{[^\n]*),"check":"([0-9a-f]{64})"\}\n')


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="opened"):
    """The first line: for which run, and what it may cost."""

    previous: str
    delta: float
    budget: float | None
    format: Literal["dordis ledger 1"] = "dordis ledger 1"


class Reserved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="reserved"):
    """A round is charged; an unmask request may leave from here on."""

    previous: str
    charge: Charge


class Completed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completed"):
    """A round has an output; the facts of each chunk replace what was reserved."""

    previous: str
    index: int
    facts: tuple[Fact, ...]


class Cancelled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cancelled"):
    """A round ended before any unmask request left."""

    previous: str
    index: int


Entry = Opened | Reserved | Completed | Cancelled


class Lines(Protocol):
    """Where the lines are kept."""

    def locked(self) -> "AbstractContextManager[Tail]":
        """Give access to nobody else at the same time."""
        ...


class Tail(Protocol):
    """The lines while they are locked."""

    def read(self) -> bytes:
        """Return everything there is."""
        ...

    def append(self, line: bytes) -> None:
        """Add a line, durably when this returns; add nothing if that fails."""
        ...


class MemoryLines:
    """Lines that last as long as the process: for simulations and tests."""

    def __init__(self, first: bytes) -> None:
        self._lines, self._lock = bytearray(first), threading.Lock()

    @contextmanager
    def locked(self) -> "Iterator[MemoryLines]":
        """Give access to one thread at a time."""
        with self._lock:
            yield self

    def read(self) -> bytes:
        """Return everything there is."""
        return bytes(self._lines)

    def append(self, line: bytes) -> None:
        """Add a line."""
        self._lines += line


@dataclass(frozen=True)
class FileLines:
    """Lines in a file that is only ever appended to; processes and threads may share it."""

    path: Path

    @classmethod
    def create(cls, path: Path, first: bytes) -> "FileLines":
        """Make the file with its first line, whole at any moment; one that exists is left alone and refused."""
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(first)
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(new)
        except FileExistsError:
            raise InputError(f"there is a ledger already at {path}: open it, or give the run another place") from None
        finally:
            new.unlink(missing_ok=True)
        sync_directory(path.parent)
        return cls(path)

    @contextmanager
    def locked(self) -> "Iterator[_OpenFile]":
        """Open the file for nobody else at the same time."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LedgerDamaged(f"there is no ledger at {self.path}: a run does not go on without its own") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # closing releases it
            yield _OpenFile(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class _OpenFile:
    descriptor: int

    def read(self) -> bytes:
        with os.fdopen(self.descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()

    def append(self, line: bytes) -> None:
        size = os.fstat(self.descriptor).st_size
        if os.write(self.descriptor, line) != len(line):
            os.ftruncate(self.descriptor, size)  # a full disk must not leave half a line, which would stop the run
            raise OSError(errno.ENOSPC, "no room for the privacy ledger")
        os.fsync(self.descriptor)


def line_of(entry: Entry) -> bytes:
    """Write the one encoding of an entry, with a hash of itself at the end."""
    body = msgspec.json.encode(entry, enc_hook=_write_fraction)[:-1]
    return b'%b,"check":"%b"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def entry_of(line: bytes, number: int) -> Entry:
    """Read a line that is written in its one encoding."""
    match = _LINE.fullmatch(line)
    entry: Entry | None = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entry = msgspec.json.decode(match[1] + b"}", type=Entry, dec_hook=_read_fraction) if match else None
    if entry is None or line_of(entry) != line:
        raise LedgerDamaged("was altered: restore the file", number)
    return entry


def _write_fraction(value: object) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise NotImplementedError


def _read_fraction(kind: type, value: object) -> Fraction:
    if kind is not Fraction or not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError("a variance is written as a fraction")
    try:
        return Fraction(value)
    except ZeroDivisionError:
        raise ValueError("a variance is written as a fraction") from None
