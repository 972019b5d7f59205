"""Durable writing of files: data is on disk when a function returns, and a failed write leaves the old content."""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dordis.errors import InputError, explain_os_errors

PRIVATE, PUBLIC = 0o600, 0o666
"""Permissions of new files: PRIVATE lets only the owner read and write, PUBLIC lets everybody whom the umask allows."""
LOCK = ".lock"
"""Name of the file by which `lock_directory` locks a directory; it contains the id of the locking process."""


def write_new(path: Path, data: bytes) -> None:
    """Write a new file in one step, readable by its owner only; raise `FileExistsError` if `path` exists."""
    with _draft(path, data, PRIVATE) as draft:
        path.hardlink_to(draft)


def write_atomically(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Replace a file in one step: readers find the old content or the new one, even after a crash."""
    with _draft(path, data, mode) as draft:
        draft.replace(path)


@contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write `data` to a temporary file beside `path`, and yield the temporary path; remove it when the context ends."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError as error:
            error.filename = str(path)  # os.write and os.fsync name no file
            raise
        finally:
            os.close(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file, or raise `OSError`; the caller has to sync the file."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def remove_drafts(path: Path) -> None:
    """Remove temporary files of interrupted writers of `path`; the caller ensures that no process is writing `path`."""
    for draft in path.parent.glob(f".{path.name}.*.new"):
        draft.unlink(missing_ok=True)


def overwrite_with_zeros(path: Path) -> None:
    """Overwrite a file with zeros in place: a new file would leave the old blocks on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names of files created in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines_with_last(path: Path, last: bytes) -> list[bytes]:
    """Return the lines of a file that end with a newline, then the line `last` if it is neither empty nor among them.

    A missing file has no lines.  Raise InputError if the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; restore it") from None
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    return lines if not last or last in lines else [*lines, last]


def repair_lines(path: Path, last: bytes) -> None:
    """Cut an incomplete last line from a file, and append the line `last` unless it is empty or in the file."""
    lines = read_lines_with_last(path, last)
    if lines or path.exists():
        write_atomically(path, b"".join(lines))


def lock_directory(path: Path) -> int:
    """Lock a directory until the returned descriptor is closed; raise InputError if another process holds the lock."""
    with explain_os_errors(f"write to the run at {path}"):
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise InputError(f"the run at {path} is under way: another process is running it (pid {holder})") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor


def lock_holder(path: Path) -> int | None:
    """Return the id of the process that has locked a directory, or None if the directory is not locked."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(os.read(descriptor, 20) or b"0")
    finally:
        os.close(descriptor)
    return None


@dataclass(frozen=True)
class AppendOnlyFile:
    """An append-only file of lines, which processes and threads may share.

    `locked` creates a missing file with the permissions `mode`; if `mode` is None, it raises `FileNotFoundError`.
    """

    path: Path
    mode: int | None = None

    @contextmanager
    def locked(self) -> "Iterator[LockedFile]":
        """Open the file under an exclusive lock."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (0 if self.mode is None else os.O_CREAT)
        descriptor = os.open(self.path, flags, self.mode or 0)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the descriptor is closed
            if os.fstat(descriptor).st_size == 0:  # perhaps new: its name has to be on disk before its first line is
                sync_directory(self.path.parent)
            yield LockedFile(descriptor)
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise
        finally:
            os.close(descriptor)

    def read(self) -> bytes:
        """Return the whole content, under a shared lock; no write permission is needed."""
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file.read()


@dataclass(frozen=True)
class LockedFile:
    """An open file under an exclusive lock."""

    descriptor: int

    def read(self, start: int = 0) -> bytes:
        """Return the content of the file from byte `start` on."""
        with os.fdopen(self.descriptor, "rb", closefd=False) as file:
            file.seek(start)
            return file.read()

    def append(self, line: bytes) -> None:
        """Append a line, which is on disk when this returns; if that fails, restore the file and raise `OSError`."""
        size = os.fstat(self.descriptor).st_size
        try:
            if os.write(self.descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "no room on the disk for a whole line")
            os.fsync(self.descriptor)
        except OSError:
            os.ftruncate(self.descriptor, size)
            raise

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Force the file to disk, including lines that another process appended without doing so."""
        os.fsync(self.descriptor)
