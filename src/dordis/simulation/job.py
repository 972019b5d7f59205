"""A simulated run from its configuration: prepare it, start it or go on with it, round by round.

Whatever can be wrong with a configuration shows in `prepare`, before anything is written.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from dordis import __version__
from dordis.errors import InputError
from dordis.federation import records as recording
from dordis.federation.app import AppClient, AppServer, Task
from dordis.federation.design import Agreement, Design
from dordis.federation.ledger import Ledger
from dordis.federation.records import LEDGER, RECEIPTS, Manifest, Records, Result
from dordis.federation.registry import Registry
from dordis.federation.round import Coordinator, Finished, Watch, next_index, silent
from dordis.federation.selection import colluder_quantile
from dordis.kernels.packing import packed_size
from dordis.named import named_class
from dordis.pipeline.profile import AutoChunks
from dordis.privacy.accounting import Participation
from dordis.privacy.clipping import Clipping
from dordis.privacy.mechanisms import kind_of
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.planning import Setting
from dordis.protocol import ClientId
from dordis.protocols.parameters import MALICIOUS
from dordis.simulation.cast import SPARSE, Cast, Identities, beacon_of, machines_of, suite_of
from dordis.simulation.config import Config

SECRET = "simulation.key"  # noqa: S105  the name of a file
"""File of 32 bytes from which the long-term keys of all simulated clients are derived."""
FREE = ("output", "performance")
"""Settings that a run may go on without: they change nothing that is told of it."""


@dataclass(frozen=True)
class Job:
    """A configuration that holds together: the application, and the privacy of its rounds."""

    config: Config
    task: Task
    app: AppServer
    design: Design

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return all clients."""
        return tuple(ClientId(u) for u in range(1, self.config.federation.clients + 1))

    def client(self, u: ClientId) -> AppClient:
        """Return a client of the application."""
        return self._clients(u)

    @cached_property
    def _clients(self) -> Callable[[ClientId], AppClient]:
        kind = named_class(self.config.app.client, AppClient, "app.client")  # type: ignore[type-abstract]
        return lru_cache(maxsize=None)(lambda u: kind.of(self.task, u - 1))


def prepare(config: Config) -> Job:
    """Check a configuration as a whole, load the application and plan the noise."""
    task = Task(config.app.options, config.federation.clients, config.simulation.seed)
    app = named_class(config.app.server, AppServer, "app.server").of(task)  # type: ignore[type-abstract]
    check_together(config)
    agreement = Agreement(config.protocol.mode, config.protocol.use == SPARSE)
    privacy = config.privacy
    kind = kind_of(privacy.mechanism) if privacy.mechanism else DSkellam
    design = Design(privacy.noise, setting_of(config, app), privacy.epsilon, agreement, kind)
    job = Job(config, task, app, design)
    design.example(config.performance.fixed_chunks)
    job.client(job.ids[0])
    config.simulation.dropout.model(config.simulation.seed)
    machines_of(config), suite_of(config)
    return job


def setting_of(config: Config, app: AppServer) -> Setting:
    """Return what is given for the plan of the noise."""
    privacy, protocol, federation = config.privacy, config.protocol, config.federation
    tolerance, colluders, clipping = protocol.tolerance, protocol.colluders, Clipping.of(privacy.clip)
    if tolerance is None and protocol.use == SPARSE:
        tolerance = federation.per_round // 10
    if federation.selection == "vrf":
        colluders = colluder_quantile(federation.clients, federation.per_round, colluders)
    return Setting(
        Participation(federation.clients, federation.per_round, federation.rounds, privacy.accounting),
        dim=app.dim,
        clip=clipping.bound,
        delta=privacy.delta,
        bits=privacy.bits,
        threshold=protocol.threshold,
        tolerance=tolerance,
        colluders=colluders,
        share=clipping.share,
    )


def check_together(config: Config) -> None:
    """Refuse settings that contradict each other."""
    if config.protocol.mode == MALICIOUS and config.federation.selection == "uniform":
        raise InputError(
            "against a malicious server federation.selection is 'balanced' or 'vrf', which can be verified"
        )
    noise = config.privacy.noise
    if noise.cost_only and config.simulation.fidelity != "ideal":
        raise InputError(f"only the cost of '{noise.name}' is simulated: set simulation.fidelity to 'ideal'")
    if noise.mechanism and config.privacy.mechanism not in (None, noise.mechanism):
        raise InputError(f"the noise '{noise.name}' brings its own mechanism: leave privacy.mechanism out")


def manifest_of(job: Job, registry: Registry, created: str) -> Manifest:
    """Write down what is fixed before the first round."""
    config, design = job.config, job.design
    mechanism, setting = design.mechanism, design.setting
    plan, clipping = design.plan, Clipping.of(config.privacy.clip)
    return Manifest(
        name=config.name,
        created=created,
        version=__version__,
        config=msgspec.to_builtins(config),
        clients=config.federation.clients,
        per_round=config.federation.per_round,
        rounds=config.federation.rounds,
        noise=config.privacy.noise.name,
        mechanism=mechanism.name,
        protocol=config.protocol.use,
        mode=config.protocol.mode,
        selection=config.federation.selection,
        fidelity=config.simulation.fidelity,
        registry=registry.root().hex(),
        beacon=beacon_of(config).source,
        plan=recording.Plan(
            dim=setting.dim,
            bits=mechanism.grid.bits,
            scale=mechanism.grid.scale,
            clip=setting.clip,
            sigma=design.sigma,
            epsilon=plan.epsilon if plan else design.epsilon if design.proves else None,
            delta=design.delta,
            cap=design.cap,
            threshold=setting.t,
            tolerance=setting.T,
            colluders=setting.colluders,
            upload_bytes=packed_size(mechanism.grid.padded, mechanism.grid.bits),
            quantile=clipping.rule.target if clipping.rule else None,
        ),
        trust=design.trust(machines_of(config).hides_updates, config.simulation.fidelity == "ideal"),
        words=design.words,
        terms=design.terms,
    )


class Run:
    """A run that is under way: its records, and the rounds that are left."""

    def __init__(self, job: Job, records: Records, secret: bytes, ledger: Ledger | None) -> None:
        self.job, self.records = job, records
        self._cast = Cast(job.config, job.design, job.ids, records.id, Identities.of(secret, job.ids))
        self._ledger = ledger

    @classmethod
    def start(cls, job: Job, root: Path, config: str) -> "Run":
        """Begin a run in a directory of its own."""
        secret = secrets.token_bytes(32)
        registry = Identities.of(secret, job.ids).registry
        records = Records.create(root, manifest_of(job, registry, recording.timestamp()), config)
        _write_secret(records.path / SECRET, secret)
        ledger = Ledger.create(records.path / LEDGER, records.id, job.design.budget) if job.design.proves else None
        return cls(job, records, secret, ledger)

    @classmethod
    def resume(cls, job: Job, path: Path) -> "Run":
        """Go on with a run after its last finished round."""
        records = Records.open(path)
        check_same(job.config, records)
        secret = _read_secret(records)
        check_registry(Identities.of(secret, job.ids).registry, records)
        ledger = Ledger.open(path / LEDGER, records.id) if job.design.proves else None
        _, state = records.checkpoint()
        if state:
            job.app.restore(state)
        records.reopen()
        return cls(job, records, secret, ledger)

    @property
    def done(self) -> int:
        """Return how many rounds are finished."""
        last = self.records.last()
        return 0 if last is None else last.number

    def rounds(self, watch: Watch = silent) -> Iterator[Finished]:
        """Run the rounds that are left; each is on the disk when it is given."""
        config, last = self.job.config, self.records.last()
        coordinator = self._coordinator(watch)
        index = next_index(self._ledger, last)
        for finished in coordinator.rounds(config.federation.rounds, self.done, index):
            finished.receipt.save(self.records.path / RECEIPTS)
            self.records.finish(finished.record, finished.metrics, self.job.app.state())
            yield finished

    def close(self, stopped: str) -> Result:
        """Write down how the run ended."""
        run = recording.load(self.records.path)
        result = Result(
            stopped=stopped,
            rounds=len(run.rounds),
            seconds=sum(done.seconds for done in run.rounds),
            epsilon=None if self._ledger is None else self._ledger.summary().epsilon,
            delta=self.job.design.delta,
            fidelity=self.job.config.simulation.fidelity,
            metrics=dict(run.metrics[-1].values) if run.metrics else {},
        )
        self.records.close(result)
        return result

    def _clipping(self) -> Clipping:
        """Return the clipping of the next round: that of the last one goes on."""
        clipping, last = Clipping.of(self.job.config.privacy.clip), self.records.last()
        return clipping if last is None or last.clip is None else replace(clipping, bound=last.clip).next(last.below)

    def _coordinator(self, watch: Watch) -> Coordinator:
        job, cast = self.job, self._cast
        if self._ledger is not None:
            cast.recall(self._ledger.attended())
        return Coordinator(
            self.records.id,
            job.app,
            job.design,
            cast.selection,
            cast.fleet(cast.population(job.client)),
            self._ledger,
            cast.beacon if job.design.agreement.sparse or job.config.federation.selection == "vrf" else None,
            watch,
            job.config.federation.tries,
            AutoChunks() if job.config.performance.chunks == "auto" else job.config.performance.chunks,
            self._clipping(),
        )


def check_same(config: Config, records: Records) -> None:
    """A run goes on as it was configured: its ledger, its plan and all that is told of it are for that."""
    now = msgspec.json.decode(msgspec.json.encode(config), type=Config)  # as the manifest has it
    began = msgspec.convert(records.manifest.config, Config)
    for name in Config.__struct_fields__:
        if name not in FREE and getattr(now, name) != getattr(began, name):
            raise InputError(f"the run at {records.path} began with another '{name}': put it back, or start a new run")


def check_registry(registry: Registry, records: Records) -> None:
    """The clients have the keys that they had when the run began."""
    if registry.root().hex() != records.manifest.registry:
        raise InputError(f"the run at {records.path} cannot go on: its {SECRET} is not the one it began with")


def _write_secret(path: Path, secret: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())


def _read_secret(records: Records) -> bytes:
    try:
        return (records.path / SECRET).read_bytes()
    except OSError:
        raise InputError(f"the run at {records.path} cannot go on: its {SECRET} is missing") from None
