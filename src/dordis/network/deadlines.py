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
    """After this time every client has trained: nothing is learnt about that then."""
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
        given = self.settings
        if kind == "Train":
            usual = given.train if self.train_seconds is None else self.train_seconds + given.stage
            return given.stages.get(kind, usual)
        most = given.stages.get(kind, given.stage)
        seen = self._seen[kind]
        if given.quantile is None or len(seen) < ENOUGH:
            return most
        typical = sorted(seen)[min(len(seen) - 1, int(given.quantile * len(seen)))]
        return min(most, max(given.least, given.factor * typical))

    def saw(self, kind: str, seconds: float) -> None:
        """Take note of how long an answer took."""
        self._seen[kind].append(seconds)
