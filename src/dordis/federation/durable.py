"""Files that survive a stop of the process or of the machine: the only code that writes what must not be lost.

What was written is on the disk when a function returns.  A function that fails, or is stopped, leaves what was there.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dordis.errors import InputError

PRIVATE, PUBLIC = 0o600, 0o666
"""Modes of new files: for the owner alone, or as the umask allows."""
LOCK = ".lock"
"""File in a directory that only one process may use, with its id."""


def create(path: Path, data: bytes) -> None:
    """Make a private file, whole at any moment; if there is one already, raise `FileExistsError` and leave it alone."""
    with _draft(path, data, PRIVATE) as draft:
        path.hardlink_to(draft)


def replace(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file in one step: whoever reads it, whenever the machine stops, finds the old one or the new, whole."""
    with _draft(path, data, mode) as draft:
        draft.replace(path)


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write a file under a name of its own, which is gone in the end."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_whole(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of the data, however many calls that takes, or raise."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def remove_drafts(path: Path) -> None:
    """Remove what writers of this file left behind when they were stopped; nobody may be writing it now."""
    for draft in path.parent.glob(f".{path.name}.*.new"):
        draft.unlink(missing_ok=True)


def erase(path: Path) -> None:
    """Write zeros over a file, in place: a new file in its stead would leave the old one's blocks as they are."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make a file's new name durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; one without its end, which is still written or was cut by a stop, is left out."""
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def mended_lines(path: Path, last: bytes) -> list[bytes]:
    """Return the same, with the last line that was to be written added if it is missing."""
    lines = whole_lines(path)
    return lines if not last or last in lines else [*lines, last]


def mend_lines(path: Path, last: bytes) -> None:
    """Cut a line without its end, and add the last line if it is missing."""
    lines = mended_lines(path, last)
    if lines or path.exists():
        replace(path, b"".join(lines))


def hold(path: Path) -> int:
    """Let no other process have a directory as long as the descriptor that is returned is open; or say which has it."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise InputError(f"cannot write to the run at {path}: {error.strerror}") from None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise InputError(f"the run at {path} is under way: another process is running it (pid {holder})") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor


@dataclass(frozen=True)
class FileLines:
    """Lines in a file that is only ever appended to; processes and threads may share it.

    A file that is not there is made with the `mode`; without one it is missed with `FileNotFoundError`.
    """

    path: Path
    mode: int | None = None

    @contextmanager
    def locked(self) -> "Iterator[LockedFile]":
        """Open the file for nobody else at the same time."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (0 if self.mode is None else os.O_CREAT)
        descriptor = os.open(self.path, flags, self.mode or 0)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # closing releases it
            if os.fstat(descriptor).st_size == 0:
                sync_directory(self.path.parent)  # before the first line, whoever made the file
            yield LockedFile(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> bytes:
        """Return everything there is; needs no permission to write."""
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()


@dataclass(frozen=True)
class LockedFile:
    """The lines of a file while nobody else has them."""

    descriptor: int

    def read(self) -> bytes:
        """Return everything there is."""
        with os.fdopen(self.descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()

    def append(self, line: bytes) -> None:
        """Add a line, or nothing if it does not come to the disk whole: half a line would stop every reader."""
        size = os.fstat(self.descriptor).st_size
        try:
            if os.write(self.descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "no room on the disk for a whole line")
            os.fsync(self.descriptor)
        except OSError:
            os.ftruncate(self.descriptor, size)
            raise

    def cut(self, size: int) -> None:
        """Take away what comes after so many bytes."""
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Make a line durable that somebody else wrote, who may have stopped before it was."""
        os.fsync(self.descriptor)
