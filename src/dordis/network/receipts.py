"""The history of a run for its clients: the HTTP endpoint /receipts, and the client's reading of it."""

import asyncio
import threading
from pathlib import Path

import msgspec
from aiohttp import ClientResponse, web

from dordis.errors import LedgerDamaged, MalformedMessage
from dordis.ledger.receipt import Receipt, receipt_name
from dordis.network.sessions import AccessTokens
from dordis.owner.receipts import Shown

LARGEST_HISTORY = 1 << 28
"""Largest size of a history in bytes, enough for some 10,000 of a client's own rounds."""


class ReceiptEndpoint:
    """Shows a client the hashes of all receipts after an index, and the whole receipts of its own rounds.

    Receipts that the client already has are shown by their hash only, because a long run has thousands.
    """

    def __init__(self, tokens: AccessTokens, directory: Path | None) -> None:
        self._tokens, self._directory = tokens, directory
        self._digests: dict[int, str] = {}
        self._changed = -1
        self._lock = threading.Lock()

    async def get(self, request: web.Request) -> web.Response:
        """Return the history for a request /receipts?after=INDEX&known=INDEX."""
        client = self._tokens.holder(request).client
        try:
            after, known = (int(request.query.get(name, "-1")) for name in ("after", "known"))
        except ValueError:
            raise web.HTTPBadRequest from None
        try:
            data = await asyncio.to_thread(lambda: msgspec.json.encode(self.history(client, after, known)))
        except LedgerDamaged as error:
            raise web.HTTPInternalServerError(text=str(error)) from None
        return web.Response(body=data, content_type="application/json")

    def history(self, client: int, after: int = -1, known: int = -1) -> list[Shown]:
        """Return the history of the run for a client that has the receipts up to the index `known`.

        Raise LedgerDamaged if a receipt is damaged.
        """
        with self._lock:
            self._refresh()
            digests = dict(self._digests)
        return [
            Shown(index, digest, self._read_own(client, index) if index > known else None)
            for index, digest in digests.items()
            if index > after
        ]

    def _refresh(self) -> None:
        """Read new receipts, if the directory has changed."""
        if self._directory is None or not self._directory.exists():
            return
        changed = self._directory.stat().st_mtime_ns
        if changed != self._changed:
            for path in sorted(self._directory.glob("*.json")):
                if path.stem.isdecimal() and int(path.stem) not in self._digests:
                    receipt = Receipt.from_bytes(path.read_bytes(), path.name)
                    self._digests[receipt.index] = receipt.digest
            self._changed = changed

    def _read_own(self, client: int, index: int) -> Receipt | None:
        """Return the receipt of a round; None if the client was not in the round."""
        assert self._directory is not None  # noqa: S101  digests come from it
        path = self._directory / receipt_name(index)
        receipt = Receipt.from_bytes(path.read_bytes(), path.name)
        return receipt if client in receipt.clients else None


async def read_history(response: ClientResponse) -> list[Shown]:
    """Return the history in a response; raise MalformedMessage if it is too long or malformed."""
    response.raise_for_status()
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > LARGEST_HISTORY:
            raise MalformedMessage(f"the server's history has more than {LARGEST_HISTORY} bytes")
    try:
        return msgspec.json.decode(data, type=list[Shown])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("the server's history cannot be read") from None
