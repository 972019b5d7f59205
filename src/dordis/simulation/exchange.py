"""An exchange in memory: every message goes through the codec, and any of them can be lost on cue."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Protocol

from dordis import wire
from dordis.errors import DordisError, UnusableUpdate
from dordis.protocol import ClientId, Garbled, Message, Party, Requests, reply_to
from dordis.rounds.client import Client
from dordis.rounds.meter import MessageMeter

Lost = Callable[[ClientId, Message], bool]


class Parties(Protocol):
    """The clients by their ids; they may be made when they are first asked for."""

    def __contains__(self, client: object, /) -> bool: ...

    def __getitem__(self, client: ClientId, /) -> Party: ...


def nothing_lost(client: ClientId, message: Message) -> bool:
    """Lose nothing."""
    return False


class LocalExchange(MessageMeter):
    """Deliver requests to clients in this process, one after the other, as their replies are asked for.

    `lost_request` and `lost_reply` decide what never arrives.  A client that raises does not answer; `errors` keeps
    what it raised, and what is wrong with bytes that are no reply.  `sent` and `received` count the bytes of each
    client's replies and requests, `kinds` those of requests by their names, `seconds` the CPU time of its answers: a
    client pays for decoding requests and encoding replies, the server for the rest of the codec.  An application that
    prepares no usable update is a mistake: raised.

    Requests to work ahead are delivered only if `ahead` says so: all clients would then hold what they made, at once.
    """

    def __init__(
        self,
        clients: Parties,
        lost_request: Lost = nothing_lost,
        lost_reply: Lost = nothing_lost,
        ahead: bool = False,
    ) -> None:
        super().__init__()
        self._clients = clients
        self._lost_request, self._lost_reply = lost_request, lost_reply
        self._ahead = ahead
        self.seconds: defaultdict[ClientId, float] = defaultdict(float)

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Deliver the requests; yield the replies one by one.  What is bulk in them is handed on, not copied."""
        encoded: dict[int, bytes] = {}  # a broadcast is encoded once
        for u, request in requests.items():
            if u not in self._clients or self._lost_request(u, request) or (request.ahead and not self._ahead):
                continue
            if id(request) not in encoded:
                encoded[id(request)] = wire.encode(request)
            reply = self._deliver(u, request, encoded[id(request)])
            if reply is not None:
                yield u, reply

    def _deliver(self, u: ClientId, request: Message, data: bytes) -> Message | None:
        bulk = wire.bulk_of(request)
        client, kind = self._clients[u], type(request)
        self.count_request(u, kind, len(data) + len(bulk))
        start = thread_time()
        try:
            if isinstance(client, Client):
                client.check_expected(kind, len(bulk))
            reply = client.handle(wire.decode(data, kind, bulk=bulk))
            answer, vector = wire.encode(reply), wire.bulk_of(reply)
        except UnusableUpdate:
            raise
        except DordisError as error:
            self.errors.append((u, error))
            return None
        finally:
            self.seconds[u] += thread_time() - start
        self.count_reply(u, len(answer) + len(vector))
        if self._lost_reply(u, request):
            return None
        try:
            return wire.decode(answer, reply_to(request), bulk=vector)
        except DordisError as error:
            self.errors.append((u, error))
            return Garbled()
