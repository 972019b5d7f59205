"""An exchange in memory: every message is encoded and decoded, and a dropout model or a test can lose messages."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import thread_time
from typing import Protocol

from dordis import wire
from dordis.errors import CryptoError, DordisError, ProtocolError, UnusableUpdate
from dordis.pipeline.executor import advance
from dordis.protocol import ClientId, Garbled, Message, OpenCall, Party, Requests, Role, reply_to
from dordis.rounds.client import Client
from dordis.rounds.watch import MessageMeter

Lost = Callable[[ClientId, Message], bool]


class Parties(Protocol):
    """A mapping from ids to clients; it may create a client on first use."""

    def __contains__(self, client: object, /) -> bool: ...

    def __getitem__(self, client: ClientId, /) -> Party: ...


def nothing_lost(client: ClientId, message: Message) -> bool:
    """Return False: no message is lost."""
    return False


class LocalExchange(MessageMeter):
    """Delivers requests to clients in this process, each request only when the caller iterates to its reply.

    `lost_request` and `lost_reply` are called with a client and a request; they tell whether the request, or the reply
    to it, is lost.  A client that raises an error does not answer; the error is appended to `errors`, and so is the
    error of a malformed reply.  Only `UnusableUpdate` is raised to the
    caller, because it is an error of the application.  `seconds` has each client's CPU time, including encoding and
    decoding on the client.

    Requests that only let a client compute something early (`Message.ahead`) are dropped unless `ahead` is True: they
    would keep the early results of all clients in memory at once.  Requests to `helpers` are never lost, and the times
    and errors of helpers are recorded separately.  `coming` returns the clients that arrive to answer an open call (a
    request without addressees, `OpenCall`), in order; the call closes if `time_is_up` returns True at an arrival.
    """

    def __init__(
        self,
        clients: Parties,
        lost_request: Lost = nothing_lost,
        lost_reply: Lost = nothing_lost,
        ahead: bool = False,
        helpers: Mapping[ClientId, Party] | None = None,
        coming: Callable[[], Iterable[ClientId]] = tuple,
        time_is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._time_is_up = time_is_up
        self._helpers, self._coming = helpers or {}, coming
        self._clients = clients
        self._lost_request, self._lost_reply = lost_request, lost_reply
        self._ahead = ahead
        self.seconds: defaultdict[ClientId, float] = defaultdict(float)
        self.helper_seconds: defaultdict[ClientId, float] = defaultdict(float)
        self.helper_errors: list[tuple[ClientId, DordisError]] = []

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Deliver the requests one by one, and yield each client's id and reply; long vectors (bulk) are not copied."""
        if isinstance(requests, OpenCall):
            yield from self._admitted(requests)
        encoded: dict[int, bytes] = {}  # a request to all clients is encoded only once
        for u, request in requests.items():
            if request.role is Role.HELPER:
                reply = self._helped(u, request)
                if reply is not None:
                    yield u, reply
                continue
            if u not in self._clients or self._lost_request(u, request) or (request.ahead and not self._ahead):
                continue
            if id(request) not in encoded:
                encoded[id(request)] = wire.encode(request)
            reply = self._deliver(u, request, encoded[id(request)])
            if reply is not None:
                yield u, reply

    def _admitted(self, call: OpenCall) -> Iterator[tuple[ClientId, Message]]:
        """Yield the contributions to an open call, in the order in which clients arrive.

        A client is invited and trains when it arrives, before it contributes.
        """
        for u in self._coming():
            if self._time_is_up():
                call.close()
                return
            if call.is_full:
                return
            if u in call.arrived:
                continue
            server = None if call.visit is None else call.visit(u)
            if server is not None:
                advance(server.workflow, self)
            if server is None or u in server.output():
                for _, reply in self({u: call.request}):
                    try:
                        call.admit(u, reply)
                    except (ProtocolError, CryptoError) as error:
                        self.errors.append((u, error))
                    else:
                        yield u, reply

    def _helped(self, u: ClientId, request: Message) -> Message | None:
        """Encode, decode and deliver a request to helper `u`; return the reply, or None if the helper raises."""
        start = thread_time()
        try:
            return wire.carry(self._helpers[u].handle(wire.carry(request, type(request))), reply_to(request))
        except DordisError as error:
            self.helper_errors.append((u, error))
            return None
        finally:
            self.helper_seconds[u] += thread_time() - start

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
