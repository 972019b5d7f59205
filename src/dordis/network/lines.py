"""Which clients are connected: one line each, in place of one that it had before and that is dead."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from dordis.errors import LoginRefused
from dordis.protocol import ClientId

PING = 3.0
"""Seconds in which a connection answers, or is taken for dead when its client comes again."""


@dataclass(eq=False)
class Line:
    """The connection of a client."""

    client: ClientId
    machine: bytes
    socket: web.WebSocketResponse
    outgoing: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    alive: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by whatever comes."""

    async def write(self) -> None:
        """Send what is queued, one after the other."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.socket.send_bytes(await self.outgoing.get())

    async def answers(self) -> bool:
        """Tell whether there is still somebody at the other end."""
        self.alive.clear()
        try:
            async with asyncio.timeout(PING):
                await self.socket.ping()
                await self.alive.wait()
        except (TimeoutError, ConnectionError):
            return False
        return True


class Lines:
    """The clients that are connected; any thread may look, the event loop alone changes it."""

    def __init__(self) -> None:
        self._lines: dict[ClientId, Line] = {}
        self._change = threading.Condition()

    def get(self, client: ClientId) -> Line | None:
        """Return the line of a client."""
        return self._lines.get(client)

    def all(self) -> list[Line]:
        """Return all lines."""
        return list(self._lines.values())

    def clients(self) -> frozenset[ClientId]:
        """Return the clients that are connected."""
        with self._change:
            return frozenset(self._lines)

    def wait(self, enough: Callable[[frozenset[ClientId]], bool], seconds: float | None = None) -> frozenset[ClientId]:
        """Wait until enough clients are connected, or for so many seconds; return who is."""
        with self._change:
            self._change.wait_for(lambda: enough(frozenset(self._lines)), seconds)
            return frozenset(self._lines)

    def put(self, line: Line) -> Line | None:
        """Give a client its line; return the one that it had before.  Another machine's is not replaced."""
        self.check_absent(line.client, line.machine)
        before = self._lines.get(line.client)
        with self._change:
            self._lines[line.client] = line
            self._change.notify_all()
        return before

    def remove(self, line: Line) -> bool:
        """Forget a line; tell whether its client has no other one."""
        with self._change:
            last = self._lines.get(line.client) is line
            if last:
                del self._lines[line.client]
            self._change.notify_all()
        return last

    def check_absent(self, client: ClientId, machine: bytes) -> None:
        """Another machine does not take a place that is in use."""
        before = self._lines.get(client)
        if before is not None and before.machine != machine:
            raise LoginRefused(
                f"client {client} is connected already, from another machine: one identity is one client"
            )
