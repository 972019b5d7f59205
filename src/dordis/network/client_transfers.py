"""HTTPS transfers of connected clients and of visiting clients; an interrupted transfer is resumed.

A connected client gets requests on its control connection, and downloads and uploads on other connections.  A
visiting client makes single requests, each on its own connection, until its contribution is accepted or refused.
"""

import asyncio
import logging
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from dordis import wire
from dordis.errors import InputError, LoginRefused, MalformedMessage, ProtocolError
from dordis.network.authentication import LoginCredentials, explain_tls_error
from dordis.network.download_endpoint import LENGTH_BYTES, read_history, split_body
from dordis.network.messages import SUBPROTOCOL, VERSION_HEADER, BodyInfo, Welcome
from dordis.network.upload_endpoint import LeastRate
from dordis.network.visits import ACCEPTED, CONFLICT, GONE, UNPROCESSABLE
from dordis.owner.receipts import Shown
from dordis.protocol import Message

log = logging.getLogger("dordis.network")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Pause in seconds before the first reconnection, and the longest pause before a later reconnection."""
LONGEST_RETRY_PAUSE = 5.0
"""Longest pause in seconds before a transfer is resumed."""
ATTEMPTS = 8
"""Number of failed attempts in a row, each without progress, after which a transfer is given up."""
PROGRESS = 1 << 16
"""If a failed attempt to download received at least this number of bytes, the count of failed attempts starts again."""
STALL = 60.0
"""Seconds without progress after which the client interrupts a transfer and tries again."""
LARGEST_DOWNLOAD = 1 << 32
"""Largest download of one message, in bytes."""
REDIRECTED = "the server redirects this client to another address, which is refused"
REFUSED = (CONFLICT, UNPROCESSABLE, 403, 413)
"""HTTP status codes with which a server refuses a contribution for good."""
HOST = r"[\w-]{1,63}(\.[\w-]{1,63})*\.?|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]"
NOT_FOUND, RANGE_NOT_SATISFIABLE = 404, 416


@dataclass(frozen=True)
class Address:
    """Host and port of a server."""

    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> "Address":
        """Return the address in `https://host:port` or `host:port`; raise InputError for other texts.

        >>> Address.from_url("https://dordis.example:8765")
        Address(host='dordis.example', port=8765)
        """
        host, _, port = url.removeprefix("https://").rstrip("/").rpartition(":")
        if not re.fullmatch(HOST, host) or not re.fullmatch("[0-9]{1,5}", port):
            raise InputError(f"the server's address must be https://host:port: got '{url}'")
        if not 0 < int(port) < 1 << 16:
            raise InputError(f"the port of the server's address must be from 1 to 65535: got '{url}'")
        return cls(host, int(port))

    def url(self, path: str) -> str:
        """Return the URL of a path at this server."""
        return f"https://{self.host}:{self.port}{path}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ServerBusy(Exception):
    """The server asks the client to try again after `seconds`; this does not count as a failed attempt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Transfers:
    """The downloads and uploads that belong to one control connection."""

    def __init__(self, session: ClientSession, address: Address, welcome: Welcome, context: ssl.SSLContext) -> None:
        self._session, self._address, self._context = session, address, context
        self.headers = {"Authorization": f"Bearer {welcome.token.hex()}"}

    async def download(self, body: BodyInfo) -> bytes:
        """Download an announced body, such as a model, and return it; raise MalformedMessage if its digest is wrong."""
        if not 0 < body.size <= LARGEST_DOWNLOAD:
            raise MalformedMessage(f"a download of {body.size} bytes was announced; at most {LARGEST_DOWNLOAD}")
        url, data = self._address.url(f"/blobs/{body.digest.hex()}"), bytearray()
        attempt = 0
        while attempt < ATTEMPTS:
            before = len(data)
            try:
                headers = self.headers | ({"Range": f"bytes={len(data)}-"} if data else {})
                async with (
                    LeastRate(STALL) as rate,
                    self._session.get(url, headers=headers, ssl=self._context) as response,
                ):
                    check_not_busy(response.status, response.headers)
                    response.raise_for_status()
                    async for piece in response.content.iter_any():
                        data += piece
                        rate.count(len(piece))
                        if len(data) > body.size:
                            raise MalformedMessage(f"a download is longer than the announced {body.size} bytes")
            except ServerBusy as busy:
                await wait_while_busy(busy.seconds)
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                attempt = 0 if len(data) - before >= PROGRESS else attempt
                await _pause(attempt, error)
            if len(data) == body.size:
                break
            attempt += 1
        body.check_download(data)
        return bytes(data)

    async def history(self, after: int, known: int) -> list[Shown]:
        """Return the run's history, fetched from the server: the hashes of the receipts of all rounds after `after`.

        For this client's own rounds after `known` it also has the receipts; the client has stored the earlier ones.
        """
        url = self._address.url(f"/receipts?after={after}&known={known}")
        async with self._session.get(url, headers=self.headers, ssl=self._context) as response:
            check_not_busy(response.status, response.headers)
            return await read_history(response)

    async def upload(self, id: int, data: wire.Bulk) -> None:
        """Upload the vector of the reply to request `id`; give up if it is refused, or ATTEMPTS get no further."""
        url, attempt, offset, furthest = self._address.url(f"/vectors/{id}"), 0, 0, 0
        while attempt < ATTEMPTS:
            try:
                status, offset = await self._put(url, data, offset)
            except ServerBusy as busy:
                await wait_while_busy(busy.seconds)
                status, offset = await self._progress(url, len(data))
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await _pause(attempt, error)
                status, offset = await self._progress(url, len(data))
            if status in (204, 404, 401):
                return
            attempt = 0 if offset > furthest else attempt + 1
            furthest = max(furthest, offset)
        log.warning("an upload was given up after %d attempts without progress", ATTEMPTS)

    async def _put(self, url: str, data: wire.Bulk, offset: int) -> tuple[int, int]:
        """Send the rest of a body from an offset; return the HTTP status and the offset to continue from."""
        size = len(data)
        headers = self.headers | upload_headers(size, offset)
        async with LeastRate(STALL) as rate:
            body = _count_pieces(split_body(data, offset), rate)
            async with self._session.put(url, data=body, headers=headers, ssl=self._context) as response:
                check_not_busy(response.status, response.headers)
                return response.status, read_offset(response.headers, size)

    async def _progress(self, url: str, size: int) -> tuple[int, int]:
        """Ask how many bytes of an upload have arrived; return the HTTP status and this number, (0, 0) on failure."""
        try:
            async with self._session.head(url, headers=self.headers, ssl=self._context) as response:
                return response.status, read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, 0


async def _count_pieces(pieces: AsyncIterator[memoryview], rate: LeastRate) -> AsyncIterator[memoryview]:
    """Yield the pieces of an upload, and count them in `rate`: a piece is sent when the next one is requested."""
    async for piece in pieces:
        yield piece
        rate.count(len(piece))


def upload_headers(size: int, offset: int) -> dict[str, str]:
    """Return the HTTP headers of a request that sends an upload of `size` bytes from `offset` on."""
    headers = {"Content-Length": str(size - offset)}
    return headers | ({"Content-Range": f"bytes {offset}-{size - 1}/{size}"} if offset else {})


def read_offset(headers: Mapping[str, str], size: int) -> int:
    """Return the offset at which the server wants an upload to continue; raise MalformedMessage if it is not valid."""
    text = headers.get("Upload-Offset", "0")
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > size:
        raise MalformedMessage(f"the server wants an upload of {size} bytes to continue at the offset '{text[:40]}'")
    return int(text)


def check_not_busy(status: int, headers: Mapping[str, str]) -> None:
    """Raise ServerBusy for HTTP 503, with the server's Retry-After limited to FIRST_PAUSE..LONGEST_PAUSE."""
    if status == 503:
        text = headers.get("Retry-After", "")
        seconds = min(float(text), LONGEST_PAUSE) if text.isdecimal() else LONGEST_PAUSE
        raise ServerBusy(max(seconds, FIRST_PAUSE))  # at least FIRST_PAUSE, so that "0" causes no busy loop


async def wait_to_reconnect(seconds: float) -> None:
    """Wait for 0.5 to 1.5 times `seconds`, so that clients do not all reconnect at the same time."""
    await asyncio.sleep(seconds * (0.5 + secrets.randbelow(1000) / 1000))


async def wait_while_busy(seconds: float) -> None:
    """Wait `seconds` before the next attempt, because the server is busy."""
    log.info("the server is busy: next attempt in %g s", seconds)
    await asyncio.sleep(seconds)


async def _pause(attempt: int, error: BaseException) -> None:
    """Wait before a transfer is resumed; after the last attempt, raise the error instead."""
    log.info("a transfer broke off: %s", describe_error(error))
    if attempt == ATTEMPTS - 1:
        raise error
    await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_RETRY_PAUSE))


def describe_error(error: BaseException) -> str:
    """Return why a connection or transfer failed: in words for a TLS error, else the error's message or class name."""
    where = ""
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError | aiohttp.InvalidURL):
        where = "the proxy in HTTPS_PROXY failed: " if "https" in getproxies() else "the address is invalid: "
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    elif isinstance(error.__cause__, ssl.SSLError):  # an alert after the handshake
        error = error.__cause__
    return where + (explain_tls_error(error) if isinstance(error, ssl.SSLError) else str(error) or type(error).__name__)


def certificate_refused(error: aiohttp.ClientConnectorCertificateError) -> LoginRefused:
    """Return the error for a server whose certificate this client does not accept."""
    return LoginRefused(f"the server's certificate is not accepted: {describe_error(error)}")


@dataclass
class ConnectedTime:
    """Seconds for which this client was connected in one round, and the number of its requests."""

    seconds: float = 0.0
    requests: int = 0


class VisitorRequests:
    """The requests of a visiting client to its server; `note` is called with the reason if an upload is interrupted."""

    def __init__(self, address: Address, credentials: LoginCredentials, note: Callable[[str], None]) -> None:
        self._address, self.credentials, self._note = address, credentials, note
        self.connected = ConnectedTime()

    async def download(self, path: str, limit: int, size: int | None = None) -> bytes:
        """Download and return the body at a path, of at most `limit` bytes; resume the download if it is interrupted.

        `size` is the expected size; if None, the first response states it.
        """
        data, attempt = bytearray(), 0
        while size is None or len(data) < size:
            before = len(data)
            headers = {"Range": f"bytes={before}-"} if data else {}
            try:
                async with self.request("GET", path, headers=headers) as response:
                    size = response.content_length if size is None else size
                    await _append(response, data, limit)
                if size is None or len(data) < size:  # a failed attempt: else a server could send parts forever
                    raise aiohttp.ClientPayloadError("the server sent only a part of a download")
            except ServerBusy as busy:
                await wait_while_busy(busy.seconds)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                attempt = 0 if len(data) - before >= PROGRESS else attempt + 1
                if attempt == ATTEMPTS or (isinstance(error, aiohttp.ClientResponseError) and error.status < 500):
                    raise
                await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        return bytes(data)

    async def put(self, index: int, contribution: Message) -> bool:
        """Upload a contribution to round `index`; return True if the server accepts it, False if the round is closed.

        Raise ProtocolError if the server refuses the contribution.
        """
        frame = wire.encode(contribution)
        body = b"".join((len(frame).to_bytes(LENGTH_BYTES, "big"), frame, wire.bulk_of(contribution)))
        path, offset, pause = f"/contributions/{index}", 0, FIRST_PAUSE
        while True:
            try:
                status, offset = await self._put_rest(path, body, offset)
                if status == ACCEPTED:
                    return True
                if status == GONE:
                    log.warning("the contribution came too late: the round was closed")
                    return False
                check_not_refused(status)
                if status != RANGE_NOT_SATISFIABLE:  # HTTP 416 has the offset to continue from
                    offset = await self._offset(path, len(body))
            except ServerBusy as busy:
                pause = busy.seconds
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._note(f"the contribution is not at {self._address} yet: {describe_error(error)}; trying again")
                offset = await self._offset(path, len(body))
            await wait_to_reconnect(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _put_rest(self, path: str, body: bytes, offset: int) -> tuple[int, int]:
        """Send a contribution from an offset on; return the HTTP status and the offset to continue from."""
        headers = upload_headers(len(body), offset)
        async with self.request("PUT", path, headers=headers, data=split_body(body, offset)) as response:
            return response.status, read_offset(response.headers, len(body))

    async def _offset(self, path: str, size: int) -> int:
        """Return the number of bytes of a contribution that the server has; 0 if the server does not answer."""
        try:
            async with self.request("HEAD", path) as response:
                return read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError, ServerBusy):
            return 0

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, data: Any = None
    ) -> AsyncIterator[ClientResponse]:
        """Make one request on a new connection, and yield the response; raise if `check_admitted` raises.

        Raise LoginRefused if this client does not accept the server's certificate.
        """
        began = time.monotonic()
        self.connected.requests += 1
        given = {VERSION_HEADER: SUBPROTOCOL, **(headers or {})}
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = ClientTimeout(total=None, sock_connect=STALL, sock_read=STALL)
        try:
            async with (
                ClientSession(connector=connector, trust_env=True, timeout=timeout, auto_decompress=False) as session,
                session.request(
                    method,
                    self._address.url(path),
                    headers=given,
                    data=data,
                    ssl=self.credentials.context,
                    allow_redirects=False,
                ) as response,
            ):
                await check_admitted(response, method)
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise certificate_refused(error) from None
        finally:
            self.connected.seconds += time.monotonic() - began


async def check_admitted(response: ClientResponse, method: str) -> None:
    """Raise LoginRefused if the server refuses this version, ServerBusy for HTTP 503, ClientError for a redirect.

    For a GET also raise LoginRefused for HTTP 403, and ClientError for any other HTTP error except GONE.
    """
    check_not_busy(response.status, response.headers)
    if response.status == 426:
        raise version_refused(response.headers)
    if response.status == 403 and method == "GET":
        reason = (await read_body(response, 1 << 12)).decode("ascii", "replace")
        raise LoginRefused(f"the server refused: {''.join(c if c.isprintable() else '?' for c in reason[:200])}")
    if method == "GET" and response.status != GONE:
        response.raise_for_status()
    if response.status in (301, 302, 303, 307, 308):
        raise aiohttp.ClientConnectionError(REDIRECTED)


def version_refused(headers: Mapping[str, str] | None) -> LoginRefused:
    """Return the error for a server of another version; `headers`, those of its response, state the version."""
    theirs = (headers or {}).get(VERSION_HEADER, "another version")
    return LoginRefused(f"the server speaks {theirs}, this client {SUBPROTOCOL}: install the same version of dordis")


def check_not_refused(status: int) -> None:
    """Raise ProtocolError for an HTTP status in `REFUSED`: the server will never take this contribution."""
    if status in REFUSED:
        raise ProtocolError(f"the server refused the contribution (HTTP {status})")


async def read_body(response: ClientResponse, limit: int) -> bytes:
    """Return the body of a response; raise MalformedMessage if it is longer than `limit`."""
    data = bytearray()
    await _append(response, data, limit)
    return bytes(data)


async def _append(response: ClientResponse, data: bytearray, limit: int) -> None:
    """Append the body of a response to `data`; raise MalformedMessage if `data` becomes longer than `limit`."""
    async with LeastRate(STALL) as rate:
        async for piece in response.content.iter_any():
            data += piece
            rate.count(len(piece))
            if len(data) > limit:
                raise MalformedMessage(f"the server sent more than {limit} bytes where at most as many are expected")
