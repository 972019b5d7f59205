"""The server's side of a deployed run: its job (the configured run), checks of its configuration, and its clients."""

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from dordis import wire
from dordis.config.schema import Deployment, RunConfig
from dordis.durable_files import write_new
from dordis.errors import InputError
from dordis.identity.certificates import load_certificate
from dordis.identity.keys import load_server_credentials
from dordis.identity.registry import Registry, SignedRegistry, registry_with_helpers
from dordis.ledger.round_charge import OwnerCharge
from dordis.network.authentication import Authenticator, utc_now
from dordis.network.deadlines import AdaptiveDeadlines
from dordis.network.deployed_rounds import POLL, NetworkRounds, OpenRounds, say_farewell
from dordis.network.exchange import DISCONNECTED, REVOKED, TOO_SLOW
from dordis.network.resumable_rounds import RoundStore
from dordis.network.server import Server
from dordis.network.visits import VisitEndpoint
from dordis.owner.manifest_checks import read_manifest, run_beacon
from dordis.owner.participation import Attendance
from dordis.owner.policy import ASSISTED, RECORD
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS
from dordis.records.manifest import DEPLOYED
from dordis.records.run_records import MANIFEST, RECEIPTS, REGISTRY
from dordis.rounds.arrivals import ArrivalStore
from dordis.rounds.engine import InterruptedRound, RoundRunner
from dordis.runs import job as preparing
from dordis.runs.job import Job
from dordis.runs.parties import policy_for
from dordis.runs.run import Run
from dordis.selection.beacon import Beacon, FileBeacon, SeedBeacon
from dordis.selection.selection import Selection

log = logging.getLogger("dordis.network")

SECRET = "selection.key"  # noqa: S105  the name of a file
"""File with the 32 secret bytes from which the server draws clients, with the selection 'uniform'."""
ARRIVALS = "arrivals.bin"
"""File of the contributions to the open round of an assisted run."""
MOST_CHUNKS = 64
SHARE_BYTES = 256
"""Largest size in bytes of one encrypted share for one peer, together with the proof of the share."""


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
        """Return the population of the run in `path`; raise InputError if its stored secret or manifest is missing."""
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
        """Return the beacon: the published file if the run uses one, otherwise a beacon of constant values."""
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
        """Write selection seed and registry into the directory of a new run; open the stores for its rounds."""
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
        """Return why clients were excluded from the latest try of a round, and what to do; empty if none were."""
        return "" if self.server is None else explain_exclusions(dict(self.server.exchange.exclusions))

    def refusals(self) -> tuple[ClientId, ...]:
        """Return the clients excluded from the latest try of a round, except slow and disconnected clients."""
        exclusions = {} if self.server is None else dict(self.server.exchange.exclusions)
        return tuple(sorted(u for u, reason in exclusions.items() if reason not in (TOO_SLOW, DISCONNECTED)))

    def interrupted(self) -> InterruptedRound[Any] | None:
        """Return the round that was open when the server stopped; None if there was none."""
        if not self.job.protocol.has_cohort:
            return self.arrivals.round(InterruptedRound[self.job.protocol.parameters])  # type: ignore[name-defined]
        return None if self.round_store is None else self.round_store.interrupted()

    @property
    def consents(self) -> tuple[str, ...]:
        """Return a clause of text for each permission that the clients' owners must give beyond the default policy."""
        return policy_for(self.job.design, self.job.protocol).consents

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnerCharge]) -> RoundRunner:
        """Listen for clients, and return the runner of rounds with them; only the argument `run`, the run id, is used.

        Raise InputError if the run was not stored (`store`).
        """
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
        """Stop the server.

        If the run is over, tell clients so, and erase the stored round.  Otherwise tell them the reason; they try to
        reconnect until the run is resumed.
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
    REVOKED: ("lost their membership (revoked)", "the run continues without them"),
    "NotReady": ("had no data for the round (is_ready)", "resume when their data is there"),
    "BudgetRefused": ("have spent their owner's budget", "end the run here: owners decide on a new one"),
    "ParticipationRefused": ("have no participations left", "end the run here: owners decide on more"),
    "ParametersRefused": ("refused by their owner's policy", "see their logs for the policy that refused"),
}
"""By reason of an exclusion from a round: a clause that describes the excluded clients, and advice to the operator."""


def explain_exclusions(exclusions: Mapping[ClientId, str]) -> str:
    """Return a clause for each reason in `exclusions` (reasons by client): the number of clients, and advice.

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
    """Return an upper bound on the bytes of a client's messages; the largest has encrypted shares for all clients."""
    config, plan = job.config, job.design.example()
    chunks = MOST_CHUNKS if config.performance.chunks == "auto" else config.performance.chunks
    shared = 2 + max(len(noise.removable) for noise in plan.plans)
    return min(wire.LIMIT, (1 << 16) + config.federation.clients * (chunks + 1) * shared * SHARE_BYTES)


def deployable_config(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise InputError if it cannot be deployed."""
    kept = without_simulation(config)
    check_train_seconds(kept)
    check_trainings(kept)
    check_helpers_named(kept)
    check_visitors_certified(kept)
    return kept


def without_simulation(config: RunConfig) -> RunConfig:
    """Return a configuration without its simulation settings; raise InputError if its noise can only be simulated."""
    if config.privacy.noise.cost_only:
        raise InputError(
            f"privacy.noise '{config.privacy.noise.name}' can only be simulated, not deployed: choose another"
        )
    return RunConfig(**{name: getattr(config, name) for name in RunConfig.__struct_fields__})


def with_public_test(config: RunConfig) -> RunConfig:
    """Return the server's configuration, with the path of the public test table as the application's option `test`.

    The table is the file in `deployment.test`; raise InputError if it is missing.
    """
    test, own = config.deployment.test, config.app.options.get("test") if config.app.options.get("own_files") else None
    if not isinstance(test, str):
        if isinstance(own, str) and not Path(config.app.folder, own).is_file():
            log.warning("there is no file %s (app.options.test): no metrics are measured", Path(config.app.folder, own))
        return config
    path = Path(config.app.folder, test)
    if not path.is_file():
        raise InputError(f"deployment.test: there is no file {path}; name a public table, or leave it out")
    section = msgspec.structs.replace(config.app, options=config.app.options | {"test": str(path.resolve())})
    return msgspec.structs.replace(config, app=section)


def check_train_seconds(config: RunConfig) -> None:
    """Raise InputError if `deployment.train_seconds` is required but missing, or not below the deadline of `Train`."""
    seconds = config.deployment.train_seconds
    if seconds is None:
        if config.privacy.unit == RECORD:
            raise InputError(
                "with privacy.unit = 'record' deployment.train_seconds must be set, so that the time of a reply does "
                "not depend on the sampled records: dordis join --check measures it on a client's machine"
            )
        if config.protocol.mode == MALICIOUS:
            raise InputError(
                "against a malicious server deployment.train_seconds must be set, so that the time of training reveals "
                "nothing about data: dordis join --check measures training on a client's machine"
            )
        return
    deadline = config.deployment.deadlines.stages.get("Train", math.inf)
    if deadline <= seconds:
        raise InputError(
            f"deployment.deadlines.stages.Train = {deadline:g} must be above deployment.train_seconds = {seconds:g}, "
            "because no client replies earlier: leave it out, or make it larger"
        )


def check_trainings(config: RunConfig) -> None:
    """Raise InputError unless `deployment.trainings`, the bound on a client's trainings, exceeds `federation.tries`."""
    trainings, tries = config.deployment.trainings, config.federation.tries
    if trainings <= tries:
        raise InputError(
            f"deployment.trainings = {trainings} must be above federation.tries = {tries}: otherwise the tries of one "
            "round use up all trainings that an owner allows"
        )


def require_deployable(job: Job) -> Job:
    """Return the job; raise InputError if its protocol has neither helpers nor a fixed list of clients per round."""
    return job if job.protocol.assistance else preparing.require_cohort(job, "a deployment")


def check_members(members: Registry, job: Job) -> None:
    """Raise InputError unless the registry has `federation.clients` members, the number that the plan assumes."""
    planned = job.config.federation.clients
    if len(members) != planned:
        raise InputError(
            f"the registry has {len(members)} {'clients' if members.helpers else 'members'}, but federation.clients is "
            f"{planned}: make them agree"
        )


def check_helpers_present(signed: SignedRegistry, helpers: Collection[ClientId]) -> None:
    """Raise InputError if one of `helpers`, the ids of the helpers of a new run, was revoked in the registry."""
    gone = {revoked.client for revoked in signed.membership.revoked} - signed.registry.keys()
    if revoked := sorted(gone.intersection(helpers)):
        raise InputError(f"helper {revoked[0]} was revoked: name another one in protocol.options.helpers")


def check_helpers_named(config: RunConfig) -> None:
    """Raise InputError unless a deployed run with helpers names them by their ids in the registry."""
    if config.protocol.use == ASSISTED and not isinstance(config.protocol.options.get("helpers"), list | tuple):
        raise InputError(
            "a deployed run names its helpers: set protocol.options.helpers to their ids in the registry, such as "
            "[13, 14, 15, 16]"
        )


def check_visitors_certified(config: RunConfig) -> None:
    """Raise InputError unless clients of assisted rounds use mutual TLS, which authenticates each of their requests."""
    if config.protocol.use == ASSISTED and config.deployment.login != "mutual":
        raise InputError("clients of assisted rounds show their certificates in TLS: set deployment.login = 'mutual'")


@dataclass(frozen=True)
class DeployedJob:
    """The server's side of a deployed run: its job, and the files of the server's keys and of the signed registry."""

    job: Job
    identity: Path
    registry: Path

    @classmethod
    def from_config(cls, config: RunConfig, seed: int, identity: Path, registry: Path) -> "DeployedJob":
        """Return the job of a configuration; raise InputError if it cannot be deployed."""
        config = deployable_config(config)
        app, _ = preparing.application(with_public_test(config), seed)
        return cls(require_deployable(preparing.prepare(config, app)), identity, registry)

    def start(self, root: Path, config: str) -> Run:
        """Return a new run with the registry's present members, in a new directory below `root`; `config` is TOML."""
        members = self._current_members()
        return Run.start(self.job, NetworkPopulation(self.job, members, self._authenticator(members)), root, config)

    def resume(self, path: Path) -> Run:
        """Return the run in the directory `path`, resumed after its last finished round, with its initial members."""
        members = Registry.load(path / REGISTRY)
        population = NetworkPopulation.resume(self.job, members, self._authenticator(members), path)
        return Run.resume(self.job, population, path)

    def succeed(self, predecessor: Path, root: Path, config: str) -> Run:
        """Return a new run like `start`, which continues model and ledger of the run in the directory `predecessor`."""
        members = self._current_members()
        population = NetworkPopulation(self.job, members, self._authenticator(members))
        return Run.succeed(self.job, population, root, config, predecessor)

    def _current_members(self) -> Registry:
        credentials = load_server_credentials(self.identity, utc_now())
        signed = SignedRegistry.load(self.registry, credentials.authority)
        check_helpers_present(signed, self.job.protocol.helper_ids)
        members = registry_with_helpers(signed, self.job.protocol.helper_ids)
        check_members(members, self.job)
        return members

    def _authenticator(self, members: Registry) -> Authenticator:
        credentials = load_server_credentials(self.identity, utc_now())
        settings = self.job.config.deployment
        balancers = tuple(map(Path, settings.balancers))
        for path in balancers:
            load_certificate(path)  # raises now, not at the first log-in, if the file is unreadable
        return Authenticator(credentials, members, self.registry, settings.login == "mutual", balancers)
