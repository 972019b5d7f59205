"""The server's side of the network: who is connected, one WebSocket each, and the paths for what is large.

No protocol is run here: `exchange` moves its messages, `login` says who a client is.
"""

import asyncio
import contextlib
import logging
import secrets
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from aiohttp import WSMsgType, web

from dordis import wire
from dordis.errors import DordisError, InputError, LoginRefused, MalformedMessage
from dordis.network.bulk import PIECE, Blobs, pieces_of
from dordis.network.deadlines import Patience
from dordis.network.exchange import NetworkExchange
from dordis.network.intake import Intake
from dordis.network.messages import (
    CHALLENGE_BYTES,
    MACHINE_BYTES,
    SUBPROTOCOL,
    VERSION_HEADER,
    Answered,
    Challenge,
    Declined,
    Ended,
    FromClient,
    Hello,
    Welcome,
)
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

Result = TypeVar("Result")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOGIN, FAREWELL = 10.0, 1.0
"""Seconds to log in, and to end a connection."""
HEARTBEAT = 20.0
"""Seconds between signs of life on a connection."""
BACKLOG = 1024
LARGEST_HELLO = 8192
"""Bytes that are taken from whoever has not logged in."""
STRANGERS = 128
"""Connections that have not logged in yet, at once; others are told to come again."""
LINGER = 0.1
"""Seconds that a body which is not wanted is read on, so that its sender sees the answer."""
TAKEN = 30.0
"""Seconds in which a client takes a piece of what it fetches."""
REFUSED = 1008
"""WebSocket's code for a client that is not wanted."""
BANNED = 60.0
"""Seconds for which a client that broke the rules is not let in again."""


class Door(Protocol):
    """Whoever says which client is at the other end."""

    @property
    def context(self) -> ssl.SSLContext:
        """Return the TLS of the server."""
        ...

    def admit(self, certificate: bytes | None, challenge: bytes, answer: bytes) -> ClientId:
        """Return the client that showed a certificate in TLS, or answered a challenge; else raise `LoginRefused`."""
        ...

    def revoked(self) -> frozenset[ClientId]:
        """Return the clients of the run that were revoked since it began."""
        ...


@dataclass(eq=False)
class Line:
    """The connection of a client."""

    client: ClientId
    machine: bytes
    socket: web.WebSocketResponse
    outgoing: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)

    async def write(self) -> None:
        """Send what is queued, one after the other."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.socket.send_bytes(await self.outgoing.get())


class Server:
    """Clients that are connected, and the exchange with them; it runs on an event loop of its own thread.

    `limit` bounds the frames of clients.
    """

    def __init__(self, door: Door, run: bytes, patience: Patience, *, limit: int = wire.LIMIT) -> None:
        self._door, self._run, self._limit = door, run, limit
        self._lines: dict[ClientId, Line] = {}
        self._banned: dict[ClientId, float] = {}
        self._strangers = 0
        self._closing: set[asyncio.Future[bool]] = set()
        self._change = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dordis network", daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._sockets: set[Any] = set()
        self.port = 0
        self.blobs = Blobs()
        self.intake, self.exchange = self.perform(self._made(patience))

    async def _made(self, patience: Patience) -> tuple[Intake, NetworkExchange]:
        intake = Intake(lambda u, id, buffer: self.exchange.delivered(u, id, buffer))
        return intake, NetworkExchange(self._send, intake, self.blobs, patience)

    # For the thread that runs the rounds

    def perform(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop of the network, and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, host: str, port: int) -> None:
        """Listen."""
        self.port = self.perform(self._listen(host, port))

    def stop(self) -> None:
        """Tell the clients that the run is over, and close."""
        self.perform(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connected(self) -> frozenset[ClientId]:
        """Return the clients that are connected."""
        with self._change:
            return frozenset(self._lines)

    def wait(self, enough: Callable[[frozenset[ClientId]], bool], seconds: float | None = None) -> frozenset[ClientId]:
        """Wait until enough clients are connected, or for so many seconds; return who is."""
        with self._change:
            self._change.wait_for(lambda: enough(frozenset(self._lines)), seconds)
            return frozenset(self._lines)

    def dismiss(self, clients: Collection[ClientId]) -> None:
        """Cut off clients that are not members any more."""
        self.perform(self._dismiss(clients))

    # On the loop

    async def _dismiss(self, clients: Collection[ClientId]) -> None:
        for client in clients:
            self.intake.dismiss(client)
            self.exchange.leave(client)
            if (line := self._lines.get(client)) is not None:
                log.warning("client %d is cut off: it was revoked", client)
                await line.socket.close(code=REFUSED, message=b"this client was revoked")

    async def _listen(self, host: str, port: int) -> int:
        app = web.Application(middlewares=[self._noted])
        app.add_routes([web.get("/login", self._login), web.get("/control", self._control)])
        app.add_routes([web.get("/blobs/{digest}", self._fetch)])
        app.add_routes(self.intake.routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            lingering_time=LINGER,
            shutdown_timeout=1.0,
            handler_cancellation=True,
            keepalive_timeout=LOGIN,  # also for a connection without a request, or with one that never ends
            auto_decompress=False,  # the length of a body is what it says
            read_bufsize=PIECE,
        )
        await self._runner.setup()
        context = self._door.context
        context.sslobject_class = _Logging
        try:
            protocols: Any = self._runner.server
            self._listener = await self._loop.create_server(
                protocols,
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=LOGIN,
                ssl_shutdown_timeout=FAREWELL,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise InputError(f"cannot listen at {host}:{port}: {error.strerror}") from None
        return int(self._listener.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        """Tell every client that the run is over, and end what is left."""
        for line in list(self._lines.values()):
            with contextlib.suppress(ConnectionError):
                await line.socket.send_bytes(wire.encode(Ended()))
                await line.socket.close()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._open_sockets():
            await asyncio.sleep(0.01)  # TLS is shutting down, for FAREWELL seconds at most

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep track of the connections that there are."""
        if request.transport is not None:
            self._sockets.add(request.transport.get_extra_info("socket"))
        if len(self._sockets) > 2 * len(self._lines) + STRANGERS:
            self._open_sockets()
        return await handler(request)

    def _open_sockets(self) -> int:
        self._sockets = {socket for socket in self._sockets if socket is not None and socket.fileno() >= 0}
        return len(self._sockets)

    def _send(self, u: ClientId, message: bytes) -> bool:
        line = self._lines.get(u)
        if line is not None:
            line.outgoing.put_nowait(message)
        return line is not None

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Find out who a client is, in small frames only, and give it a token for everything else."""
        check_version(request.headers)
        if self._strangers >= STRANGERS:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"})
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), max_msg_size=LARGEST_HELLO, compress=False)
        await socket.prepare(request)
        self._strangers += 1
        try:
            async with asyncio.timeout(LOGIN):
                await socket.send_bytes(wire.encode(await self._admitted(request, socket)))
            await socket.close()
        except (DordisError, TimeoutError, TypeError) as error:
            log.warning("refused %s: %s", request.remote, error or "no log-in in time")
            await socket.close(code=REFUSED, message=_reason(error))
        finally:
            self._strangers -= 1
        return socket

    async def _admitted(self, request: web.Request, socket: web.WebSocketResponse) -> Welcome:
        """Challenge whoever connects; welcome a client that is let in."""
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        await socket.send_bytes(wire.encode(Challenge(challenge)))
        hello = wire.decode(await socket.receive_bytes(), Hello, LARGEST_HELLO)
        if len(hello.machine) != MACHINE_BYTES:
            raise MalformedMessage("a machine is named by 16 bytes")
        client = self._door.admit(shown_by(request), challenge, hello.answer)
        self._check_not_banned(client)
        self._check_absent(client, hello.machine)
        return Welcome(client, self._run, self.intake.admit(client, hello.machine))

    async def _control(self, request: web.Request) -> web.StreamResponse:
        """Take what a client sends until it leaves."""
        check_version(request.headers)
        client, machine = self.intake.holder(request)
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,), heartbeat=HEARTBEAT, max_msg_size=self._limit, compress=False
        )
        await socket.prepare(request)
        try:
            line = self._line(client, machine, socket)
        except LoginRefused as error:
            log.warning("refused %s: %s", request.remote, error)
            await socket.close(code=REFUSED, message=_reason(error))
            return socket
        await self._serve(line)
        return socket

    def _line(self, client: ClientId, machine: bytes, socket: web.WebSocketResponse) -> Line:
        """Give a client its line, in place of one that it had before; nothing else happens in between."""
        self._check_absent(client, machine)
        before, line = self._lines.get(client), Line(client, machine, socket)
        with self._change:
            self._lines[client] = line
            self._change.notify_all()
        if before is not None:
            self._closing.add(task := asyncio.ensure_future(before.socket.close()))
            task.add_done_callback(self._closing.discard)
        return line

    def _check_absent(self, client: ClientId, machine: bytes) -> None:
        """Another machine does not take a place that is in use."""
        before = self._lines.get(client)
        if before is not None and before.machine != machine:
            raise LoginRefused(
                f"client {client} is connected already, from another machine: one identity is one client"
            )

    def _check_not_banned(self, client: ClientId) -> None:
        if self._banned.get(client, 0.0) > self._loop.time():
            raise LoginRefused(f"client {client} broke the rules of the network: it may come again later")

    async def _serve(self, line: Line) -> None:
        """Take what a client sends, until it leaves or breaks the rules."""
        writer = asyncio.ensure_future(line.write())
        log.info("client %d is connected", line.client)
        for message in self.exchange.connected(line.client):
            line.outgoing.put_nowait(message)
        try:
            async for received in line.socket:
                if received.type is not WSMsgType.BINARY:
                    break
                self._take(line.client, received.data)
        except DordisError as error:
            log.warning("client %d is cut off: %s", line.client, error)
            self._banned[line.client] = self._loop.time() + BANNED
            self.exchange.leave(line.client)
            self.intake.dismiss(line.client)
            await line.socket.close(code=REFUSED, message=_reason(error))
        finally:
            writer.cancel()
            with self._change:
                if self._lines.get(line.client) is line:
                    del self._lines[line.client]
                    self.exchange.disconnected(line.client)
                self._change.notify_all()
            log.info("client %d is gone", line.client)

    def _take(self, client: ClientId, data: bytes) -> None:
        match wire.decode(data, FromClient, self._limit):  # type: ignore[arg-type]
            case Answered() as message:
                self.exchange.answered(client, message)
            case Declined() as message:
                self.exchange.declined(client, message)

    async def _fetch(self, request: web.Request) -> web.StreamResponse:
        """Give what is offered under a digest, or the rest of it; it is public to all clients of the run."""
        client = self.intake.client(request)
        try:
            data = self.blobs.get(bytes.fromhex(request.match_info["digest"]))
            start = request.http_range.start or 0
        except ValueError:
            raise web.HTTPBadRequest from None
        if data is None or not 0 <= start <= len(data):
            raise web.HTTPNotFound
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(data) - start
        with self.intake.slot(client):
            await response.prepare(request)
            async for piece in pieces_of(data, start):
                async with asyncio.timeout(TAKEN):
                    await response.write(piece)
        return response


def shown_by(request: web.Request) -> bytes | None:
    """Return the certificate that TLS was shown, in DER, if any."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    shown: bytes | None = tls.getpeercert(binary_form=True) if tls is not None else None
    return shown


def _reason(error: BaseException) -> bytes:
    """Return what fits into the end of a WebSocket."""
    return str(error).encode("ascii", "replace")[:120]


def check_version(headers: Mapping[str, str]) -> None:
    """Both sides speak the same version; the client is told which one is spoken here."""
    offered = [name.strip() for name in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if SUBPROTOCOL not in offered:
        log.warning("refused a client of another version: %s", ", ".join(offered)[:80])
        raise web.HTTPUpgradeRequired(headers={VERSION_HEADER: SUBPROTOCOL})


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
