"""Sessions of logged-in clients: access tokens, one control connection per client, and limits on bytes and frames.

A control connection is the WebSocket connection on which a client gets the server's requests and sends its replies.
"""

import asyncio
import contextlib
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web

from dordis.errors import LoginRefused, ProtocolError
from dordis.network.messages import TOKEN_BYTES
from dordis.protocol import ClientId

READ_AHEAD = 1 << 20
"""Bytes that a connection may receive before a request is authorised, and a control connection beyond its messages."""
LARGEST_RECORD = 1 << 14
"""Most bytes of content in a TLS record (RFC 8446, section 5.1), and so most bytes of one read."""
SHORT_FRAGMENT, MOST_FRAGMENTS = 1024, 256
"""Size in bytes below which a WebSocket fragment counts as short; largest number of short fragments on a connection.

dordis clients send no fragments.
"""
ACCEPTED: ContextVar[socket.socket | None] = ContextVar("ACCEPTED", default=None)
"""The accepted socket on which the present asyncio task starts TLS."""


class FragmentCounter:
    """Counts short fragments of WebSocket messages in the bytes of a connection.

    aiohttp does not report fragments without content, of which a client could send any number.
    """

    def __init__(self) -> None:
        self.count = 0
        self._skip, self._header = 0, b""

    def feed(self, data: bytes) -> None:
        """Count the short fragments in `data`, the next bytes of the connection (format: RFC 6455, section 5.2)."""
        data, position = self._header + data, self._skip
        while position + 2 <= len(data):
            short = data[position + 1] & 0x7F
            extended = {126: 2, 127: 8}.get(short, 0)
            start = position + 2 + extended
            if start > len(data):
                break
            length = int.from_bytes(data[start - extended : start]) if extended else short
            self.count += length < SHORT_FRAGMENT and not data[position] & 0x80
            position = start + length + (4 if data[position + 1] & 0x80 else 0)
        self._header, self._skip = data[position:], max(0, position - len(data))


class MeteredTLS(ssl.SSLObject):
    """A TLS object that counts received bytes and fragments, and ends the connection if there are too many."""

    received = 0
    allowed: float = READ_AHEAD
    """Number of received bytes beyond which the connection is cut; infinite after an authorised request.

    On a control connection the number stays limited (`Session.limit_bytes`).
    """
    fragments: FragmentCounter | None = None
    """The fragment counter of a control connection; None for other connections."""
    is_flooded = False
    """Whether the connection was cut because of too many bytes or fragments."""
    send_alert: Callable[[], object] = staticmethod(lambda: None)
    """Sends the TLS alert about a failed handshake; asyncio would close the connection without sending the alert."""

    def do_handshake(self) -> None:
        """Continue the handshake as `ssl.SSLObject` does; if it fails, send the client a TLS alert with the reason."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            self.send_alert()
            raise

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Return the bytes that `ssl.SSLObject.read` returns; raise SSLError if too many bytes or fragments came."""
        if buffer is not None:  # aiohttp never passes one
            return super().read(len, buffer)
        data = super().read(min(len, LARGEST_RECORD))  # asyncio asks for 256 kB, allocated anew for every record
        self.received += data.__len__()
        try:
            check_bytes_allowed(self.received, self.allowed)
            if self.fragments is not None:
                self.fragments.feed(data)
                check_fragments(self.fragments.count)
        except ssl.SSLError:
            self.is_flooded = True
            raise
        return data


class MeteredContext(ssl.SSLContext):
    """A server's TLS context, whose connections are `MeteredTLS` objects."""

    sslobject_class = MeteredTLS

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return a TLS object that can send alerts on `ACCEPTED`, the socket on which the present task starts TLS."""
        tls, accepted = super().wrap_bio(incoming, outgoing, *args, **options), ACCEPTED.get()
        if isinstance(tls, MeteredTLS) and accepted is not None:
            tls.send_alert = partial(send_rest, accepted, outgoing)
        return tls


def send_rest(accepted: socket.socket, outgoing: ssl.MemoryBIO) -> None:
    """Send the bytes in `outgoing`, which TLS has not sent yet, as many as the socket takes without blocking."""
    with contextlib.suppress(OSError):
        accepted.send(outgoing.read())


def check_bytes_allowed(received: int, allowed: float) -> None:
    """Raise SSLError, which ends the connection, if `received`, the number of received bytes, is above `allowed`."""
    if received > allowed:
        raise ssl.SSLError(f"{received} bytes came, and {allowed:.0f} are allowed")


def check_fragments(count: int) -> None:
    """Raise SSLError, which ends the connection, if `count`, the number of short fragments, exceeds MOST_FRAGMENTS."""
    if count > MOST_FRAGMENTS:
        raise ssl.SSLError(f"{count} short fragments of messages came")


def metered_tls(transport: asyncio.BaseTransport | None) -> MeteredTLS | None:
    """Return the TLS object of a connection; None if the connection is lost."""
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return tls if isinstance(tls, MeteredTLS) else None


PING_TIMEOUT = 3.0
"""Seconds in which an old connection must answer a ping when its client logs in again; otherwise it counts as dead."""
MOST_CONTROL_FRAMES, CONTROL_FRAMES_PER_SECOND = 64, 4.0
"""Number of pings and pongs that a client may send at once, and per second in the long run.

Honest clients send a few per minute.
"""
FRAMING = 64
"""Bytes that a message may take on the wire beyond 5/4 of its length, because a proxy may split it into fragments."""

_TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


@dataclass(frozen=True)
class TokenHolder:
    """The client process to which an access token was issued."""

    client: ClientId
    machine: bytes
    certificate: bytes | None = field(default=None, repr=False)
    """Certificate (DER) shown at the log-in with mutual TLS; with another certificate the token is not accepted."""


class AccessTokens:
    """The access tokens of clients, at most one each, which authorise all requests after the log-in."""

    def __init__(self) -> None:
        self._holders: dict[bytes, TokenHolder] = {}

    def issue(self, client: ClientId, machine: bytes, certificate: bytes | None = None) -> bytes:
        """Return a new token for a client; its earlier token becomes invalid."""
        self.revoke(client)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._holders[token] = TokenHolder(client, machine, certificate)
        return token

    def revoke(self, client: ClientId) -> None:
        """Make the token of a client invalid."""
        self._holders = {token: holder for token, holder in self._holders.items() if holder.client != client}

    def is_valid(self, request: web.Request) -> bool:
        """Tell whether a request carries a valid token."""
        return self._find(request) is not None

    def holder(self, request: web.Request) -> TokenHolder:
        """Return the holder of a request's token; raise HTTP 401 if the token is missing or invalid."""
        holder = self._find(request)
        if holder is None:
            raise web.HTTPUnauthorized(headers={"Connection": "close"})
        return holder

    def _find(self, request: web.Request) -> TokenHolder | None:
        text = request.headers.get("Authorization", "").removeprefix("Bearer ")
        holder = self._holders.get(bytes.fromhex(text)) if _TOKEN.fullmatch(text) else None
        return holder if holder is not None and is_bound_to(holder, request) else None


def client_certificate(request: web.Request) -> bytes | None:
    """Return the certificate (DER) that the client showed in TLS; None if there is none, or the connection was cut."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    try:
        certificate: bytes | None = tls.getpeercert(binary_form=True) if tls is not None else None
    except ValueError:  # no handshake is complete: the connection was cut before its request was handled
        return None
    return certificate


def is_bound_to(holder: TokenHolder, request: web.Request) -> bool:
    """Tell whether the client of a request shows the certificate that the token's holder showed at the log-in.

    Return True if the holder showed none.
    """
    return holder.certificate is None or holder.certificate == client_certificate(request)


class FrameLimit:
    """A rate limit on a client's WebSocket control frames (pings and pongs): a burst of `most`, then `per_second`.

    >>> limit = FrameLimit(most=2, per_second=1.0)
    >>> for now in (0.0, 0.0, 1.0):
    ...     limit.count(now)
    """

    def __init__(self, most: int = MOST_CONTROL_FRAMES, per_second: float = CONTROL_FRAMES_PER_SECOND) -> None:
        self._most, self._per_second = most, per_second
        self._left, self._last = float(most), 0.0

    def count(self, now: float) -> None:
        """Count a control frame that arrives at time `now`; raise ProtocolError if the rate is too high."""
        self._left = min(self._most, self._left + self._per_second * max(0.0, now - self._last)) - 1
        self._last = now
        check_not_flooding(self._left)


def check_not_flooding(left: float) -> None:
    """Raise ProtocolError if `left`, the number of control frames still allowed, is below 0."""
    if left < 0:
        raise ProtocolError("too many control frames came at once")


@dataclass(eq=False)
class Session:
    """The control connection of a logged-in client; `machine` is the random id of the client's process."""

    client: ClientId
    machine: bytes
    socket: web.WebSocketResponse
    transport: asyncio.Transport | None = None
    tls: MeteredTLS | None = None
    control_frames: FrameLimit = field(default_factory=FrameLimit)
    outgoing: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    alive: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a frame arrives."""

    async def send_queued(self) -> None:
        """Send queued messages one after the other, until cancelled or disconnected."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.socket.send_bytes(await self.outgoing.get())

    def limit_bytes(self, largest_frame: int) -> None:
        """From now on cut the connection if too many short fragments come, or too many bytes beyond those of messages.

        A message that is under way may have up to `largest_frame` bytes.
        """
        self.tls = metered_tls(self.transport)
        if self.tls is not None:
            self.tls.allowed = self.tls.received + largest_frame * 5 // 4 + READ_AHEAD
            self.tls.fragments = FragmentCounter()

    def take_frame(self, kind: WSMsgType, size: int, now: float) -> None:
        """Count a frame that has arrived; raise ProtocolError for a text frame, or for too many control frames."""
        self.alive.set()
        if self.tls is not None:
            self.tls.allowed += size * 5 // 4 + FRAMING
        if kind is WSMsgType.TEXT:
            raise ProtocolError("a text frame came: messages are binary")
        if kind is not WSMsgType.BINARY:
            self.control_frames.count(now)

    async def cut(self, code: int, reason: bytes, seconds: float) -> None:
        """Send a close frame, and end the connection after `seconds` even if the client does not answer."""
        try:
            async with asyncio.timeout(seconds):
                await self.socket.close(code=code, message=reason)
        except TimeoutError:
            pass
        finally:
            if self.transport is not None:
                self.transport.abort()

    async def answers_ping(self) -> bool:
        """Ping the client; tell whether any frame arrives within PING_TIMEOUT."""
        self.alive.clear()
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                await self.socket.ping()
                await self.alive.wait()
        except (TimeoutError, ConnectionError):
            return False
        return True


class Sessions:
    """The sessions of all connected clients; changed on the event loop only, read from any thread."""

    def __init__(self) -> None:
        self._sessions: dict[ClientId, Session] = {}
        self._change = threading.Condition()

    def get(self, client: ClientId) -> Session | None:
        """Return the session of a client; None if it is not connected."""
        return self._sessions.get(client)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def clients(self) -> frozenset[ClientId]:
        """Return the connected clients."""
        with self._change:
            return frozenset(self._sessions)

    def wait(self, enough: Callable[[frozenset[ClientId]], bool], seconds: float | None = None) -> frozenset[ClientId]:
        """Wait until `enough` is true of the set of connected clients, or `seconds` have passed; return this set."""
        with self._change:
            self._change.wait_for(lambda: enough(frozenset(self._sessions)), seconds)
            return frozenset(self._sessions)

    def add(self, session: Session) -> Session | None:
        """Register a client's session; return the earlier session that it replaces, or None.

        Raise LoginRefused if the client is connected from another process.
        """
        self.check_not_in_use(session.client, session.machine)
        replaced = self._sessions.get(session.client)
        with self._change:
            self._sessions[session.client] = session
            self._change.notify_all()
        return replaced

    def remove(self, session: Session) -> bool:
        """Remove a session; return False if a newer session of the client has replaced it."""
        with self._change:
            current = self._sessions.get(session.client) is session
            if current:
                del self._sessions[session.client]
            self._change.notify_all()
        return current

    def check_not_in_use(self, client: ClientId, machine: bytes) -> None:
        """Raise LoginRefused if the client is connected from another process than `machine`, a random process id."""
        session = self._sessions.get(client)
        if session is not None and session.machine != machine:
            raise LoginRefused(
                f"client {client} is connected already, from another process or machine: one identity is for one client"
            )
