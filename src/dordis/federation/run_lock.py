"""One process a run: two would write the same records and charge the same rounds."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dordis.errors import InputError

LOCK = "running.pid"
"""File of a run that holds the id of the process that runs it; the lock on it ends with that process."""


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Keep other processes from a run until the end."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InputError(f"cannot write to the run at {path}: {error.strerror}") from None
    try:
        check_alone_in_run(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)  # which ends the lock


def check_alone_in_run(descriptor: int, path: Path) -> None:
    """No other process runs this run."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
        raise InputError(f"another process is running the run at {path} (pid {pid}): wait for it, or stop it") from None
