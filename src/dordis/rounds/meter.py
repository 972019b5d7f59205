"""The message meter of an exchange: bytes by client and by kind of request, and the errors of clients."""

from collections import Counter
from typing import NamedTuple

from dordis.errors import DordisError
from dordis.protocol import ClientId, Message
from dordis.rounds.invitation import SendModel, SendSum


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
    """Counts the bytes of messages, without those of the transport; every exchange is a meter."""

    def __init__(self) -> None:
        self.sent: Counter[ClientId] = Counter()
        """Bytes of each client's replies."""
        self.received: Counter[ClientId] = Counter()
        """Bytes of the requests to each client."""
        self.kinds: Counter[str] = Counter()
        """Bytes of requests, by the name of their kind."""
        self.errors: list[tuple[ClientId, DordisError]] = []
        """Errors that clients raised, or errors in their replies."""

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
