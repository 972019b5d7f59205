"""One process of Ray that some clients of a run live in: they answer requests, and their uploads are summed there."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from dordis import wire
from dordis.errors import InputError
from dordis.federation.charges import OwnersCount
from dordis.federation.participation import Attendance
from dordis.federation.selection import Selection
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId, Message, Requests
from dordis.protocols.vectors import LocalAccumulator
from dordis.rounds.meter import MessageMeter
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.home import SimulatedHome, expected

Counted = Mapping[Attendance, OwnersCount]


@dataclass
class Answers:
    """What clients of one process answered, and what their exchange has counted."""

    replies: list[tuple[ClientId, Message]] = field(default_factory=list)
    refusals: list[tuple[ClientId, str]] = field(default_factory=list)
    meter: MessageMeter = field(default_factory=MessageMeter)


@dataclass(frozen=True)
class Sum:
    """A sum of uploads that is under way: no other has its number."""

    number: int
    chunk: int
    dim: int
    bits: int


class Worker:
    """Clients of a run, made when they are first asked; uploads stay here until the server takes them into a sum."""

    def __init__(self, home: SimulatedHome, selection: Selection, counted: Counted) -> None:
        self._clients = home.made(b"", selection, counted)
        self._uploads: dict[tuple[int, ClientId], wire.Bulk] = {}
        self._sums: dict[int, LocalAccumulator] = {}

    def answer(self, requests: Requests) -> Answers:
        """Deliver requests to clients; what is bulk in an upload stays here."""
        exchange = LocalExchange(self._clients)
        replies = [
            (u, self._kept(u, reply) if requests[u].uploads else reply)
            for u, reply in expected(exchange, self._clients)(requests)
        ]
        refusals = [(u, str(error)) for u, error in exchange.errors]
        counted = MessageMeter()
        counted.add(exchange)
        return Answers(replies, refusals, counted)

    def _kept(self, u: ClientId, reply: Message) -> Message:
        self._uploads[getattr(reply, "chunk", 0), u] = wire.bulk_of(reply)
        return msgspec.structs.replace(reply, **{reply.bulk: b""}) if reply.bulk else reply

    def begin(self) -> bool:
        """Forget what a round that failed has left."""
        self._uploads.clear()
        self._sums.clear()
        return True

    def add(self, sum: Sum, clients: Collection[ClientId]) -> None:
        """Take uploads into a sum; one that does not fit is not in it."""
        total = self._sums.setdefault(sum.number, LocalAccumulator(sum.dim, sum.bits))
        for u in clients:
            try:
                total.add(u, self._uploads.pop((sum.chunk, u)))
            except (InputError, KeyError):
                continue

    def total(self, sum: Sum) -> tuple[Vector, Collection[ClientId]]:
        """Return the sum over clients of this process, and whose uploads are in it."""
        return self._sums.pop(sum.number, LocalAccumulator(sum.dim, sum.bits)).close()

    def willing(self, cap: int | None) -> list[ClientId]:
        """Return those clients of the run whose owners, as far as they count here, let them take part once more."""
        return self._clients.willing(cap)
