"""A run: start it or go on with it, round by round.  Where its clients are is the business of its `Home`."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from dordis import __version__
from dordis.errors import BudgetExceeded, InputError, RoundFailed
from dordis.federation import evidence
from dordis.federation import records as recording
from dordis.federation.beacon import Beacon
from dordis.federation.charges import OwnersCount
from dordis.federation.config import RunConfig
from dordis.federation.coordinator import Coordinator, Finished, next_index
from dordis.federation.durable import hold
from dordis.federation.evictions import Evictions
from dordis.federation.job import Job
from dordis.federation.ledger import Ledger, Summary
from dordis.federation.manifest import DEPLOYED, Manifest, PlanRecord, Predecessor
from dordis.federation.participation import Attendance
from dordis.federation.records import EVICTIONS, LEDGER, RECEIPTS, Records, Result, StoredRun
from dordis.federation.registry import Registry
from dordis.federation.selection import Selection
from dordis.kernels.packing import packed_size
from dordis.pipeline.profile import AutoChunks
from dordis.privacy.clipping import Clipping
from dordis.rounds.server import InterruptedRound, Rounds, Watch, silent

FREE = ("output", "performance", "deployment")
"""Settings that a run may go on without: they change nothing that is told of it."""


class Place(Protocol):
    """What a manifest says of where the clients of a run are."""

    @property
    def fidelity(self) -> str:
        """Say whether every message of the protocol is sent, `full`, or only its result computed, `ideal`."""
        ...

    @property
    def where(self) -> str:
        """Say where simulated clients are, such as `in one process`."""
        ...

    @property
    def registry(self) -> Registry:
        """Return the public keys of all clients."""
        ...

    @property
    def beacon(self) -> Beacon:
        """Return the source of public randomness."""
        ...

    @property
    def consents(self) -> tuple[str, ...]:
        """Say what the owners of the clients allow that a policy refuses unless it is told otherwise."""
        ...


class Home(Place, Protocol):
    """Where the clients of a run are."""

    @property
    def root(self) -> bytes:
        """Return the root of the registry that the owners of the clients have pinned."""
        ...

    @property
    def selection_seed(self) -> bytes:
        """Return 32 bytes from which clients are drawn, where the server is trusted to draw."""
        ...

    def store(self, path: Path) -> None:
        """Write to a new run's directory what the run cannot go on without."""
        ...

    def interrupted(self) -> InterruptedRound | None:
        """Return the round that was under way when the server stopped, if it can go on."""
        ...

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnersCount]) -> Rounds:
        """Begin, or go on: `counted` is what owners may have counted for the rounds so far, by run and index."""
        ...


def manifest_of(job: Job, home: Place, created: str, predecessor: Predecessor | None = None) -> Manifest:
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
        fidelity=home.fidelity,
        registry=home.registry.root().hex(),
        beacon=home.beacon.source if job.has_beacon else "",
        first_line=home.beacon.first if job.has_beacon else None,
        plan=PlanRecord(
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
            all_colluders=config.protocol.colluders,
            upload_bytes=packed_size(mechanism.grid.padded, mechanism.grid.bits),
            buckets=setting.buckets,
            projection_error=design.saving.error if design.saving else None,
            quantile=clipping.rule.target if clipping.rule else None,
            multiplier=plan.multiplier if plan else None,
            times_trusted=plan.times_trusted if plan else None,
        ),
        trust=design.trust(job.protocol.hides_updates, home.fidelity != DEPLOYED),
        words=design.words,
        terms=design.terms,
        stages=job.protocol.stages,
        consents=home.consents,
        unit=job.app.unit,
        measured=job.app.measured,
        predecessor=predecessor,
        where=home.where,
        members=home.registry.fingerprints() if home.fidelity == DEPLOYED else msgspec.UNSET,
    )


class Run:
    """A run that is under way: its records, and the rounds that are left."""

    def __init__(self, job: Job, records: Records, home: Home, ledger: Ledger | None) -> None:
        self.job, self.records, self.home = job, records, home
        self._ledger = ledger
        self.over_budget: BudgetExceeded | None = None

    @classmethod
    def start(cls, job: Job, home: Home, root: Path, config: str) -> "Run":
        """Begin a run in a directory of its own."""
        records = Records.create(root, manifest_of(job, home, recording.timestamp()), config)
        home.store(records.path)
        ledger = Ledger.create(records.path / LEDGER, records.id, job.design.budget) if job.design.proves else None
        return cls(job, records, home, ledger)._alone()

    @classmethod
    def resume(cls, job: Job, home: Home, path: Path) -> "Run":
        """Go on with a run after its last finished round, or in the one that was under way; one process at a time."""
        stored = recording.load(path)
        held = hold(path)
        try:
            run = cls._resumed(job, home, path, stored)
        except BaseException:
            os.close(held)
            raise
        weakref.finalize(run, os.close, held)
        return run

    @classmethod
    def _resumed(cls, job: Job, home: Home, path: Path, stored: StoredRun) -> "Run":
        evidence.check_model(stored)
        evidence.check_last(stored)
        evidence.check_evidence(stored)
        records = Records.open(path)
        check_same(job.config, records)
        check_registry(home.registry, records)
        ledger = Ledger.open(path / LEDGER, records.id) if job.design.proves else None
        state = records.state()
        if state:
            job.app.restore(state)
        records.reopen()
        return cls(job, records, home, ledger)

    @classmethod
    def succeed(cls, job: Job, home: Home, root: Path, config: str, predecessor: Path) -> "Run":
        """Begin a run that goes on where another one ended, with other members: nothing that was spent is forgotten.

        Whoever was evicted stays evicted.  The run before is closed by that.
        """
        stored = recording.load(predecessor)
        evidence.check_model(stored)
        evidence.check_last(stored)
        spent = evidence.check_evidence(stored)
        check_succeeds(job, stored)
        before = Records.open(predecessor)
        earlier = Ledger.open(predecessor / LEDGER, before.id) if job.design.proves else None
        state = before.state()
        if state:
            job.app.restore(state)
        manifest = manifest_of(job, home, recording.timestamp(), predecessor_of(before, job, spent))
        records = Records.create(root, manifest, config)
        home.store(records.path)
        records.begin(state)
        Evictions(records.path / EVICTIONS).inherit(stored.evictions, before.id.hex())
        budget = job.design.budget
        ledger = Ledger.succeed(earlier, records.path / LEDGER, records.id, budget) if earlier else None
        return cls(job, records, home, ledger)._alone()

    def _alone(self) -> "Run":
        """Keep other processes out of the directory."""
        weakref.finalize(self, os.close, hold(self.records.path))
        return self

    @property
    def done(self) -> int:
        """Return how many rounds are finished, in this run and before it."""
        return done(self.records)

    def rounds(self, watch: Watch = silent) -> Iterator[Finished]:
        """Run the rounds that are left; each is on the disk when it is given."""
        config, last = self.job.config, self.records.last()
        coordinator = self._coordinator(watch)
        index = next_index(self._ledger, last)
        for finished in coordinator.rounds(config.federation.rounds, self.done, index):
            finished.receipt.save(self.records.path / RECEIPTS)
            self.records.finish(finished.record, finished.metrics, self.job.app.state())
            yield finished

    def complete(self, watch: Watch = silent, told: Callable[[Finished], None] = lambda finished: None) -> Result:
        """Run the rounds that are left, telling each; whatever ends the run is written down."""
        try:
            for finished in self.rounds(watch):
                told(finished)
        except BudgetExceeded as error:
            self.over_budget = error
        except RoundFailed:
            self.close("failed")
            raise
        except KeyboardInterrupt:
            self.close("interrupted")
            raise
        return self.close("rounds" if self.over_budget is None else "budget")

    def close(self, stopped: str) -> Result:
        """Write down how the run ended."""
        self.job.app.export(self.records.path)
        run = recording.load(self.records.path)
        stated = None if self._ledger is None else self._ledger.stated(run.manifest, run.evident)
        result = Result(
            stopped=stopped,
            rounds=self.done,
            seconds=sum(done.seconds for done in run.rounds),
            epsilon=None if stated is None else stated.epsilon,
            spent=None if stated is None else stated.spent,
            delta=self.job.design.delta,
            fidelity=self.home.fidelity,
            metrics=dict(run.metrics[-1].values) if run.metrics else {},
        )
        self.records.close(result)
        return result

    def _coordinator(self, watch: Watch) -> Coordinator:
        job, home, config = self.job, self.home, self.job.config
        selection = job.selection_rule.selection(home.registry, self.records.id, home.beacon, home.selection_seed)
        return Coordinator(
            self.records.id,
            job.app,
            job.design,
            selection,
            home.open(self.records.id, selection, {} if self._ledger is None else self._ledger.counted()),
            self._ledger,
            registry=home.root,
            beacon=home.beacon if job.needs_beacon_values else None,
            watch=watch,
            tries=config.federation.tries,
            chunks=AutoChunks() if config.performance.chunks == "auto" else config.performance.chunks,
            protocol=job.protocol.name,
            clipping=next_clipping(self.records, Clipping.of(config.privacy.clip)),
            alignment=last.alignment if (last := self.records.last()) else None,
            evictions=Evictions(self.records.path / EVICTIONS),
            interrupted=home.interrupted(),
            on_failure=self.records.note_failure,
        )


def done(records: Records) -> int:
    """Return how many rounds are finished, in a run and before it."""
    last = records.last()
    return records.manifest.before if last is None else last.number


def predecessor_of(before: Records, job: Job, spent: Summary | None) -> Predecessor:
    """Write down what a run goes on from, and the epsilon that it states at least: the largest budget so far."""
    clipping, manifest = Clipping.of(job.config.privacy.clip), before.manifest
    return Predecessor(
        run=before.id.hex(),
        head=spent.head if spent else "",
        registry=manifest.registry,
        rounds=done(before),
        clip=None if clipping.rule is None else next_clipping(before, clipping).bound,
        budget=None if spent is None else max(manifest.budget or 0.0, spent.stated.epsilon),
        delta=None if spent is None else manifest.plan.delta,
    )


def next_clipping(records: Records, clipping: Clipping) -> Clipping:
    """Return the clipping of the next round: that of the last one goes on."""
    last, predecessor = records.last(), records.manifest.predecessor
    if last is not None and last.clip is not None:
        return replace(clipping, bound=last.clip).next(last.below)
    if clipping.rule is None or predecessor is None or predecessor.clip is None:
        return clipping
    return replace(clipping, bound=predecessor.clip)


def check_same(config: RunConfig, records: Records) -> None:
    """A run goes on as it was configured: its ledger, its plan and all that is told of it are for that."""
    now = msgspec.json.decode(msgspec.json.encode(config), type=type(config))  # as the manifest has it
    began = msgspec.convert(records.manifest.config, type(config))
    for name in type(config).__struct_fields__:
        if name not in FREE and getattr(now, name) != getattr(began, name):
            raise InputError(f"the run at {records.path} began with another '{name}': put it back, or start a new run")
    if bool(now.deployment.beacon) != bool(began.deployment.beacon):  # its file may have moved
        raise InputError(
            f"the run at {records.path} began {'with' if began.deployment.beacon else 'without'} a beacon, and its "
            "noise was planned for that: put 'deployment.beacon' back, or start a new run"
        )


def check_succeeds(job: Job, before: StoredRun) -> None:
    """A run goes on from one that computed the same, and that counted what it cost."""
    manifest, config = before.manifest, job.config
    if manifest.config.get("app", {}).get("server") != config.app.server or manifest.plan.dim != job.design.setting.dim:
        raise InputError(f"the run at {before.path} computed something else: a successor has the same application")
    if job.design.proves and not manifest.trust.proves:
        raise InputError(f"the run at {before.path} counted no privacy: nobody knows what its clients have spent")
    if manifest.before + len(before.rounds) >= config.federation.rounds:
        raise InputError(
            f"the run at {before.path} and those before finished {manifest.before + len(before.rounds)} rounds: set "
            "federation.rounds, which counts all of them, to more"
        )


def check_registry(registry: Registry, records: Records) -> None:
    """The clients have the keys that they had when the run began."""
    if registry.root().hex() != records.manifest.registry:
        raise InputError(f"the run at {records.path} cannot go on: its clients have not the keys that they began with")
