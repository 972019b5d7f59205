"""The exchange over the network: requests go out together, answers come until a deadline, whoever misses it is out.

It runs on the event loop of the server.  The flows that use it run in threads: replies are handed to them one by one,
and the buffer of a vector is used again as soon as the next reply is asked for.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

from dordis import wire
from dordis.errors import DordisError, MalformedMessage, ProtocolError
from dordis.network.bulk import Blobs
from dordis.network.deadlines import Patience, TimeAllowances
from dordis.network.intake import HeldHere, check_size
from dordis.network.messages import Answered, Asked, Beside, Declined
from dordis.network.uploads import HeldElsewhere, Uploads
from dordis.protocol import ClientId, Garbled, Message, Replies, Requests, reply_to, requests_in
from dordis.protocols import delivery
from dordis.protocols.parameters import Parameters
from dordis.protocols.summing import Opening
from dordis.rounds.invitation import Invite
from dordis.rounds.meter import MessageMeter

log = logging.getLogger("dordis.network")

LARGEST_ELEMENT = 4
"""Bytes of a coordinate at most, in any protocol."""

Send = Callable[[ClientId, bytes], bool]
"""Sends to a client, if it is connected; tells whether it is."""
Body = HeldHere | HeldElsewhere
Arrived = tuple["Asking", bytes, Body | None]


@dataclass(eq=False)
class Asking:
    """One request to one client, until it is answered or given up."""

    id: int
    client: ClientId
    request: Message
    call: "Call"
    message: bytes
    started: float
    answer: Answered | None = None
    announced: int = 0
    """Size of the upload that the client announced, 0 if none."""
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Call:
    """Requests that went out together, and what has come of them."""

    number: int
    open: set[int] = field(default_factory=set)
    arrivals: "SimpleQueue[Arrived | None]" = field(default_factory=SimpleQueue)
    offered: list[bytes] = field(default_factory=list)


class NetworkExchange(MessageMeter):
    """Ask clients that are connected, and those that come back in time."""

    def __init__(self, send: Send, uploads: Uploads, blobs: Blobs, patience: Patience) -> None:
        super().__init__()
        self._send, self._uploads, self._blobs, self._patience = send, uploads, blobs, patience
        self._allowances = TimeAllowances(patience)
        self._loop = asyncio.get_running_loop()
        self._ids = 0
        self._calls: set[Call] = set()
        self._open: defaultdict[ClientId, dict[int, Asking]] = defaultdict(dict)
        self._given_up: defaultdict[ClientId, set[int]] = defaultdict(set)
        self._out: set[ClientId] = set()
        self._absent: dict[ClientId, asyncio.TimerHandle] = {}
        self._parameters: Parameters | None = None

    async def __call__(self, requests: Requests) -> Replies:
        """Send the requests; the replies that come in time are given one by one."""
        self.note(next(iter(requests.values()), None))
        self._ids += 1
        call, messages = Call(self._ids), {}
        self._calls.add(call)
        for u, request in requests.items():
            if u in self._out:
                continue
            if id(request) not in messages:  # a broadcast is encoded once
                messages[id(request)] = self._offered(call, request)
            self._ask(call, u, request, *messages[id(request)])
        if not call.open:
            self._end(call)
        return self._replies(call)

    def note(self, request: Message | None) -> None:
        """Take note of a round that begins, and of its parameters."""
        if isinstance(request, Invite):
            self._abandon_calls()
            self._out.clear()
            self._allowances.begin()
            self._uploads.begin()
        elif isinstance(request, Opening):
            self._parameters = request.parameters

    def _abandon_calls(self) -> None:
        """Give up what is left of a round that failed: what was asked, and what came and nobody took."""
        for call in self._calls:
            for asking in [asking for askings in self._open.values() for asking in askings.values()]:
                if asking.call is call:
                    self._give_up(asking)
            while not call.arrivals.empty():
                if (arrived := call.arrivals.get()) is not None and arrived[2] is not None:
                    arrived[2].release()
        self._calls.clear()

    def _offered(self, call: Call, request: Message) -> tuple[bytes, Beside | None]:
        bulk = wire.bulk_of(request)
        beside = self._blobs.offer(bulk) if len(bulk) else None
        if beside is not None:
            call.offered.append(beside.digest)
        return wire.encode(request), beside

    def _ask(self, call: Call, u: ClientId, request: Message, frame: bytes, beside: Beside | None) -> None:
        self._ids += 1
        message = wire.encode(Asked(self._ids, frame, beside))
        asking = Asking(self._ids, u, request, call, message, self._loop.time())
        seconds = self._allowances.start(u, type(request).__name__, asking.started)
        asking.timer = self._loop.call_later(seconds, self._expire, asking)
        self._open[u][asking.id] = asking
        call.open.add(asking.id)
        size = len(frame) + (0 if beside is None else beside.size)
        self.count_request(u, type(request), size)
        if not self._send(u, message):
            self.disconnected(u)

    def _replies(self, call: Call) -> Iterator[tuple[ClientId, Message]]:
        """Yield replies in the thread of a flow, as they come; they are decoded here."""
        while (arrived := call.arrivals.get()) is not None:
            asking, frame, body = arrived
            try:
                bulk = b"" if body is None else body.bulk
                yield asking.client, wire.decode(frame, reply_to(asking.request), bulk=bulk)
            except MalformedMessage as error:
                self._loop.call_soon_threadsafe(self._refuse, asking.client, error)
                yield asking.client, Garbled()
            finally:
                if body is not None:
                    self._loop.call_soon_threadsafe(body.release)
        self._uploads.merge(call.number)
        self._loop.call_soon_threadsafe(self._calls.discard, call)

    # What clients send

    def answered(self, u: ClientId, message: Answered) -> None:
        """Take an answer; one that was never asked for, or comes twice, raises."""
        asking = self._open[u].get(message.id)
        if asking is None or asking.answer is not None:
            self._check_late(u, message.id, asking)
            return
        if message.beside is None:
            asking.answer = message
            self._arrived(asking, message, None)
            return
        check_size(message.beside.size, self._most(asking.request))
        try:
            check_same_size(asking.announced, message.beside.size)
        except MalformedMessage:
            self._garble(asking)
            return
        asking.answer, asking.announced = message, message.beside.size
        self._uploads.expect(u, message.id, message.beside, asking.call.number)

    def declined(self, u: ClientId, message: Declined) -> None:
        """Take note that a client has left the round by itself.

        Whoever declines what is delivered refuses nothing: it was restarted, say, after it had closed the round.
        """
        asking = self._open[u].get(message.id)
        if asking is None:
            self._check_late(u, message.id, None)
        elif isinstance(asking.request, requests_in(vars(delivery))):
            self._leave(u)
        else:
            self._refuse(u, ProtocolError(f"the client declined: {message.error[:64]!a}"))

    def delivered(self, u: ClientId, id: int, body: Body) -> None:
        """Take a vector that has come whole."""
        asking = self._open[u].get(id)
        if asking is None or asking.answer is None:
            body.release()
        else:
            self._arrived(asking, asking.answer, body)

    def _arrived(self, asking: Asking, answer: Answered, body: Body | None) -> None:
        self.sent[asking.client] += len(answer.frame) + (0 if answer.beside is None else answer.beside.size)
        self._patience.saw(type(asking.request).__name__, self._loop.time() - asking.started)
        asking.call.arrivals.put((asking, answer.frame, body))
        self._close(asking)

    def _garble(self, asking: Asking) -> None:
        """Close a request with a garbled answer: the server's machine then names the client."""
        self._uploads.forget(asking.client, asking.id)
        asking.call.arrivals.put((asking, b"", None))
        self._close(asking)

    def _check_late(self, u: ClientId, id: int, asking: Asking | None) -> None:
        """An answer may be late, once; anything else is not an honest client's."""
        if asking is not None or id not in self._given_up[u]:
            raise ProtocolError("an answer came that nobody asked for, or a second time")
        self._given_up[u].discard(id)

    def _most(self, request: Message) -> int:
        """Return the bytes that may come beside the answer to a request."""
        kind, chunk = reply_to(request), getattr(request, "chunk", None)
        if not kind.bulk or chunk is None or self._parameters is None:
            return 0
        span = self._parameters.chunks[chunk]
        return LARGEST_ELEMENT * int(span.stop - span.start)

    # Who comes and goes

    @property
    def is_waiting(self) -> bool:
        """Tell whether an answer is expected."""
        return any(call.open for call in self._calls)

    def connected(self, u: ClientId) -> list[bytes]:
        """Return what a client that has come, or come back, has still to answer."""
        timer = self._absent.pop(u, None)
        if timer is not None:
            timer.cancel()
        self._given_up[u].clear()
        for asking in self._open[u].values():
            asking.answer = None
        return [asking.message for asking in self._open[u].values()]

    def disconnected(self, u: ClientId) -> None:
        """Wait a little for a client that went while something was asked of it."""
        if self._open[u] and u not in self._absent:
            self._absent[u] = self._loop.call_later(self._patience.settings.grace, self._gone, u)

    def _gone(self, u: ClientId) -> None:
        self._absent.pop(u, None)
        self._leave(u)

    def _expire(self, asking: Asking) -> None:
        if asking.id in self._open[asking.client]:
            self._leave(asking.client)

    def _refuse(self, u: ClientId, error: DordisError) -> None:
        self.errors.append((u, error))
        log.info("client %d leaves the round: %s", u, error)
        self._leave(u)

    def _leave(self, u: ClientId) -> None:
        """Put a client out of the round: whatever is asked of it, in all chunks, is given up at once."""
        self._out.add(u)
        for asking in list(self._open[u].values()):
            self._give_up(asking)

    def _give_up(self, asking: Asking) -> None:
        self._given_up[asking.client].add(asking.id)
        self._uploads.forget(asking.client, asking.id)
        self._close(asking)

    def leave(self, u: ClientId) -> None:
        """Put a client out of the round that has broken the rules of the network."""
        self._leave(u)

    def _close(self, asking: Asking) -> None:
        if self._open[asking.client].pop(asking.id, None) is not None:
            self._allowances.stop(asking.client, type(asking.request).__name__, self._loop.time())
        if asking.timer is not None:
            asking.timer.cancel()
        asking.call.open.discard(asking.id)
        if not asking.call.open:
            self._end(asking.call)

    def _end(self, call: Call) -> None:
        for digest in call.offered:
            self._blobs.withdraw(digest)
        call.offered.clear()
        call.arrivals.put(None)


def check_same_size(announced: int, size: int) -> None:
    """An upload that is announced again, after a new connection, has the same size."""
    if announced not in (0, size):
        raise MalformedMessage(f"an upload was announced with {announced} bytes before, and with {size} bytes now")
