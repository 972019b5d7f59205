"""Who may connect: few at once that have not said who they are, each for a short time, and the others in their turn.

A server and the processes that only receive listen in this way.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from dordis.errors import InputError
from dordis.network.straight import CHUNK, StraightHandler

log = logging.getLogger("dordis.network")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOGIN, FAREWELL = 10.0, 1.0
"""Seconds for TLS, for a request and for a log-in, each; and to end a connection."""
STRANGERS, HURRIED = 256, 5.0
"""Connections that have not logged in, at once; if there are so many, each has only so many seconds in all."""
KEPT = 30.0
"""Seconds that a client's connection stays open without a request: another costs TLS a millisecond of CPU."""
BACKLOG = 1024
"""Connections that wait to be accepted."""
LINGER = 0.1
"""Seconds that a body which is not wanted is read on, so that its sender sees the answer."""
EXHAUSTED = 1.0
"""Seconds until connections are accepted again where the machine had no room for one more."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen at {host}:{port}: {error.strerror}") from None


class Connections:
    """The connections of an application; `is_known` tells whether a request shows a valid token."""

    def __init__(self, app: web.Application, context: ssl.SSLContext, is_known: Callable[[web.Request], bool]) -> None:
        app.middlewares.append(self._settling)
        self._context, self._is_known = context, is_known
        context.sslobject_class = _Logging
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
        self._space = memoryview(bytearray(CHUNK))
        self._listener: socket.socket | None = None
        self._strangers: dict[asyncio.Task[None], float] = {}
        self._settled: WeakKeyDictionary[Any, asyncio.Future[None]] = WeakKeyDictionary()
        self._sockets: set[socket.socket] = set()
        self._accepting: asyncio.Task[None] | None = None

    async def open(self, listener: socket.socket) -> None:
        """Accept connections."""
        await self._runner.setup()
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.ensure_future(self._accept(listener))

    async def close(self) -> None:
        """End all connections, and wait until they have ended."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        for task in tuple(self._strangers):
            task.cancel()
        while self._count():
            await asyncio.sleep(0.01)  # TLS is shutting down, for FAREWELL seconds at most

    def _count(self) -> int:
        self._sockets = {one for one in self._sockets if one.fileno() >= 0}
        return len(self._sockets)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections, as long as there are not too many of strangers."""
        loop, most = asyncio.get_running_loop(), STRANGERS
        while True:
            await self._make_room()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept connections: %s", error.strerror)
                await asyncio.sleep(EXHAUSTED)
                continue
            self._sockets.add(accepted)
            if len(self._sockets) > most:
                most = 2 * self._count() + STRANGERS
            task = asyncio.ensure_future(self._meet(accepted))
            self._strangers[task] = loop.time()
            task.add_done_callback(lambda task: self._strangers.pop(task, None))

    async def _make_room(self) -> None:
        """Wait until there is room for a stranger; whoever has taken its time goes first."""
        while len(self._strangers) >= STRANGERS:
            task, since = next(iter(self._strangers.items()))
            left = since + HURRIED - asyncio.get_running_loop().time()
            if left <= 0:
                log.warning("too many connections have not logged in: the oldest is cut off")
                self._strangers.pop(task)
                task.cancel()
            else:
                await asyncio.wait(self._strangers, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _handler(self) -> StraightHandler:
        return StraightHandler(self._space, self._runner.server, lingering_time=LINGER, keepalive_timeout=KEPT)

    async def _meet(self, accepted: socket.socket) -> None:
        """Begin TLS, and stay until it is settled who this is, or too late."""
        loop, transport = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(3 * LOGIN):
                transport, _ = await loop.connect_accepted_socket(
                    self._handler,
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=LOGIN,
                    ssl_shutdown_timeout=FAREWELL,
                )
                await self._settled.setdefault(transport, loop.create_future())
        except (OSError, TimeoutError, asyncio.CancelledError):
            if transport is not None:
                transport.abort()
            else:
                accepted.close()

    @web.middleware
    async def _settling(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a client's connection stay; that of anybody else ends with its first request."""
        known = self._is_known(request)
        if known:
            self._settle(request)
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if not known:
                refusal.force_close()
            raise
        finally:
            self._settle(request)
        return response

    def _settle(self, request: web.Request) -> None:
        if request.transport is not None:
            settled = self._settled.setdefault(request.transport, asyncio.get_running_loop().create_future())
            if not settled.done():
                settled.set_result(None)


class _Logging(ssl.SSLObject):
    """TLS that tells why it failed: asyncio keeps that to itself."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.warning("refused a connection: TLS failed: %s", error.reason or error)
            raise
