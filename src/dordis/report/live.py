"""The state of a run under way, computed from the run's events and records, for the live page and the metrics.

The thread that runs the rounds reports events, and the threads of the live page take snapshots of the state.  After a
restart, the earlier rounds are read from the records.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dordis.records import run_records
from dordis.records.run_records import FailedAttempt, RoundMetrics, RoundRecord
from dordis.report.charts import Chart, LineChart, Mark, Series
from dordis.report.facts import LedgerCheck, RunFacts, count_dropouts
from dordis.report.figures import (
    ROUND,
    dropout_stages_chart,
    metric_charts,
    metric_order,
    split_words,
    stage_seconds_chart,
    traffic_chart,
)
from dordis.report.numbers import format_duration, format_number
from dordis.rounds.watch import AttemptBegan, AttemptFailed, ClientAnswered, StageBegan, StageEnded, WatchEvent

STUCK = 5.0
"""Seconds after which there is a warning about the clients that have not answered the current stage."""
MOST_NAMED, MOST_ROUNDS, MOST_NOTES = 20, 12, 20
"""Largest numbers of clients that a text names, of listed rounds, and of stored warnings and failed attempts."""
BUDGET_WARNING = 0.8
"""Fraction of the budget: there is a warning as soon as this fraction is spent."""


class StageView(msgspec.Struct, frozen=True):
    """A stage of the current round, with the numbers of clients that were asked and that have answered."""

    name: str
    state: str
    """`done`, `now` or `later`."""
    seconds: float
    asked: int
    answered: int
    missing: int
    """Number of clients that had not answered when the stage ended."""
    waiting: tuple[int, ...]
    """Ids of the clients for which the stage waits, at most MOST_NAMED."""
    more: int
    """Number of further clients for which the stage waits, in addition to those in `waiting`."""


class RoundView(msgspec.Struct, frozen=True):
    """A finished round, as a row of the live page's table."""

    number: int
    metrics: dict[str, float]
    epsilon: float | None
    clients: int
    dropped: int
    seconds: float


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a run at one moment, as the live page and the metrics show it."""

    name: str
    run: str
    status: str
    """`running`, or how the run ended."""
    number: int
    """The number of the current round; 0 before the first."""
    planned: int
    finished: int
    stages: tuple[StageView, ...]
    connected: int | None
    """Number of connected clients; None in a simulation."""
    members: int
    invited: int
    in_round: int
    """Largest number of clients that one stage of the current attempt, other than the invitation, asked."""
    dropped: dict[str, int]
    """Number of dropouts in all finished rounds, by stage."""
    metrics: dict[str, float]
    epsilon: float | None
    budget: float | None
    rounds_per_hour: float | None
    bytes_per_second: float | None
    evicted: tuple[int, ...]
    failures: tuple[str, ...]
    """The latest failed attempts of rounds, in words."""
    failed: int
    """Number of all failed attempts of rounds."""
    warnings: tuple[str, ...]
    rounds: tuple[RoundView, ...]


@dataclass
class _Stage:
    """A stage of the current attempt of a round, over all chunks of the update."""

    began: float
    ended: float | None = None
    asked: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    waiting: Counter[int] = field(default_factory=Counter)
    """For each client, the number of chunks for which its answer is missing."""
    open: int = 0
    """Number of chunks for which the stage has begun and not ended."""


@dataclass
class _Totals:
    """Sums over all finished rounds of a run."""

    rounds: int = 0
    seconds: float = 0.0
    moved: int | None = None
    """Bytes sent and received by clients in rounds that counted them; None if no round did."""
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, record: RoundRecord) -> None:
        """Add the record of a finished round to the totals."""
        self.rounds, self.seconds = self.rounds + 1, self.seconds + record.seconds
        if record.up is not None and record.down is not None:
            self.moved = (self.moved or 0) + record.up + record.down
        self.dropped.update({split_words(stage): len(clients) for stage, clients in record.dropped.items()})


class LiveRun:
    """The state of a run during its execution.

    Pass `watch` to the run as its observer; call `finish_round` after each round and `end` after the last one.
    `connected` returns the connected clients and is None in a simulation; `clock` returns seconds.  Memory does not
    grow with the number of rounds: only the last rounds and totals over all rounds are stored, and charts are drawn
    from the records on disk.
    """

    def __init__(
        self,
        path: Path,
        connected: Callable[[], Collection[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stored = run_records.load_run(path)
        self._path, self._id, self._manifest = path, stored.id, stored.manifest
        self._connected, self._clock, self._lock = connected, clock, threading.Lock()
        self._totals = _Totals()
        for record in stored.rounds:
            self._totals.add(record)
        self._rounds = deque[RoundRecord](stored.rounds, MOST_ROUNDS)
        self._metrics = deque[RoundMetrics](stored.metrics, MOST_ROUNDS)
        self._failures = deque[FailedAttempt](stored.failures, MOST_NOTES)
        self._failed = len(stored.failures)
        self._evicted = set(stored.evicted)
        self._number, self._stages = 0, dict[str, _Stage]()
        self._invited = self._in_round = 0
        self._notes: list[str] = []
        self._status = "running"
        self.changes = 0
        """Number of changes of the state so far; the live page sends the state again when this number has grown."""

    # Called by the run

    def watch(self, event: WatchEvent) -> None:
        """Update the state by an event of the run, such as the beginning of a stage or an answer."""
        with self._lock:
            self.changes += 1
            match event:
                case AttemptBegan():
                    self._number, self._stages = event.number, {}
                    self._invited = self._in_round = 0
                case StageBegan():
                    self._begin(event)
                case ClientAnswered():
                    stage = self._stages.get(event.stage)
                    if stage is not None and stage.waiting[event.client] > 0:
                        stage.waiting[event.client] -= 1
                case StageEnded():
                    self._end_stage(event)
                case AttemptFailed():
                    self._failed += 1
                    self._failures.append(FailedAttempt(event.index, event.reason, event.evicted, event.survivors))
                    self._evicted.update(event.evicted)

    def _begin(self, event: StageBegan) -> None:
        now = self._clock()
        for known in self._stages.values():
            if not known.asked and known.ended is None:  # a stage without requests, in which only the server computes
                known.ended = now
        stage = self._stages.setdefault(event.stage, _Stage(now))
        stage.asked.update(event.clients)
        stage.waiting.update(event.clients)
        stage.open, stage.ended = stage.open + 1, None
        if event.stage == "Invite":
            self._invited = len(stage.asked)
        else:
            self._in_round = max(self._in_round, len(stage.asked))

    def _end_stage(self, event: StageEnded) -> None:
        stage = self._stages.get(event.stage)
        if stage is None:
            return
        for client in event.missing:
            stage.waiting[client] = max(0, stage.waiting[client] - 1)
            stage.missing.add(client)
        stage.open -= 1
        if stage.open <= 0:
            stage.ended = self._clock()

    def finish_round(self, record: RoundRecord, metrics: RoundMetrics) -> None:
        """Add a finished round to the state."""
        with self._lock:
            self.changes += 1
            self._totals.add(record)
            self._rounds.append(record)
            self._metrics.append(metrics)
            self._evicted.update(record.evicted)

    def warn(self, text: str) -> None:
        """Add a warning to the state; only the last MOST_NOTES warnings are stored."""
        with self._lock:
            self.changes += 1
            self._notes = [*self._notes, text][-MOST_NOTES:]

    def end(self, status: str) -> None:
        """Set the status to `status`, which says how the run ended, and end all stages."""
        with self._lock:
            self.changes += 1
            self._status = status
            for stage in self._stages.values():
                stage.ended = self._clock() if stage.ended is None else stage.ended

    # Called by pages and metrics

    @property
    def finished(self) -> int:
        """Return the number of finished rounds, including those of the run's predecessors."""
        return self._manifest.before + self._totals.rounds

    def charts(self) -> dict[str, Chart]:
        """Return the charts of the live page by name, drawn from the run's records on disk."""
        stored = run_records.load_run(self._path)
        facts = RunFacts(stored, stored.manifest.name, LedgerCheck())
        budget = stored.manifest.budget
        spent = Series(facts.label, tuple((one.number, one.epsilon) for one in stored.rounds))
        marks = () if budget is None else (Mark("budget", budget),)
        note = "of the client that has spent most; the report verifies it"
        return {
            **metric_charts([facts]),
            "epsilon": LineChart("Epsilon spent", ROUND, "epsilon", (spent,), marks=marks, note=note),
            "dropouts": dropout_stages_chart(facts),
            "seconds": stage_seconds_chart([facts]),
            "traffic": traffic_chart([facts]),
        }

    def snapshot(self) -> Snapshot:
        """Return the state of the run now."""
        connected = None if self._connected is None else len(self._connected())
        with self._lock:
            manifest, totals, now = self._manifest, self._totals, self._clock()
            last = self._rounds[-1] if self._rounds else None
            return Snapshot(
                name=manifest.name,
                run=self._id.hex(),
                status=self._status,
                number=self._number,
                planned=manifest.rounds,
                finished=self.finished,
                stages=self._view_stages(now),
                connected=connected,
                members=manifest.clients,
                invited=self._invited,
                in_round=self._in_round,
                dropped=dict(totals.dropped),
                metrics=dict(sorted(self._last_metrics().items(), key=lambda item: metric_order(item[0]))),
                epsilon=None if last is None else last.epsilon,
                budget=manifest.budget,
                rounds_per_hour=3600 * totals.rounds / totals.seconds if totals.seconds else None,
                bytes_per_second=totals.moved / totals.seconds if totals.seconds and totals.moved else None,
                evicted=tuple(sorted(self._evicted)),
                failures=tuple(f"round index {one.index}: {one.reason}" for one in self._failures),
                failed=self._failed,
                warnings=tuple(self._warnings(now)),
                rounds=tuple(self._view_round(one) for one in reversed(self._rounds)),
            )

    def _last_metrics(self) -> dict[str, float]:
        return self._metrics[-1].values if self._metrics else {}

    def _view_round(self, record: RoundRecord) -> RoundView:
        values = {one.number: one.values for one in self._metrics}.get(record.number, {})
        return RoundView(
            record.number, values, record.epsilon, len(record.clients), count_dropouts(record), record.seconds
        )

    def _view_stages(self, now: float) -> tuple[StageView, ...]:
        views = []
        for name, stage in self._stages.items():
            waiting = sorted(u for u, count in stage.waiting.items() if count > 0)
            is_open = stage.ended is None
            views.append(
                StageView(
                    name=split_words(name),
                    state="now" if is_open else "done",
                    seconds=(now if stage.ended is None else stage.ended) - stage.began,
                    asked=len(stage.asked),
                    answered=len(stage.asked - stage.missing) - len(waiting),
                    missing=len(stage.missing),
                    waiting=tuple(waiting[:MOST_NAMED]) if is_open else (),
                    more=max(0, len(waiting) - MOST_NAMED) if is_open else 0,
                )
            )
        known = {view.name for view in views}
        later = [name for name in map(split_words, self._manifest.stages) if name not in known]
        if self._stages and self._status == "running":
            views += [StageView(name, "later", 0.0, 0, 0, 0, (), 0) for name in later]
        return tuple(views)

    def _warnings(self, now: float) -> list[str]:
        """Return warnings for the operator, in words, the most urgent first."""
        found = []
        for view in self._view_stages(now):
            if view.state == "now" and view.waiting and view.seconds >= STUCK:
                named = ", ".join(map(str, view.waiting)) + (f" and {view.more} more" if view.more else "")
                some = "client" if len(view.waiting) + view.more == 1 else "clients"
                found.append(
                    f"Round {self._number} waits for {some} {named} at '{view.name}' for "
                    f"{format_duration(view.seconds)}; {view.answered} of {view.asked} have answered."
                )
        last, budget = (self._rounds[-1] if self._rounds else None), self._manifest.budget
        if last is not None and last.epsilon is not None and budget:
            if last.epsilon > budget * (1 + 1e-9):
                found.append(f"More than the budget is spent: epsilon {format_number(last.epsilon)} of {budget:g}.")
            elif last.epsilon >= BUDGET_WARNING * budget and self._status == "running":
                found.append(
                    f"{last.epsilon / budget:.0%} of the privacy budget is spent: epsilon "
                    f"{format_number(last.epsilon)} of {budget:g}."
                )
        if self._evicted:
            found.append(f"Evicted for lying: clients {', '.join(map(str, sorted(self._evicted)))}.")
        return [*found, *reversed(self._notes)]
