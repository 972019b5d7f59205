"""Deadlines for replies: fixed for each kind of request, or learned from the times of earlier replies."""

import logging
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dordis.config.schema import Deadlines
from dordis.protocol import ClientId, Role
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.messages import OpenBoxes, Reveal
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.parameters import Parameters

log = logging.getLogger("dordis.network")

MOST_SAMPLES = 1000
"""Number of latest replies of a kind from which its deadline is learned."""
LEAST_SAMPLES = 20
"""Number of replies of a kind from which on its deadline is learned; before, the fixed deadline is used."""
HELPER_REQUESTS = frozenset(request.__name__ for request in ASSISTED.requests if request.role is Role.HELPER)
"""Kinds of requests whose deadlines are not learned: clients have paid for a round that fails for lack of helpers."""
LONGEST_REST = 16
"""Largest number of rounds for which a client that misses deadlines is left out."""


@dataclass
class AdaptiveDeadlines:
    """Deadlines by kind of request, from the configuration and from recorded reply times."""

    settings: Deadlines
    train_seconds: float | None = None
    """The agreed fixed training time, if any; the deadline of training follows from it and is not learned."""
    _samples: Mapping[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=MOST_SAMPLES))
    )
    _typical: dict[str, float] = field(default_factory=dict)
    """Cached quantiles of reply times by kind; dropped at the next sample of the kind."""
    _work: dict[str, float] = field(default_factory=dict)
    """Seconds beyond the usual ones, by kind of request, for the work of a helper in this round."""

    def deadline(self, kind: str) -> float:
        """Return the seconds that a client has to reply to one request of a kind.

        >>> deadlines = AdaptiveDeadlines(Deadlines(stage=60.0, quantile=0.9, factor=2.0, least=0.5))
        >>> deadlines.deadline("Unmask")
        60.0
        >>> for k in range(100):
        ...     deadlines.record("Unmask", k / 100)
        >>> deadlines.deadline("Unmask")
        1.8
        """
        settings, fixed, samples = self.settings, self.fixed_deadline(kind), self._samples[kind]
        if kind == "Train" or kind in HELPER_REQUESTS or settings.quantile is None or len(samples) < LEAST_SAMPLES:
            return fixed
        if kind not in self._typical:
            self._typical[kind] = sorted(samples)[min(len(samples) - 1, int(settings.quantile * len(samples)))]
        return min(fixed, max(settings.least, settings.factor * self._typical[kind]))

    def fixed_deadline(self, kind: str) -> float:
        """Return the configured deadline of a kind, which bounds a client's total time for that kind in a round."""
        settings, default = self.settings, self.settings.stage
        if kind == "Train":
            default = settings.train if self.train_seconds is None else self.train_seconds + settings.stage
        return settings.stages.get(kind, default) + self._work.get(kind, 0.0)

    def set_parameters(self, parameters: Parameters) -> None:
        """Take into account how much work the helpers of a round have at most."""
        self._work = helper_work(self.settings, parameters) if isinstance(parameters, AssistedParameters) else {}

    def record(self, kind: str, seconds: float) -> None:
        """Record the seconds of a reply."""
        self._samples[kind].append(seconds)
        self._typical.pop(kind, None)


def helper_work(settings: Deadlines, parameters: AssistedParameters) -> dict[str, float]:
    """Return the seconds that a helper has for n_max headers, and for the masks of n_max clients in all its sets."""
    sets = len(parameters.ranks[parameters.members[0]])
    masks = parameters.n_max * parameters.dim * sets
    return {OpenBoxes.__name__: settings.header * parameters.n_max, Reveal.__name__: settings.masks * masks / 1e9}


@dataclass
class _UsedTime:
    """A client's used seconds for a kind of request, the number of its open requests, and when the first was sent."""

    seconds: float = 0.0
    open_requests: int = 0
    since: float = 0.0


class TimeAllowances:
    """The time that each client has used in a round for all requests of a kind: model pieces, missed sums, chunks.

    While several requests of a kind are open, the time counts once.

    >>> allowances = TimeAllowances(AdaptiveDeadlines(Deadlines(stage=60.0)))
    >>> allowances.start(1, "SendModel", now=0.0)
    60.0
    >>> allowances.stop(1, "SendModel", now=59.0)
    >>> allowances.start(1, "SendModel", now=70.0)
    1.0
    """

    def __init__(self, deadlines: AdaptiveDeadlines) -> None:
        self._deadlines = deadlines
        self._used: defaultdict[tuple[int, str], _UsedTime] = defaultdict(_UsedTime)

    def begin_round(self) -> None:
        """Reset the time of all clients."""
        self._used.clear()

    def start(self, client: int, kind: str, now: float) -> float:
        """Record that a request is sent now; return the seconds that the client has to reply."""
        used = self._used[client, kind]
        if not used.open_requests:
            used.since = now
        used.open_requests += 1
        return remaining_time(self._deadlines, kind, used.seconds + now - used.since)

    def stop(self, client: int, kind: str, now: float) -> None:
        """Record that a request was answered or given up."""
        used = self._used[client, kind]
        used.open_requests = max(0, used.open_requests - 1)
        if not used.open_requests:
            used.seconds += now - used.since


def remaining_time(deadlines: AdaptiveDeadlines, kind: str, used: float) -> float:
    """Return the seconds that a client has to reply, if it has used `used` seconds for this kind in the round."""
    return min(deadlines.deadline(kind), max(0.0, deadlines.fixed_deadline(kind) - used))


class SlowClients:
    """The clients that missed a deadline in their latest rounds, which are left out of some rounds.

    After a first missed deadline a client is left out of one round, after further ones in a row of 2, 4, up to
    LONGEST_REST rounds.  A round in time resets this.  At most `tolerance` clients are left out, as many as may drop
    out; but one if no dropout is tolerated, because a slow client would fail every round.  All methods of selection
    allow this, since they let the server leave out unavailable clients.

    >>> slow = SlowClients(tolerance=1)
    >>> slow.end_round({1, 2, 3}, missed={3: "Train"})
    >>> sorted(slow.without_resting({1, 2, 3}))
    [1, 2]
    """

    def __init__(self, tolerance: int, totals: Mapping[ClientId, Mapping[str, int]] | None = None) -> None:
        self._most = max(1, tolerance)
        self.totals = {client: dict(stages) for client, stages in (totals or {}).items()}
        """By client and kind of request, the number of rounds that it left because it missed the deadline."""
        self.misses: dict[ClientId, int] = {}
        """By client, the number of its latest rounds in a row in which it missed a deadline."""
        self._rest: dict[ClientId, int] = {}

    def end_round(self, invited: Collection[ClientId], missed: Mapping[ClientId, str]) -> None:
        """Record which of the invited clients missed a deadline; `missed` has the kind of request by client."""
        for client in invited:
            if client not in missed:
                self.misses.pop(client, None)
                continue
            self.misses[client] = self.misses.get(client, 0) + 1
            stages = self.totals.setdefault(client, {})
            stages[missed[client]] = stages.get(missed[client], 0) + 1
            self._rest[client] = min(LONGEST_REST, 2 ** (self.misses[client] - 1))
            log.warning(
                "client %d missed a deadline in %d of its latest rounds in a row: it is invited last in the next %d",
                client,
                self.misses[client],
                self._rest[client],
            )

    def without_resting(self, available: Collection[ClientId]) -> frozenset[ClientId]:
        """Return the available clients without those that are left out of the next round."""
        resting = sorted(self._rest, key=lambda client: (-self.misses.get(client, 0), client))[: self._most]
        self._rest = {client: rounds - 1 for client, rounds in self._rest.items() if rounds > 1}
        return frozenset(available) - frozenset(resting)
