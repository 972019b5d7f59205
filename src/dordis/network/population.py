"""The population of a deployed run: the clients connected over the network."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
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
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.deployed_rounds import POLL, NetworkRounds, OpenRounds, say_farewell
from dordis.network.exchange import DISCONNECTED, TOO_SLOW
from dordis.network.resumable_rounds import RoundStore
from dordis.network.server import Server
from dordis.network.visits import VisitEndpoint
from dordis.owner.manifest_checks import read_manifest, run_beacon
from dordis.owner.participation import Attendance
from dordis.protocol import ClientId
from dordis.records.manifest import DEPLOYED
from dordis.records.run_records import MANIFEST, RECEIPTS, REGISTRY
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.engine import (
    InterruptedRound,
    RoundRunner,
)
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
