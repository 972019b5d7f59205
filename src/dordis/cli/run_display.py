"""The display of `dordis run`: finished rounds, the current stage, and a summary at the end."""

import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dordis.cli.output import facts_table
from dordis.config.schema import Simulation
from dordis.durable_files import write_new
from dordis.errors import InputError
from dordis.records.manifest import DEPLOYED, describe_fidelity
from dordis.records.run_records import RoundRecord
from dordis.records.run_records import RunOutcome as Outcome
from dordis.report.facts import RunFacts
from dordis.report.figures import split_words
from dordis.report.live import LiveRun
from dordis.report.live_server import LivePage, is_loopback
from dordis.rounds.watch import StageBegan, WatchEvent
from dordis.runs.coordinator import FinishedRound
from dordis.runs.job import Job
from dordis.runs.run import Population, Run

TOKEN, LARGEST_PORT = "page.token", 65535
LIVE_ROUNDS = 10
"""Number of the latest rounds that the display on a terminal shows."""


class Display:
    """Display of a run: live on a terminal, one line per round elsewhere, nothing if quiet.

    `done` is the number of rounds that were finished before.
    """

    def __init__(
        self, job: Job, home: Population, done: int, console: Console, *, quiet: bool, verbose: bool = False
    ) -> None:
        self._job, self._home, self._console = job, home, console
        self._quiet, self._verbose = quiet, verbose
        self._rows: deque[FinishedRound] = deque(maxlen=LIVE_ROUNDS)
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
            self._console.print(describe_run(self._job, self._home.fidelity, self._home.where))
            if self._job.app.unit:
                self._console.print(self._job.app.unit)
            if self._job.app.measured:
                self._console.print(self._job.app.measured)
            if saving := self._job.design.saving:
                self._console.print(saving.description)
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stage = ""
        if self._is_live:
            self._live.stop()

    def watch(self, event: WatchEvent) -> None:
        """Show the name of the stage if the event is the beginning of a stage; ignore other events."""
        if isinstance(event, StageBegan):
            self._stage = event.stage

    def add_round(self, finished: FinishedRound) -> None:
        """Show a finished round."""
        self._rows.append(finished)
        self._progress.update(self._task, completed=finished.record.number)
        if not self._quiet and not self._is_live:
            self._console.print(describe_round(finished, self._job))
        if self._verbose:
            self.print_note(describe_stages(finished.record))

    def print_note(self, text: str) -> None:
        """Print a line in addition to the rounds, unless quiet."""
        if not self._quiet:
            self._console.print(text)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._table(), self._progress]
        if self._rows:
            parts.append(Text(describe_stages(self._rows[-1].record), style="dim", no_wrap=True, overflow="ellipsis"))
        parts.append(Text(f"now: {self._stage}" if self._stage else "", style="dim"))
        return Group(*parts)

    def _table(self) -> Table:
        metric = next(iter(self._rows[-1].metrics.values), "metric") if self._rows else "metric"
        table = Table(box=None, pad_edge=False)
        for heading in ("round", metric, "epsilon", "seconds"):
            table.add_column(heading, no_wrap=True)
        table.add_column("dropped out")  # cut short on a narrow terminal
        for row in self._rows:
            values = row.metrics.values
            table.add_row(
                str(row.record.number),
                format_metric(metric, values[metric]) if metric in values else "",
                format_spent(row.record, self._job),
                f"{row.record.seconds:.2f}",
                Text(describe_dropouts(row.record), no_wrap=True, overflow="ellipsis"),
            )
        return table


@contextmanager
def serve_page(under_way: "Run", address: str | None, console: Console) -> Iterator[LiveRun | None]:
    """Serve the live page of a run at an address `[HOST:]PORT`; yield the `LiveRun` that the page shows.

    The caller updates this object.  Without an address yield None.  If other machines can reach HOST, readers need the
    token in the file TOKEN of the run's directory.  A resumed run keeps its token.
    """
    if address is None:
        yield None
        return
    host, port = read_address(address)
    records, home = under_way.records, under_way.home
    server = (lambda: getattr(home, "server", None)) if home.fidelity == DEPLOYED else None
    live = LiveRun(records.path, None if server is None else lambda: s.connected() if (s := server()) else ())
    least = under_way.job.design.least

    def explain_unready() -> str:
        count = live.snapshot().connected
        return "" if count is None or count >= least else f"{count} clients are connected, {least} are needed"

    page = LivePage(live, records.manifest, "" if is_loopback(host) else read_token(records.path), explain_unready)
    console.print(f"watch it at {page.start(host, port)}", highlight=False)
    try:
        yield live
    except BaseException as error:
        live.end(f"stopped: {' '.join(str(error).split()) or 'it was interrupted'}")
        raise
    finally:
        page.stop()


def read_address(text: str) -> tuple[str, int]:
    """Return host and port of a text `PORT` or `HOST:PORT`; the default host is 127.0.0.1.

    >>> read_address("8766"), read_address("0.0.0.0:80"), read_address("[::]:80")
    (('127.0.0.1', 8766), ('0.0.0.0', 80), ('::', 80))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > LARGEST_PORT:
        raise InputError(f"--page takes PORT or HOST:PORT, not '{text}'")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def read_token(path: Path) -> str:
    """Return the token for readers of a run's live page, from the file TOKEN in the run's directory `path`.

    If the file is missing, create it, readable for its owner only.
    """
    file = path / TOKEN
    if not file.exists():
        write_new(file, secrets.token_urlsafe(24).encode())
    return file.read_text()


def describe_run(job: Job, fidelity: str, where: str) -> str:
    """Return one line about a run: its name, clients, rounds and privacy."""
    config, design = job.config, job.design
    federation, protocol = config.federation, config.protocol
    as_run = describe_fidelity(fidelity, where).partition(",")[0]
    if as_run != fidelity:
        as_run += f" with {fidelity} fidelity"
    goal = f"epsilon {design.epsilon:g}, delta {design.delta:g}" if design.proves else "no privacy"
    if design.proves:
        goal += f" {design.mechanism.noise_from.adversary}"
    return (
        f"{config.name}: {federation.clients} clients, {federation.per_round} a round, {federation.rounds} rounds; "
        f"{config.privacy.noise.name} noise, {goal}; {protocol.use} against a {protocol.mode} server, "
        f"{as_run}"
    )


def describe_round(finished: FinishedRound, job: Job) -> str:
    """Return one line about a finished round: metrics, epsilon spent, dropouts, seconds."""
    metrics = ", ".join(f"{name} {format_metric(name, value)}" for name, value in finished.metrics.values.items())
    record = finished.record
    parts = [
        metrics,
        f"epsilon {format_spent(record, job)}",
        f"dropped {describe_dropouts(record)}",
        f"{record.seconds:.2f} s",
    ]
    return f"round {record.number}: " + "; ".join(part for part in parts if part)


def format_metric(name: str, value: float) -> str:
    """Return a metric as text: an accuracy in percent, others with four digits."""
    return f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4g}"


def format_spent(record: RoundRecord, job: Job) -> str:
    """Return as text the epsilon spent until the end of a round, and the budget; `none` if no epsilon is proved."""
    return "none" if record.epsilon is None else f"{record.epsilon:.2f} of {job.design.epsilon:g}"


def describe_dropouts(record: RoundRecord) -> str:
    """Return in words the number of dropouts of a round, in all and by stage."""
    counts = {stage: len(clients) for stage, clients in record.dropped.items()}
    listed = ", ".join(f"{split_words(stage)} {count}" for stage, count in counts.items())
    return f"{sum(counts.values())} of {len(record.clients)}" + (f": {listed}" if listed else "")


def describe_stages(record: RoundRecord) -> str:
    """Return in words the six longest stages of a round, with their seconds."""
    longest = sorted(record.stages.items(), key=lambda stage: -stage[1])[:6]
    return "last round: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in longest)


def summary_table(facts: RunFacts, result: Outcome) -> Table:
    """Return a table with the outcome of a run: metrics, epsilon, rounds, dropouts, noise, traffic and time."""
    run, budget = facts.run, "" if facts.budget is None else f" of {facts.budget:g}"
    proved = (
        "nothing is proved"
        if facts.reportable_epsilon is None
        else f"{facts.reportable_epsilon:.3f}{budget} at {result.delta:g}"
    )
    if facts.is_overspent:
        proved += ": OVERSPENT"
    ended = {"rounds": "all done", "budget": "the next one would pass the budget"}.get(result.stopped, result.stopped)
    rows = {name: format_metric(name, value) for name, value in result.metrics.items()}
    rows |= {"epsilon, delta": proved, "rounds": f"{result.rounds} of {run.manifest.rounds}, {ended}"}
    if facts.stated_epsilon is not None and not facts.stated_epsilon.is_spent:
        rows["spent so far"] = f"{facts.spent:.3f}; the stated epsilon is larger: {facts.stated_epsilon.basis.value}"
    if facts.reportable_epsilon is not None and facts.trust.simulated:
        rows["a deployment like this"] = (
            f"would be ({facts.reportable_epsilon:.4g}, {result.delta:g})-differentially private"
        )
    if run.manifest.predecessor is not None:
        rows["continues"] = f"run {run.manifest.predecessor.run[:16]}, {run.manifest.before} rounds: epsilon adds up"
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
    return facts_table(rows, run.manifest.name)


def forecast_table(job: Job, simulation: Simulation, forecast: dict[str, float | int | str | None]) -> Table:
    """Return a table of `forecast`, which has the plan of a run, and the expected bytes and seconds of a round."""
    rows = {name.replace("_", " "): format_forecast(name, value) for name, value in forecast.items()}
    return facts_table(rows, describe_run(job, simulation.fidelity, simulation.where))


def format_forecast(name: str, value: float | str | None) -> str:
    """Return a value of a forecast as text: bytes and integers without decimals, `none` if it is missing.

    >>> format_forecast("bytes_up", 20833.42), format_forecast("epsilon", 5.99999999), format_forecast("sigma", None)
    ('20,833', '6', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if name.startswith("bytes") or isinstance(value, int) else f"{value:.4g}"
