"""The population of a deployed run: the clients connected over the network."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dordis import wire
from dordis.config.schema import Deployment
from dordis.durable_files import write_new
from dordis.errors import InputError
from dordis.identity.registry import Registry
from dordis.ledger.round_charge import OwnerCharge
from dordis.network.authentication import Authenticator
from dordis.network.beacon_wait import wait_for_beacon
from dordis.network.deadlines import AdaptiveDeadlines, SlowClients
from dordis.network.exchange import DISCONNECTED, TOO_SLOW
from dordis.network.log_lines import round_fields
from dordis.network.open_rounds import POLL, OpenRounds, say_farewell
from dordis.network.resumable_rounds import ResumableExchange, RoundStore
from dordis.network.retry_pauses import RetryPauses
from dordis.network.server import Server
from dordis.network.visits import VisitEndpoint
from dordis.owner.manifest_checks import read_manifest, run_beacon
from dordis.owner.participation import Attendance
from dordis.protocol import ClientId
from dordis.protocols.vector_backend import LocalVectors
from dordis.records.manifest import DEPLOYED
from dordis.records.run_records import MANIFEST, RECEIPTS, REGISTRY, ConnectedClients, read_connected, write_connected
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.engine import (
    AgreedRound,
    Gathered,
    InterruptedRound,
    RoundEngine,
    RoundResult,
    RoundRunner,
    RoundServer,
)
from dordis.rounds.invitation import Invitation
from dordis.rounds.watch import Watch, silent
from dordis.runs.job import Job
from dordis.runs.parties import policy_for
from dordis.selection.beacon import Beacon, FileBeacon, SeedBeacon
from dordis.selection.selection import Selection

log = logging.getLogger("dordis.network")

SECRET = "selection.key"  # noqa: S105  the name of a file
"""File with the 32 secret bytes from which the server draws clients, with the selection 'uniform'."""
ARRIVALS = "arrivals.bin"
"""File of the contributions to the open round of an assisted run."""
MOST_CHUNKS = 64
SHARE_BYTES = 256
"""Largest size in bytes of one encrypted share for one peer, with its proof."""


@dataclass
class NetworkPopulation:
    """The clients of a deployed run: the members that the authenticator admits."""

    job: Job
    registry: Registry
    authenticator: Authenticator
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    listening: Callable[[int], None] = lambda port: None
    """Called with the server's port as soon as clients can connect."""
    server: Server | None = None
    visits: VisitEndpoint | None = None
    deadlines: AdaptiveDeadlines | None = None
    round_store: RoundStore | None = None
    manifest: bytes = b""
    """Content of the manifest file, whose hash is the run id; empty before the run is stored."""
    arrivals: ArrivalStore = field(default_factory=ArrivalStore)
    """Contributions to the open round of an assisted run."""
    receipts: Path | None = None
    """Directory of the run's receipts; None before the run is stored."""

    fidelity = DEPLOYED
    where = "on machines of their own"

    @classmethod
    def resume(cls, job: Job, registry: Registry, authenticator: Authenticator, path: Path) -> "NetworkPopulation":
        """Return the population of a resumed run with its stored secret and manifest; raise InputError without them."""
        try:
            secret, manifest = (path / SECRET).read_bytes(), (path / MANIFEST).read_bytes()
        except OSError:
            raise InputError(
                f"the run at {path} cannot be resumed: {SECRET} or {MANIFEST} cannot be read; restore them"
            ) from None
        store = RoundStore(path, job.protocol.parameters)
        home = cls(job, registry, authenticator, secret, round_store=store, manifest=manifest, receipts=path / RECEIPTS)
        home.arrivals.open(path / ARRIVALS)
        return home

    @property
    def root(self) -> bytes:
        """Return the root of the registry."""
        return self.registry.root()

    @cached_property
    def beacon(self) -> Beacon:
        """Return the beacon: the published file if the run uses one, otherwise a constant."""
        if not self.job.has_beacon:
            return SeedBeacon(bytes(32))
        if not self.job.config.deployment.beacon:
            raise InputError("secagg+ and selection 'vrf' need public randomness: set deployment.beacon to its file")
        published = FileBeacon(Path(self.job.config.deployment.beacon))
        if not self.manifest:
            return replace(published, first=published.next_line())
        return run_beacon(read_manifest(self.manifest, len(self.registry)), published)

    @property
    def selection_seed(self) -> bytes:
        """Return the secret bytes from which the server draws clients, with the selection 'uniform'."""
        return self.secret

    def store(self, path: Path) -> None:
        """Write the selection secret and the registry into the directory of a new run, and open the store of rounds."""
        write_new(path / SECRET, self.secret)
        self.registry.save(path / REGISTRY)
        self.round_store = RoundStore(path, self.job.protocol.parameters)
        self.arrivals.open(path / ARRIVALS)
        self.manifest, self.receipts = (path / MANIFEST).read_bytes(), path / RECEIPTS
        vars(self).pop("beacon", None)  # so that it is made again, with the manifest's first line

    def last_index(self) -> int:
        """Return the highest round index that clients were invited to; -1 if there is none."""
        return -1 if self.round_store is None else self.round_store.last_index()

    def explain_failure(self) -> str:
        """Return why clients were excluded from the latest attempt and what to do; empty if none was excluded."""
        return "" if self.server is None else explain_exclusions(dict(self.server.exchange.exclusions))

    def refusals(self) -> tuple[ClientId, ...]:
        """Return the clients that declined or were refused in the latest attempt, without slow or disconnected ones."""
        exclusions = {} if self.server is None else dict(self.server.exchange.exclusions)
        return tuple(sorted(u for u, reason in exclusions.items() if reason not in (TOO_SLOW, DISCONNECTED)))

    def interrupted(self) -> InterruptedRound[Any] | None:
        """Return the round that was open when the server stopped; None if there was none."""
        if not self.job.protocol.has_cohort:
            return self.arrivals.round(InterruptedRound[self.job.protocol.parameters])  # type: ignore[name-defined]
        return None if self.round_store is None else self.round_store.interrupted()

    @property
    def consents(self) -> tuple[str, ...]:
        """Return one clause for each thing that the clients' owners must allow beyond the default policy."""
        return policy_for(self.job.design, self.job.protocol).consents

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnerCharge]) -> RoundRunner:
        """Listen for clients, and return the runner of rounds with them."""
        settings = self.job.config.deployment
        self.deadlines = AdaptiveDeadlines(settings.deadlines, settings.train_seconds)
        if not self.job.protocol.has_cohort:
            poll = settings.poll or POLL
            self.visits = VisitEndpoint(self.authenticator, self.manifest, self.arrivals, poll, self.receipts)
        self.server = Server(
            self.authenticator,
            run,
            self.deadlines,
            manifest=self.manifest,
            largest_frame=largest_frame(self.job),
            receipts=self.receipts,
            visits=self.visits,
        )
        self.server.start(settings.host, settings.port)
        self.listening(self.server.port)
        if self.round_store is None:
            raise InputError("the run must be stored before it is opened: call store first")
        if self.visits is not None:
            return OpenRounds(
                self.job,
                self.registry,
                self.server,
                self.authenticator,
                self.round_store,
                self.visits,
                self.arrivals,
                self.beacon,
            )
        return NetworkRounds(self.job, self.registry, self.server, self.authenticator, self.round_store, self.beacon)

    def reload(self, settings: Deployment) -> None:
        """Apply new deadlines and load balancers, and read the server's certificate again."""
        self.authenticator.reload_certificate()
        self.authenticator.balancers = tuple(map(Path, settings.balancers))
        if self.deadlines is not None:
            self.deadlines.settings = settings.deadlines

    def close(self, *, run_over: bool = False, reason: str = "") -> None:
        """Stop the server; if the run is over, clients leave its last round, and the stored round is erased.

        Otherwise clients get the reason, and try to reconnect until the run is resumed.
        """
        if self.visits is not None and run_over:
            say_farewell(self.visits, self.job.config.deployment.poll or POLL)
        if self.server is not None:
            self.server.stop(run_over=run_over, reason=reason)
            self.server = None
        if self.round_store is not None:
            if run_over:
                self.round_store.erase()
                self.arrivals.erase()
            self.round_store.close()
            self.round_store = None


class ResumableEngine(RoundEngine):
    """A round engine that gives the server's state machine of each round to its exchange, which stores the sums."""

    def __init__(self, exchange: ResumableExchange, *arguments: Any, **options: Any) -> None:
        super().__init__(exchange, *arguments, **options)
        self._resumable = exchange

    def server(self, agreed: AgreedRound) -> RoundServer:
        """Return the server's state machine of a round, which the exchange knows from then on."""
        self._resumable.begin_round(super().server(agreed), agreed.parameters)
        return self._resumable.machine


class NetworkRounds:
    """Rounds with connected clients; the open round is stored on disk and resumed after a restart."""

    def __init__(
        self,
        job: Job,
        registry: Registry,
        server: Server,
        authenticator: Authenticator,
        store: RoundStore,
        beacon: Beacon,
    ) -> None:
        self._beacon, self._every_round = beacon, job.needs_beacon_values
        self._server, self._authenticator, self._store = server, authenticator, store
        self._members = frozenset(registry)
        self._least, self._wait = job.design.setting.t, job.config.deployment.wait
        self._pauses = RetryPauses(job.config.deployment.deadlines.retry)
        self._slow = SlowClients(job.design.setting.T, read_connected(store.directory).missed)
        self._invited = frozenset[ClientId]()
        self._engine = ResumableEngine(
            ResumableExchange(server.exchange, store),
            job.protocol,
            registry.signing_keys(),
            self.available,
            suite=job.suite,
            meter=server.exchange,
            run=server.perform,
            vectors=LocalVectors(job.config.performance.cores),
        )

    def available(self, index: int) -> Collection[ClientId]:
        """Return the clients to invite, after the beacon of the round is published and enough clients are connected.

        The first call also waits for all members, for `deployment.wait` seconds at most.
        """
        self._pauses.wait()
        revoked = self._authenticator.revoked_members()
        self._server.disconnect_revoked(revoked)
        wait_for_beacon(self._beacon, index if self._every_round else 0)
        wait, self._wait = self._wait, 0.0
        connected = self._server.wait((self._members - revoked).issubset, wait) if wait else self._server.connected()
        if len(connected) < self._least:
            log.warning("%d clients are connected, %d are needed: waiting", len(connected), self._least)
            connected = self._server.wait(lambda clients: len(clients) >= self._least)
        self._note_clients()
        return self._invite_slow_last(connected)

    def _invite_slow_last(self, connected: frozenset[ClientId]) -> frozenset[ClientId]:
        """Return the connected clients without slow ones; with these if the others are fewer than the threshold."""
        quick = self._slow.without_resting(connected)
        self._invited = quick if len(quick) >= self._least else connected
        return self._invited

    def _note_clients(self) -> None:
        """Record the clients that missed a deadline in the latest round; write them and the connected ones to disk."""
        invited, self._invited = self._invited, frozenset()
        self._slow.end_round(invited, dict(self._server.exchange.late))
        status = ConnectedClients(tuple(sorted(self._server.connected())), self._slow.totals)
        write_connected(self._store.directory, status)

    def gather(self, invitation: Invitation, watch: Watch = silent) -> Gathered:
        """Store the index of the round, invite clients and let them train; return the ready clients."""
        info = invitation.invite.info
        self._store.record_index(info.index)
        log.info("the round begins", extra=round_fields(info.run, info.index))
        self._pauses.start_attempt()
        return self._engine.gather(invitation, watch)

    def still_ready(self, ready: Collection[ClientId]) -> Collection[ClientId]:
        """Return the ready clients that are connected, or reconnect within the grace time, and not excluded or revoked.

        While the server evaluates the round before, time passes between a client's training and the parameters.
        """
        self._server.disconnect_revoked(self._authenticator.revoked_members())
        left = frozenset(ready) - dict(self._server.exchange.exclusions).keys()
        return left & self._server.wait(left.issubset, self._server.exchange.grace)

    def sum(self, agreed: AgreedRound, watch: Watch = silent) -> RoundResult:
        """Sum the updates of a round.

        A round from before a restart is resumed when its clients have reconnected, or after `deployment.wait` seconds.
        """
        before = self._store.interrupted()
        if before is None or before.parameters != agreed.parameters:
            self._store.begin_round(agreed.as_interrupted())
        elif self._wait:
            wait, self._wait = self._wait, 0.0
            clients = frozenset(agreed.parameters.clients) - self._authenticator.revoked_members()
            self._server.wait(clients.issubset, wait)
        result = self._engine.sum(agreed, watch)
        self._pauses.end_round()
        self._note_clients()
        return result


CURES = {
    TOO_SLOW: ("missed a deadline", "raise deployment.deadlines, or leave slow clients out"),
    DISCONNECTED: ("lost their connection", "check their network, or raise deployment.deadlines.grace"),
    "NotReady": ("had no data for the round (is_ready)", "resume when their data is there"),
    "BudgetRefused": ("have spent their owner's budget", "end the run here: owners decide on a new one"),
    "ParticipationRefused": ("have no participations left", "end the run here: owners decide on more"),
    "ParametersRefused": ("refused by their owner's policy", "see their logs for the policy that refused"),
}
"""By reason of an exclusion from a round: a clause about the excluded clients, and advice for the operator."""


def explain_exclusions(exclusions: Mapping[ClientId, str]) -> str:
    """Return one clause for each reason of exclusion, with the number of clients and advice; empty if there is none.

    >>> explain_exclusions({1: "too slow", 2: "too slow", 3: "Aborted"})
    '2 clients missed a deadline: raise deployment.deadlines, or leave slow clients out; 1 client declined (Aborted): \
see the log of client 3'
    """
    sentences = []
    for reason, count in Counter(exclusions.values()).most_common():
        first = min(u for u, why in exclusions.items() if why == reason)
        name = "".join(c for c in reason if c.isalnum() or c == " ")[:40] or "an unexpected error"
        deed, cure = CURES.get(reason, (f"declined ({name})", f"see the log of client {first}"))
        sentences.append(f"{count} client{'s' if count > 1 else ''} {deed}: {cure}")
    return "; ".join(sentences)


def largest_frame(job: Job) -> int:
    """Return the size in bytes of a client's largest frame, the one with its encrypted shares for all peers."""
    config, plan = job.config, job.design.example()
    chunks = MOST_CHUNKS if config.performance.chunks == "auto" else config.performance.chunks
    shared = 2 + max(len(noise.removable) for noise in plan.plans)
    return min(wire.LIMIT, (1 << 16) + config.federation.clients * (chunks + 1) * shared * SHARE_BYTES)
