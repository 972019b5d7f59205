"""Reception of the vectors that clients upload by HTTPS PUT, into a few reused buffers.

An upload is announced first, so that its size is bounded before memory is allocated.  An interrupted upload is resumed.
If other senders wait for a buffer, a slow sender loses its buffer, and its upload continues in a temporary file.
"""

import asyncio
import logging
import re
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from aiohttp import ClientError, web

from dordis.errors import DordisError, MalformedMessage
from dordis.network.connections import RETRY_LATER
from dordis.network.messages import BodyInfo
from dordis.network.sessions import AccessTokens
from dordis.protocol import ClientId

log = logging.getLogger("dordis.network")

BUFFERS = 4
MOST_UPLOADS, MOST_TRANSFERS = 256, 4
"""Largest number of simultaneous uploads of all clients, and of transfers of one client; others get HTTP 503."""
ANNOUNCEMENT_DELAY = 5.0
"""Seconds for which an upload waits for its announcement, which comes on another connection."""
SLOW = 1.0
"""Seconds after which a sender may lose its buffer, if other senders wait for one."""
STALL, PROGRESS = 5.0, 4096
"""An upload is cut off if fewer than PROGRESS bytes arrive in STALL seconds."""
CHECKS_PER_TIMEOUT = 10
"""A timeout is extended at most this number of times during its length, because each extension costs CPU time."""

_ID = re.compile("[0-9]{1,15}")
_RANGE = re.compile(r"bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})")


class LeastRate:
    """A context that raises TimeoutError if a transfer moves fewer than PROGRESS bytes in any `seconds` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._moved, self._next_check = seconds, 0, 0.0
        self._loop, self._timeout = asyncio.get_running_loop(), asyncio.timeout(seconds)

    async def __aenter__(self) -> "LeastRate":
        await self._timeout.__aenter__()
        self._next_check = self._loop.time() + self._seconds / CHECKS_PER_TIMEOUT
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._timeout.__aexit__(*raised)

    def count(self, size: int) -> None:
        """Count `size` bytes as transferred."""
        self._moved += size
        if self._moved >= PROGRESS and (now := self._loop.time()) >= self._next_check:
            self._moved, self._next_check = 0, now + self._seconds / CHECKS_PER_TIMEOUT
            self._timeout.reschedule(now + self._seconds)


class TransferSlots:
    """A bound on the simultaneous transfers of each client, uploads and downloads together."""

    def __init__(self) -> None:
        self._transfers: Counter[ClientId] = Counter()

    @contextmanager
    def hold(self, client: ClientId) -> Iterator[None]:
        """Count a transfer of a client; raise HTTP 503 if it already has MOST_TRANSFERS."""
        if self._transfers[client] >= MOST_TRANSFERS:
            raise web.HTTPServiceUnavailable(headers={"Connection": "close", **RETRY_LATER})
        self._transfers[client] += 1
        try:
            yield
        finally:
            self._transfers[client] -= 1


class BufferPool:
    """A few buffers for all uploads; while a sender waits for a buffer, nothing is read from its connection."""

    def __init__(self, count: int = BUFFERS) -> None:
        self._free: list[bytearray] = [bytearray() for _ in range(count)]
        self._waiting: deque[asyncio.Future[bytearray]] = deque()
        self._receiving: set[Upload] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes, after waiting until one is free."""
        if self._free:
            buffer = self._free.pop()
        else:
            future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if self._timer is None:
                self._reclaim_from_slow()
            buffer = await future
        return buffer if len(buffer) >= size else bytearray(size)

    def release(self, buffer: bytearray) -> None:
        """Pass a buffer that is not needed any more to the sender that has waited longest, or else back to the pool."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(buffer)
                return
        self._free.append(buffer)

    def add_receiving(self, upload: "Upload") -> None:
        """Register an incomplete upload that holds a buffer."""
        self._receiving.add(upload)

    def remove_receiving(self, upload: "Upload") -> None:
        """Unregister an upload that is complete or has lost its buffer."""
        self._receiving.discard(upload)

    def _reclaim_from_slow(self) -> None:
        """Take buffers from slow senders, every SLOW seconds while a sender waits for one."""
        loop = asyncio.get_running_loop()
        for upload in [upload for upload in self._receiving if loop.time() - upload.since > SLOW]:
            upload.move_to_file()
        self._timer = loop.call_later(SLOW, self._reclaim_from_slow) if self._waiting else None


class Upload:
    """One announced upload: the part that has arrived, in a buffer or in a temporary file."""

    def __init__(self, info: BodyInfo, pool: BufferPool) -> None:
        self.info, self._pool = info, pool
        self.received, self.since = 0, 0.0
        self.is_receiving = False
        self._buffer: bytearray | None = None
        self._file: IO[bytes] | None = None

    async def receive(self, pieces: AsyncIterable[bytes]) -> None:
        """Append pieces; raise TimeoutError if they stall, MalformedMessage if they are longer than announced."""
        if self._buffer is None and self._file is None:
            self._buffer = await self._pool.acquire(self.info.size)
            self.since = asyncio.get_running_loop().time()
            self._pool.add_receiving(self)
        try:
            async with LeastRate(STALL) as rate:
                async for piece in pieces:
                    self._append(piece)
                    rate.count(len(piece))
        finally:
            if self.received < self.info.size:
                self.move_to_file()

    def _append(self, piece: bytes) -> None:
        end = self.received + len(piece)
        if end > self.info.size:
            raise MalformedMessage(f"an upload is longer than the announced {self.info.size} bytes")
        if self._buffer is not None:
            self._buffer[self.received : end] = piece
        elif self._file is not None:
            with self._room_on_disk():
                self._file.write(piece)
        else:
            raise MalformedMessage("an upload was given up while it arrived")
        self.received = end

    def move_to_file(self) -> None:
        """Release the buffer, and continue the upload in a temporary file; if that fails, the upload begins again."""
        if self._buffer is None:
            return
        try:
            with self._room_on_disk():
                self._file = tempfile.TemporaryFile(prefix="dordis-")  # noqa: SIM115  closed by `close`
                self._file.write(memoryview(self._buffer)[: self.received])
                self._file.flush()
        except OSError as error:
            log.warning("an upload of %d bytes begins again: no temporary file: %s", self.info.size, error.strerror)
        self._release_buffer()

    @contextmanager
    def _room_on_disk(self) -> Iterator[None]:
        """If the block raises OSError (disk full), discard what has arrived of the upload, and raise again."""
        try:
            yield
        except OSError:
            self.received = 0
            self.close()
            raise

    async def finish(self) -> bytearray:
        """Return the complete upload in a buffer of the pool, which the caller has to release.

        Raise MalformedMessage if the upload does not have the announced digest.
        """
        if self._file is not None:
            file, self._file = self._file, None
            self._buffer = await self._pool.acquire(self.info.size)
            try:
                with self._room_on_disk():
                    file.seek(0)
                    file.readinto(memoryview(self._buffer)[: self.info.size])  # type: ignore[attr-defined]
            finally:
                discard_file(file)
        self._pool.remove_receiving(self)
        if self._buffer is None:
            raise MalformedMessage("this upload was received before")
        try:
            self.info.check_upload(memoryview(self._buffer)[: self.info.size])
        except MalformedMessage:
            self.received = 0
            self._release_buffer()
            raise
        buffer, self._buffer = self._buffer, None
        return buffer

    def close(self) -> None:
        """Discard the part that has arrived."""
        self._release_buffer()
        if self._file is not None:
            discard_file(self._file)
            self._file = None

    def _release_buffer(self) -> None:
        self._pool.remove_receiving(self)
        if self._buffer is not None:
            self._pool.release(self._buffer)
            self._buffer = None


def discard_file(file: IO[bytes]) -> None:
    """Close a temporary file; errors in writing its last bytes are ignored, because the content is not needed."""
    with suppress(OSError):
        file.close()


@dataclass(eq=False)
class ReceivedVector:
    """A complete upload in a buffer of the pool."""

    bytes: memoryview = field(repr=False)
    _buffer: bytearray = field(repr=False)
    _pool: BufferPool = field(repr=False)

    def release(self) -> None:
        """Return the buffer to the pool."""
        self._pool.release(self._buffer)


Deliver = Callable[[ClientId, int, ReceivedVector], None]
"""A function that gets client, request id and vector of each complete upload, and has to release the vector."""


class UploadEndpoint:
    """The HTTP endpoint /vectors/{request id}: PUT uploads a vector or its rest, HEAD asks how many bytes arrived."""

    def __init__(self, tokens: AccessTokens, slots: TransferSlots, deliver: Deliver) -> None:
        self._tokens, self._slots, self._deliver = tokens, slots, deliver
        self._pool = BufferPool()
        self._expected: dict[tuple[ClientId, int], Upload] = {}
        self._completed: dict[ClientId, set[int]] = {}
        self._early: dict[tuple[ClientId, int], asyncio.Event] = {}
        self._uploads = 0

    def expect(self, client: ClientId, id: int, info: BodyInfo) -> None:
        """Accept from now on the upload that the client has announced in its reply to request `id`.

        If an incomplete upload is announced again, it is resumed.
        """
        upload = self._expected.get((client, id))
        self._completed.get(client, set()).discard(id)  # the completed upload was lost when its client disconnected
        if upload is None:
            self._expected[client, id] = Upload(info, self._pool)
        else:
            upload.info = BodyInfo(upload.info.size, info.digest)
        if (client, id) in self._early:
            self._early[client, id].set()

    def forget(self, client: ClientId, id: int) -> None:
        """Refuse the upload for request `id` from now on, and discard the part that has arrived."""
        upload = self._expected.pop((client, id), None)
        if upload is not None:
            upload.close()

    def begin_round(self) -> None:
        """Forget the completed uploads of the previous round."""
        self._completed.clear()

    def routes(self) -> list[web.RouteDef]:
        return [web.put("/vectors/{id}", self.put), web.head("/vectors/{id}", self.head)]

    async def head(self, request: web.Request) -> web.Response:
        """Respond with the number of bytes of an upload that have arrived, in a header; HTTP 204 if it is complete."""
        client, id = self._tokens.holder(request).client, _parse_id(request.match_info["id"])
        if id in self._completed.get(client, ()):
            return web.Response(status=204)
        upload = self._expected.get((client, id))
        if upload is None:
            return web.Response(status=404)
        return web.Response(headers={"Upload-Offset": str(upload.received)})

    async def put(self, request: web.Request) -> web.Response:
        """Receive an upload, or its rest."""
        client, id = self._tokens.holder(request).client, _parse_id(request.match_info["id"])
        if id in self._completed.get(client, ()):
            return close_with(204)
        with self._slots.hold(client):
            return await self._receive(client, id, request)

    async def _receive(self, client: ClientId, id: int, request: web.Request) -> web.Response:
        upload = await self._announced(client, id)
        if upload is None:
            return close_with(404)
        if upload.is_receiving or self._uploads >= MOST_UPLOADS:
            return close_with(503, RETRY_LATER)
        offset, _ = parse_range(request, upload.info.size, upload.info.size)
        if offset != upload.received:
            return close_with(416, {"Upload-Offset": str(upload.received)})
        upload.is_receiving = True
        self._uploads += 1
        try:
            await upload.receive(request.content.iter_any())
            if upload.received < upload.info.size:
                return close_with(400)
            buffer = await upload.finish()
        except (TimeoutError, ClientError, ConnectionError, web.RequestPayloadError):
            return close_with(408)
        except DordisError:
            return close_with(422)
        finally:
            upload.is_receiving = False
            self._uploads -= 1
        if self._expected.pop((client, id), None) is None:  # the deadline passed during the upload
            self._pool.release(buffer)
            return close_with(404)
        self._completed.setdefault(client, set()).add(id)
        view = memoryview(buffer)[: upload.info.size]
        self._deliver(client, id, ReceivedVector(view, buffer, self._pool))
        return web.Response(status=204)

    async def _announced(self, client: ClientId, id: int) -> Upload | None:
        """Return an announced upload, after waiting up to ANNOUNCEMENT_DELAY seconds; None if it is not announced."""
        if (client, id) not in self._expected:
            event = self._early.setdefault((client, id), asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), ANNOUNCEMENT_DELAY)
            except TimeoutError:
                return None
            finally:
                self._early.pop((client, id), None)
        return self._expected.get((client, id))


def check_upload_size(size: int, largest: int) -> None:
    """Raise MalformedMessage if an announced upload is empty or larger than its request allows."""
    if not 0 < size <= largest:
        raise MalformedMessage(f"an upload of {size} bytes was announced, where 1 to {largest} are allowed")


def _parse_id(text: str) -> int:
    if not _ID.fullmatch(text):
        raise web.HTTPNotFound(headers={"Connection": "close"})
    return int(text)


def parse_range(request: web.Request, least: int, most: int) -> tuple[int, int]:
    """Return the offset at which a request's body begins in the upload, and the size of the whole upload.

    Raise HTTP 411 without Content-Length.  Raise HTTP 413 if the size is not in `least`..`most`, or if the body ends
    before the upload's end.
    """
    length = request.content_length
    if length is None:
        raise web.HTTPLengthRequired(headers={"Connection": "close"})
    match = _RANGE.fullmatch(request.headers.get("Content-Range", ""))
    first, last, whole = (int(number) for number in match.groups()) if match else (0, length - 1, length)
    if not least <= whole <= most or last != whole - 1 or length != whole - first:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=whole, headers={"Connection": "close"})
    return first, whole


def close_with(status: int, headers: dict[str, str] | None = None) -> web.Response:
    """Return a response that closes the connection, because the request's body may not have been read."""
    return web.Response(status=status, headers={"Connection": "close", **(headers or {})})
