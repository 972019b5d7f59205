"""The exchange over the network: it sends a batch of requests, and yields the replies that arrive by their deadlines.

The exchange runs on the server's event loop.  Rounds run in other threads and take replies one by one.  When a round
takes the next reply, the buffer with the vector of the previous reply is released for other uploads.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

from dordis import wire
from dordis.errors import BudgetRefused, DordisError, MalformedMessage, ParticipationRefused, ProtocolError
from dordis.network.deadlines import AdaptiveDeadlines, TimeAllowances
from dordis.network.download_endpoint import DownloadEndpoint
from dordis.network.messages import BodyInfo, Refusal, Reply, Request
from dordis.network.upload_endpoint import ReceivedVector, UploadEndpoint, check_upload_size
from dordis.protocol import ClientId, Garbled, Message, Replies, Requests, reply_to, requests_in
from dordis.protocols import delivery
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import Opening
from dordis.rounds.invitation import Invite
from dordis.rounds.watch import MessageMeter

log = logging.getLogger("dordis.network")
BUDGET_ERRORS = frozenset({BudgetRefused.__name__, ParticipationRefused.__name__})
"""Names of errors with which clients decline because of their owners' budgets."""

LARGEST_ELEMENT = 4
"""Largest number of bytes of a coordinate of an uploaded vector, in any protocol."""
TOO_SLOW, DISCONNECTED, REVOKED, VIOLATION = "too slow", "disconnected", "revoked", "protocol violation"
"""Reasons of a client's exclusion from a round; any other reason names the error with which it declined."""

Send = Callable[[ClientId, bytes], bool]
"""Queues a message for a client; returns False if the client is not connected."""
Arrival = tuple["PendingRequest", bytes, ReceivedVector | None]
"""A request, the encoded reply to it, and the vector that was uploaded with the reply, if any."""


@dataclass(eq=False)
class PendingRequest:
    """One request to one client, until it is answered or given up."""

    id: int
    client: ClientId
    request: Message
    batch: "RequestBatch"
    message: bytes
    started: float
    reply: Reply | None = None
    announced: int = 0
    """Size in bytes of the upload that the client announced; 0 if there is none."""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class RequestBatch:
    """Requests that were sent together, and the queue of the replies to them; None in the queue ends the replies."""

    open: set[int] = field(default_factory=set)
    arrivals: "SimpleQueue[Arrival | None]" = field(default_factory=SimpleQueue)
    offers: list[bytes] = field(default_factory=list)
    """Digests of the requests' bodies (models and other large fields), offered for download while a request is open."""


class NetworkExchange(MessageMeter):
    """Exchanges requests and replies with clients that are connected, or reconnect in time."""

    def __init__(
        self, send: Send, uploads: UploadEndpoint, downloads: DownloadEndpoint, deadlines: AdaptiveDeadlines
    ) -> None:
        super().__init__()
        self._send, self._uploads, self._downloads, self._deadlines = send, uploads, downloads, deadlines
        self._allowances = TimeAllowances(deadlines)
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._batches: set[RequestBatch] = set()
        self._open: defaultdict[ClientId, dict[int, PendingRequest]] = defaultdict(dict)
        self._is_closed = False
        self._given_up: defaultdict[ClientId, set[int]] = defaultdict(set)
        self.exclusions: dict[ClientId, str] = {}
        """Clients that are excluded from the round, with the reason: a constant of this module, or an error name."""
        self.late: dict[ClientId, str] = {}
        """Clients that are excluded because they did not reply in time, with the type name of the missed request."""
        self._grace_timers: dict[ClientId, asyncio.TimerHandle] = {}
        self._parameters: Parameters | None = None

    async def __call__(self, requests: Requests) -> Replies:
        """Send requests; return an iterator over the replies that arrive before their deadlines.

        After `close`, send nothing and raise asyncio.CancelledError, which ends the round.
        """
        if self._is_closed:
            raise asyncio.CancelledError("the server stops")
        self.prepare(next(iter(requests.values()), None))
        batch, messages = RequestBatch(), {}
        self._batches.add(batch)
        for u, request in requests.items():
            if u in self.exclusions:
                continue
            if id(request) not in messages:  # a broadcast is encoded once
                messages[id(request)] = self._encode(batch, request)
            self._request(batch, u, request, *messages[id(request)])
        if not batch.open:
            self._end(batch)
        return self._replies(batch)

    def prepare(self, request: Message | None) -> None:
        """Begin a round if `request` is an invitation; if it opens the summing protocol, store its parameters.

        Other requests, and None, change nothing.
        """
        if isinstance(request, Invite):
            self.begin_round()
        elif isinstance(request, Opening):
            self.set_parameters(request.parameters)

    def begin_round(self) -> None:
        """Drop the open requests, the replies and the exclusions of the previous round."""
        self._abandon_batches()
        self.exclusions.clear()
        self.errors.clear()
        self.late.clear()
        self._allowances.begin_round()
        self._uploads.begin_round()

    def set_parameters(self, parameters: Parameters) -> None:
        """Store the parameters of a round; the largest upload and the deadlines of helpers follow from them."""
        self._parameters = parameters
        self._deadlines.set_parameters(parameters)

    def _abandon_batches(self) -> None:
        """Give up the open requests of the previous round, and drop replies that were not processed."""
        for batch in self._batches:
            for pending in [one for requests in self._open.values() for one in requests.values()]:
                if pending.batch is batch:
                    self._give_up(pending)
            while not batch.arrivals.empty():
                if (arrival := batch.arrivals.get()) is not None and arrival[2] is not None:
                    arrival[2].release()
        self._batches.clear()

    def _encode(self, batch: RequestBatch, request: Message) -> tuple[bytes, BodyInfo | None]:
        """Offer a request's body for download; return the encoded request and the body's announcement."""
        bulk = wire.bulk_of(request)
        body = self._downloads.offer(bulk) if len(bulk) else None
        if body is not None:
            batch.offers.append(body.digest)
        return wire.encode(request), body

    def _request(self, batch: RequestBatch, u: ClientId, request: Message, frame: bytes, body: BodyInfo | None) -> None:
        self._last_id += 1
        message = wire.encode(Request(self._last_id, frame, body))
        pending = PendingRequest(self._last_id, u, request, batch, message, self._loop.time())
        seconds = self._allowances.start(u, type(request).__name__, pending.started)
        pending.timer = self._loop.call_later(seconds, self._expire, pending)
        self._open[u][pending.id] = pending
        batch.open.add(pending.id)
        self.count_request(u, type(request), len(frame) + (0 if body is None else body.size))
        if not self._send(u, message):
            self.suspend_client(u)

    def _replies(self, batch: RequestBatch) -> Iterator[tuple[ClientId, Message]]:
        """Yield decoded replies as they arrive; runs in the thread of the round."""
        while (arrival := batch.arrivals.get()) is not None:
            pending, frame, vector = arrival
            try:
                bulk = b"" if vector is None else vector.bytes
                yield pending.client, wire.decode(frame, reply_to(pending.request), bulk=bulk)
            except MalformedMessage as error:
                self._loop.call_soon_threadsafe(self._refuse, pending.client, error)
                yield pending.client, Garbled()
            finally:
                if vector is not None:
                    self._loop.call_soon_threadsafe(vector.release)
        self._loop.call_soon_threadsafe(self._batches.discard, batch)

    # Messages from clients

    def take_reply(self, u: ClientId, reply: Reply) -> None:
        """Accept the reply to an open request, or ignore it if the request was given up.

        Raise ProtocolError for a second reply to a request, or if there was no such request.
        """
        pending = self._open[u].get(reply.id)
        if pending is None or pending.reply is not None:
            self._check_late(u, reply.id, pending)
            return
        if reply.body is None:
            pending.reply = reply
            self._complete(pending, reply, None)
            return
        check_upload_size(reply.body.size, self._largest_upload(pending.request))
        try:
            check_same_size(pending.announced, reply.body.size)
        except MalformedMessage:
            self._complete_garbled(pending)
            return
        pending.reply, pending.announced = reply, reply.body.size
        self._uploads.expect(u, reply.id, reply.body)

    def take_refusal(self, u: ClientId, refusal: Refusal) -> None:
        """Exclude from the round a client that refuses a request, and add the refusal to `errors`.

        The refusal of a delivered sum is not added: an honest client that could not resume the round after a restart
        refuses its sums.
        """
        pending = self._open[u].get(refusal.id)
        if pending is None:
            self._check_late(u, refusal.id, None)
        elif isinstance(pending.request, requests_in(vars(delivery))):
            self.exclude(u, refusal.error)
        else:
            if refusal.error in BUDGET_ERRORS:
                log.warning("client %d declined: its owner's privacy budget does not cover this round", u)
            self.exclusions.setdefault(u, refusal.error)
            self._refuse(u, ProtocolError(f"the client declined: {refusal.error[:64]!a}"))

    def take_vector(self, u: ClientId, id: int, vector: ReceivedVector) -> None:
        """Accept a complete upload, which completes the reply to request `id`; drop it if the request is not open."""
        pending = self._open[u].get(id)
        if pending is None or pending.reply is None:
            vector.release()
        else:
            self._complete(pending, pending.reply, vector)

    def _complete(self, pending: PendingRequest, reply: Reply, vector: ReceivedVector | None) -> None:
        self.sent[pending.client] += len(reply.frame) + (0 if reply.body is None else reply.body.size)
        self._deadlines.record(type(pending.request).__name__, self._loop.time() - pending.started)
        pending.batch.arrivals.put((pending, reply.frame, vector))
        self._close(pending)

    def _complete_garbled(self, pending: PendingRequest) -> None:
        """Complete a request with a malformed reply, so that the server's state machine blames the client."""
        self._uploads.forget(pending.client, pending.id)
        pending.batch.arrivals.put((pending, b"", None))
        self._close(pending)

    def _check_late(self, u: ClientId, id: int, pending: PendingRequest | None) -> None:
        """Raise ProtocolError unless a reply is late: the first reply to a request that the server has given up.

        `id` is the request that the reply states, `pending` the open request with this id, None if there is none.
        """
        if pending is not None or id not in self._given_up[u]:
            raise ProtocolError("a reply came to no open request, or came twice")
        self._given_up[u].discard(id)

    def _largest_upload(self, request: Message) -> int:
        """Return the size in bytes of the largest upload that a request allows; 0 if it allows none."""
        kind, chunk = reply_to(request), getattr(request, "chunk", None)
        if not kind.bulk or self._parameters is None:
            return 0
        if chunk is None:
            return LARGEST_ELEMENT * self._parameters.dim * int(getattr(request, "vectors", 0))
        span = self._parameters.chunks[chunk]
        return LARGEST_ELEMENT * int(span.stop - span.start)

    # Connections and exclusions

    def resume_client(self, u: ClientId) -> list[bytes]:
        """Return the encoded open requests to a client that has reconnected, so that the server sends them again."""
        timer = self._grace_timers.pop(u, None)
        if timer is not None:
            timer.cancel()
        self._given_up[u].clear()
        for pending in self._open[u].values():
            pending.reply = None
        return [pending.message for pending in self._open[u].values()]

    def suspend_client(self, u: ClientId) -> None:
        """If a disconnected client has open requests, exclude it when the grace time ends without a reconnection."""
        if self._open[u] and u not in self._grace_timers:
            self._grace_timers[u] = self._loop.call_later(self._deadlines.settings.grace, self._end_grace, u)

    @property
    def grace(self) -> float:
        """Return the seconds in which a disconnected client can reconnect."""
        return self._deadlines.settings.grace

    def _end_grace(self, u: ClientId) -> None:
        self._grace_timers.pop(u, None)
        self.exclude(u, DISCONNECTED)

    def _expire(self, pending: PendingRequest) -> None:
        if pending.id in self._open[pending.client]:
            kind, waited = type(pending.request).__name__, self._loop.time() - pending.started
            fields = {"client": pending.client, "request": pending.id}
            log.warning(
                "client %d leaves the round: no reply to %s after %.1f s", pending.client, kind, waited, extra=fields
            )
            self.late.setdefault(pending.client, kind)
            self.exclude(pending.client, TOO_SLOW)

    def _refuse(self, u: ClientId, error: DordisError) -> None:
        self.errors.append((u, error))
        log.info("client %d leaves the round: %s", u, error, extra={"client": u})
        self.exclude(u)

    def exclude(self, u: ClientId, reason: str = VIOLATION) -> None:
        """Exclude a client from the rest of the round, and give up all its open requests."""
        self.exclusions.setdefault(u, reason)
        for pending in list(self._open[u].values()):
            self._give_up(pending)

    def close(self) -> None:
        """Give up all open requests and send no further requests, because the server stops."""
        self._is_closed = True
        for pending in [one for requests in self._open.values() for one in requests.values()]:
            self._give_up(pending)

    def _give_up(self, pending: PendingRequest) -> None:
        self._given_up[pending.client].add(pending.id)
        self._uploads.forget(pending.client, pending.id)
        self._close(pending)

    def _close(self, pending: PendingRequest) -> None:
        if self._open[pending.client].pop(pending.id, None) is not None:
            self._allowances.stop(pending.client, type(pending.request).__name__, self._loop.time())
        if pending.timer is not None:
            pending.timer.cancel()
        pending.batch.open.discard(pending.id)
        if not pending.batch.open:
            self._end(pending.batch)

    def _end(self, batch: RequestBatch) -> None:
        for digest in batch.offers:
            self._downloads.withdraw(digest)
        batch.offers.clear()
        batch.arrivals.put(None)


def check_same_size(announced: int, size: int) -> None:
    """Raise MalformedMessage if an upload is announced again, after a reconnection, with another size."""
    if announced not in (0, size):
        raise MalformedMessage(f"an upload was announced with {announced} bytes before, and with {size} bytes now")
