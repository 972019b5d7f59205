"""Who leaves the rounds of a simulation, and at which request: from then on nothing reaches that client."""

from collections.abc import Collection

from dordis.protocol import ClientId, Message, requests_in
from dordis.protocols import delivery
from dordis.protocols.summing import SummingProtocol
from dordis.rounds import invitation
from dordis.simulation.availability import EARLY, Dropout


class Departures:
    """The departures of one round after the other, as a dropout model says."""

    def __init__(self, dropout: Dropout, protocol: SummingProtocol) -> None:
        self._dropout = dropout
        requests = (*requests_in(vars(invitation)), *protocol.requests, *requests_in(vars(delivery)))
        self._place = {request.__name__: place for place, request in enumerate(requests)}
        self.leaving: dict[ClientId, str] = {}
        self._gone: set[ClientId] = set()

    def begin(self, index: int, invited: Collection[ClientId]) -> None:
        """Decide who leaves the round with this index; whoever is not there leaves at once."""
        there = self._dropout.available(index, invited)
        absent = dict.fromkeys((u for u in invited if u not in there), EARLY[0])
        self.leaving = absent | self._dropout.leaving(index, [u for u in invited if u in there])
        self._gone = set()

    def present(self, index: int, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Return who is there when a round is about to begin."""
        return self._dropout.available(index, clients)

    def lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether the client is gone when the request comes."""
        name, stage = type(request).__name__, self.leaving.get(u)
        if stage is not None and not request.ahead and self._place[stage] <= self._place[name]:
            self._gone.add(u)
        return u in self._gone

    def is_early(self, u: ClientId) -> bool:
        """Tell whether a client leaves before U is fixed."""
        return self.leaving.get(u) in EARLY
