"""A client's side of the network: connect, log in, answer what is asked, and come back if the connection breaks.

Connections go out, never in.  What is asked is answered by a `rounds.client.Client`, one request after the other, in a
thread; what is large comes for the next request, and leaves for the one before, while one is worked on.
"""

import asyncio
import logging
import operator
import secrets
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, Protocol

import aiohttp
from aiohttp import ClientSession, ClientTimeout, ClientWebSocketResponse, WebSocketError, WSMsgType

from dordis import wire
from dordis.errors import DordisError, InputError, LoginRefused, MalformedMessage
from dordis.network.bulk import seal
from dordis.network.messages import (
    MACHINE_BYTES,
    SUBPROTOCOL,
    VERSION_HEADER,
    Answered,
    Asked,
    Beside,
    Challenge,
    Declined,
    Ended,
    FromServer,
    Hello,
    Welcome,
)
from dordis.network.training import OwnerLog
from dordis.network.transfers import FIRST_PAUSE, LONGEST_PAUSE, Address, Bodies, Busy, check_not_busy, told
from dordis.protocol import Message, Party, requests_in
from dordis.protocols import delivery
from dordis.protocols.summing import SummingProtocol
from dordis.rounds import invitation
from dordis.rounds.client import Client

log = logging.getLogger("dordis.network")

HEARTBEAT = 20.0
KEPT = 25.0
"""Seconds that a connection is kept for the next transfer: less than a server keeps it."""
FAILED = ""
"""Reason sent for an unexpected error: none.  The owner finds the error in the log."""
LONGEST_SILENCE = 24 * 3600.0
"""Seconds without a request after which a client leaves a round: a server that was stopped has so long to go on."""


class InvalidFrame(ConnectionError):
    """A frame that is no message of dordis, or none that may come now: its connection is dropped."""


class LogIn(Protocol):
    """What a client proves itself with."""

    @property
    def context(self) -> ssl.SSLContext:
        """Return the TLS of the client."""
        ...

    def answer(self, challenge: bytes, server_certificate: bytes) -> bytes:
        """Answer the challenge of a server; nothing, where TLS has proved it."""
        ...


def kinds_of(protocol: SummingProtocol) -> Any:
    """Return the union of all requests that a client may get."""
    kinds = (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))
    return reduce(operator.or_, kinds)


class Participant:
    """Take part in the rounds of a server, until the run is over or the log-in is refused.

    `party` makes what answers, for the run that the server names: the same one as long as the run is the same.  A round
    in which nothing is asked for so many seconds of `silence` is left, and one that is under way when the run is over:
    with that its secrets are erased.
    """

    def __init__(
        self,
        address: Address,
        credentials: LogIn,
        party: Callable[[Welcome], Party],
        protocol: SummingProtocol,
        silence: float = LONGEST_SILENCE,
        failures: OwnerLog | None = None,
    ) -> None:
        self._address, self._credentials, self.made, self._silence = address, credentials, party, silence
        self._timer: asyncio.TimerHandle | None = None
        self._kinds = kinds_of(protocol)
        self._machine = secrets.token_bytes(MACHINE_BYTES)
        self._turn, self._fetching = asyncio.Lock(), asyncio.Lock()
        self._failures = failures or OwnerLog()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dordis-client")
        self._joined: tuple[bytes, Party] | None = None

    async def stay(self, once: bool = False) -> None:
        """Connect, and again whenever the connection breaks, later each time; `once` does not come back.

        Pauses grow until a connection lasts.  Proxy variables of the environment are honoured.
        """
        pause, clock = FIRST_PAUSE, asyncio.get_running_loop().time
        while True:
            began = clock()
            async with new_session() as session:
                try:
                    if await self._connected(session):
                        self._summarise()
                        return
                    pause = FIRST_PAUSE if clock() - began > pause else pause
                except Busy as busy:
                    pause = busy.seconds
                except InvalidFrame as error:
                    log.warning("left %s:%d, and try again: %s", self._address.host, self._address.port, told(error))
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    log.info("no connection to %s:%d: %s", self._address.host, self._address.port, told(error))
            if once:
                raise InputError(f"the connection to {self._address.host}:{self._address.port} broke, or there is none")
            await wait_to_connect(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def stop(self) -> None:
        """Stop answering, and keep the round under way in its journal: it can be restored."""
        if self._joined is not None and isinstance(self._joined[1], Client):
            self._joined[1].stop()

    def _summarise(self) -> None:
        """Log at the end how often user code failed."""
        if self._failures.count:
            log.error(
                "the application failed or was late %d times, and updates may have been zero: see the errors above",
                self._failures.count,
            )

    async def _connected(self, session: ClientSession) -> bool:
        """Answer what is asked on one connection; tell whether the run is over."""
        async with await self._opened(session, "/login") as socket:
            welcome = await self._log_in(socket)
        bodies = Bodies(session, self._address, welcome, self._credentials.context)
        async with await self._opened(session, "/control", bodies.headers) as socket:
            log.info("connected as client %d", welcome.client)
            party = self._answering(welcome)  # raises if the run is refused, before anything is answered
            async with asyncio.TaskGroup() as group:
                ended = await self._answer(socket, bodies, party, group)
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def _opened(
        self, session: ClientSession, path: str, headers: Mapping[str, str] | None = None
    ) -> ClientWebSocketResponse:
        """Open a WebSocket."""
        try:
            return await session.ws_connect(
                self._address.url(path),
                protocols=(SUBPROTOCOL,),
                headers=headers,
                ssl=self._credentials.context,
                heartbeat=HEARTBEAT,
                max_msg_size=wire.LIMIT,
                compress=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 426:
                theirs = error.headers.get(VERSION_HEADER) if error.headers else "another version"
                raise LoginRefused(f"the server speaks {theirs}, this client {SUBPROTOCOL}: install the same") from None
            check_not_busy(error.status, error.headers or {})
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            raise LoginRefused(f"the server's certificate is not accepted: {error.certificate_error}") from None

    async def _log_in(self, socket: ClientWebSocketResponse) -> Welcome:
        asked = await _received(socket)
        if not isinstance(asked, Challenge):
            raise InvalidFrame("the server does not ask who this is")
        tls = socket.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else b""
        answer = self._credentials.answer(asked.challenge, certificate)
        await socket.send_bytes(wire.encode(Hello(answer, self._machine, self._joined[0] if self._joined else b"")))
        welcome = await _received(socket)
        if not isinstance(welcome, Welcome):
            raise InvalidFrame("the server does not say welcome")
        return welcome

    def _answering(self, welcome: Welcome) -> Party:
        """Return what answers in this run."""
        if self._joined is None or self._joined[0] != welcome.run:
            self._joined = (welcome.run, self.made(welcome))
            self._expect(self._joined[1])
        return self._joined[1]

    def _expect(self, party: Party) -> None:
        """Begin to count the seconds of silence anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._silence, self._leave, party)

    def _leave(self, party: Party) -> None:
        """Leave the round that is under way, unless a request is being answered: then it is not silent."""
        if isinstance(party, Client) and not (self._turn.locked() or self._fetching.locked()):
            party.close()

    async def _answer(
        self, socket: ClientWebSocketResponse, bodies: "Bodies", party: Party, group: asyncio.TaskGroup
    ) -> bool | LoginRefused | InvalidFrame:
        """Answer requests in the order in which they come, until the connection ends: the run is over, or not, or why.

        A refusal is returned: raised, a group of tasks would wrap it.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                message = await _received(socket)
                if isinstance(message, Ended):
                    if message.over:
                        self._leave(party)
                    return True
                if not isinstance(message, Asked):
                    raise InvalidFrame("the server sent a message of the log-in after it")
                tasks = [task for task in tasks if not task.done()]
                tasks.append(group.create_task(self._one(socket, bodies, party, message)))
        except (LoginRefused, InvalidFrame) as error:
            return error
        except ConnectionError:
            return False
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, socket: ClientWebSocketResponse, bodies: "Bodies", party: Party, asked: Asked) -> None:
        """Answer one request: fetch what belongs to it, work on it in turn, send what belongs to the answer."""
        is_answered = False
        try:
            reply = await self._reply(bodies, party, asked)
            vector = wire.bulk_of(reply)
            beside = Beside(len(vector), seal(vector)) if len(vector) else None
            is_answered = await _sent(socket, Answered(asked.id, wire.encode(reply), beside))
            if beside is not None:
                await bodies.put(asked.id, vector)
            return
        except DordisError as error:
            log.warning("declined: %s", error)
            reason = type(error).__name__
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("a request is left unanswered: %s", told(error))
            return
        except Exception:  # only the round ends: no message of a server may end the client
            log.exception(
                "declined: an unexpected error; this client continues with the next round; please report this"
            )
            reason = FAILED
        if not is_answered:
            await _sent(socket, Declined(asked.id, reason))

    async def _reply(self, bodies: "Bodies", party: Party, asked: Asked) -> Message:
        """Return the answer to one request."""
        kind, bulk = wire.kind_of(asked.frame, self._kinds), b""
        if isinstance(party, Client):
            party.check_expected(kind, 0 if asked.beside is None else asked.beside.size)
        if asked.beside is not None or issubclass(kind, invitation.Invite):  # a new round waits for earlier bodies
            async with self._fetching:
                bulk = b"" if asked.beside is None else await bodies.fetch(asked.beside)
        async with self._turn:
            request = wire.decode(asked.frame, kind, bulk=bulk)
            reply = await self._handle(party, request)
            self._expect(party)
        return reply

    async def _handle(self, party: Party, request: Message) -> Message:
        """Answer a request in the worker thread, one after the other, also across connections."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, party.handle, request)


async def wait_to_connect(seconds: float) -> None:
    """Wait for about so many seconds, so that clients that were cut off together do not come back together."""
    await asyncio.sleep(seconds * (0.5 + secrets.randbelow(1000) / 1000))


def new_session() -> ClientSession:
    """Return what makes connections: they go to the server alone, through a proxy if the environment names one."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_stay_here)
    timeout = ClientTimeout(total=None, sock_connect=30.0)
    connector = aiohttp.TCPConnector(keepalive_timeout=KEPT)
    return ClientSession(
        connector=connector, trust_env=True, timeout=timeout, auto_decompress=False, trace_configs=[trace]
    )


async def _stay_here(*_: Any) -> None:
    """A server must not send its clients to other machines, which it may not reach itself."""
    raise aiohttp.ClientConnectionError("the server sends this client elsewhere, and it does not go")


async def _received(socket: ClientWebSocketResponse) -> Any:
    """Return the next message of the server; a connection that ended is a `ConnectionError`, or a refusal."""
    message = await socket.receive()
    if message.type is WSMsgType.BINARY:
        try:
            return wire.decode(message.data, FromServer)  # type: ignore[arg-type]
        except MalformedMessage as error:
            raise InvalidFrame(f"the server sent what is no message of dordis: {error}") from None
    if message.type is WSMsgType.TEXT or isinstance(message.data, WebSocketError):
        raise InvalidFrame("the server sent what is no message of dordis: text, or no frame of a WebSocket")
    if message.type is WSMsgType.CLOSE and message.data == 1008:
        raise LoginRefused(f"the server refused: {message.extra}")
    raise ConnectionResetError("the connection ended")


async def _sent(socket: ClientWebSocketResponse, message: Message) -> bool:
    """Send, if the connection is still there, and tell whether: what is not answered is asked again."""
    if socket.closed:
        return False
    try:
        await socket.send_bytes(wire.encode(message))
    except ConnectionError as error:
        log.info("an answer was not sent: %s", told(error))
        return False
    return True
