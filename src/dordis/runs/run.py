"""A run from start to end, also if it is resumed or continues an earlier run; its clients are a `Population`."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dordis import __version__
from dordis.config.schema import RunConfig
from dordis.durable_files import lock_directory
from dordis.errors import BudgetExceeded, Diverged, InputError, RoundFailed
from dordis.identity.registry import Registry
from dordis.kernels.ring import packed_size
from dordis.ledger import verification
from dordis.ledger.ledger import Ledger, LedgerSummary, check_client_unit
from dordis.ledger.receipt import last_digest
from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance
from dordis.pipeline.performance_model import AutoChunks
from dordis.privacy.clipping import Clipping
from dordis.records import run_records
from dordis.records.manifest import DEPLOYED, Manifest, PlanRecord, Predecessor
from dordis.records.run_records import EVICTIONS, LEDGER, RECEIPTS, FailedAttempt, RunOutcome, RunRecords, StoredRun
from dordis.rounds.app import check_keeps_state
from dordis.rounds.engine import InterruptedRound, RoundRunner
from dordis.rounds.watch import AttemptFailed, Watch, silent
from dordis.runs.coordinator import Coordinator, FinishedRound
from dordis.runs.job import Job, all_colluders, selection_kind
from dordis.runs.retry import next_index
from dordis.selection.beacon import Beacon
from dordis.selection.selection import Selection

FREE = ("output", "performance", "deployment")
"""Settings that may change when a run is resumed, except whether there is a `deployment.beacon` (`check_same`)."""


class Place(Protocol):
    """The properties of a run's clients that the manifest of the run states."""

    @property
    def fidelity(self) -> str:
        """Return the fidelity of the run: `full`, `ideal` or `deployed`."""

    @property
    def where(self) -> str:
        """Return a description of where simulated clients compute, such as `in one process`."""

    @property
    def registry(self) -> Registry:
        """Return the public keys of all clients."""

    @property
    def beacon(self) -> Beacon:
        """Return the source of public randomness."""

    @property
    def consents(self) -> tuple[str, ...]:
        """Return descriptions of everything that owners allow beyond the default policy."""


class Population(Place, Protocol):
    """The clients of a run: in this process, on a network, on Flower nodes or in Ray workers."""

    @property
    def root(self) -> bytes:
        """Return the root of the registry that the owners of the clients have pinned."""

    @property
    def selection_seed(self) -> bytes:
        """Return the 32-byte seed of `uniform` selection, in which the server is trusted to select clients."""

    def store(self, path: Path) -> None:
        """Write, into the new directory of the run, the files that are needed to resume the run."""

    def last_index(self) -> int:
        """Return the highest round index to which clients were invited; -1 if none.  This index is never used again."""

    def explain_failure(self) -> str:
        """Return why clients were missing in the latest attempt at a round, and a remedy; empty if unknown."""

    def interrupted(self) -> InterruptedRound[Any] | None:
        """Return the round that was under way when the server stopped, if it can be resumed; None otherwise."""

    def open(self, run: bytes, selection: Selection, counted: Mapping[Attendance, OwnerCharge]) -> RoundRunner:
        """Return the runner of rounds; `counted` has earlier rounds with their costs, and whose owners counted them."""


def manifest_of(job: Job, home: Place, created: str, predecessor: Predecessor | None = None) -> Manifest:
    """Return the manifest of a run: configuration, plan, registry root, and all else that is fixed at its start."""
    config, design = job.config, job.design
    return Manifest(
        name=config.name,
        created=created,
        version=__version__,
        config=msgspec.to_builtins(config),
        clients=config.federation.clients,
        per_round=config.federation.per_round,
        rounds=config.federation.rounds,
        noise=config.privacy.noise.name,
        mechanism=design.mechanism.name,
        protocol=config.protocol.use,
        mode=config.protocol.mode,
        selection=selection_kind(config),
        fidelity=home.fidelity,
        registry=home.registry.root().hex(),
        beacon=home.beacon.source if job.has_beacon else "",
        first_line=home.beacon.first if job.has_beacon else None,
        plan=plan_record(job),
        trust=design.trust(job.protocol.hides_updates, home.fidelity != DEPLOYED),
        words=design.words,
        terms=design.terms,
        stages=job.protocol.stages,
        consents=home.consents,
        unit=job.app.unit,
        measured=job.app.measured,
        predecessor=predecessor,
        where=home.where,
        assistance=job.protocol.assistance or msgspec.UNSET,
        members=home.registry.fingerprints() if home.fidelity == DEPLOYED else msgspec.UNSET,
    )


def plan_record(job: Job) -> PlanRecord:
    """Return the plan of a run as its manifest states it."""
    design = job.design
    mechanism, setting, plan = design.mechanism, design.setting, design.plan
    clipping = Clipping.from_config(job.config.privacy.clip)
    return PlanRecord(
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
        all_colluders=all_colluders(job.config),
        upload_bytes=packed_size(mechanism.grid.padded, mechanism.grid.bits),
        buckets=setting.buckets,
        projection_error=design.saving.error if design.saving else None,
        quantile=clipping.rule.target if clipping.rule else None,
        multiplier=plan.multiplier if plan else None,
        times_trusted=plan.times_trusted if plan else None,
        records=design.sampled or msgspec.UNSET,
        further=job.app.further or msgspec.UNSET,
    )


class Run:
    """A run in progress: its records, its clients and its ledger."""

    def __init__(self, job: Job, records: RunRecords, home: Population, ledger: Ledger | None) -> None:
        self.job, self.records, self.home = job, records, home
        self._ledger = ledger
        self.tries = job.config.federation.tries
        """Number of tries of a failing round; a caller that resumes a run may raise it."""
        self.over_budget: BudgetExceeded | None = None

    @classmethod
    def start(cls, job: Job, home: Population, root: Path, config: str) -> "Run":
        """Start a run in a new directory under `root`, which also stores `config`, the configuration as TOML."""
        records = RunRecords.create(root, manifest_of(job, home, run_records.timestamp()), config)
        home.store(records.path)
        ledger = Ledger.create(records.path / LEDGER, records.id, job.design.budget) if job.design.proves else None
        return cls(job, records, home, ledger)._alone()

    @classmethod
    def resume(cls, job: Job, home: Population, path: Path) -> "Run":
        """Resume the run at `path` after its last finished round, or within its open round.

        Raise InputError if another process is running it, and LedgerDamaged if its files disagree.
        """
        stored = run_records.load_run(path)
        held = lock_directory(path)
        try:
            run = cls._resumed(job, home, path, stored)
        except BaseException:
            os.close(held)
            raise
        weakref.finalize(run, os.close, held)
        return run

    @classmethod
    def _resumed(cls, job: Job, home: Population, path: Path, stored: StoredRun) -> "Run":
        verification.check_model(stored)
        verification.check_last(stored)
        verification.check_evidence(stored)
        records = RunRecords.open(path)
        check_same(job.config, records)
        check_registry(home.registry, records)
        ledger = Ledger.open(path / LEDGER, records.id) if job.design.proves else None
        check_keeps_state(job.app, len(stored.rounds))
        state = records.state()
        if state:
            job.app.restore(state)
        records.reopen()
        return cls(job, records, home, ledger)

    @classmethod
    def succeed(cls, job: Job, home: Population, root: Path, config: str, predecessor: Path) -> "Run":
        """Start a run that continues the model and the ledger of `predecessor`; its members may differ.

        Clients that the predecessor evicted stay evicted.  The predecessor cannot be resumed any more.
        """
        stored = run_records.load_run(predecessor)
        verification.check_model(stored)
        verification.check_last(stored)
        spent = verification.check_evidence(stored)
        check_succeeds(job, stored)
        before = RunRecords.open(predecessor)
        earlier = Ledger.open(predecessor / LEDGER, before.id) if job.design.proves else None
        check_keeps_state(job.app, len(stored.rounds))
        if state := before.state():
            job.app.restore(state)
        manifest = manifest_of(job, home, run_records.timestamp(), predecessor_of(before, job, spent))
        records = RunRecords.create(root, manifest, config)
        home.store(records.path)
        records.begin(state)
        run_records.Evictions(records.path / EVICTIONS).inherit(stored.evictions, before.id.hex())
        budget = job.design.budget
        ledger = Ledger.succeed(earlier, records.path / LEDGER, records.id, budget) if earlier else None
        return cls(job, records, home, ledger)._alone()

    def _alone(self) -> "Run":
        """Lock the run's directory against other processes, and return the run."""
        weakref.finalize(self, os.close, lock_directory(self.records.path))
        return self

    @property
    def done(self) -> int:
        """Return the number of finished rounds of this run and its predecessors."""
        return done(self.records)

    def rounds(self, watch: Watch = silent, *, early: bool = False) -> Iterator[FinishedRound]:
        """Run the remaining rounds; yield each once its records are on disk.

        With `early`, clients of the next round are invited, and train, while a round is evaluated and recorded.
        """
        config, last = self.job.config, self.records.last()
        coordinator = self._coordinator(watch)
        index = max(next_index(self._ledger, last, self.records.failures()), self.home.last_index() + 1)
        for finished in coordinator.rounds(config.federation.rounds, self.done, index, early=early):
            self.records.finish(finished.record, finished.metrics, self.job.app.state())
            yield finished

    def complete(
        self, watch: Watch = silent, told: Callable[[FinishedRound], None] = lambda finished: None
    ) -> RunOutcome:
        """Run the remaining rounds, call `told` with each finished round, and return the outcome of the run.

        If a round fails for good, training diverges or the user interrupts the run, record this end and raise.
        """
        try:
            early = self.home.fidelity == DEPLOYED and self.job.app.evaluates_beside
            for finished in self.rounds(watch, early=early):
                told(finished)
        except BudgetExceeded as error:
            self.over_budget = error
        except (RoundFailed, Diverged) as error:
            self._close_after(error, "failed")
            raise
        except KeyboardInterrupt as error:
            self._close_after(error, "interrupted")
            raise
        return self.close("rounds" if self.over_budget is None else "budget")

    def close(self, stopped: str) -> RunOutcome:
        """Export the application; record and return the outcome of a run that ended for the reason `stopped`."""
        self.job.app.export(self.records.path)
        return self._record_end(stopped)

    def _close_after(self, cause: BaseException, stopped: str) -> None:
        """Close the run after the error `cause`, which gets a note about every error that follows from it."""
        for step in (lambda: self.job.app.export(self.records.path), lambda: self._record_end(stopped)):
            try:
                step()
            except Exception as error:  # noqa: BLE001  it must not hide the first error
                cause.add_note(f"then the end of the run could not be recorded: {error}")

    def _record_end(self, stopped: str) -> RunOutcome:
        run = run_records.load_run(self.records.path)
        stated = None if self._ledger is None else self._ledger.stated(run.manifest, run.evident)
        result = RunOutcome(
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
        job, home, config, interrupted = self.job, self.home, self.job.config, self.home.interrupted()
        open_round = interrupted.parameters.index if interrupted and interrupted.number == self.done + 1 else None
        selection = job.selection_rule.selection(home.registry, self.records.id, home.beacon, home.selection_seed)
        return Coordinator(
            self.records.id,
            job.app,
            job.design,
            selection,
            home.open(self.records.id, selection, {} if self._ledger is None else self._ledger.owner_charges()),
            self._ledger,
            registry=home.root,
            beacon=home.beacon if job.needs_beacon_values else None,
            watch=watch,
            tries=self.tries,
            chunks=AutoChunks() if config.performance.chunks == "auto" else config.performance.chunks,
            protocol=job.protocol.name,
            clipping=next_clipping(self.records, Clipping.from_config(config.privacy.clip)),
            alignment=last.alignment if (last := self.records.last()) else None,
            evictions=run_records.Evictions(self.records.path / EVICTIONS),
            interrupted=interrupted,
            on_failure=lambda failed: self._note_failure(failed, watch),
            on_receipt=lambda receipt: receipt.save(self.records.path / RECEIPTS),
            last_receipt=last_digest(self.records.path / RECEIPTS, open_round),
        )

    def _note_failure(self, failed: FailedAttempt, watch: Watch) -> None:
        """Record a failed attempt, and notify the observers."""
        self.records.note_failure(failed)
        watch(AttemptFailed(failed.index, failed.reason, failed.evicted, failed.survivors))


def done(records: RunRecords) -> int:
    """Return the number of finished rounds of a run and its predecessors."""
    last = records.last()
    return records.manifest.before if last is None else last.number


def predecessor_of(before: RunRecords, job: Job, spent: LedgerSummary | None) -> Predecessor:
    """Return the entry about run `before` in its successor's manifest; `spent` is None if no epsilon is proved."""
    clipping, manifest = Clipping.from_config(job.config.privacy.clip), before.manifest
    return Predecessor(
        run=before.id.hex(),
        head=spent.head if spent else "",
        registry=manifest.registry,
        rounds=done(before),
        clip=None if clipping.rule is None else next_clipping(before, clipping).bound,
        budget=None if spent is None else max(manifest.budget or 0.0, spent.stated.epsilon),
        delta=None if spent is None else manifest.plan.delta,
    )


def next_clipping(records: RunRecords, clipping: Clipping) -> Clipping:
    """Return the clipping of the next round; an adaptive bound follows from the last round, or from the predecessor."""
    last, predecessor = records.last(), records.manifest.predecessor
    if last is not None and last.clip is not None:
        return replace(clipping, bound=last.clip).advance(last.below)
    if clipping.rule is None or predecessor is None or predecessor.clip is None:
        return clipping
    return replace(clipping, bound=predecessor.clip)


def check_same(config: RunConfig, records: RunRecords) -> None:
    """Raise InputError if a resumed run's settings changed, except `FREE`, or if a beacon was added or left out."""
    now = msgspec.json.decode(msgspec.json.encode(config), type=type(config))  # through JSON, as in the manifest
    began = msgspec.convert(records.manifest.config, type(config))
    for name in type(config).__struct_fields__:
        if name not in FREE and getattr(now, name) != getattr(began, name):
            raise InputError(f"the run at {records.path} began with another '{name}': put it back, or start a new run")
    if bool(now.deployment.beacon) != bool(began.deployment.beacon):  # the path of the beacon may change
        raise InputError(
            f"the run at {records.path} began {'with' if began.deployment.beacon else 'without'} a beacon, and its "
            "noise was planned for that: put 'deployment.beacon' back, or start a new run"
        )


def check_succeeds(job: Job, before: StoredRun) -> None:
    """Raise InputError unless the job can continue `before`: same application and `dim`, more rounds, unit the client.

    If the job has an epsilon, `before` must have one.
    """
    check_client_unit(job.design.budget)
    manifest, config = before.manifest, job.config
    if manifest.config.get("app", {}).get("server") != config.app.server or manifest.plan.dim != job.design.setting.dim:
        raise InputError(f"the run at {before.path} computed something else: use its application, with the same dim")
    if job.design.proves and not manifest.trust.proves:
        raise InputError(f"the run at {before.path} counted no privacy, its epsilon is unknown: start a new run")
    if manifest.before + len(before.rounds) >= config.federation.rounds:
        raise InputError(
            f"the run at {before.path} and those before finished {manifest.before + len(before.rounds)} rounds: set "
            "federation.rounds, which counts all of them, to more"
        )


def check_registry(registry: Registry, records: RunRecords) -> None:
    """Raise InputError if the registry is not the one with which the run began."""
    if registry.root().hex() != records.manifest.registry:
        raise InputError(f"the run at {records.path} cannot be resumed: its clients have other keys than when it began")
