"""How long the server waits for an answer: a fixed time for each kind of request, or what clients were seen to take."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dordis.federation.config import Deadlines

REMEMBERED = 1000
"""Answers of each kind that a quantile is taken over: the last ones."""
ENOUGH = 20
"""Answers that must have been seen before the fixed deadline gives way to a quantile."""


@dataclass(frozen=True)
class Patience:
    """Deadlines as a configuration says, and what they are learnt from."""

    settings: Deadlines
    train_seconds: float | None = None
    """Fixed time of training, if one is agreed on; its deadline follows from it and is not learnt."""
    _seen: Mapping[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=REMEMBERED)))

    def seconds(self, kind: str) -> float:
        """Return how long to wait for answers to a kind of request.

        >>> patience = Patience(Deadlines(stage=60.0, quantile=0.9, factor=2.0, least=0.5))
        >>> patience.seconds("Unmask")
        60.0
        >>> for k in range(100):
        ...     patience.saw("Unmask", k / 100)
        >>> patience.seconds("Unmask")
        1.8
        """
        given, most, seen = self.settings, self.most(kind), self._seen[kind]
        if kind == "Train":  # its deadline is not learnt
            return most
        if given.quantile is None or len(seen) < ENOUGH:
            return most
        typical = sorted(seen)[min(len(seen) - 1, int(given.quantile * len(seen)))]
        return min(most, max(given.least, given.factor * typical))

    def most(self, kind: str) -> float:
        """Return the fixed deadline: the time of a client for all requests of a kind in a round."""
        given, usual = self.settings, self.settings.stage
        if kind == "Train":
            usual = given.train if self.train_seconds is None else self.train_seconds + given.stage
        return given.stages.get(kind, usual)

    def saw(self, kind: str, seconds: float) -> None:
        """Take note of how long an answer took."""
        self._seen[kind].append(seconds)


@dataclass
class _UsedTime:
    """Seconds that a client has used for a kind of request, its open requests, and when the first of them was sent."""

    seconds: float = 0.0
    waiting: int = 0
    since: float = 0.0


class TimeAllowances:
    """The time of each client in a round for all requests of a kind: pieces of the model, sums, chunks.

    Time with several open requests of a kind counts once.

    >>> allowances = TimeAllowances(Patience(Deadlines(stage=60.0)))
    >>> allowances.start(1, "SendModel", now=0.0)
    60.0
    >>> allowances.stop(1, "SendModel", now=59.0)
    >>> allowances.start(1, "SendModel", now=70.0)
    1.0
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._used: defaultdict[tuple[int, str], _UsedTime] = defaultdict(_UsedTime)

    def begin(self) -> None:
        """Begin a round: reset the time of all clients."""
        self._used.clear()

    def start(self, client: int, kind: str, now: float) -> float:
        """Return the seconds that a client has for a request sent now."""
        used = self._used[client, kind]
        if not used.waiting:
            used.since = now
        used.waiting += 1
        return left_for(self._patience, kind, used.seconds + now - used.since)

    def stop(self, client: int, kind: str, now: float) -> None:
        """Record that a request was answered or given up."""
        used = self._used[client, kind]
        used.waiting = max(0, used.waiting - 1)
        if not used.waiting:
            used.seconds += now - used.since


def left_for(patience: Patience, kind: str, used: float) -> float:
    """Return the seconds left for an answer of a client that has used `used` seconds in this round."""
    return min(patience.seconds(kind), max(0.0, patience.most(kind) - used))
