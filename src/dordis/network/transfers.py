"""What a client fetches and puts by HTTPS: in pieces, going on where it broke off, and later if the server is busy."""

import asyncio
import hashlib
import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import ClientSession

from dordis import wire
from dordis.errors import InputError, MalformedMessage
from dordis.network.bulk import pieces_of
from dordis.network.messages import Beside, Welcome

log = logging.getLogger("dordis.network")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds before the first and before later attempts, to connect again or to go on."""
TRIES = 8
"""How often a body is sent or fetched, going on where it stopped, before the request is given up."""
LARGEST = 1 << 32
"""Bytes that are fetched at most for one message."""


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read `https://host:port`, or `host:port`.

        >>> Address.of("https://dordis.example:8765")
        Address(host='dordis.example', port=8765)
        """
        host, _, port = url.removeprefix("https://").rstrip("/").rpartition(":")
        if not host or not port.isdigit() or "/" in host:
            raise InputError(f"the address of a server is https://host:port, not '{url}'")
        return cls(host, int(port))

    def url(self, path: str, port: int | None = None) -> str:
        """Return the address of something there."""
        return f"https://{self.host}:{port or self.port}{path}"


class Bodies:
    """What is fetched and put by HTTPS, beside one connection."""

    def __init__(self, session: ClientSession, address: Address, welcome: Welcome, context: ssl.SSLContext) -> None:
        self._session, self._address, self._context = session, address, context
        self._port = welcome.port or address.port
        self.headers = {"Authorization": f"Bearer {welcome.token.hex()}"}

    async def fetch(self, beside: Beside) -> bytes:
        """Fetch what is announced, in pieces, and go on where it broke off; what is not as announced is refused."""
        if not 0 < beside.size <= LARGEST:
            raise MalformedMessage(f"{beside.size} bytes are announced, and {LARGEST} are the most")
        url, got = self._address.url(f"/blobs/{beside.digest.hex()}"), bytearray()
        trial = 0
        while trial < TRIES:
            try:
                headers = self.headers | ({"Range": f"bytes={len(got)}-"} if got else {})
                async with self._session.get(url, headers=headers, ssl=self._context) as response:
                    check_not_busy(response.status, response.headers)
                    response.raise_for_status()
                    async for piece in response.content.iter_any():
                        got += piece
                        if len(got) > beside.size:
                            raise MalformedMessage("more came than was announced")
            except Busy as busy:
                await wait(busy.seconds)
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await _pause(trial, error)
                trial += 1
                continue
            if len(got) == beside.size:
                break
            trial += 1
        if hashlib.sha256(got).digest() != beside.digest:
            raise MalformedMessage("what came is not what its digest is of")
        return bytes(got)

    async def put(self, id: int, data: wire.Bulk) -> None:
        """Put a vector; if that breaks off, go on where it stopped.  After the deadline nobody wants it: then stop."""
        url, trial, offset, furthest = self._address.url(f"/vectors/{id}", self._port), 0, 0, 0
        while trial < TRIES:
            try:
                status, offset = await self._put(url, data, offset)
            except Busy as busy:  # that is no failure
                await wait(busy.seconds)
                status, offset = await self._progress(url, len(data))
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                await _pause(trial, error)
                status, offset = await self._progress(url, len(data))
            if status in (204, 404, 401):
                return
            trial = 0 if offset > furthest else trial + 1  # one that gets nowhere is given up
            furthest = max(furthest, offset)
        log.warning("a vector could not be sent")

    async def _put(self, url: str, data: wire.Bulk, offset: int) -> tuple[int, int]:
        size = len(data)
        headers = self.headers | {"Content-Length": str(size - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
        body = pieces_of(data, offset)
        async with self._session.put(url, data=body, headers=headers, ssl=self._context) as response:
            check_not_busy(response.status, response.headers)
            return response.status, read_offset(response.headers, size)

    async def _progress(self, url: str, size: int) -> tuple[int, int]:
        try:
            async with self._session.head(url, headers=self.headers, ssl=self._context) as response:
                return response.status, read_offset(response.headers, size)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, 0


def read_offset(headers: Mapping[str, str], size: int) -> int:
    """Return where to go on with a body of so many bytes, as the server says."""
    text = headers.get("Upload-Offset", "0")
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > size:
        raise MalformedMessage(f"the server asks for the rest of a body of {size} bytes from '{text[:40]}' on")
    return int(text)


class Busy(Exception):
    """The server is busy, and says when to come again; it is no error."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


def check_not_busy(status: int, headers: Mapping[str, str]) -> None:
    """Come again when a busy server says so, within reason."""
    if status == 503:
        given = headers.get("Retry-After", "")
        seconds = min(float(given), LONGEST_PAUSE) if given.isdecimal() else LONGEST_PAUSE
        raise Busy(max(seconds, FIRST_PAUSE))  # a server that says "at once" must not make a client spin


async def wait(seconds: float) -> None:
    """Wait."""
    log.info("the server is busy: again in %g seconds", seconds)
    await asyncio.sleep(seconds)


async def _pause(trial: int, error: BaseException) -> None:
    log.info("a transfer broke off: %s", told(error))
    if trial == TRIES - 1:
        raise error
    await asyncio.sleep(min(FIRST_PAUSE * 2**trial, 5.0))


def told(error: BaseException) -> str:
    """Return what an error says, or its name."""
    return str(error) or type(error).__name__
