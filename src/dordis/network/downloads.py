"""Offers of models and sums, which clients download by HTTPS GET; an interrupted download can be resumed."""

from collections.abc import AsyncIterator

from aiohttp import web

from dordis import wire
from dordis.network.messages import BodyInfo
from dordis.network.sessions import AccessTokens
from dordis.network.upload_endpoint import LeastRate, TransferSlots

PIECE = 1 << 18
"""Number of bytes written to a connection at a time."""
STALL = 30.0
"""Seconds without progress of a download after which the connection is cut (`LeastRate`)."""


class DownloadEndpoint:
    """The HTTP endpoint /blobs/{digest}; a body is offered while a request that announces it is open."""

    def __init__(self, tokens: AccessTokens, slots: TransferSlots) -> None:
        self._tokens, self._slots = tokens, slots
        self._offers: dict[bytes, tuple[int, wire.Bulk]] = {}

    def offer(self, data: wire.Bulk) -> BodyInfo:
        """Offer a body and return its announcement; a body that was offered twice must be withdrawn twice."""
        info = BodyInfo.from_download(data)
        count, _ = self._offers.get(info.digest, (0, b""))
        self._offers[info.digest] = (count + 1, data)
        return info

    def withdraw(self, digest: bytes) -> None:
        """Withdraw one offer of the body with this digest."""
        count, data = self._offers.pop(digest)
        if count > 1:
            self._offers[digest] = (count - 1, data)

    def find(self, digest: bytes) -> wire.Bulk | None:
        """Return the body offered under a digest; None if there is none."""
        _, data = self._offers.get(digest, (0, None))
        return data

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send a body, or its rest from an offset; every logged-in client may download every body."""
        client = self._tokens.holder(request).client
        try:
            data = self.find(bytes.fromhex(request.match_info["digest"]))
        except ValueError:
            raise web.HTTPBadRequest from None
        if data is None:
            raise web.HTTPNotFound
        with self._slots.hold(client):
            return await send_body(request, data)


async def send_body(request: web.Request, data: wire.Bulk) -> web.StreamResponse:
    """Send a body, or its rest from the first byte in the Range header; raise HTTP 416 beyond its end."""
    size = len(data)
    try:
        start = request.http_range.start or 0
    except ValueError:
        raise web.HTTPBadRequest from None
    if start and not 0 < start < size:
        raise web.HTTPRequestRangeNotSatisfiable
    response = web.StreamResponse(status=206 if start else 200)
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    response.content_length = size - start
    await response.prepare(request)
    await write_pieces(response, split_body(data, start))
    return response


async def write_pieces(response: web.StreamResponse, pieces: AsyncIterator[memoryview]) -> None:
    """Write a body to a response; raise TimeoutError after STALL seconds without progress."""
    async with LeastRate(STALL) as rate:
        async for piece in pieces:
            await response.write(piece)
            rate.count(len(piece))


async def split_body(data: wire.Bulk, offset: int = 0) -> AsyncIterator[memoryview]:
    """Yield a body in pieces from an offset on."""
    view = memoryview(data)
    for start in range(offset, len(view), PIECE):
        yield view[start : start + PIECE]
