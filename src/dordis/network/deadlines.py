"""Deadlines for replies, and compilation of numeric kernels before the run.  A request's type name is its *kind*.

Deadlines are fixed by the configuration, or learned from the times of earlier replies.  Clients that miss deadlines are
left out of some rounds.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from dordis.config.schema import Deadlines
from dordis.pipeline import executor as drive
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.scaling import sensitivity
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, Message, Replies, Requests, Role
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.messages import OpenBoxes, Reveal
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.cohort import agree_on
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer

log = logging.getLogger("dordis.network")

MOST_SAMPLES = 1000
"""A deadline is learned from at most this number of the latest replies to its kind of request."""
LEAST_SAMPLES = 20
"""Least number of replies from which a deadline is learned; with fewer, the fixed deadline is used."""
HELPER_REQUESTS = frozenset(request.__name__ for request in ASSISTED.requests if request.role is Role.HELPER)
"""Requests to helpers.  Their deadlines are not learned, because a learned deadline may be too short for a helper.

If too few helpers answer, the round fails, and the failed round may be charged.
"""
LONGEST_REST = 16
"""Largest number of rounds for which a client that misses deadlines is left out."""


@dataclass
class AdaptiveDeadlines:
    """Deadlines by kind of request, from the configuration and from recorded reply times."""

    settings: Deadlines
    train_seconds: float | None = None
    """The agreed fixed training time, if any: with it, the default deadline of `Train` is this time plus `stage`."""
    _samples: Mapping[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=MOST_SAMPLES))
    )
    _typical: dict[str, float] = field(default_factory=dict)
    """Cache: by kind of request, the quantile `settings.quantile` of its reply times; a new reply clears the entry."""
    _work: dict[str, float] = field(default_factory=dict)
    """By kind of request, the seconds added to the deadline for the work of a helper in this round."""

    def deadline(self, kind: str) -> float:
        """Return the seconds that a client has to reply to one request of a kind.

        A learned deadline is a quantile of the recorded times, multiplied by `factor`, from `least` up to the fixed
        deadline.  It is not learned without `quantile` in the settings, with few samples, for `Train` and for helpers.

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
        """Return the fixed deadline of a kind of request in seconds, from the configuration.

        All requests of the kind together may take a client at most this time in a round.
        """
        settings, default = self.settings, self.settings.stage
        if kind == "Train":
            default = settings.train if self.train_seconds is None else self.train_seconds + settings.stage
        return settings.stages.get(kind, default) + self._work.get(kind, 0.0)

    def set_parameters(self, parameters: Parameters) -> None:
        """Set the seconds that are added to helpers' deadlines: enough for the largest number of clients in the round.

        A helper decrypts the clients' mask seeds at `OpenBoxes`, and sums the clients' masks at `Reveal`.
        """
        work: dict[str, float] = {}
        if isinstance(parameters, AssistedParameters):
            masks = parameters.n_max * parameters.dim * len(parameters.ranks[parameters.members[0]])
            work[OpenBoxes.__name__] = self.settings.header * parameters.n_max
            work[Reveal.__name__] = self.settings.masks * masks / 1e9
        self._work = work

    def record(self, kind: str, seconds: float) -> None:
        """Record how many seconds a client took to reply to a request of a kind."""
        self._samples[kind].append(seconds)
        self._typical.pop(kind, None)


@dataclass
class _UsedTime:
    """One client's time for one kind of request: seconds used, open requests, and since when any of them is open."""

    seconds: float = 0.0
    open_requests: int = 0
    since: float = 0.0


class TimeAllowances:
    """The total time that each client has used in a round for requests of one kind, such as the pieces of a model.

    The fixed deadline of the kind bounds the total.  Time during which several of these requests are open counts once.

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
        """Reset the used time of all clients."""
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
    """Return the seconds that a client has to reply to a request of this kind: its deadline, or what is left if less.

    `used` is the time in seconds that the client has taken in this round for requests of this kind.  What is left is
    the fixed deadline minus this time, or 0.
    """
    return min(deadlines.deadline(kind), max(0.0, deadlines.fixed_deadline(kind) - used))


class SlowClients:
    """Clients that missed deadlines in their latest rounds, and are left out of some of the next rounds.

    A client that missed a deadline is left out of one round.  If it misses deadlines in 2, 3, 4 rounds in a row, it is
    left out of 2, 4, 8 rounds, up to LONGEST_REST rounds.  One round leaves out at most `tolerance` clients, the number
    that may drop out, or one client if `tolerance` is 0: if that client were invited and late again, the round would
    fail.  Every method of selection lets the server leave out unavailable clients, and so these clients, too.
    `totals` has, by client and kind of request, the number of missed deadlines before a restart of the server.

    >>> slow = SlowClients(tolerance=1)
    >>> slow.end_round({1, 2, 3}, missed={3: "Train"})
    >>> sorted(slow.without_resting({1, 2, 3}))
    [1, 2]
    """

    def __init__(self, tolerance: int, totals: Mapping[ClientId, Mapping[str, int]] | None = None) -> None:
        self._most = max(1, tolerance)
        self.totals = {client: dict(stages) for client, stages in (totals or {}).items()}
        """By client and kind of request, the number of rounds in which the client missed the deadline."""
        self.misses: dict[ClientId, int] = {}
        """By client, the number of its latest rounds, without a gap, in which it missed a deadline."""
        self._rest: dict[ClientId, int] = {}

    def end_round(self, invited: Collection[ClientId], missed: Mapping[ClientId, str]) -> None:
        """Record which invited clients missed a deadline: `missed` has, by client, the kind of unanswered request."""
        for client in invited:
            if client not in missed:
                self.misses.pop(client, None)
                continue
            self.misses[client] = self.misses.get(client, 0) + 1
            stages = self.totals.setdefault(client, {})
            stages[missed[client]] = stages.get(missed[client], 0) + 1
            self._rest[client] = min(LONGEST_REST, 2 ** (self.misses[client] - 1))
            log.warning(
                "client %d missed a deadline in each of its latest %d rounds: "
                "it is invited to the next %d only if other clients are missing",
                client,
                self.misses[client],
                self._rest[client],
            )

    def without_resting(self, available: Collection[ClientId]) -> frozenset[ClientId]:
        """Return the available clients that the next round does not leave out; to be called once for each round."""
        resting = sorted(self._rest, key=lambda client: (-self.misses.get(client, 0), client))[: self._most]
        self._rest = {client: rounds - 1 for client, rounds in self._rest.items() if rounds > 1}
        return frozenset(available) - frozenset(resting)


CLIENTS, DROPOUT = (1, 2, 3, 4, 5), 5
DIM, BLOCK, BITS, SCALE, VARIANCE = 1000, 1024, 20, 64.0, 50


def compile_kernels() -> ChunkOutput:
    """Compile all kernels by running a small round in memory, with one dropout; return the output of this round."""
    grid = Grid(DIM, BLOCK, SCALE, BITS)
    mechanism = DSkellam(grid, 1.0, sensitivity(SCALE, 1.0, grid.padded).squared)
    parameters = agree_on(
        run=bytes(32),
        index=0,
        clients=CLIENTS,
        threshold=3,
        tolerance=1,
        colluders=1,
        bits=BITS,
        ends=[grid.padded],
        scheme=Scheme.SINGLE,
        variances=[VARIANCE],
        encoding=encoding_of(mechanism, bytes(32)),
    )
    private = DistributedDP(parameters, mechanism)
    update = np.zeros(DIM, np.float32)
    clients = {u: SecAggClient(u, NoisyInput(private.encode(update))) for u in parameters.clients}

    def exchange(requests: Requests) -> Replies:
        return [(u, clients[u].handle(request)) for u, request in requests.items() if not _drops(u, request)]

    (output,) = drive.run(PrivateServer(SecAggServer(parameters), parameters), exchange)
    private.decode_chunk(0, output.total, len(output.survivors))
    return output


def _drops(u: ClientId, request: Message) -> bool:
    return u == DROPOUT and (request.uploads or request.discloses)
