"""Acceptance of TLS connections, with limits on the number and duration of connections that have not logged in."""

import asyncio
import contextlib
import logging
import math
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from dordis.errors import explain_os_errors
from dordis.network.log_lines import LOG_PAUSE, HandshakeLog
from dordis.network.sessions import ACCEPTED, metered_tls

log = logging.getLogger("dordis.network")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOGIN_TIMEOUT, TLS_SHUTDOWN_TIMEOUT = 10.0, 1.0
"""Seconds allowed for each of three steps (first bytes, TLS handshake, log-in), and for the TLS shutdown."""
MOST_SILENT = 1024
"""Largest number of connections on which TLS has not begun; if there are more, the oldest connection is dropped."""
MOST_PENDING, SHORT_PENDING_TIME, LONG_PENDING_TIME = 256, 1.0, 5.0
"""Number of pre-login slots, one for each TLS connection that has not logged in; and two times, in seconds.

A connection keeps its slot, even if newer ones wait, for the short time, or the long one if it has sent a request.
"""
KEEP_ALIVE = 30.0
"""Seconds for which an idle connection of a client stays open, because a TLS handshake costs a millisecond of CPU."""
BACKLOG = 1024
"""Number of connections that the operating system queues before they are accepted."""
LINGER = 0.1
"""Seconds for which the server reads on after it has refused a request, so that the client gets the response."""
ACCEPT_PAUSE = 1.0
"""Seconds before the next attempt after the operating system failed to accept a connection."""
MOST_RESERVED = 320
"""Largest number of file descriptors kept free for the ledger, receipts and files of slow uploads."""
RETRY_LATER = {"Retry-After": "1"}
READ_BUFFER = 1 << 16
"""Bytes of a request that aiohttp buffers; at twice as many it stops reading from the connection."""


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket, at `::` also for IPv4; raise InputError if nobody can listen at the address."""
    with explain_os_errors(f"listen at {host}:{port}"):
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)


class SilentSockets:
    """Accepted connections on which TLS has not begun.

    TLS takes 300 kB of memory per connection, so TLS begins only when the first bytes arrive, and on the newest
    connection first.  So honest clients, which send at once, are served even if attackers hold many connections open.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._ready: dict[socket.socket, None] = {}
        self._has_ready = asyncio.Event()

    def add(self, accepted: socket.socket) -> None:
        """Add a connection; if there are more than MOST_SILENT, drop the oldest connection."""
        accepted.setblocking(False)
        if len(self._silent) + len(self._ready) >= MOST_SILENT:
            self._drop(next(iter(self._silent or self._ready)))
        self._silent[accepted] = self._loop.call_later(LOGIN_TIMEOUT, self._drop, accepted)
        self._loop.add_reader(accepted, self._begin, accepted)

    async def wait(self) -> None:
        """Wait until a connection is ready for TLS."""
        await self._has_ready.wait()

    def take(self) -> socket.socket | None:
        """Return the newest connection that is ready for TLS; None if there is none."""
        accepted, _ = self._ready.popitem() if self._ready else (None, None)
        self._note_ready()
        return accepted

    def close(self) -> None:
        """Close all connections."""
        for accepted in (*self._silent, *self._ready):
            self._drop(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        """Mark a connection as ready when its first bytes arrive, or drop it when it ends."""
        try:
            is_open = bool(accepted.recv(1, socket.MSG_PEEK))
        except OSError:
            is_open = False
        if is_open:
            self._stop_watching(accepted)
            self._ready[accepted] = None
            self._note_ready()
        else:
            self._drop(accepted)

    def _drop(self, accepted: socket.socket) -> None:
        self._stop_watching(accepted)
        self._ready.pop(accepted, None)
        self._note_ready()
        accepted.close()

    def _stop_watching(self, accepted: socket.socket) -> None:
        if (timer := self._silent.pop(accepted, None)) is not None:
            timer.cancel()
            self._loop.remove_reader(accepted)

    def _note_ready(self) -> None:
        if self._ready:
            self._has_ready.set()
        else:
            self._has_ready.clear()


@dataclass(eq=False)
class Stranger:
    """A TLS connection whose client has not logged in; it takes one of the MOST_PENDING pre-login slots."""

    since: float
    end: asyncio.Future[None]
    """A future that is done once the connection is lost, or its request is authorised or answered."""
    has_request: bool = False

    def drop_time(self) -> float:
        """Return the time, on the event loop's clock, from which a newer connection may take the slot."""
        return self.since + (LONG_PENDING_TIME if self.has_request else SHORT_PENDING_TIME)

    def release(self) -> None:
        """Free the pre-login slot."""
        if not self.end.done():
            self.end.set_result(None)


class StrangerProtocol(asyncio.Protocol):
    """Passes all events to aiohttp's handler, and frees the pre-login slot when the connection is lost."""

    def __init__(self, handler: web.RequestHandler, stranger: Stranger) -> None:
        self.handler, self.stranger = handler, stranger

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.handler.data_received(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.stranger.release()
        self.handler.connection_lost(exc)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files to the hard limit; return how many connections the new limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(MOST_RESERVED, soft // 2)


async def wait_readable(listener: socket.socket) -> None:
    """Wait until a connection can be accepted; unlike `loop.sock_accept`, a cancelled wait loses no connection."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


def peer_address(accepted: socket.socket) -> str:
    """Return the address of the peer, or a substitute text if the connection is lost."""
    try:
        return str(accepted.getpeername()[0]).removeprefix("::ffff:")
    except OSError:
        return "an unknown address"


def end_cut(request: web.Request) -> web.Response:
    """Log that a connection was cut or too slow during a request, and abort the connection.

    Return a response that is never sent: without one aiohttp would log a traceback.
    """
    log.info("the connection from %s was cut: %s %s is not answered", request.remote, request.method, request.path)
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def refuse_for_now(request: web.Request, error: OSError) -> web.Response:
    """Log that the server lacks disk space or a file descriptor for a request; return HTTP 503 with Retry-After."""
    log.error("no room for %s %s of %s: %s", request.method, request.path, request.remote, error.strerror or error)
    return web.Response(status=503, headers={"Connection": "close", **RETRY_LATER})


class Connections:
    """All connections to a web application; `is_authorised` tells whether a request comes from a known client."""

    def __init__(
        self, app: web.Application, context: ssl.SSLContext, is_authorised: Callable[[web.Request], bool]
    ) -> None:
        app.middlewares.append(self._end_pending)
        self._context, self._is_authorised = context, is_authorised
        self._runner = web.AppRunner(
            app,
            shutdown_timeout=1.0,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,  # Content-Encoding is ignored: uploads have their announced length
            lingering_time=LINGER,
            keepalive_timeout=KEEP_ALIVE,
            read_bufsize=READ_BUFFER,
        )
        self._listener: socket.socket | None = None
        self._silent = SilentSockets()
        self._pending: dict[Stranger, asyncio.Task[None]] = {}
        self._handshakes = HandshakeLog()
        self._slot_freed, self._dropped, self._drops_logged = asyncio.Event(), 0, -math.inf
        self._sockets: set[socket.socket] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._most = raise_descriptor_limit()

    async def open(self, listener: socket.socket) -> None:
        """Start accepting connections."""
        await self._runner.setup()
        listener.setblocking(False)
        self._listener = listener
        self._tasks = [asyncio.ensure_future(work) for work in (self._accept(listener), self._start_connections())]

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self._silent.close()
        await self._runner.cleanup()
        for task in tuple(self._pending.values()):
            task.cancel()
        while self._count_open():
            await asyncio.sleep(0.01)  # TLS shuts down within TLS_SHUTDOWN_TIMEOUT

    def _count_open(self) -> int:
        self._sockets = {one for one in self._sockets if one.fileno() >= 0}
        return len(self._sockets)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections, forever."""
        prune_at = MOST_SILENT
        while True:
            await self._wait_for_descriptor()
            await wait_readable(listener)
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:  # the client has cut the connection already
                continue
            except OSError as error:
                log.warning("cannot accept connections: %s; next attempt in %g s", error.strerror, ACCEPT_PAUSE)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            self._sockets.add(accepted)
            if len(self._sockets) > prune_at:
                prune_at = 2 * self._count_open() + MOST_SILENT
            self._silent.add(accepted)

    async def _start_connections(self) -> None:
        """Start TLS on accepted connections, forever; wait while MOST_PENDING connections have not logged in."""
        loop = asyncio.get_running_loop()
        while True:
            await self._silent.wait()
            await self._wait_for_slot()
            if (accepted := self._silent.take()) is None:
                continue
            stranger = Stranger(loop.time(), loop.create_future())
            task = asyncio.ensure_future(self._start_tls(accepted, stranger))
            self._pending[stranger] = task
            task.add_done_callback(partial(self._free_slot, stranger, accepted))

    def _free_slot(self, stranger: Stranger, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._pending.pop(stranger, None)
        self._slot_freed.set()
        if task.cancelled():  # before `_start_tls` began, which would have closed it
            accepted.close()

    async def _wait_for_slot(self) -> None:
        """Wait for a free pre-login slot; if none gets free, drop the first connection that is old enough."""
        loop = asyncio.get_running_loop()
        while len(self._pending) >= MOST_PENDING:
            next_drop = min(self._pending, key=Stranger.drop_time)
            left = next_drop.drop_time() - loop.time()
            if left <= 0:
                self._drop(next_drop)
                return
            self._slot_freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):  # not asyncio.wait_for, which may lose a cancellation
                    await self._slot_freed.wait()

    async def _wait_for_descriptor(self) -> None:
        """Wait until another connection fits into the limit of open files."""
        if len(self._sockets) < self._most or self._count_open() < self._most:
            return
        log.warning("%d connections are open, and no more fit the limit of open files: others wait", self._most)
        while self._count_open() >= self._most:
            await asyncio.sleep(ACCEPT_PAUSE)

    def _drop(self, stranger: Stranger) -> None:
        """Drop a connection that has not logged in; log how many were dropped, at most every LOG_PAUSE seconds."""
        self._pending.pop(stranger).cancel()
        self._dropped += 1
        now = asyncio.get_running_loop().time()
        if now - self._drops_logged >= LOG_PAUSE:
            log.warning(
                "%d connections have not logged in: %d of the oldest were dropped for new ones",
                MOST_PENDING,
                self._dropped,
            )
            self._dropped, self._drops_logged = 0, now

    async def _start_tls(self, accepted: socket.socket, stranger: Stranger) -> None:
        """Start TLS on a connection; cut it unless a request is authorised or answered in 3 * LOGIN_TIMEOUT seconds."""
        loop, transport = asyncio.get_running_loop(), None
        assert self._runner.server is not None  # noqa: S101  set up by `open`
        handler, address = self._runner.server(), peer_address(accepted)
        ACCEPTED.set(accepted)
        try:
            async with asyncio.timeout(3 * LOGIN_TIMEOUT):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: StrangerProtocol(handler, stranger),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=LOGIN_TIMEOUT,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT,
                )
                await stranger.end
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            if transport is not None:
                transport.abort()
                return
            accepted.close()
            if not isinstance(error, asyncio.CancelledError):  # `_drop` cancels, and logs that itself
                self._handshakes.fail(address, error, loop.time())

    @web.middleware
    async def _end_pending(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the handler's response; free the pre-login slot; if a stranger is refused, close its connection."""
        authorised = self._is_authorised(request)
        self._note_request(request, is_over=authorised)
        if authorised and (tls := metered_tls(request.transport)) is not None:
            tls.allowed = math.inf
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if not authorised:
                refusal.force_close()
            raise
        except (ConnectionError, TimeoutError):
            return end_cut(request)
        except OSError as error:
            return refuse_for_now(request, error)
        finally:
            self._note_request(request, is_over=True)
        return response

    def _note_request(self, request: web.Request, *, is_over: bool) -> None:
        """Record that a connection has sent a request; if `is_over`, free its pre-login slot."""
        transport = request.transport
        if transport is None or transport.is_closing():
            return  # `StrangerProtocol.connection_lost` frees the slot
        if isinstance(protocol := transport.get_protocol(), StrangerProtocol):
            protocol.stranger.has_request = True
            if is_over:
                protocol.stranger.release()
                transport.set_protocol(protocol.handler)
