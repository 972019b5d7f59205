"""A client's HTTPS transfers: downloads of models and sums, uploads of vectors; both resume after an interruption."""

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import ClientSession

from dordis import wire
from dordis.errors import InputError, MalformedMessage
from dordis.network.messages import BodyInfo, Welcome
from dordis.network.receipts import read_history
from dordis.network.server_transfers import split_body
from dordis.network.upload_endpoint import LeastRate
from dordis.owner.receipts import Shown

log = logging.getLogger("dordis.network")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before the first reconnection, and the longest pause before a later one."""
LONGEST_RETRY_PAUSE = 5.0
"""Longest pause in seconds before a transfer is resumed."""
ATTEMPTS = 8
"""Number of attempts without progress after which a transfer is given up."""
STALL = 60.0
"""Seconds without progress after which the client interrupts a transfer and tries again."""
LARGEST_DOWNLOAD = 1 << 32
"""Largest download of one message, in bytes."""


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
        if not host or not port.isdigit() or "/" in host:
            raise InputError(f"the server's address must be https://host:port: got '{url}'")
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
        """Return an announced body; raise MalformedMessage if the server sends different bytes."""
        if not 0 < body.size <= LARGEST_DOWNLOAD:
            raise MalformedMessage(f"a download of {body.size} bytes was announced; at most {LARGEST_DOWNLOAD}")
        url, data = self._address.url(f"/blobs/{body.digest.hex()}"), bytearray()
        attempt = 0
        while attempt < ATTEMPTS:
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
                await _pause(attempt, error)
                attempt += 1
                continue
            if len(data) == body.size:
                break
            attempt += 1
        body.check_download(data)
        return bytes(data)

    async def history(self, after: int, known: int) -> list[Shown]:
        """Return the history of receipts after index `after`; up to the index `known` it has hashes only."""
        url = self._address.url(f"/receipts?after={after}&known={known}")
        async with self._session.get(url, headers=self.headers, ssl=self._context) as response:
            check_not_busy(response.status, response.headers)
            return await read_history(response)

    async def upload(self, id: int, data: wire.Bulk) -> None:
        """Upload the body of the reply to request `id`; stop if the server no longer expects it."""
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
        headers = self.headers | {"Content-Length": str(size - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
        async with LeastRate(STALL) as rate:
            body = _count_pieces(split_body(data, offset), rate)
            async with self._session.put(url, data=body, headers=headers, ssl=self._context) as response:
                check_not_busy(response.status, response.headers)
                return response.status, read_offset(response.headers, size)

    async def _progress(self, url: str, size: int) -> tuple[int, int]:
        """Return the HTTP status, 0 without a response, and the number of an upload's bytes that have arrived."""
        try:
            async with self._session.head(url, headers=self.headers, ssl=self._context) as response:
                return response.status, read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, 0


async def _count_pieces(pieces: AsyncIterator[memoryview], rate: LeastRate) -> AsyncIterator[memoryview]:
    """Yield the pieces of an upload; `rate` counts a piece as sent when the next one is requested."""
    async for piece in pieces:
        yield piece
        rate.count(len(piece))


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


async def wait_while_busy(seconds: float) -> None:
    """Wait until the next attempt at a busy server."""
    log.info("the server is busy: next attempt in %g s", seconds)
    await asyncio.sleep(seconds)


async def _pause(attempt: int, error: BaseException) -> None:
    """Wait before a transfer is resumed; after the last attempt, raise the error instead."""
    log.info("a transfer broke off: %s", describe_error(error))
    if attempt == ATTEMPTS - 1:
        raise error
    await asyncio.sleep(min(FIRST_PAUSE * 2**attempt, LONGEST_RETRY_PAUSE))


def describe_error(error: BaseException) -> str:
    """Return the message of an error, or its class name if it has none."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return describe_error(error.os_error)
    return str(error) or type(error).__name__
