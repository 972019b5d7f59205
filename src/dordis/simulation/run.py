"""Simulated runs: a whole run from its configuration, or a single round with all clients of a population.

Private statistics, audits, profiles and demos run single rounds.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from dordis.config.schema import Config, RunConfig, Simulation
from dordis.crypto.suite import DEFAULT
from dordis.dropout_models import Dropout, Rate
from dordis.errors import InputError, MissingExtra
from dordis.ledger.ledger import Ledger
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import Aggregate
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.summing import SummingProtocol
from dordis.rounds.app import AppClient, AppServer, FixedClient, RoundInfo
from dordis.rounds.engine import RoundRunner
from dordis.rounds.watch import Watch, silent
from dordis.runs import job as preparing
from dordis.runs.coordinator import Coordinator, FinishedRound
from dordis.runs.job import Job
from dordis.runs.plan import RoundPlan
from dordis.runs.run import Run
from dordis.runs.threat_model import check_survivable, count_dropouts
from dordis.selection.colluders import VRF
from dordis.selection.selection import EveryClient, Selection
from dordis.simulation.population import ARRIVALS, AppClients, Identities, SimulatedHome


@dataclass(frozen=True)
class SimulatedJob:
    """A validated configuration, its planned job, and the function that returns the application of a client."""

    config: Config
    job: Job
    client: AppClients

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return the ids of all clients: 1, 2, .. ."""
        return first_ids(self.config.federation.clients)

    def home(self, identities: Identities | None = None) -> SimulatedHome:
        """Return the simulated clients and helpers; their keys are new unless `identities` is given."""
        known = identities or Identities(secrets.token_bytes(32), self.ids, self.job.protocol.helper_ids)
        return SimulatedHome(self.job, self.config.simulation, self.client, known)

    def start(self, root: Path, config: str) -> Run:
        """Start a run in a new directory under `root`; `config`, the configuration as TOML, is stored there too."""
        return Run.start(self.job, self.home(), root, config)

    def resume(self, path: Path) -> Run:
        """Resume the run at `path` after its last finished round."""
        home = self.home(Identities.read(path, self.ids, self.job.protocol.helper_ids))
        home.arrivals.open(path / ARRIVALS)
        return Run.resume(self.job, home, path)

    def succeed(self, predecessor: Path, root: Path, config: str) -> Run:
        """Start a run under `root` that continues the run at `predecessor`; the clients keep their keys."""
        home = self.home(Identities.read(predecessor, self.ids, self.job.protocol.helper_ids))
        return Run.succeed(self.job, home, root, config, predecessor)


class CachedClients:
    """A factory of clients' applications, which creates each application once; pickled copies hold no applications."""

    def __init__(self, made: AppClients) -> None:
        self._made = made
        self._kept: dict[ClientId, AppClient] = {}

    def __call__(self, u: ClientId) -> AppClient:
        """Return the application of the client with this id, the same object each time."""
        if u not in self._kept:
            self._kept[u] = self._made(u)
        return self._kept[u]

    def __reduce__(self) -> tuple[type["CachedClients"], tuple[AppClients]]:
        """Pickle the factory without its applications, so that another process creates its own."""
        return CachedClients, (self._made,)


def prepare(config: Config) -> SimulatedJob:
    """Return the simulated job of a configuration, with the application loaded and the noise planned.

    Raise InputError if the configuration is invalid for a simulation.
    """
    if config.app.options.get("own_files") and config.app.server.startswith("dordis.apps.learning"):
        raise InputError(
            "app.options.own_files is for dordis serve and dordis join: a simulation has one file, leave it out"
        )
    app, made = preparing.application(config, config.simulation.seed)
    return job_with_app(config, app, CachedClients(lambda u: made(u - 1)))


def job_with_app(config: Config, app: AppServer, client: AppClients) -> SimulatedJob:
    """Return the simulated job of a configuration, for an application that exists already.

    `client` returns the application of the client with a given id.  Raise InputError if the configuration is invalid.
    """
    noise = config.privacy.noise
    if noise.cost_only and config.simulation.fidelity != "ideal":
        raise InputError(f"only the cost of '{noise.name}' is simulated: set simulation.fidelity to 'ideal'")
    if config.simulation.engine == "ray":
        check_ray(config.simulation)
    job = preparing.prepare(config, app)
    if config.simulation.engine == "ray":
        preparing.require_cohort(job, "Ray")
    client(ClientId(1))
    config.simulation.dropout.model(config.simulation.seed, job.protocol.stages)
    check_dropout(config, job)
    return SimulatedJob(config, job, client)


def check_dropout(config: Config, job: Job) -> None:
    """Raise InputError if every round fails at the simulated dropout rate.

    A round fails if more than T clients (the tolerance) drop out before their upload, or fewer than t (the threshold)
    are left.
    """
    dropout, before = config.simulation.dropout, job.protocol.stages[: job.protocol.upload + 1]
    fixed = job.protocol.has_cohort and preparing.selection_kind(config) != VRF
    if fixed and isinstance(dropout, Rate) and dropout.rate < 1 and dropout.stages and set(dropout.stages) <= {*before}:
        setting = job.design.setting
        check_survivable(setting, config.protocol.mode, count_dropouts(setting.clients, dropout.rate))


def check_ray(settings: Simulation) -> None:
    """Raise InputError if the fidelity is ideal, which Ray does not support; MissingExtra if Ray is not installed."""
    if settings.fidelity == "ideal":
        raise InputError("ideal fidelity is computed in one process: set simulation.engine to 'local'")
    if find_spec("ray") is None:
        raise MissingExtra("ray")


class IdleServer(AppServer):
    """A server's application that ignores the sum."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Ignore the sum."""


def first_ids(count: int) -> tuple[ClientId, ...]:
    """Return the default ids of clients: 1, 2, .. ."""
    return tuple(ClientId(u) for u in range(1, count + 1))


def home_of_updates(
    design: RoundPlan,
    protocol: SummingProtocol,
    update: Callable[[ClientId], Floats],
    entropy: Entropy,
    dropout: Dropout,
    fidelity: str = "full",
    ids: tuple[ClientId, ...] | None = None,
) -> SimulatedHome:
    """Return a population for rounds of a plan, in which client u has the update `update(u)`.

    `ids` has the ids of the clients, by default 1, 2, .. .  The server's application ignores the sum.
    """
    return home_of_clients(design, protocol, lambda u: FixedClient(update(u)), entropy, dropout, fidelity, ids)


def home_of_clients(
    design: RoundPlan,
    protocol: SummingProtocol,
    client: Callable[[ClientId], AppClient],
    entropy: Entropy,
    dropout: Dropout,
    fidelity: str = "full",
    ids: tuple[ClientId, ...] | None = None,
) -> SimulatedHome:
    """Return a population for rounds of a plan, in which client u has the application `client(u)`.

    The server's application ignores the sum.
    """
    ids = first_ids(design.setting.clients) if ids is None else ids
    job = Job(RunConfig(), IdleServer(design.setting.dim), design, protocol, DEFAULT)
    identities = Identities(entropy(SEED_BYTES), ids)
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full")
    return SimulatedHome(job, settings, client, identities, entropy, dropout)


def single_round(
    home: SimulatedHome,
    chunks: int = 1,
    rounds: Callable[[bytes, Selection], RoundRunner] | None = None,
    watch: Watch = silent,
    ledger: Ledger | None = None,
) -> FinishedRound:
    """Run one round of a population and return it; if the round fails, raise its error, without another try.

    `rounds` constructs the runner of the round; by default the population's `open` does.  A `ledger` is charged before
    the disclosure.  Owners count no participations, because the caller has all data anyway.
    """
    if ledger is not None and not home.job.design.proves:
        raise InputError("a round without a provable epsilon cannot be charged to a ledger: leave the ledger out")
    job, run = home.job, home.entropy(RUN_BYTES) if ledger is None else ledger.run
    selection = EveryClient(frozenset(home.identities.ids), run, job.design.setting.t)
    coordinator = Coordinator(
        run,
        job.app,
        job.design,
        selection,
        home.open(run, selection, {}) if rounds is None else rounds(run, selection),
        ledger,
        registry=home.root,
        beacon=home.beacon,
        watch=watch,
        tries=1,
        chunks=chunks,
        protocol=job.protocol.name,
        entropy=home.entropy,
        counts_owners=False,
    )
    return coordinator.round(1, 0 if ledger is None else ledger.last_index() + 1)
