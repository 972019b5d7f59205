"""Observation of rounds: events for displays, the live page and logs, and a meter of the bytes of messages.

Events say which clients were asked at which stage, and which of them answered.  They hold no secrets.  An observer must
return at once, because the round waits for it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from dordis.errors import DordisError, InputError
from dordis.pipeline.executor import AsyncExchange
from dordis.protocol import ClientId, Garbled, Message, OpenCall, Replies, Requests, Role
from dordis.rounds.arrivals import Arrivals
from dordis.rounds.invitation import SendModel, SendSum

REFUSED = "refused"
"""The key, in place of the name of a stage, for dropped clients that refused a request with an error."""


class WatchEvent(msgspec.Struct, frozen=True, tag=True):
    """An event of a round, as the server sees it."""


class AttemptBegan(WatchEvent, frozen=True):
    """An attempt at a round begins."""

    number: int
    index: int


class StageBegan(WatchEvent, frozen=True):
    """A stage begins, in which `clients` are asked for a reply; `chunk` is None if the stage concerns no single chunk.

    `clients` is empty if the server only computes, if any client may reply (an open call), or in ideal simulations.
    """

    stage: str
    clients: tuple[int, ...] = ()
    chunk: int | None = None


class ClientAnswered(WatchEvent, frozen=True):
    """A client has answered at a stage."""

    stage: str
    client: int
    chunk: int | None = None


class StageEnded(WatchEvent, frozen=True):
    """No more answers of a stage are awaited; `missing` has the clients that did not answer."""

    stage: str
    missing: tuple[int, ...] = ()
    chunk: int | None = None


class AttemptFailed(WatchEvent, frozen=True):
    """An attempt at a round failed; `survivors` has the clients in an impossible sum, else it is empty."""

    index: int
    reason: str
    evicted: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()


Watch = Callable[[WatchEvent], None]
"""Receives the events of rounds in order, in the threads that run the rounds; it must return soon and not raise."""


def silent(event: WatchEvent) -> None:
    """Ignore the event."""


class WatchedExchange:
    """An exchange that wraps another and reports to `watch` when a stage begins, who answers, and who is missing.

    Requests are passed to `admit` before they are sent; for summing protocols this is the privacy gate, which counts
    participations and charges the ledger.  An open call is not passed to `admit`: `arrivals` answers it.
    """

    def __init__(
        self,
        exchange: AsyncExchange,
        watch: Watch,
        admit: Callable[[Requests], None] = lambda requests: None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._exchange, self._watch, self._admit, self._arrivals = exchange, watch, admit, arrivals
        self._missed: dict[ClientId, str] = {}

    async def __call__(self, requests: Requests) -> Replies:
        if isinstance(requests, OpenCall):
            self._watch(StageBegan(type(requests.request).__name__))
            if self._arrivals is None:
                raise InputError("an open call needs the invitation for arriving clients")
            return await self._arrivals.take(requests, self._exchange)
        self._admit(requests)
        stage = ", ".join({type(request).__name__: None for request in requests.values()})
        chunk = getattr(next(iter(requests.values()), None), "chunk", None)
        self._watch(StageBegan(stage, tuple(map(int, requests)), chunk))
        return self._record(requests, await self._exchange(requests), stage, chunk)

    def _record(
        self, requests: Requests, replies: Replies, stage: str, chunk: int | None
    ) -> Iterator[tuple[ClientId, Message]]:
        answered = set()
        for u, reply in replies:
            if not isinstance(reply, Garbled):
                answered.add(u)
                self._watch(ClientAnswered(stage, int(u), chunk))
            yield u, reply
        missing = [u for u in requests if u not in answered]
        self._watch(StageEnded(stage, tuple(map(int, missing)), chunk))
        for u in missing:
            if not requests[u].ahead and requests[u].role is Role.CLIENT:
                self._missed.setdefault(u, type(requests[u]).__name__)

    def dropped(self, clients: Collection[ClientId], refused: Collection[ClientId]) -> dict[str, tuple[int, ...]]:
        """Return those of `clients` that dropped out, by the stage of their first missing answer.

        A client that dropped out and is in `refused` is listed under `REFUSED` instead.
        """
        stages: dict[str, list[int]] = {}
        for u, stage in self._missed.items():
            if u in clients:
                stages.setdefault(REFUSED if u in refused else stage, []).append(int(u))
        return {stage: tuple(sorted(gone)) for stage, gone in stages.items()}


class Traffic(NamedTuple):
    """Bytes from clients (`up`) and to clients (`down`, including `models` and missed `sums`); None if not counted."""

    up: int | None = None
    down: int | None = None
    models: int | None = None
    sums: int | None = None

    def since(self, before: "Traffic") -> "Traffic":
        """Return the bytes counted since the earlier count `before`.

        >>> Traffic(5, 9, 3, 0).since(Traffic(1, 2, 3, 0))
        Traffic(up=4, down=7, models=0, sums=0)
        """
        counts = zip(self, before, strict=True)
        return Traffic(*(None if now is None or then is None else now - then for now, then in counts))


class MessageMeter:
    """Counts the bytes of messages, without the bytes that the transport adds; the base class of all exchanges."""

    def __init__(self) -> None:
        self.sent: Counter[ClientId] = Counter()
        """Bytes of each client's replies."""
        self.received: Counter[ClientId] = Counter()
        """Bytes of the requests to each client."""
        self.kinds: Counter[str] = Counter()
        """Bytes of requests to all clients, by the name of the request's class."""
        self.errors: list[tuple[ClientId, DordisError]] = []
        """Each client's errors: those that it raised, and those found in its replies."""

    def count_request(self, client: ClientId, kind: type[Message], size: int) -> None:
        """Count a request of `size` bytes to a client."""
        self.received[client] += size
        self.kinds[kind.__name__] += size

    def count_reply(self, client: ClientId, size: int) -> None:
        """Count a reply of `size` bytes from a client."""
        self.sent[client] += size

    def add(self, other: "MessageMeter") -> None:
        """Add the counts of another meter."""
        self.sent.update(other.sent)
        self.received.update(other.received)
        self.kinds.update(other.kinds)

    def traffic(self) -> Traffic:
        """Return the bytes of all messages so far."""
        models, sums = (self.kinds[kind.__name__] for kind in (SendModel, SendSum))
        return Traffic(self.sent.total(), self.received.total(), models, sums)
