"""The Ray processes of a run, each with some of its clients, and the exchange with them.

Clients answer in their process, and their uploads are summed there.  The clients of a process that dies are dropouts
from then on.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from dordis import wire
from dordis.errors import DordisError, InputError, ProtocolError
from dordis.kernels.ring import Vector
from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.vector_backend import LocalAccumulator
from dordis.rounds.meter import MessageMeter
from dordis.selection.selection import Selection
from dordis.simulation.exchange import LocalExchange, Lost
from dordis.simulation.population import SimulatedHome, announce_peers

Counted = Mapping[Attendance, OwnerCharge]


@dataclass
class Answers:
    """The replies of the clients of one process, the reasons of refusals, and the traffic."""

    replies: list[tuple[ClientId, Message]] = field(default_factory=list)
    refusals: list[tuple[ClientId, str]] = field(default_factory=list)
    meter: MessageMeter = field(default_factory=MessageMeter)


@dataclass(frozen=True)
class Sum:
    """Description of a sum of uploads: a unique number, the chunk, and length and bits of its vectors."""

    number: int
    chunk: int
    dim: int
    bits: int


class Worker:
    """A process with clients of a run, each built at its first request; uploads stay here until they are summed."""

    def __init__(self, home: SimulatedHome, selection: Selection, counted: Counted) -> None:
        self._clients = home.create_clients(b"", selection, counted)
        self._uploads: dict[tuple[int, ClientId], wire.Bulk] = {}
        self._sums: dict[int, LocalAccumulator] = {}

    def answer(self, requests: Requests) -> Answers:
        """Return the replies of clients to requests; uploads are stored here, and returned with an empty vector."""
        exchange = LocalExchange(self._clients)
        replies = [
            (u, self._store_upload(u, reply) if requests[u].uploads else reply)
            for u, reply in announce_peers(exchange, self._clients)(requests)
        ]
        refusals = [(u, str(error)) for u, error in exchange.errors]
        counted = MessageMeter()
        counted.add(exchange)
        return Answers(replies, refusals, counted)

    def _store_upload(self, u: ClientId, reply: Message) -> Message:
        self._uploads[getattr(reply, "chunk", 0), u] = wire.bulk_of(reply)
        return msgspec.structs.replace(reply, **{reply.bulk: b""}) if reply.bulk else reply

    def begin(self) -> bool:
        """Delete the uploads and sums that a failed round has left; return True, as an acknowledgement."""
        self._uploads.clear()
        self._sums.clear()
        return True

    def add(self, sum: Sum, clients: Collection[ClientId]) -> None:
        """Add the stored uploads of these clients to a sum; malformed and missing ones are left out."""
        total = self._sums.setdefault(sum.number, LocalAccumulator(sum.dim, sum.bits))
        for u in clients:
            try:
                total.add(u, self._uploads.pop((sum.chunk, u)))
            except (InputError, KeyError):
                continue

    def total(self, sum: Sum) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum of the uploads of this process, and the clients in it."""
        return self._sums.pop(sum.number, LocalAccumulator(sum.dim, sum.bits)).close()

    def willing(self, cap: int | None) -> list[ClientId]:
        """Return the clients of this process that have participations left."""
        return self._clients.willing(cap)


UPLOADS = 8
"""Number of uploads that a process computes in one batch and adds together; it has at most two batches in memory."""
GONE = (RayActorError, ObjectLostError)
"""The errors of Ray for a lost process or machine."""

Handle = Any
"""A handle of a Ray actor."""


class Workers:
    """The processes of all clients, by index; `gone` has the indices of lost processes."""

    def __init__(self, handles: Sequence[Handle], ids: Sequence[ClientId]) -> None:
        self._handles, self.ids = list(handles), tuple(ids)
        self._place = {u: i % len(handles) for i, u in enumerate(ids)}
        self.gone: set[int] = set()

    def __contains__(self, u: ClientId) -> bool:
        return u in self._place and self._place[u] not in self.gone

    def place(self, u: ClientId) -> int:
        """Return the index of a client's process."""
        return self._place[u]

    @property
    def alive(self) -> list[int]:
        """Return the indices of the processes that are not known to be lost."""
        return [place for place in range(len(self._handles)) if place not in self.gone]

    def begin(self, place: int, name: str, *arguments: Any) -> Any:
        """Start a call of a `Worker` method in the process with index `place`; return Ray's reference to the result."""
        return getattr(self._handles[place], name).remote(*arguments)

    def result(self, place: int, reference: Any) -> Any:
        """Return the result of a call, None if the process is lost; raise an error of dordis that the call raised."""
        try:
            return ray.get(reference)
        except GONE:
            self.gone.add(place)
            return None
        except RayTaskError as error:
            if isinstance(error.cause, DordisError):
                raise error.cause from None
            raise

    def ask(self, name: str, *arguments: Any) -> Iterator[tuple[int, Any]]:
        """Call a `Worker` method in every process; yield index and result as they arrive, without lost processes."""
        begun = {self.begin(place, name, *arguments): place for place in self.alive}
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            result = self.result(place, done)
            if result is not None:
                yield place, result


class RayExchange(MessageMeter):
    """Sends the requests to clients in one batch to each process; uploads in several small batches."""

    def __init__(self, workers: Workers, lost: Lost) -> None:
        super().__init__()
        self._workers, self._lost = workers, lost

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Send the requests; yield client and reply as they arrive."""
        waiting = {place: split_requests(asked) for place, asked in self._by_place(requests).items()}
        begun: dict[Any, int] = {}

        def go_on(place: int) -> None:
            part = next(waiting[place], None)
            if part is not None:
                begun[self._workers.begin(place, "answer", part)] = place

        for place in waiting:
            go_on(place)
        while begun:
            (done, *_), _ = ray.wait(list(begun), num_returns=1)
            place = begun.pop(done)
            answers = self._workers.result(place, done)
            if answers is not None:
                go_on(place)
                yield from self._counted(answers)

    def _by_place(self, requests: Requests) -> dict[int, dict[ClientId, Message]]:
        """Return the requests by index of their clients' process, without lost ones and requests to work ahead."""
        asked: dict[int, dict[ClientId, Message]] = {}
        for u, request in requests.items():
            if u in self._workers and not request.ahead and not self._lost(u, request):
                asked.setdefault(self._workers.place(u), {})[u] = request
        return asked

    def _counted(self, answers: Answers) -> list[tuple[ClientId, Message]]:
        self.errors += [(u, ProtocolError(reason)) for u, reason in answers.refusals]
        self.add(answers.meter)
        return answers.replies


def split_requests(requests: Requests) -> Iterator[Requests]:
    """Yield the requests to one process in batches: all at once, or UPLOADS at a time for uploads, to save memory."""
    most = UPLOADS if any(request.uploads for request in requests.values()) else len(requests)
    left = iter(requests.items())
    while part := dict(islice(left, most)):
        yield part
