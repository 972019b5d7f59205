"""The requests of a visiting client: downloads that resume, and a contribution, repeated until accepted or refused.

Each request has its own connection, which is closed after the response.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from dordis import wire
from dordis.errors import LoginRefused, MalformedMessage, ProtocolError
from dordis.network.authentication import LoginCredentials
from dordis.network.client import wait_to_reconnect
from dordis.network.client_transfers import (
    ATTEMPTS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    STALL,
    Address,
    ServerBusy,
    check_not_busy,
    describe_error,
    read_offset,
)
from dordis.network.messages import SUBPROTOCOL, VERSION_HEADER
from dordis.network.server_transfers import LENGTH_BYTES, split_body
from dordis.network.upload_endpoint import LeastRate
from dordis.network.visits import ACCEPTED, CONFLICT, GONE, UNPROCESSABLE
from dordis.protocol import Message

log = logging.getLogger("dordis.network")

REFUSED = (CONFLICT, UNPROCESSABLE, 403, 413)
"""HTTP status codes with which a server refuses a contribution for good."""
NOT_FOUND, RANGE_NOT_SATISFIABLE = 404, 416


@dataclass
class ConnectedTime:
    """Seconds for which this client was connected in one round, and the number of its requests."""

    seconds: float = 0.0
    requests: int = 0


class VisitorRequests:
    """The requests of one client to one server; `note` is called with the reason when an upload is interrupted."""

    def __init__(self, address: Address, credentials: LoginCredentials, note: Callable[[str], None]) -> None:
        self._address, self.credentials, self._note = address, credentials, note
        self.connected = ConnectedTime()

    async def download(self, path: str, limit: int, size: int | None = None) -> bytes:
        """Return a body of at most `limit` bytes; an interrupted download is resumed.

        If `size` is None, the first response gives the size.
        """
        data, attempt = bytearray(), 0
        while size is None or len(data) < size:
            headers = {"Range": f"bytes={len(data)}-"} if data else {}
            try:
                async with self.request("GET", path, headers=headers) as response:
                    size = response.content_length if size is None else size
                    await _append(response, data, limit)
                if size is None or len(data) < size:  # a failed attempt, or a server could repeat it forever
                    raise aiohttp.ClientPayloadError("the server sent only a part of a download")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                attempt += 1
                if attempt == ATTEMPTS or (isinstance(error, aiohttp.ClientResponseError) and error.status < 500):
                    raise
                await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        return bytes(data)

    async def put(self, index: int, contribution: Message) -> bool:
        """Upload a contribution; return True when it is accepted, False if too late; raise ProtocolError if refused."""
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
        size = len(body)
        headers = {"Content-Length": str(size - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
        async with self.request("PUT", path, headers=headers, data=split_body(body, offset)) as response:
            return response.status, read_offset(response.headers, size)

    async def _offset(self, path: str, size: int) -> int:
        """Return the number of bytes of a contribution that the server has; 0 if it does not answer."""
        try:
            async with self.request("HEAD", path) as response:
                return read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError, ServerBusy):
            return 0

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, data: Any = None
    ) -> AsyncIterator[ClientResponse]:
        """Make one request on its own connection; raise LoginRefused if version, certificate or client is refused."""
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
            raise LoginRefused(f"the server's certificate is not accepted: {error.certificate_error}") from None
        finally:
            self.connected.seconds += time.monotonic() - began


async def check_admitted(response: ClientResponse, method: str) -> None:
    """Raise LoginRefused if version or client is refused, ServerBusy for HTTP 503, ClientError for a redirect.

    For a GET also raise ClientError for any other HTTP error, except GONE.
    """
    check_not_busy(response.status, response.headers)
    if response.status == 426:
        theirs = response.headers.get(VERSION_HEADER, "another version")
        raise LoginRefused(f"the server speaks {theirs}, this client {SUBPROTOCOL}: install the same version of dordis")
    if response.status == 403 and method == "GET":
        reason = (await read_body(response, 1 << 12)).decode("ascii", "replace")
        raise LoginRefused(f"the server refused: {''.join(c if c.isprintable() else '?' for c in reason[:200])}")
    if method == "GET" and response.status != GONE:
        response.raise_for_status()
    if 300 < response.status < 304:
        raise aiohttp.ClientConnectionError("the server redirects this client to another address, which is refused")


def check_not_refused(status: int) -> None:
    """Raise ProtocolError if the server refused a contribution for good."""
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
