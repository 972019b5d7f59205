"""The server's endpoints for visiting clients, the clients of assisted rounds.

A client fetches the task (the signed description of the open round) and the model, and uploads its contribution to the
sum.  Each of these is a single HTTPS request; the client shows its certificate in TLS, and keeps no connection.  A
contribution is acknowledged when it is on disk.  The server's state machine asks for contributions by an *open call*, a
request that any arriving client may answer; the call admits or refuses each contribution.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from aiohttp import ClientError, web

from dordis.errors import Aborted, BeaconNotPublished, CryptoError, LoginRefused, MalformedMessage, ProtocolError
from dordis.network.authentication import Authenticator
from dordis.network.connections import RETRY_LATER
from dordis.network.download_endpoint import (
    LARGEST_FRAME,
    LENGTH_BYTES,
    ReceiptEndpoint,
    SpooledUpload,
    SpooledUploads,
    SumDocument,
    check_frame_length,
    send_body,
    with_history,
)
from dordis.network.exchange import LARGEST_ELEMENT
from dordis.network.messages import SUBPROTOCOL, VERSION_HEADER, task_tag
from dordis.network.sessions import client_certificate
from dordis.network.upload_endpoint import MOST_UPLOADS, STALL, TransferSlots, close_with, parse_range
from dordis.protocol import ClientId, Message, OpenCall, reply_to
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.model import ModelBytes

log = logging.getLogger("dordis.network")

PATHS = ("/task", "/manifest", "/model/", "/sums/", "/receipts", "/contributions/")
INDEX_HEADER, OFFSET_HEADER = "Dordis-Index", "Upload-Offset"
"""HTTP headers of responses: index of the next round, for a late client; number of bytes of an upload that arrived."""
ACCEPTED, CONFLICT, GONE, UNPROCESSABLE, BUSY = 204, 409, 410, 422, 503
"""HTTP status of a contribution: accepted; another one was accepted before; too late; refused; try later."""

_INDEX = re.compile("[0-9]{1,18}")
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(eq=False)
class PublishedRound:
    """The open round as clients see it."""

    index: int
    document: bytes
    """The signed task."""
    closes: float
    """Closing time in seconds since 1970."""
    model: ModelBytes
    clients: frozenset[ClientId]
    """Clients that may contribute: candidates for selection whose privacy budget covers the round.

    Revoked clients, and clients that are excluded from the run (evicted), may not contribute.
    """
    largest: int
    """Largest size of a contribution in bytes."""
    sums: SumDocument = field(default_factory=SumDocument)
    """The recent sums, by which clients with an earlier model compute this round's model."""
    extend: Callable[[], "PublishedRound | None"] = lambda: None
    """Called at the closing time: returns the round with a later closing time, or None if the round closes now."""


@dataclass(eq=False)
class Visit:
    """A complete contribution that waits for admission, and a future for the HTTP status of the response to it."""

    client: ClientId
    upload: SpooledUpload
    status: "asyncio.Future[int]"


class VisitEndpoint:
    """The HTTP endpoints /task, /manifest, /model/{digest}, /sums/{digest}, /receipts and /contributions/{index}.

    `store` has the admitted contributions to the latest round; `receipts` is the directory of the run's receipts.
    Contributions are admitted in the thread that runs the round.
    """

    def __init__(
        self, authenticator: Authenticator, manifest: bytes, store: ArrivalStore, poll: float, receipts: Path | None
    ) -> None:
        self._receipts = ReceiptEndpoint(self._visitor, receipts)
        self._authenticator, self._manifest, self._store, self._poll = authenticator, manifest, store, poll
        self._slots = TransferSlots()
        self._index, self._closed, self._is_over = -1, -1, False
        self._open: PublishedRound | None = None
        self._waiting: SimpleQueue[Visit | None] = SimpleQueue()
        self._uploads = SpooledUploads()
        self._receiving = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.told: set[ClientId] = set()
        """Clients that were told that the run is over."""
        self.seen: set[ClientId] = set()
        """Clients that have asked for a task since this process started."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/task", self.get_task),
            web.get("/manifest", self.get_manifest),
            web.get("/model/{digest}", self.get_model),
            web.get("/sums/{digest}", self.get_sums),
            web.get("/receipts", self._receipts.get),
            web.put("/contributions/{index}", self.put),
            web.head("/contributions/{index}", self.head),
        ]

    # Called from the thread that runs the rounds

    def begin(self, index: int, *, is_closed: bool = False) -> None:
        """Set `index`, the round of the contributions in `store`; `is_closed` if that round closed before a restart."""
        self._index, self._closed = index, index if is_closed else index - 1

    def end_run(self) -> None:
        """From now on answer every request for a task with HTTP 410: the run is over."""
        self._is_over = True

    def stop(self) -> None:
        """End the wait for contributions in the round's thread, by Aborted; a restarted server resumes the round."""
        self._waiting.put(None)

    # Publication of a round and admission of contributions

    async def take(self, call: OpenCall, published: PublishedRound) -> Iterator[tuple[ClientId, Message]]:
        """Publish a round; return an iterator over its admitted contributions, for the thread of the round."""
        self._loop = asyncio.get_running_loop()
        self._uploads.clear()
        self._waiting, self._open = SimpleQueue(), published
        return self._admitted(call, published)

    def _admitted(self, call: OpenCall, published: PublishedRound) -> Iterator[tuple[ClientId, Message]]:
        kind = reply_to(call.request)
        try:
            while not call.is_full:
                try:
                    visit = self._waiting.get(timeout=max(0.0, published.closes - time.time()))
                except Empty:
                    if (extended := published.extend()) is None:
                        call.close()
                        break
                    self._open = published = extended
                    continue
                if visit is None:
                    raise Aborted("the server stops")
                if (reply := self._admit(call, visit, kind)) is not None:
                    yield visit.client, reply
            self._closed = published.index
        finally:
            self._close()

    def _admit(self, call: OpenCall, visit: Visit, kind: type[Message]) -> Message | None:
        """Admit, refuse or postpone (BUSY) a contribution, and answer the visit; return what is admitted, else None."""
        client, status = visit.client, BUSY
        try:
            frame, reply = visit.upload.read(kind)
            before = self._status_before(client, frame)
            if before is None:
                call.admit(client, reply)
                log.info("client %d has contributed", client, extra={"client": client})
            status = before or ACCEPTED
            return reply if before is None else None
        except (ProtocolError, CryptoError) as error:
            log.warning("the contribution of client %d is refused: %s", client, error, extra={"client": client})
            status = UNPROCESSABLE
        except BeaconNotPublished as error:  # the beacon file is being rewritten: the client should try again
            log.warning("the contribution of client %d waits: %s", client, error, extra={"client": client})
        finally:
            visit.upload.close()
            self._answer(visit, status)
        return None

    def _status_before(self, client: ClientId, frame: bytes) -> int | None:
        """Return ACCEPTED if this frame was accepted before, CONFLICT if another frame of the client was, else None."""
        if client not in self._store.clients:
            return None
        return ACCEPTED if self._store.read(client).frame == frame else CONFLICT

    def _close(self) -> None:
        """Close the round; contributions that wait for admission are answered as too late."""
        self._open = None
        with contextlib.suppress(Empty):
            while True:
                if (visit := self._waiting.get_nowait()) is not None:
                    self._answer(visit, GONE)

    def _answer(self, visit: Visit, status: int) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_set_status, visit.status, status)

    # Requests of clients, on the event loop

    def recognise(self, request: web.Request) -> bool:
        """Tell whether a request is to one of these endpoints, and its client shows the TLS certificate of a member."""
        if not request.path.startswith(PATHS):
            return False
        try:
            self._authenticator.admit_visitor(client_certificate(request))
        except LoginRefused:
            return False
        return True

    def _visitor(self, request: web.Request) -> ClientId:
        """Return the client of a request; raise HTTP 426 for another protocol version, HTTP 403 for a non-member."""
        if request.headers.get(VERSION_HEADER, "") != SUBPROTOCOL:
            raise web.HTTPUpgradeRequired(headers={VERSION_HEADER: SUBPROTOCOL, "Connection": "close"})
        try:
            return self._authenticator.admit_visitor(client_certificate(request))
        except LoginRefused as error:
            log.warning("refused the request from %s: %s", request.remote, error)
            raise web.HTTPForbidden(text=str(error), headers={"Connection": "close"}) from None

    async def get_task(self, request: web.Request) -> web.Response:
        """Return the signed task of the open round; or HTTP 204, 304 or 410 without a task.

        204: no round is open for this client; 304: the client has the task already; 410: the run is over.  If the
        request has the query parameters of /receipts, the run's history (`ReceiptEndpoint`) follows the task.
        """
        client, later = self._visitor(request), {"Retry-After": str(max(1, round(self._poll)))}
        if self._is_over:
            self.told.add(client)
            return web.Response(status=GONE)
        self.seen.add(client)
        published = self._open
        if published is None or client not in published.clients:
            return web.Response(status=204, headers=later)
        tag = task_tag(published.document)
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag, **later})
        body = published.document
        if "after" in request.query:
            body = with_history(body, await self._receipts.encode(client, request))
        return web.Response(body=body, headers={"ETag": tag})

    async def get_manifest(self, request: web.Request) -> web.Response:
        """Return the manifest of the run, whose hash is the run id."""
        self._visitor(request)
        return web.Response(body=self._manifest, content_type="application/json")

    async def get_model(self, request: web.Request) -> web.StreamResponse:
        """Send the model of the open round, or its rest from the offset in the Range header."""
        client, published = self._visitor(request), self._find_model(request)
        with self._slots.hold(client):
            return await send_body(request, published.model.data)

    async def get_sums(self, request: web.Request) -> web.StreamResponse:
        """Send the sums with which a client that has the model `since` (a digest) computes the open round's model.

        If the request has a Range header, send only their rest from the offset in this header.
        """
        client, published = self._visitor(request), self._find_model(request)
        since = request.query.get("since", "")
        sums = published.sums.since(bytes.fromhex(since)) if _DIGEST.fullmatch(since) else None
        if sums is None:
            raise web.HTTPNotFound
        with self._slots.hold(client):
            return await send_body(request, sums)

    def _find_model(self, request: web.Request) -> PublishedRound:
        """Return the open round if its model has the digest in the path; raise HTTP 404 otherwise."""
        published = self._open
        if published is None or request.match_info["digest"] != published.model.digest.hex():
            raise web.HTTPNotFound
        return published

    async def head(self, request: web.Request) -> web.Response:
        """Return the number of bytes of a contribution that have arrived, in OFFSET_HEADER; 204 if it was accepted.

        If its round is not open, respond as to an upload (`_not_open`).
        """
        client, index = self._visitor(request), _parse_index(request)
        if index == self._index and client in self._store.clients:
            return web.Response(status=ACCEPTED)
        if self._open is None or index != self._open.index:
            return self._not_open(index)
        upload = self._uploads.get(client)
        return web.Response(headers={OFFSET_HEADER: str(upload.received if upload else 0)})

    async def put(self, request: web.Request) -> web.Response:
        """Receive a contribution or its rest; respond when it is counted and on disk."""
        client, index = self._visitor(request), _parse_index(request)
        with self._slots.hold(client):
            if index == self._index and client in self._store.clients:
                return await self._compare(client, request)
            published = self._open
            if published is None or index != published.index:
                return self._not_open(index)
            if client not in published.clients:
                return close_with(403)
            return await self._receive(client, published, request)

    async def _compare(self, client: ClientId, request: web.Request) -> web.Response:
        """Return the response to a client that has contributed before: whether it sends the same contribution again.

        Only the frames (the parts before the vector) are compared, because a frame commits to the vector.
        """
        try:
            async with asyncio.timeout(STALL):
                length = int.from_bytes(await request.content.readexactly(LENGTH_BYTES), "big")
                check_frame_length(length)
                frame = await request.content.readexactly(length)
        except (TimeoutError, asyncio.IncompleteReadError, ClientError, ConnectionError, web.RequestPayloadError):
            return close_with(408)
        except MalformedMessage:
            return close_with(UNPROCESSABLE)
        return close_with(self._status_before(client, frame) or GONE)

    async def _receive(self, client: ClientId, published: PublishedRound, request: web.Request) -> web.Response:
        first, size = parse_range(request, LENGTH_BYTES + 1, published.largest)
        upload = self._uploads.get(client)
        if (upload is not None and upload.is_receiving) or self._receiving >= MOST_UPLOADS:
            return close_with(503, RETRY_LATER)
        if not first or upload is None:
            upload = self._uploads.begin(client, size)
        if (first, size) != (upload.received, upload.size):
            return close_with(416, {OFFSET_HEADER: str(upload.received)})
        self._receiving += 1  # until it is admitted, because a waiting contribution holds a file, too
        try:
            refused = await self._receive_rest(client, upload, request)
            if refused is not None:
                return refused
            self._uploads.take(client, upload)
            return await self._wait_for_status(client, published, upload)
        finally:
            self._receiving -= 1

    async def _receive_rest(self, client: ClientId, upload: SpooledUpload, request: web.Request) -> web.Response | None:
        """Receive the body of a request; return the response if the contribution is incomplete, otherwise None."""
        upload.is_receiving = True
        try:
            await upload.receive(request)
            return close_with(400) if upload.received < upload.size else None
        except (TimeoutError, ClientError, ConnectionError, web.RequestPayloadError):
            return close_with(408)
        except MalformedMessage:
            return close_with(UNPROCESSABLE)
        except OSError:  # the disk is full: the client has to begin again
            upload.received = 0
            self._uploads.drop(client)
            raise
        finally:
            upload.is_receiving = False
            self._uploads.close_forgotten(client, upload)

    async def _wait_for_status(
        self, client: ClientId, published: PublishedRound, upload: SpooledUpload
    ) -> web.Response:
        """Pass a complete contribution to the thread of the round; return the response when that thread has decided."""
        if self._open is None or self._open.index != published.index:
            upload.close()
            return self._not_open(published.index)
        visit = Visit(client, upload, asyncio.get_running_loop().create_future())
        self._waiting.put(visit)
        if self._open is None:  # the round closed meanwhile
            self._close()
        status = await visit.status
        return self._not_open(published.index) if status == GONE else web.Response(status=status)

    def _not_open(self, index: int) -> web.Response:
        """Return the response to a contribution whose round is not open: GONE with the next index, or BUSY.

        BUSY means that the round has not closed: a restarted server may not have published the round again yet.
        """
        if index > self._closed:
            return close_with(BUSY, RETRY_LATER)
        following = self._closed + 1 if self._open is None else self._open.index
        return close_with(GONE, {INDEX_HEADER: str(following)})


def _set_status(future: "asyncio.Future[int]", status: int) -> None:
    if not future.done():  # it is done if its request was cancelled
        future.set_result(status)


def _parse_index(request: web.Request) -> int:
    text = request.match_info["index"]
    if not _INDEX.fullmatch(text):
        raise web.HTTPNotFound(headers={"Connection": "close"})
    return int(text)


def largest_contribution(dim: int) -> int:
    """Return the largest size in bytes of a contribution with a vector of `dim` coordinates."""
    return LENGTH_BYTES + LARGEST_FRAME + LARGEST_ELEMENT * dim
