"""Processes that pause at a chosen point until they are killed: tests wait for that event, not for a time.

A test starts a process with `start_paused` and names a point.  The process calls `pause_at` at all of its points; at
the named one it tells the test so, through a pipe, and goes no further.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from os import write
from typing import Any

HANG = 600.0
"""Seconds after which something that never comes is a failure.  No test that passes waits for so long."""
_POINT = "DORDIS_TESTS_HOLD"


def start_paused(command: Sequence[str], point: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process, and return it once it pauses at the point."""
    reading, writing = os.pipe()
    environment = os.environ | {_POINT: f"{writing} {point}"}
    process = subprocess.Popen(
        command,
        env=environment,
        pass_fds=[writing],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's jobs in the background ignore it
        **options,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if pipe.read(1):  # or the end of the pipe, which is the end of the process
            return process
    shown = process.communicate()[0]
    raise AssertionError(f"it ended with {process.returncode} before it came to {point}: {shown!r}")


def pause_at(point: str) -> None:
    """Go no further if this is the point at which this process is to pause."""
    descriptor, _, chosen = os.environ.get(_POINT, "").partition(" ")
    if point == chosen:
        write(int(descriptor), b"!")
        while True:
            signal.pause()


def pause_before(home: Any, name: str) -> None:
    """Make a point, of the same name, of all calls of a function that come."""
    function = getattr(home, name)

    def call(*arguments: Any) -> Any:
        pause_at(name)
        return function(*arguments)

    setattr(home, name, call)
