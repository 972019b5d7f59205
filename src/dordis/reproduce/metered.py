"""An exchange in memory that notes what every request costs the client that answers it.

A party pays for its own codec: the client for decoding requests and encoding replies, which is counted here, and the
server for encoding requests (a broadcast once) and decoding replies, which is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import thread_time
from typing import NamedTuple

from dordis import wire
from dordis.protocol import ClientId, Message, Requests
from dordis.simulation.exchange import Lost, Party


class Answered(NamedTuple):
    """What one request cost: CPU seconds of the client, bytes of the request and of the reply."""

    client: ClientId
    seconds: float
    request: int
    reply: int


@dataclass
class MeteredExchange:
    """Deliver requests one by one, as their replies are asked for; those that are lost cost nothing."""

    clients: Mapping[ClientId, Party]
    kinds: Mapping[type[Message], type[Message]]
    lost: Lost
    answered: list[Answered] = field(default_factory=list)

    def __call__(self, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        """Yield the replies."""
        encoded: dict[int, bytes] = {}
        for u, request in requests.items():
            if self.lost(u, request):
                continue
            if id(request) not in encoded:
                encoded[id(request)] = wire.encode(request)
            data = encoded[id(request)]
            start = thread_time()
            reply = wire.encode(self.clients[u].handle(wire.decode(data, type(request))))
            self.answered.append(Answered(u, thread_time() - start, len(data), len(reply)))
            yield u, wire.decode(reply, self.kinds[type(request)])

    @property
    def seconds(self) -> float:
        """Return the seconds of all clients."""
        return sum(each.seconds for each in self.answered)
