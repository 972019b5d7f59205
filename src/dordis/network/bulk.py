"""Vectors and models in HTTPS bodies: received into a few buffers that are used again, whole or not at all.

A body may break off and go on where it stopped.  A sender that is slow gives its buffer to others that wait and goes on
in a file.  Sizes are announced and bounded before anything is allocated.
"""

import asyncio
import hashlib
import hmac
import secrets
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.network.messages import Beside

PIECE = 1 << 18
"""Bytes that are handed to or taken from a connection at once."""
SLOW = 1.0
"""Seconds after which a sender gives its buffer to others that wait."""
STALL, PROGRESS, GRAIN = 5.0, 4096, 0.1
"""A body that brings fewer bytes in so many seconds is cut off; it is looked at ten times in these seconds at most."""

_KEY_BYTES, _NONCE = 16, bytes(12)


def seal(data: wire.Bulk, entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Return a digest of bytes: a key, and the AES-GMAC of the bytes under it.

    It tells bytes that arrived from others, ten times as fast as SHA-256 would; it authenticates nobody, TLS does.
    """
    key = entropy(_KEY_BYTES)
    return key + _tag(key, data)


def check_seal(data: wire.Bulk, sealed: bytes) -> None:
    """The bytes are those that the digest was made of."""
    if not hmac.compare_digest(_tag(sealed[:_KEY_BYTES], data), sealed[_KEY_BYTES:]):
        raise MalformedMessage("what came is not what its digest is of")


def _tag(key: bytes, data: wire.Bulk) -> bytes:
    if len(key) != _KEY_BYTES:
        raise MalformedMessage("this is not a digest")
    digest = Cipher(algorithms.AES128(key), modes.GCM(_NONCE)).encryptor()
    digest.authenticate_additional_data(data)
    digest.finalize()
    return digest.tag


class Buffers:
    """A few buffers for all bodies; whoever needs one waits for it, and meanwhile nothing is read from its sender."""

    def __init__(self, count: int) -> None:
        self._free: list[bytearray] = [bytearray() for _ in range(count)]
        self._waiting: deque[asyncio.Future[bytearray]] = deque()
        self._holders: set[Body] = set()
        self._clearing: asyncio.TimerHandle | None = None

    async def take(self, size: int) -> bytearray:
        """Return a buffer with room for so many bytes."""
        if not self._free:
            future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if self._clearing is None:
                self._clear_slow()
            buffer = await future
        else:
            buffer = self._free.pop()
        if len(buffer) < size:
            buffer = bytearray(size)
        return buffer

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(buffer)
                return
        self._free.append(buffer)

    def hold(self, body: "Body") -> None:
        """Take note that a body that is still coming has a buffer."""
        self._holders.add(body)

    def release(self, body: "Body") -> None:
        """Take note that it has none any more, or is complete."""
        self._holders.discard(body)

    def _clear_slow(self) -> None:
        """Take the buffers of slow senders, now and then, as long as somebody waits for one."""
        loop = asyncio.get_running_loop()
        for body in [body for body in self._holders if loop.time() - body.since > SLOW]:
            body.spool()
        self._clearing = loop.call_later(SLOW, self._clear_slow) if self._waiting else None


class Body:
    """One body that is expected: in a buffer, or in a file if its sender is slow, as far as it has come."""

    def __init__(self, beside: Beside, buffers: Buffers) -> None:
        self.beside, self._buffers = beside, buffers
        self.received, self.since = 0, 0.0
        self.busy = False
        self._buffer: bytearray | None = None
        self._file: IO[bytes] | None = None
        self._spare = bytearray()
        self._mark, self._later = 0, 0.0
        self._limit: asyncio.Timeout  # while it comes

    async def receive(self, pour: "Callable[[Body], Awaitable[None]]") -> None:
        """Have a body poured in, from where it stopped before; what stalls is cut off with `TimeoutError`."""
        loop = asyncio.get_running_loop()
        if self._buffer is None and self._file is None:
            self._buffer, self.since = await self._buffers.take(self.beside.size), loop.time()
            self._buffers.hold(self)
        try:
            async with asyncio.timeout(STALL) as self._limit:
                self._mark, self._later = self.received + PROGRESS, loop.time() + GRAIN * STALL
                await pour(self)
        finally:
            if self.received < self.beside.size:
                self.spool()

    def room(self) -> memoryview:
        """Return where the next bytes go: nothing if the body is whole."""
        if self._buffer is not None:
            return memoryview(self._buffer)[self.received : self.beside.size]
        if self._file is not None:
            return memoryview(self._spare)[: self.beside.size - self.received]
        raise MalformedMessage("nobody waits for this body any more")

    def took(self, count: int) -> bool:
        """Take note that so many bytes were written there; tell whether the body is whole."""
        if self._file is not None:
            self._file.write(memoryview(self._spare)[:count])
        self.received += count
        if self.received >= self._mark and (now := asyncio.get_running_loop().time()) >= self._later:
            self._mark, self._later = self.received + PROGRESS, now + GRAIN * STALL
            self._limit.reschedule(now + STALL)
        return self.received == self.beside.size

    def write(self, piece: bytes) -> None:
        """Copy bytes to where they go."""
        left = memoryview(piece)
        while left:
            room = self.room()[: len(left)]
            if not room:
                raise MalformedMessage("a body is longer than was announced")
            room[:] = left[: len(room)]
            self.took(len(room))
            left = left[len(room) :]

    def spool(self) -> None:
        """Go on in a file, and give the buffer to others."""
        if self._buffer is None:
            return
        self._file = tempfile.TemporaryFile(prefix="dordis-")  # noqa: SIM115  closed by `close`
        self._file.write(memoryview(self._buffer)[: self.received])
        self._spare = bytearray(PIECE)
        self._give_back()

    async def finish(self) -> bytearray:
        """Return the buffer that holds the whole body, if it is as announced; whoever has it gives it back."""
        if self._file is not None:
            file, self._file = self._file, None
            self._buffer = await self._buffers.take(self.beside.size)
            file.seek(0)
            file.readinto(memoryview(self._buffer)[: self.beside.size])  # type: ignore[attr-defined]
            file.close()
        self._buffers.release(self)
        if self._buffer is None:
            raise MalformedMessage("this body came before")
        try:
            check_seal(memoryview(self._buffer)[: self.beside.size], self.beside.digest)
        except MalformedMessage:
            self.received = 0
            self._give_back()
            raise
        buffer, self._buffer = self._buffer, None
        return buffer

    def close(self) -> None:
        """Give up what has come so far."""
        self._give_back()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_back(self) -> None:
        self._buffers.release(self)
        if self._buffer is not None:
            self._buffers.give(self._buffer)
            self._buffer = None


class Blobs:
    """What clients may fetch, by its digest, as long as a request for it is open."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, tuple[int, wire.Bulk]] = {}

    def offer(self, data: wire.Bulk) -> Beside:
        """Let bytes be fetched; return what they are announced by."""
        digest = hashlib.sha256(data).digest()
        count, _ = self._blobs.get(digest, (0, b""))
        self._blobs[digest] = (count + 1, data)
        return Beside(len(data), digest)

    def withdraw(self, digest: bytes) -> None:
        """Undo one offer."""
        count, data = self._blobs.pop(digest)
        if count > 1:
            self._blobs[digest] = (count - 1, data)

    def get(self, digest: bytes) -> wire.Bulk | None:
        """Return what is offered under a digest."""
        _, data = self._blobs.get(digest, (0, None))
        return data


async def pieces_of(data: wire.Bulk, offset: int = 0) -> AsyncIterator[memoryview]:
    """Cut bytes into pieces for a body, from an offset on."""
    view = memoryview(data)
    for start in range(offset, len(view), PIECE):
        yield view[start : start + PIECE]
