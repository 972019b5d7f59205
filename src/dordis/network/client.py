"""A client's connection to the server: log in, reply to requests, and reconnect when the connection breaks.

The client opens all connections, and accepts none.  A `rounds.client.Client` handles one request after the other in a
worker thread.  Meanwhile the download for the next request and the upload of the last reply continue.  At log-in and
before every round the client compares the run's *history*, the server's list of receipts, with its stored *notes*: in
which rounds it took part, and with which parameters.  A *party* is a client's or helper's state machine.
"""

import asyncio
import logging
import operator
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any

import aiohttp
from aiohttp import ClientSession, ClientTimeout, ClientWebSocketResponse, WebSocketError, WSMsgType

from dordis import wire
from dordis.errors import DISK_FULL, DordisError, InputError, LoginRefused, MalformedMessage, UnexpectedRequest
from dordis.network.authentication import ExpiryWatch, LoginCredentials, ServerContact
from dordis.network.client_transfers import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    REDIRECTED,
    Address,
    ServerBusy,
    Transfers,
    certificate_refused,
    check_not_busy,
    describe_error,
    version_refused,
    wait_to_reconnect,
)
from dordis.network.log_lines import ClientRoundLog
from dordis.network.messages import (
    HEARTBEAT,
    MACHINE_BYTES,
    POLICY_VIOLATION,
    SUBPROTOCOL,
    BodyInfo,
    Challenge,
    FromServer,
    Hello,
    Refusal,
    Reply,
    Request,
    Shutdown,
    Welcome,
)
from dordis.owner.receipts import KeptReceipts
from dordis.protocol import Message, Party, requests_in
from dordis.protocols import delivery
from dordis.protocols.summing import SummingProtocol
from dordis.rounds import invitation
from dordis.rounds.client import Client
from dordis.rounds.user_code import OwnerLog

log = logging.getLogger("dordis.network")

KEEP_ALIVE = 25.0
"""Seconds for which an idle connection is kept for the next transfer; the server keeps it longer."""
NO_REASON = ""
"""Empty error name, sent to the server after an unexpected error or a full disk; only the client's log has details."""
LONGEST_SILENCE = 24 * 3600.0
"""Seconds without a request after which a client leaves the open round; until then a stopped server can resume it."""


class InvalidFrame(ConnectionError):
    """The server sent a frame that is not a message of dordis, or a message that is not allowed at this point."""


def accepted_requests(protocol: SummingProtocol) -> Any:
    """Return the union of all message types that a client of a protocol accepts as requests."""
    kinds = (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))
    return reduce(operator.or_, kinds)


class Participant(ServerContact):
    """A client that takes part in a server's run until the run is over or the log-in is refused.

    `create_party` makes the state machine that handles requests, once for each run.  After `silence` seconds without a
    request, and when the run is over, the client leaves the open round and erases the secrets of this round.  `events`
    is called with the reason when there is no contact, and with an empty text when there is.
    """

    def __init__(
        self,
        address: Address,
        credentials: LoginCredentials,
        create_party: Callable[[Welcome], Party],
        protocol: SummingProtocol,
        silence: float = LONGEST_SILENCE,
        failures: OwnerLog | None = None,
        receipts: KeptReceipts | None = None,
        events: Callable[[str], None] = lambda error: None,
        rounds: ClientRoundLog | None = None,
        expiry: ExpiryWatch | None = None,
    ) -> None:
        super().__init__(credentials, events, expiry)
        self._address, self._silence = address, silence
        self.create_party = create_party
        self._silence_timer: asyncio.TimerHandle | None = None
        self._kinds = accepted_requests(protocol)
        self._machine = secrets.token_bytes(MACHINE_BYTES)
        self._handling, self._downloading = asyncio.Lock(), asyncio.Lock()
        self._failures, self._receipts = failures or OwnerLog(), receipts
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dordis-client")
        self._joined: tuple[bytes, Party] | None = None
        self._rounds, self._has_handled = rounds or ClientRoundLog(), False

    async def _stay(self, once: bool, follow: bool) -> None:
        """Take part until the run is over; reconnect with growing pauses.

        With `once`, make one connection only; raise InputError if it fails or breaks.  With `follow`, wait for the
        server's next run when the present run is over, or if the owner does not agree to the present run.  The pause is
        reset after a connection that lasted longer than the pause, or on which a request was handled.
        """
        pause, clock = FIRST_PAUSE, asyncio.get_running_loop().time
        while True:
            began, self._has_handled = clock(), False
            async with new_session() as session:
                try:
                    farewell = await self._participate(session)
                    pause = FIRST_PAUSE if self._has_handled or clock() - began > pause else pause
                    if farewell is not None and (once or (farewell.run_over and not follow)):
                        self._failures.summarise()
                        return
                    self._note(describe_farewell(farewell))
                except ServerBusy as busy:
                    pause = busy.seconds
                except InvalidFrame as error:
                    self._note(f"left {self._address} and will try again: {describe_error(error)}")
                except LoginRefused as error:
                    self.events(str(error))
                    raise
                except DordisError as error:
                    self.events(str(error))
                    if not follow:
                        raise
                    self._note(f"waiting for the next run: {error}")
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._note(f"no connection to {self._address}: {describe_error(error)}; reconnecting")
            if once:
                raise InputError(f"the connection to {self._address} failed or broke; without --once it is repeated")
            await wait_to_reconnect(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def stop(self) -> None:
        """Stop handling requests; the open round can be resumed from its journal."""
        if self._joined is not None and isinstance(self._joined[1], Client):
            self._joined[1].stop()

    async def _participate(self, session: ClientSession) -> Shutdown | None:
        """Log in and reply to requests; return the server's Shutdown message, or None if the connection broke."""
        async with await self._open_socket(session, "/login") as socket:
            welcome = await self._log_in(socket)
        transfers = Transfers(session, self._address, welcome, self.credentials.context)
        async with await self._open_socket(session, "/control", transfers.headers) as socket:
            party = self._party(welcome)  # raises, before any reply, if the owner refuses the run
            log.info("connected as client %d", welcome.client)
            self._note_contact()
            await self._check_history(transfers, party, complete=True)
            async with asyncio.TaskGroup() as group:
                ended = await self._serve_requests(socket, transfers, party, group)
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def _open_socket(
        self, session: ClientSession, path: str, headers: Mapping[str, str] | None = None
    ) -> ClientWebSocketResponse:
        """Return an open WebSocket; raise LoginRefused if the server's certificate or version is not accepted."""
        try:
            return await session.ws_connect(
                self._address.url(path),
                protocols=(SUBPROTOCOL,),
                headers=headers,
                ssl=self.credentials.context,
                heartbeat=HEARTBEAT,
                max_msg_size=wire.LIMIT,
                compress=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 426:
                raise version_refused(error.headers) from None
            check_not_busy(error.status, error.headers or {})
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            raise certificate_refused(error) from None

    async def _log_in(self, socket: ClientWebSocketResponse) -> Welcome:
        challenge = await _receive(socket)
        if not isinstance(challenge, Challenge):
            raise InvalidFrame("the server began the log-in without a challenge")
        tls = socket.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else b""
        answer = self.credentials.answer(challenge.challenge, certificate)
        await socket.send_bytes(wire.encode(Hello(answer, self._machine, self._joined[0] if self._joined else b"")))
        welcome = await _receive(socket)
        if not isinstance(welcome, Welcome):
            raise InvalidFrame("the server ended the log-in without a welcome")
        return welcome

    def _party(self, welcome: Welcome) -> Party:
        """Return the state machine that handles the requests of this run, made at the first call for the run."""
        if self._joined is None or self._joined[0] != welcome.run:
            self._joined = (welcome.run, self.create_party(welcome))
            self._restart_silence_timer(self._joined[1])
        return self._joined[1]

    def _restart_silence_timer(self, party: Party) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._silence_timer = asyncio.get_running_loop().call_later(self._silence, self._leave_round, party)

    def _leave_round(self, party: Party) -> None:
        """Leave the open round, unless a request is being handled or a model downloaded; helpers do nothing here."""
        if isinstance(party, Client) and not (self._handling.locked() or self._downloading.locked()):
            self._rounds.end()
            party.close()

    def _leave_run(self, party: Party) -> None:
        """Leave a run that is over, and its open round; if a request is being handled, finish that first."""
        self._rounds.end()
        self._joined = None
        if isinstance(party, Client) and self._handling.locked():
            self._worker.submit(party.close)
        elif isinstance(party, Client):
            party.close()

    async def _serve_requests(
        self, socket: ClientWebSocketResponse, transfers: Transfers, party: Party, group: asyncio.TaskGroup
    ) -> Shutdown | LoginRefused | InvalidFrame | None:
        """Reply to requests until the connection ends; return the Shutdown message, or None if the connection broke.

        LoginRefused and InvalidFrame are returned, not raised, because the task group would wrap them.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                message = await _receive(socket)
                if isinstance(message, Shutdown):
                    if message.run_over:
                        self._leave_run(party)
                    return message
                if not isinstance(message, Request):
                    raise InvalidFrame(f"the server sent {type(message).__name__} after the log-in")
                tasks = [task for task in tasks if not task.done()]
                tasks.append(group.create_task(self._reply_to(socket, transfers, party, message)))
        except (LoginRefused, InvalidFrame) as error:
            return error
        except ConnectionError:
            return None
        finally:
            for task in tasks:
                task.cancel()

    async def _reply_to(
        self, socket: ClientWebSocketResponse, transfers: Transfers, party: Party, request: Request
    ) -> None:
        """Reply to one request: download its body, handle it, send the reply, and upload the reply's body."""
        is_sent = False
        try:
            reply = await self._handle(transfers, party, request)
            vector = wire.bulk_of(reply)
            body = BodyInfo.from_upload(vector) if len(vector) else None
            is_sent = await _send(socket, Reply(request.id, wire.encode(reply), body))
            if body is not None:
                await transfers.upload(request.id, vector)
                await asyncio.get_running_loop().run_in_executor(self._worker, self._rounds.take_part)
            return
        except DordisError as error:
            self._rounds.decline(error)
            reason = type(error).__name__
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not isinstance(error, OSError) or error.errno not in DISK_FULL:
                log.info("a request was not answered: %s", describe_error(error))
                return
            self._rounds.decline(f"the state of this client cannot be written: {describe_error(error)}")
            reason = NO_REASON
        except Exception:  # the client leaves the round, but does not stop
            log.exception(
                "declined: an unexpected error; this client continues with the next round; please report this"
            )
            reason = NO_REASON
        if not is_sent:
            await _send(socket, Refusal(request.id, reason))

    async def _check_history(self, transfers: Transfers, party: Party, *, complete: bool) -> None:
        """Raise HistoryContradicted if the server's history contradicts the notes and receipts that this client stored.

        Fetch the whole history if `complete`, otherwise only the part after the last stored entry.
        """
        if self._receipts is None or self._joined is None or not isinstance(party, Client):
            return
        run, keys, kept = self._joined[0], party.members, self._receipts
        known = max(kept.read(run).shown, default=-1)
        shown = await transfers.history(-1 if complete else known, known)
        compare = partial(kept.compare, run, shown, keys, complete=complete, me=party.me)
        await asyncio.get_running_loop().run_in_executor(self._worker, compare)

    async def _handle(self, transfers: Transfers, party: Party, request: Request) -> Message:
        """Download a request's body, and return the state machine's reply; one request is handled at a time."""
        kind, bulk = wire.kind_of(request.frame, self._kinds), b""
        check_body_expected(kind, request.body)
        if isinstance(party, Client):
            party.check_expected(kind, 0 if request.body is None else request.body.size)
        if request.body is not None or issubclass(kind, invitation.Invite):  # an invitation waits for earlier downloads
            async with self._downloading:
                bulk = b"" if request.body is None else await transfers.download(request.body)
                if issubclass(kind, invitation.Invite):
                    await self._check_history(transfers, party, complete=False)
        async with self._handling:
            message = wire.decode(request.frame, kind, bulk=bulk)
            if isinstance(message, invitation.Invite):
                self._rounds.begin(message.info.run, message.info.index)
            reply = await asyncio.get_running_loop().run_in_executor(self._worker, party.handle, message)
            self._restart_silence_timer(party)
            self._has_handled = True
        return reply


def check_body_expected(kind: type[Message], body: BodyInfo | None) -> None:
    """Raise UnexpectedRequest, before any download, if a body (large field) is announced for a type that has none."""
    if body is not None and not kind.bulk:
        raise UnexpectedRequest(f"{kind.__name__} came with a body of {body.size} bytes, and has none")


def describe_farewell(farewell: Shutdown | None) -> str:
    """Return one line: why the connection ended (None: it broke without a farewell), and how this client continues."""
    if farewell is None:
        return "the connection to the server broke: reconnecting"
    if farewell.run_over:
        return "the run is over: waiting for the next run of this server"
    reason = "".join(letter if letter.isprintable() else "?" for letter in farewell.reason[:120])
    return f"the server stopped before the run was over ({reason or 'no reason given'}): reconnecting"


def new_session() -> ClientSession:
    """Return an HTTP session that follows no redirects and uses the proxy of the environment, if any."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse_redirect)
    timeout = ClientTimeout(total=None, sock_connect=30.0)
    connector = aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE)
    return ClientSession(
        connector=connector, trust_env=True, timeout=timeout, auto_decompress=False, trace_configs=[trace]
    )


async def _refuse_redirect(*_: Any) -> None:
    """Raise ClientConnectionError: a redirect could make the client send requests to other hosts in its network."""
    raise aiohttp.ClientConnectionError(REDIRECTED)


async def _receive(socket: ClientWebSocketResponse) -> Any:
    """Return the server's next message; raise LoginRefused if the server refuses this client.

    Raise InvalidFrame for a frame that is not a message, and ConnectionResetError if the connection has ended.
    """
    message = await socket.receive()
    if message.type is WSMsgType.BINARY:
        try:
            return wire.decode(message.data, FromServer)  # type: ignore[arg-type]
        except MalformedMessage as error:
            raise InvalidFrame(f"the server sent a frame that is not a message of dordis: {error}") from None
    if message.type is WSMsgType.TEXT or isinstance(message.data, WebSocketError):
        raise InvalidFrame("the server sent a text frame or an invalid WebSocket frame")
    if message.type is WSMsgType.CLOSE and message.data == POLICY_VIOLATION:
        raise LoginRefused(f"the server refused: {message.extra}")
    raise ConnectionResetError("the connection ended")


async def _send(socket: ClientWebSocketResponse, message: Message) -> bool:
    """Send a message; return False if the connection has ended, in which case the server repeats its request."""
    if socket.closed:
        return False
    try:
        await socket.send_bytes(wire.encode(message))
    except ConnectionError as error:
        log.info("a reply was not sent: %s", describe_error(error))
        return False
    return True
