"""The server's network: log-in and control connections of clients, and the endpoints for uploads and downloads.

On its control connection a client gets requests and sends replies.  `network.exchange` assigns replies to requests;
`network.authentication` decides which clients may log in.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import WebSocketError, WSMsgType, web

from dordis import wire
from dordis.errors import DordisError, LoginRefused, MalformedMessage, ProtocolError
from dordis.network import connections
from dordis.network.authentication import Authenticator, ExpiryWatch
from dordis.network.connections import Connections, open_listener
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.download_endpoint import DownloadEndpoint, ReceiptEndpoint
from dordis.network.exchange import REVOKED, NetworkExchange
from dordis.network.messages import (
    CHALLENGE_BYTES,
    HEARTBEAT,
    MACHINE_BYTES,
    POLICY_VIOLATION,
    SUBPROTOCOL,
    VERSION_HEADER,
    Challenge,
    FromClient,
    Hello,
    Refusal,
    Reply,
    Shutdown,
    Welcome,
)
from dordis.network.sessions import AccessTokens, Session, Sessions, client_certificate
from dordis.network.upload_endpoint import TransferSlots, UploadEndpoint
from dordis.network.visits import VisitEndpoint
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

Result = TypeVar("Result")

LARGEST_HELLO = 8192
"""Largest size of a frame before log-in, in bytes."""
FRAMES = (WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.PING, WSMsgType.PONG)
"""Types of WebSocket frames that the server handles; any other type ends the connection."""
BAN = 60.0
"""Seconds for which a client that violated the network protocol may not log in."""
FAREWELL = 5.0
"""Seconds in which disconnected clients can reconnect to learn that the run is over."""
CLOSE_TIMEOUT = 5.0
"""Seconds in which a client must answer the close frame when the server stops."""
CUT_TIMEOUT = 0.05
"""Seconds in which a client that violated the protocol must answer the close frame."""


class Server:
    """A server and its exchange with connected clients, on an event loop in its own thread.

    Clients receive the `manifest` at log-in; its hash is the run id, `run`.  `largest_frame` is the largest size in
    bytes of a client's WebSocket frame.  `receipts` is the directory of the run's receipts; clients compare them with
    the receipts that they stored.  If `visits` is given (assisted rounds), only helpers stay connected, and clients
    make single requests to the endpoints of `visits`.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        run: bytes,
        deadlines: AdaptiveDeadlines,
        *,
        manifest: bytes = b"",
        largest_frame: int = wire.LIMIT,
        receipts: Path | None = None,
        visits: VisitEndpoint | None = None,
    ) -> None:
        self._visits = visits
        self._authenticator, self._run, self._manifest = authenticator, run, manifest
        self._largest_frame = largest_frame
        self._sessions, self._tokens = Sessions(), AccessTokens()
        self._banned_until: dict[ClientId, float] = {}
        self._seen: set[ClientId] = set()
        """Clients that were connected at any time since this process started, except revoked clients."""
        self._closing: set[asyncio.Future[bool]] = set()
        self._expiry: asyncio.Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dordis network", daemon=True)
        self._thread.start()
        self._connections: Connections | None = None
        self.port = 0
        slots = TransferSlots()
        self.uploads = UploadEndpoint(self._tokens, slots, lambda *upload: self.exchange.take_vector(*upload))
        self.downloads = DownloadEndpoint(self._tokens, slots)
        self._receipts = ReceiptEndpoint(lambda request: self._tokens.holder(request).client, receipts)
        self.exchange = self.perform(self._create_exchange(deadlines))

    async def _create_exchange(self, deadlines: AdaptiveDeadlines) -> NetworkExchange:
        return NetworkExchange(self._send, self.uploads, self.downloads, deadlines)

    # Called from the thread that runs the rounds

    def perform(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the server's event loop, wait for it, and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, host: str, port: int) -> None:
        """Listen at an address; port 0 means any free port."""
        listener = open_listener(host, port)
        self.port = int(listener.getsockname()[1])
        self.perform(self._listen(listener))

    def stop(self, *, run_over: bool = False, reason: str = "") -> None:
        """Tell clients that the run is over, or the `reason` why the server stops early; close all connections.

        If the run is over, wait first, for at most FAREWELL seconds, until disconnected clients have reconnected.
        """
        if run_over:
            self._sessions.wait(self._seen.issubset, FAREWELL)
        self.perform(self._close(Shutdown(run_over, reason)))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connected(self) -> frozenset[ClientId]:
        return self._sessions.clients()

    def wait(self, enough: Callable[[frozenset[ClientId]], bool], seconds: float | None = None) -> frozenset[ClientId]:
        """Wait until `enough` is true of the set of connected clients, or `seconds` have passed; return this set."""
        return self._sessions.wait(enough, seconds)

    def disconnect_revoked(self, clients: Collection[ClientId]) -> None:
        """Disconnect revoked clients, and exclude them from the open round."""
        self.perform(self._disconnect_revoked(clients))
        self._seen.difference_update(clients)

    # Called on the event loop

    async def _disconnect_revoked(self, clients: Collection[ClientId]) -> None:
        for client in clients:
            self._tokens.revoke(client)
            self.exchange.exclude(client, REVOKED)
            if (session := self._sessions.get(client)) is not None:
                log.warning("client %d is disconnected: it was revoked", client)
                await session.socket.close(code=POLICY_VIOLATION, message=b"this client was revoked")

    async def _listen(self, listener: socket.socket) -> None:
        app = web.Application()
        app.add_routes([web.get("/login", self._login), web.get("/control", self._control)])
        app.add_routes([web.get("/blobs/{digest}", self.downloads.get), *self.uploads.routes()])
        app.add_routes([web.get("/receipts", self._receipts.get)] if self._visits is None else self._visits.routes())
        self._connections = Connections(app, self._authenticator.context, self._is_authorised)
        await self._connections.open(listener)
        watch = ExpiryWatch("the server's", self._authenticator.now)
        self._expiry = asyncio.ensure_future(watch.watch(lambda: self._authenticator.credentials.certificate))

    def _is_authorised(self, request: web.Request) -> bool:
        """Tell whether a request has a valid access token, or comes from a member that visits (assisted rounds)."""
        return self._tokens.is_valid(request) or (self._visits is not None and self._visits.recognise(request))

    async def _close(self, farewell: Shutdown) -> None:
        self.exchange.close()
        if self._visits is not None:
            self._visits.stop()
        await asyncio.gather(*(self._dismiss(session, wire.encode(farewell)) for session in self._sessions.all()))
        if self._connections is not None:
            await self._connections.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dismiss(self, session: Session, farewell: bytes) -> None:
        """Send a client the Shutdown message, and close its connection; a client that does not answer is cut off."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await session.socket.send_bytes(farewell)
                await session.socket.close()

    def _send(self, u: ClientId, message: bytes) -> bool:
        session = self._sessions.get(u)
        if session is not None:
            session.outgoing.put_nowait(message)
        return session is not None

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Authenticate a client, and send it an access token; refuse frames of more than LARGEST_HELLO bytes."""
        check_version(request.headers)
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,), autoping=False, max_msg_size=LARGEST_HELLO, compress=False
        )
        await socket.prepare(request)
        try:
            async with asyncio.timeout(connections.LOGIN_TIMEOUT):
                await socket.send_bytes(wire.encode(await self._authenticate(request, socket)))
            await socket.close()
        except (DordisError, TimeoutError, TypeError) as error:
            log.warning("refused the log-in from %s: %s", request.remote, error or "it took too long")
            await socket.close(code=POLICY_VIOLATION, message=_close_reason(error))
        return socket

    async def _authenticate(self, request: web.Request, socket: web.WebSocketResponse) -> Welcome:
        """Send a challenge; return the Welcome message for the client that answers it, or raise LoginRefused."""
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        await socket.send_bytes(wire.encode(Challenge(challenge)))
        hello = wire.decode(await socket.receive_bytes(), Hello, LARGEST_HELLO)
        if len(hello.machine) != MACHINE_BYTES:
            raise MalformedMessage(f"the machine id has {len(hello.machine)} bytes, not {MACHINE_BYTES}")
        shown = client_certificate(request)
        client = self._authenticator.authenticate(shown, challenge, hello.answer)
        self._check_not_banned(client)
        await self._end_dead_session(client, hello.machine)
        self._sessions.check_not_in_use(client, hello.machine)
        manifest = b"" if hello.run == self._run else self._manifest
        return Welcome(client, self._run, manifest, self._tokens.issue(client, hello.machine, shown))

    async def _end_dead_session(self, client: ClientId, machine: bytes) -> None:
        """If a client logs in from a new process, and its old connection answers no ping, end the old session."""
        session = self._sessions.get(client)
        if session is None or session.machine == machine or await session.answers_ping():
            return
        log.warning("client %d logs in again, and its previous connection is dead", client)
        if self._sessions.remove(session):
            self.exchange.suspend_client(client)
        self._close_later(session)

    async def _control(self, request: web.Request) -> web.StreamResponse:
        """Handle the control connection of a logged-in client until it ends."""
        check_version(request.headers)
        holder = self._tokens.holder(request)
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            heartbeat=HEARTBEAT,
            autoping=False,
            max_msg_size=self._largest_frame,
            compress=False,
        )
        await socket.prepare(request)
        session = Session(holder.client, holder.machine, socket, request.transport)
        session.limit_bytes(self._largest_frame)
        try:
            replaced = self._sessions.add(session)
        except LoginRefused as error:
            log.warning("refused the connection from %s: %s", request.remote, error)
            await socket.close(code=POLICY_VIOLATION, message=_close_reason(error))
            return socket
        if replaced is not None:
            self._close_later(replaced)
        await self._serve(session)
        return socket

    def _close_later(self, session: Session) -> None:
        """Close a session's connection without waiting for it."""
        self._closing.add(task := asyncio.ensure_future(session.socket.close()))
        task.add_done_callback(self._closing.discard)

    def _check_not_banned(self, client: ClientId) -> None:
        left = self._banned_until.get(client, 0.0) - self._loop.time()
        if left > 0:
            raise LoginRefused(f"client {client} violated the network protocol: log in again in {left:.0f} s")

    async def _serve(self, session: Session) -> None:
        """Handle a client's messages until it disconnects or violates the protocol."""
        sending = asyncio.ensure_future(session.send_queued())
        self._seen.add(session.client)
        log.info("client %d is connected", session.client, extra={"client": session.client})
        for message in self.exchange.resume_client(session.client):
            session.outgoing.put_nowait(message)
        try:
            async for received in session.socket:
                if isinstance(received.data, WebSocketError):
                    raise ProtocolError(f"an invalid WebSocket frame came: {received.data}")
                if received.type not in FRAMES:
                    break
                session.take_frame(received.type, len(received.data), self._loop.time())
                if received.type is WSMsgType.BINARY:
                    self._take(session.client, received.data)
                elif received.type is WSMsgType.PING:
                    await session.socket.pong(received.data)
        except DordisError as error:
            self._ban(session.client, str(error))
            await session.cut(POLICY_VIOLATION, _close_reason(error), CUT_TIMEOUT)
        except ConnectionError:
            pass  # the connection broke while a ping was answered
        finally:
            sending.cancel()
            if session.tls is not None and session.tls.is_flooded:  # `MeteredTLS` has cut the connection
                self._ban(session.client, "fragments without content came, or more bytes than messages have")
            if self._sessions.remove(session):
                self.exchange.suspend_client(session.client)
            log.info("client %d is disconnected", session.client, extra={"client": session.client})

    def _ban(self, client: ClientId, reason: str) -> None:
        """Exclude a client from the round for violating the protocol, and refuse its log-ins for BAN seconds."""
        log.warning("client %d is banned for %g s: %s", client, BAN, reason, extra={"client": client})
        self._banned_until[client] = self._loop.time() + BAN
        self.exchange.exclude(client)
        self._tokens.revoke(client)

    def _take(self, client: ClientId, data: bytes) -> None:
        match wire.decode(data, FromClient, self._largest_frame):  # type: ignore[arg-type]
            case Reply() as reply:
                self.exchange.take_reply(client, reply)
            case Refusal() as refusal:
                self.exchange.take_refusal(client, refusal)


def check_version(headers: Mapping[str, str]) -> None:
    """Raise HTTP 426 unless the client offers this server's SUBPROTOCOL, which a header of the response states."""
    offered = [name.strip() for name in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if SUBPROTOCOL not in offered:
        log.warning("refused a client of another version: %s", ", ".join(offered)[:80])
        raise web.HTTPUpgradeRequired(headers={VERSION_HEADER: SUBPROTOCOL})


def _close_reason(error: BaseException) -> bytes:
    """Return an error message, shortened to fit into a WebSocket close frame."""
    return str(error).encode("ascii", "replace")[:120]
