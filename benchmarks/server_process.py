"""A server alone in its process, to measure its memory; its clients are simulated here and reached over a pipe."""

import multiprocessing
import operator
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dordis import wire
from dordis.pipeline.executor import Exchange
from dordis.protocol import ClientId, Message, Requests, reply_to

Serve = Callable[[Exchange], Callable[[], None]]
"""Runs a round by an exchange; returns what then makes sure that it did what is measured.  It is sent to a process."""
Answer = Callable[[ClientId, Message], Message | None]

ID_BYTES = 8


class PipeExchange:
    """Ask one client after the other for its reply, as the server takes them; threads use the pipe in turn."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._turn = threading.Lock()

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Yield the replies one by one; an empty one stands for a client that dropped."""
        for u, request in requests.items():
            if request.ahead:
                continue  # all clients, in one process, would hold their uploads at once
            data = u.to_bytes(ID_BYTES, "big") + wire.encode(request)
            with self._turn:
                self._pipe.send_bytes(data)
                self._pipe.send_bytes(wire.bulk_of(request))
                reply, bulk = self._pipe.recv_bytes(), self._pipe.recv_bytes()
            if reply:
                yield u, wire.decode(reply, reply_to(request), bulk=bulk)


def peak_mb(serve: Serve, answer: Answer, kinds: Sequence[type[Message]]) -> float:
    """Run a round and return the most memory that the server's process held at any time.

    `kinds` are the requests that may come.  What that process imports counts, too: what the module of `serve` needs.
    """
    known: Any = reduce(operator.or_, kinds)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(theirs, serve), daemon=True)  # it ends if a client fails
    server.start()
    theirs.close()
    while len(data := ours.recv_bytes()) > ID_BYTES:
        u = ClientId(int.from_bytes(data[:ID_BYTES], "big"))
        reply = answer(u, wire.decode(data[ID_BYTES:], known, bulk=ours.recv_bytes()))
        ours.send_bytes(b"" if reply is None else wire.encode(reply))
        ours.send_bytes(b"" if reply is None else wire.bulk_of(reply))
    server.join()
    return int.from_bytes(data, "big") / 1e6


def _serve(pipe: Connection, serve: Serve) -> None:
    """Run the server of a round; the last thing sent is the peak of memory in bytes."""
    check = serve(PipeExchange(pipe))
    peak = peak_bytes()
    check()
    pipe.send_bytes(peak.to_bytes(ID_BYTES, "big"))


def peak_bytes() -> int:
    """Return the most memory this process held since its program started.

    On Linux getrusage's figure also covers the process as it was before exec, a copy of its parent: it is used only
    where there is no other.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
