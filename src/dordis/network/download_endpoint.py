"""The server's HTTPS transfers except uploaded vectors: models, sums, the run's history, visitors' contributions.

The history of a run has the hash of every receipt, and the whole receipts of a client's own rounds.  A visiting client
gets the history together with its task.  This module also has the functions by which clients read sums and history, so
that each format is written and read in one place.
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import IO

import msgspec
from aiohttp import ClientResponse, web

from dordis import wire
from dordis.errors import LedgerDamaged, MalformedMessage
from dordis.ledger.receipt import Receipt, receipt_name
from dordis.network.messages import BodyInfo
from dordis.network.sessions import AccessTokens
from dordis.network.upload_endpoint import STALL, LeastRate, TransferSlots, discard_file
from dordis.owner.receipts import Shown
from dordis.protocol import ClientId, Message
from dordis.protocols.limits import LONGEST_REPLAY, MOST_REPLAYS
from dordis.rounds.invitation import SendSum

PIECE = 1 << 18
"""Number of bytes written to a connection at a time."""
DOWNLOAD_STALL = 30.0
"""Seconds without progress of a download after which the connection is cut (`LeastRate`)."""
LENGTH_BYTES, LARGEST_FRAME = 4, 1 << 16
"""Bytes of the big-endian length before each part of a body; most bytes of a contribution without its vector."""
LARGEST_HISTORY = 1 << 28
"""Largest size of a run's history in bytes, enough for some 10,000 of a client's own rounds."""
MOST_KEPT = 256
"""Largest number of interrupted contributions that are kept, of all clients together."""


class DownloadEndpoint:
    """The HTTP endpoint /blobs/{digest} for bodies: the large fields of requests, such as a model.

    A body is offered while a request that announces it is open.
    """

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
        """Return the offered body that has this digest; None if there is none."""
        _, data = self._offers.get(digest, (0, None))
        return data

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send a body, or its rest from an offset; every logged-in client may download every offered body."""
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
    """Send `data`, from the first byte that the Range header names, if any; raise HTTP 416 if `data` are shorter.

    Raise TimeoutError after DOWNLOAD_STALL seconds without progress.
    """
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
    async with LeastRate(DOWNLOAD_STALL) as rate:
        async for piece in split_body(data, start):
            await response.write(piece)
            rate.count(len(piece))
    return response


async def split_body(data: wire.Bulk, offset: int = 0) -> AsyncIterator[memoryview]:
    """Yield a body in pieces from an offset on."""
    view = memoryview(data)
    for start in range(offset, len(view), PIECE):
        yield view[start : start + PIECE]


@dataclass(frozen=True)
class SumDocument:
    """The recent sums of a run, encoded in order; a visiting client downloads the sums since its own model."""

    data: bytes = b""
    starts: dict[bytes, int] = field(default_factory=dict)
    """By digest of a model, the offset in `data` of the first sum to apply to it."""

    @classmethod
    def from_sums(cls, sums: Sequence[SendSum]) -> "SumDocument":
        """Return the document of the sums of consecutive rounds; each sum's parameters name the model it applies to."""
        data, starts = bytearray(), dict[bytes, int]()
        for one in sums:
            starts[one.parameters.model] = len(data)
            for part in (wire.encode(one), wire.bulk_of(one)):
                data += len(part).to_bytes(LENGTH_BYTES, "big")
                data += part
        return cls(bytes(data), starts)

    def since(self, digest: bytes) -> memoryview | None:
        """Return the sums with which a client computes the present model from the model with this digest.

        Return None if the document does not have them all.
        """
        start = self.starts.get(digest)
        return None if start is None else memoryview(self.data)[start:]


def read_sums(data: bytes) -> list[SendSum]:
    """Return the sums in `data`, a part of a `SumDocument`; raise MalformedMessage if it is incomplete or too long."""
    sums, rest = list[SendSum](), memoryview(data)

    def take() -> memoryview:
        nonlocal rest
        end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
        if not LENGTH_BYTES <= end <= len(rest):
            raise MalformedMessage("the sums that this client missed are cut short")
        part, rest = rest[LENGTH_BYTES:end], rest[end:]
        return part

    while rest:
        if len(sums) == MOST_REPLAYS:
            raise MalformedMessage(f"the server sent more than {MOST_REPLAYS} missed sums")
        frame = bytes(take())
        sums.append(wire.decode(frame, SendSum, LONGEST_REPLAY, bulk=bytes(take())))
    return sums


@dataclass(eq=False)
class SpooledUpload:
    """The part of a contribution that has arrived, in a temporary file; an interrupted upload is resumed."""

    size: int
    file: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile(prefix="dordis-"))  # noqa: SIM115  closed once it is read
    received: int = 0
    is_receiving: bool = False

    async def receive(self, request: web.Request) -> None:
        """Append the body of a request to the file; raise TimeoutError if the body stalls, OSError if the disk is full.

        Raise MalformedMessage if the contribution is longer than announced.
        """
        async with LeastRate(STALL) as rate:
            async for piece in request.content.iter_any():
                if self.received + len(piece) > self.size:
                    raise MalformedMessage("a contribution is longer than announced")
                self.file.write(piece)
                self.received += len(piece)
                rate.count(len(piece))
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        discard_file(self.file)

    def read(self, kind: type[Message]) -> tuple[bytes, Message]:
        """Return the frame (the part before the vector) and the decoded message of a complete contribution.

        Raise if the contribution is malformed.
        """
        self.file.seek(0)
        length = int.from_bytes(self.file.read(LENGTH_BYTES), "big")
        check_frame_length(length)
        frame = self.file.read(length)
        return frame, wire.decode(frame, kind, LARGEST_FRAME, bulk=self.file.read())


class SpooledUploads:
    """The incomplete contributions of a round, at most one per client.

    Each contribution takes a file descriptor.  Therefore only the latest MOST_KEPT interrupted uploads are kept; the
    clients of older uploads have to begin their uploads again.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._uploads: dict[ClientId, SpooledUpload] = {}

    def get(self, client: ClientId) -> SpooledUpload | None:
        """Return the incomplete upload of a client; None if there is none."""
        return self._uploads.get(client)

    def begin(self, client: ClientId, size: int) -> SpooledUpload:
        """Return a new upload that replaces the client's earlier one; drop the oldest interrupted ones if too many."""
        self.drop(client)
        idle = [u for u, upload in self._uploads.items() if not upload.is_receiving]
        for u in idle[: max(0, len(idle) - self._most + 1)]:
            self.drop(u)
        upload = self._uploads[client] = SpooledUpload(size)
        return upload

    def drop(self, client: ClientId) -> None:
        """Drop a client's upload, and close its file; while bytes still arrive, this is left to `close_forgotten`."""
        upload = self._uploads.pop(client, None)
        if upload is not None and not upload.is_receiving:
            upload.close()

    def take(self, client: ClientId, upload: SpooledUpload) -> None:
        """Remove a complete upload; from now on the caller has to close its file."""
        if self._uploads.get(client) is upload:
            del self._uploads[client]

    def close_forgotten(self, client: ClientId, upload: SpooledUpload) -> None:
        """Close the file of an upload that broke off, if `drop` left it open because it was still being received."""
        if upload.received < upload.size and self._uploads.get(client) is not upload:
            upload.close()

    def clear(self) -> None:
        """Drop all incomplete uploads."""
        for client in list(self._uploads):
            self.drop(client)


def check_frame_length(length: int) -> None:
    """Raise MalformedMessage if a contribution without its vector is longer than LARGEST_FRAME."""
    if length > LARGEST_FRAME:
        raise MalformedMessage(f"the frame of a contribution has {length} bytes, more than {LARGEST_FRAME}")


class ReceiptEndpoint:
    """Sends a client the history of the run: hashes of all receipts, and the whole receipts of its own rounds.

    Receipts that the client already has are sent as hashes only, because a long run has thousands.
    """

    def __init__(self, identify: Callable[[web.Request], int], directory: Path | None) -> None:
        self._identify, self._directory = identify, directory
        self._digests: dict[int, str] = {}
        self._newest: Receipt | None = None
        """The receipt with the highest index, in memory because all clients ask for it when the next round begins."""
        self._changed = -1
        self._refreshing, self._lock = asyncio.Lock(), threading.Lock()

    async def get(self, request: web.Request) -> web.Response:
        """Respond to /receipts?after=INDEX&known=INDEX with the history as JSON."""
        data = await self.encode(self._identify(request), request)
        return web.Response(body=data, content_type="application/json")

    async def encode(self, client: int, request: web.Request) -> bytes:
        """Return a client's `history` as JSON; `after` and `known` are read from the request's query, -1 if absent."""
        try:
            after, known = (int(request.query.get(name, "-1")) for name in ("after", "known"))
        except ValueError:
            raise web.HTTPBadRequest from None
        try:
            async with self._refreshing:  # all clients ask when a round begins; the first one reads the disk for all
                if self._directory_time() != self._changed:
                    await asyncio.to_thread(self._refresh)
            if self._newest is not None and min(after, known) >= self._newest.index - 1:
                return msgspec.json.encode(self.history(client, after, known))  # no file has to be read
            return await asyncio.to_thread(lambda: msgspec.json.encode(self.history(client, after, known)))
        except LedgerDamaged as error:
            raise web.HTTPInternalServerError(text=str(error)) from None

    def history(self, client: int, after: int = -1, known: int = -1) -> list[Shown]:
        """Return the history after round `after`: the hashes of receipts, and the client's own receipts after `known`.

        Raise LedgerDamaged if a receipt is damaged.
        """
        self._refresh()
        with self._lock:
            digests = dict(takewhile(lambda one: one[0] > after, reversed(self._digests.items())))
        return [
            Shown(index, digest, self._read_own(client, index) if index > known else None)
            for index, digest in reversed(digests.items())
        ]

    def _directory_time(self) -> int:
        """Return the time of the directory's last change, in nanoseconds since 1970; -1 if there is no directory."""
        try:
            return -1 if self._directory is None else self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return -1

    def _refresh(self) -> None:
        """Read the hashes of new receipts, if the directory has changed."""
        with self._lock:
            changed = self._directory_time()
            if self._directory is None or changed == self._changed:
                return
            for path in sorted(self._directory.glob("*.json")):
                if path.stem.isdecimal() and int(path.stem) not in self._digests:
                    receipt = Receipt.from_bytes(path.read_bytes(), path.name)
                    self._digests[receipt.index], self._newest = receipt.digest, receipt
            self._changed = changed

    def _read_own(self, client: int, index: int) -> Receipt | None:
        """Return the receipt of a round; None if the client was not in the round."""
        receipt = self._newest
        if receipt is None or receipt.index != index:
            assert self._directory is not None  # noqa: S101  the digests were read from it
            path = self._directory / receipt_name(index)
            receipt = Receipt.from_bytes(path.read_bytes(), path.name)
        return receipt if client in receipt.clients else None


async def read_history(response: ClientResponse) -> list[Shown]:
    """Return the history in a response; raise MalformedMessage if it is malformed or longer than LARGEST_HISTORY."""
    response.raise_for_status()
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > LARGEST_HISTORY:
            raise MalformedMessage(f"the server's history has more than {LARGEST_HISTORY} bytes")
    return decode_history(bytes(data))


def decode_history(data: bytes) -> list[Shown]:
    """Return the history in JSON data; raise MalformedMessage if it is malformed."""
    try:
        return msgspec.json.decode(data, type=list[Shown])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("the server's history cannot be read") from None


def with_history(document: bytes, history: bytes) -> bytes:
    """Return the body of a response to /task: the length of the signed task, the signed task, and the history."""
    return len(document).to_bytes(LENGTH_BYTES, "big") + document + history


def split_history(body: bytes) -> tuple[bytes, list[Shown]]:
    """Return the signed task and the history in a body made by `with_history`."""
    end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "big")
    return body[LENGTH_BYTES:end], decode_history(body[end:])
