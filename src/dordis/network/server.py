"""The server's side of the network: who is connected, one WebSocket each, and the paths for what is large.

No protocol is run here: `exchange` moves its messages, `login` says who a client is.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from aiohttp import WSMsgType, web

from dordis import wire
from dordis.errors import DordisError, LoginRefused, MalformedMessage
from dordis.network import connections
from dordis.network.bulk import GRAIN, Blobs, pieces_of
from dordis.network.connections import Connections, bound
from dordis.network.deadlines import Patience
from dordis.network.exchange import NetworkExchange
from dordis.network.lines import Line, Lines
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
from dordis.network.uploads import Uploads
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

Result = TypeVar("Result")

HEARTBEAT = 20.0
"""Seconds between signs of life on a connection."""
LARGEST_HELLO = 8192
"""Bytes that are taken from whoever has not logged in."""
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


class Server:
    """Clients that are connected, and the exchange with them; it runs on an event loop of its own thread.

    Clients are given the `manifest`, whose hash is the run id.  `limit` bounds the frames of clients.  Vectors are
    received in so many processes of their own as `receivers` says.
    """

    def __init__(
        self,
        door: Door,
        run: bytes,
        patience: Patience,
        *,
        manifest: bytes = b"",
        limit: int = wire.LIMIT,
        receivers: int = 0,
    ) -> None:
        self._manifest = manifest
        self._door, self._run, self._limit, self._receivers = door, run, limit, receivers
        self._lines = Lines()
        self._banned: dict[ClientId, float] = {}
        self._closing: set[asyncio.Future[bool]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dordis network", daemon=True)
        self._thread.start()
        self._connections: Connections | None = None
        self.port = 0
        self.blobs = Blobs()
        self.uploads, self.exchange = self.perform(self._made(patience))
        self.intake = self.uploads.intake

    async def _made(self, patience: Patience) -> tuple[Uploads, NetworkExchange]:
        uploads = Uploads(lambda u, id, body: self.exchange.delivered(u, id, body), self._cut)
        return uploads, NetworkExchange(self._send, uploads, self.blobs, patience)

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
        """Listen; processes that only receive listen at the ports that follow."""
        listener = bound(host, port)
        self.uploads.start(self._receivers, host, port, self._door.context)
        self.port = int(listener.getsockname()[1])
        self.perform(self._listen(listener))

    def stop(self, *, over: bool = False) -> None:
        """Tell the clients that the server stops, and whether the run is over; close."""
        self.perform(self._close(over))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connected(self) -> frozenset[ClientId]:
        """Return the clients that are connected."""
        return self._lines.clients()

    def wait(self, enough: Callable[[frozenset[ClientId]], bool], seconds: float | None = None) -> frozenset[ClientId]:
        """Wait until enough clients are connected, or for so many seconds; return who is."""
        return self._lines.wait(enough, seconds)

    def dismiss(self, clients: Collection[ClientId]) -> None:
        """Cut off clients that are not members any more."""
        self.perform(self._dismiss(clients))

    # On the loop

    async def _dismiss(self, clients: Collection[ClientId]) -> None:
        for client in clients:
            self.uploads.dismiss(client)
            self.exchange.leave(client)
            if (line := self._lines.get(client)) is not None:
                log.warning("client %d is cut off: it was revoked", client)
                await line.socket.close(code=REFUSED, message=b"this client was revoked")

    async def _listen(self, listener: socket.socket) -> None:
        app = web.Application()
        app.add_routes([web.get("/login", self._login), web.get("/control", self._control)])
        app.add_routes([web.get("/blobs/{digest}", self._fetch)])
        app.add_routes(self.intake.routes())
        self._connections = Connections(app, self._door.context, self.intake.is_known)
        await self._connections.open(listener)

    async def _close(self, over: bool) -> None:
        """Tell every client, and end what is left."""
        for line in self._lines.all():
            with contextlib.suppress(ConnectionError):
                await line.socket.send_bytes(wire.encode(Ended(over)))
                await line.socket.close()
        await self.uploads.close()
        if self._connections is not None:
            await self._connections.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send(self, u: ClientId, message: bytes) -> bool:
        line = self._lines.get(u)
        if line is not None:
            line.outgoing.put_nowait(message)
        return line is not None

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Find out who a client is, in small frames only, and give it a token for everything else."""
        check_version(request.headers)
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), max_msg_size=LARGEST_HELLO, compress=False)
        await socket.prepare(request)
        try:
            async with asyncio.timeout(connections.LOGIN):
                await socket.send_bytes(wire.encode(await self._admitted(request, socket)))
            await socket.close()
        except (DordisError, TimeoutError, TypeError) as error:
            log.warning("refused %s: %s", request.remote, error or "no log-in in time")
            await socket.close(code=REFUSED, message=_reason(error))
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
        await self._leave_if_dead(client, hello.machine)
        self._lines.check_absent(client, hello.machine)
        token, port = self.uploads.admit(client, hello.machine)
        manifest = b"" if hello.run == self._run else self._manifest
        return Welcome(client, self._run, manifest, token, port)

    async def _leave_if_dead(self, client: ClientId, machine: bytes) -> None:
        """Give up a line of a client at whose other end there is nobody any more: it was started again, say."""
        line = self._lines.get(client)
        if line is None or line.machine == machine or await line.answers():
            return
        log.warning("client %d comes again, and its connection of before is dead", client)
        self._end(line)

    async def _control(self, request: web.Request) -> web.StreamResponse:
        """Take what a client sends until it leaves."""
        check_version(request.headers)
        client, machine = self.intake.holder(request)
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,), heartbeat=HEARTBEAT, autoping=False, max_msg_size=self._limit, compress=False
        )
        await socket.prepare(request)
        line = Line(client, machine, socket)
        try:
            before = self._lines.put(line)
        except LoginRefused as error:
            log.warning("refused %s: %s", request.remote, error)
            await socket.close(code=REFUSED, message=_reason(error))
            return socket
        if before is not None:
            self._part(before)
        await self._serve(line)
        return socket

    def _part(self, line: Line) -> None:
        """Close a line, in its own time."""
        self._closing.add(task := asyncio.ensure_future(line.socket.close()))
        task.add_done_callback(self._closing.discard)

    def _end(self, line: Line) -> None:
        """Take note that a line is no more."""
        if self._lines.remove(line):
            self.exchange.disconnected(line.client)
        self._part(line)

    def _cut(self, clients: Collection[ClientId]) -> None:
        """Have clients log in again."""
        for line in [line for line in self._lines.all() if line.client in clients]:
            self._part(line)

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
                line.alive.set()
                match received.type:
                    case WSMsgType.BINARY:
                        self._take(line.client, received.data)
                    case WSMsgType.PING:
                        await line.socket.pong(received.data)
                    case WSMsgType.PONG:
                        continue
                    case _:
                        break
        except DordisError as error:
            log.warning("client %d is cut off: %s", line.client, error)
            self._banned[line.client] = self._loop.time() + BANNED
            self.exchange.leave(line.client)
            self.uploads.dismiss(line.client)
            await line.socket.close(code=REFUSED, message=_reason(error))
        finally:
            writer.cancel()
            if self._lines.remove(line):
                self.exchange.disconnected(line.client)
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
            await written(response, pieces_of(data, start))
        return response


async def written(response: web.StreamResponse, pieces: AsyncIterator[memoryview]) -> None:
    """Write a body; a client that takes nothing of it for a while is left."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(TAKEN) as limit:
        later = loop.time() + GRAIN * TAKEN
        async for piece in pieces:
            await response.write(piece)
            if loop.time() >= later:
                later = loop.time() + GRAIN * TAKEN
                limit.reschedule(loop.time() + TAKEN)


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
