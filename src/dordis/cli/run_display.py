"""What `dordis run` shows: the rounds as they finish, what goes on now, and in the end what it came to."""

from collections import deque
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dordis.cli import tables
from dordis.federation.coordinator import Finished
from dordis.federation.job import Job
from dordis.federation.manifest import how_run
from dordis.federation.records import Result as Outcome
from dordis.federation.records import RoundRecord
from dordis.federation.run import Home
from dordis.report.facts import Facts
from dordis.report.figures import spaced
from dordis.simulation.config import Simulation

SHOWN = 10
"""Rounds that are shown while a run goes on."""


class Display:
    """Show a run: live on a terminal, one line a round elsewhere, nothing if it is to be quiet."""

    def __init__(
        self, job: Job, home: Home, done: int, console: Console, *, quiet: bool, verbose: bool = False
    ) -> None:
        self._job, self._home, self._console = job, home, console
        self._quiet, self._verbose = quiet, verbose
        self._rows: deque[Finished] = deque(maxlen=SHOWN)
        self._stage = ""
        self._progress = Progress(
            TextColumn("rounds"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("rounds", total=job.config.federation.rounds, completed=done)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8)

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal and not self._quiet

    def __enter__(self) -> "Display":
        if not self._quiet:
            self._console.print(headline(self._job, self._home.fidelity, self._home.where))
            if self._job.app.unit:
                self._console.print(self._job.app.unit)
            if self._job.app.measured:
                self._console.print(self._job.app.measured)
            if saving := self._job.design.saving:
                self._console.print(saving.words)
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stage = ""
        if self._is_live:
            self._live.stop()

    def stage(self, name: str) -> None:
        """Take note of what begins."""
        self._stage = name

    def finished(self, finished: Finished) -> None:
        """Take note of a finished round."""
        self._rows.append(finished)
        self._progress.update(self._task, completed=finished.record.number)
        if not self._quiet and not self._is_live:
            self._console.print(line(finished, self._job))
        if self._verbose:
            self.note(stage_times(finished.record))

    def note(self, text: str) -> None:
        """Say something beside the rounds."""
        if not self._quiet:
            self._console.print(text)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._table(), self._progress]
        if self._rows:
            parts.append(Text(stage_times(self._rows[-1].record), style="dim", no_wrap=True, overflow="ellipsis"))
        parts.append(Text(f"now: {self._stage}" if self._stage else "", style="dim"))
        return Group(*parts)

    def _table(self) -> Table:
        metric = next(iter(self._rows[-1].metrics.values), "metric") if self._rows else "metric"
        table = Table(box=None, pad_edge=False)
        for heading in ("round", metric, "epsilon", "seconds"):
            table.add_column(heading, no_wrap=True)
        table.add_column("dropped out")  # gives way on a narrow terminal
        for row in self._rows:
            values = row.metrics.values
            table.add_row(
                str(row.record.number),
                shown(metric, values[metric]) if metric in values else "",
                spent(row.record, self._job),
                f"{row.record.seconds:.2f}",
                Text(dropouts(row.record), no_wrap=True, overflow="ellipsis"),
            )
        return table


def headline(job: Job, fidelity: str, where: str) -> str:
    """Say in one line what runs."""
    config, design = job.config, job.design
    federation, protocol = config.federation, config.protocol
    as_run = how_run(fidelity, where).partition(",")[0]
    if as_run != fidelity:
        as_run += f" with {fidelity} fidelity"
    goal = f"epsilon {design.epsilon:g}, delta {design.delta:g}" if design.proves else "no privacy"
    if design.proves:
        goal += f" {design.mechanism.noise_from.against}"
    return (
        f"{config.name}: {federation.clients} clients, {federation.per_round} a round, {federation.rounds} rounds; "
        f"{config.privacy.noise.name} noise, {goal}; {protocol.use} against a {protocol.mode} server, "
        f"{as_run}"
    )


def line(finished: Finished, job: Job) -> str:
    """Say a round in one line."""
    metrics = ", ".join(f"{name} {shown(name, value)}" for name, value in finished.metrics.values.items())
    record = finished.record
    parts = [metrics, f"epsilon {spent(record, job)}", f"dropped {dropouts(record)}", f"{record.seconds:.2f} s"]
    return f"round {record.number}: " + "; ".join(part for part in parts if part)


def shown(name: str, value: float) -> str:
    """Write a metric for people."""
    return f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4g}"


def spent(record: RoundRecord, job: Job) -> str:
    """Write epsilon so far, of the budget."""
    return "none" if record.epsilon is None else f"{record.epsilon:.2f} of {job.design.epsilon:g}"


def dropouts(record: RoundRecord) -> str:
    """Write how many dropped out, and where."""
    counts = {stage: len(clients) for stage, clients in record.dropped.items()}
    listed = ", ".join(f"{spaced(stage)} {count}" for stage, count in counts.items())
    return f"{sum(counts.values())} of {len(record.clients)}" + (f": {listed}" if listed else "")


def stage_times(record: RoundRecord) -> str:
    """Write the seconds of every stage of a round, the longest first."""
    longest = sorted(record.stages.items(), key=lambda stage: -stage[1])[:6]
    return "last round: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in longest)


def summary(facts: Facts, result: Outcome) -> Table:
    """Lay out what a run came to."""
    run, budget = facts.run, "" if facts.budget is None else f" of {facts.budget:g}"
    proved = "nothing is proved" if facts.stated is None else f"{facts.stated:.3f}{budget} at {result.delta:g}"
    if facts.overspent:
        proved += ": OVERSPENT"
    ended = {"rounds": "all done", "budget": "the next one would pass the budget"}.get(result.stopped, result.stopped)
    rows = {name: shown(name, value) for name, value in result.metrics.items()}
    rows |= {"epsilon, delta": proved, "rounds": f"{result.rounds} of {run.manifest.rounds}, {ended}"}
    if facts.proof is not None and not facts.proof.is_spent:
        rows["spent so far"] = f"{facts.spent:.3f}; the stated epsilon is larger: {facts.proof.basis.value}"
    if facts.stated is not None and facts.trust.simulated:
        rows["a deployment like this"] = f"would be ({facts.stated:.4g}, {result.delta:g})-differentially private"
    if run.manifest.predecessor is not None:
        rows["goes on from"] = f"run {run.manifest.predecessor.run[:16]}, {run.manifest.before} rounds: epsilon adds up"
    if run.rounds:
        lost = sum(len(clients) for record in run.rounds for clients in record.dropped.values())
        asked = sum(len(record.clients) for record in run.rounds)
        rows["dropped out"] = f"{lost} of {asked} ({lost / asked:.0%})"
    if run.sum_checks:
        rows["check for impossible sums"] = ", ".join(f"{count} {outcome}" for outcome, count in run.sum_checks.items())
    if run.evicted:
        rows["evicted"] = f"{', '.join(map(str, run.evicted))}: the report says why"
    if kept := [record.left / record.wanted for record in run.rounds if record.left and record.wanted]:
        rows["noise left of wanted"] = f"{min(kept):.3f} to {max(kept):.3f}"
    if up := [record.up / len(record.clients) for record in run.rounds if record.up is not None]:
        rows["upload of a client"] = f"{sum(up) / len(up) / 1e3:,.1f} kB a round"
    rows |= {"seconds": f"{result.seconds:.1f}", "run as": run.manifest.how, "records": str(run.path)}
    return tables.facts(rows, run.manifest.name)


def upcoming(job: Job, simulation: Simulation, costs: dict[str, float | int | str | None]) -> Table:
    """Lay out what a run would be."""
    rows = {name.replace("_", " "): expected(name, value) for name, value in costs.items()}
    return tables.facts(rows, headline(job, simulation.fidelity, simulation.where))


def expected(name: str, value: float | str | None) -> str:
    """Write what a run would be for people.

    >>> expected("bytes_up", 20833.42), expected("epsilon", 5.99999999), expected("sigma", None)
    ('20,833', '6', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if name.startswith("bytes") or isinstance(value, int) else f"{value:.4g}"
