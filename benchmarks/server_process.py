"""The server alone in its process, to see what memory it takes; clients are played here and reached over a pipe."""

import multiprocessing
import operator
import resource
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds import NoReplay, Setting, check
from dordis import drive, wire
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import REPLIES, CollectInput

ID_BYTES = 8
_REQUEST: Any = reduce(operator.or_, REPLIES)


class PipeExchange:
    """Ask one client after the other for its reply, as the server takes them: no more than one is in memory."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Yield the replies one by one; an empty one stands for a client that dropped."""
        for u, request in requests.items():
            if request.ahead:
                continue  # all clients, in one process, would hold their uploads at once
            self._pipe.send_bytes(u.to_bytes(ID_BYTES, "big") + wire.encode(request))
            reply = self._pipe.recv_bytes()
            if reply:
                yield u, wire.decode(reply, REPLIES[type(request)])


def peak_mb(setting: Setting) -> float:
    """Run a round and return the most memory that the server's process held at any time."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs, setting))
    server.start()
    theirs.close()
    vector = np.zeros(setting.dim, np.uint32)
    clients = {ClientId(u): SecAggClient(ClientId(u), vector, NoReplay()) for u in range(1, setting.clients + 1)}
    while len(data := ours.recv_bytes()) > ID_BYTES:
        ours.send_bytes(_reply(clients, setting, data))
    server.join()
    return int.from_bytes(data, "big") / 1e6


def _reply(clients: Mapping[ClientId, SecAggClient], setting: Setting, data: bytes) -> bytes:
    u = ClientId(int.from_bytes(data[:ID_BYTES], "big"))
    request: Message = wire.decode(data[ID_BYTES:], _REQUEST)
    if u in setting.lost and isinstance(request, CollectInput):
        return b""
    return wire.encode(clients[u].handle(request))


def serve(pipe: Connection, setting: Setting) -> None:
    """Run the server of a round; the last thing sent is the peak of memory in bytes."""
    (output,) = drive.run(SecAggServer(setting.parameters()), PipeExchange(pipe))
    peak = peak_bytes()
    check(output, setting)
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
