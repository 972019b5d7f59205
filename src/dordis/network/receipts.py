"""The history of a run for its clients: the HTTP endpoint /receipts, and how a client reads it."""

from pathlib import Path

import msgspec
from aiohttp import ClientResponse, web

from dordis.errors import LedgerDamaged, MalformedMessage
from dordis.ledger.receipt import Receipt
from dordis.network.sessions import AccessTokens
from dordis.owner.receipts import Shown

LARGEST_HISTORY = 1 << 28
"""Bytes of the largest history that a client reads: some 10,000 of its own rounds."""


class ReceiptEndpoint:
    """Show a client the hash of every receipt after an index, and the receipts of its own rounds whole."""

    def __init__(self, tokens: AccessTokens, directory: Path | None) -> None:
        self._tokens, self._directory = tokens, directory
        self._known: dict[str, tuple[int, str, frozenset[int]]] = {}
        self._changed = -1

    async def get(self, request: web.Request) -> web.Response:
        """Answer /receipts?after=INDEX."""
        client = self._tokens.holder(request).client
        try:
            after = int(request.query.get("after", "-1"))
            shown = self.history(client, after)
        except ValueError:
            raise web.HTTPBadRequest from None
        except LedgerDamaged as error:
            raise web.HTTPInternalServerError(text=str(error)) from None
        return web.Response(body=msgspec.json.encode(shown), content_type="application/json")

    def history(self, client: int, after: int = -1) -> list[Shown]:
        """Return the history of the run for a client; raise LedgerDamaged if a receipt is damaged."""
        self._refresh()
        return [
            Shown(index, digest, self._read(name) if client in clients else None)
            for name, (index, digest, clients) in self._known.items()
            if index > after
        ]

    def _refresh(self) -> None:
        """Read the receipts that are new; the directory changes whenever one is written."""
        if self._directory is None or not self._directory.exists():
            return
        changed = self._directory.stat().st_mtime_ns
        if changed != self._changed:
            for path in sorted(self._directory.glob("*.json")):
                if path.name not in self._known:
                    receipt = self._read(path.name)
                    self._known[path.name] = receipt.index, receipt.digest, frozenset(receipt.clients)
            self._changed = changed

    def _read(self, name: str) -> Receipt:
        assert self._directory is not None  # noqa: S101  names come from it
        return Receipt.from_bytes((self._directory / name).read_bytes(), name)


async def read_history(response: ClientResponse) -> list[Shown]:
    """Return the history in a response; raise MalformedMessage if it is too long or none."""
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
