"""A fresh process that reads hostile messages, its kernels warm: `python -m benchmarks.hostile_process` prints costs.

Every message is read by a copy of the process that has read none before.
"""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

from benchmarks.cold_start import call_kernels
from dordis.protocols.secagg.messages import AdvertiseKeys
from tests.adversary.hostile import HostileMessage, messages, parameters, refusal, victim

KB = 1024


def main(every: int) -> None:
    """Print name, CPU milliseconds, megabytes and refusal of each message, or of every so many."""
    call_kernels()
    victim().handle(AdvertiseKeys(parameters()))  # all that a good round needs is loaded
    chosen = list(messages())[::every]
    gc.collect()
    gc.freeze()
    _trim()
    for message in chosen:
        milliseconds, megabytes, refused = in_a_copy(lambda message=message: cost(message))  # type: ignore[misc]
        print(json.dumps([message.name, milliseconds, megabytes, refused]))


def cost(message: HostileMessage) -> tuple[float, float, str]:
    """Return what it costs to refuse a message, and how it was refused; empty if it was not."""
    client = victim()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, started = _status("VmRSS"), process_time()
    error = refusal(client, message)
    seconds, grown = process_time() - started, _status("VmHWM") - before
    return 1e3 * seconds, grown / 1e6, "" if error is None else f"{type(error).__name__}: {error}"[:200]


def in_a_copy(measure: Callable[[], tuple[float, float, str]]) -> tuple[float, float, str]:
    """Run a measurement in a copy of this process."""
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, json.dumps(measure()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        milliseconds, megabytes, refused = json.loads(pipe.read())
    os.wait()
    return milliseconds, megabytes, refused


def _status(name: str) -> int:
    """Return a figure of the kernel about this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * KB


def _trim() -> None:
    """Give free memory back: what was freed before must not hide what is taken now."""
    ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
