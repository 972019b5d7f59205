"""The history of a run for its clients: the HTTP endpoint /receipts, and the client's reading of it.

The history has the hash of every receipt of the run, and the whole receipts of the client's own rounds.  Visiting
clients get it with their next task.
"""

import asyncio
import threading
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import msgspec
from aiohttp import ClientResponse, web

from dordis.errors import LedgerDamaged, MalformedMessage
from dordis.ledger.receipt import Receipt, receipt_name
from dordis.network.server_transfers import LENGTH_BYTES
from dordis.owner.receipts import Shown

LARGEST_HISTORY = 1 << 28
"""Largest size of a history in bytes, enough for some 10,000 of a client's own rounds."""


class ReceiptEndpoint:
    """Sends a client the history of the run: hashes of all receipts, and the whole receipts of its own rounds.

    Receipts that the client already has are sent as hashes only, because a long run has thousands.
    """

    def __init__(self, identify: Callable[[web.Request], int], directory: Path | None) -> None:
        self._identify, self._directory = identify, directory
        self._digests: dict[int, str] = {}
        self._newest: Receipt | None = None
        """The receipt with the highest index, which all clients ask for when the next round begins."""
        self._changed = -1
        self._refreshing, self._lock = asyncio.Lock(), threading.Lock()

    async def get(self, request: web.Request) -> web.Response:
        """Respond to /receipts?after=INDEX&known=INDEX with the history as JSON."""
        data = await self.encode(self._identify(request), request)
        return web.Response(body=data, content_type="application/json")

    async def encode(self, client: int, request: web.Request) -> bytes:
        """Return the history as JSON, for the indices `after` and `known` in the query of a request."""
        try:
            after, known = (int(request.query.get(name, "-1")) for name in ("after", "known"))
        except ValueError:
            raise web.HTTPBadRequest from None
        try:
            async with self._refreshing:  # all clients ask when a round begins, and one of them waits for the disk
                if self._directory_time() != self._changed:
                    await asyncio.to_thread(self._refresh)
            if self._newest is not None and min(after, known) >= self._newest.index - 1:
                return msgspec.json.encode(self.history(client, after, known))  # no file has to be read
            return await asyncio.to_thread(lambda: msgspec.json.encode(self.history(client, after, known)))
        except LedgerDamaged as error:
            raise web.HTTPInternalServerError(text=str(error)) from None

    def history(self, client: int, after: int = -1, known: int = -1) -> list[Shown]:
        """Return a client's history of the rounds after the index `after`; up to the index `known` it has hashes only.

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
        """Return the time of the directory's last change; -1 if there is no directory."""
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
    """Return the history in a response; raise MalformedMessage if it is malformed or above LARGEST_HISTORY."""
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
