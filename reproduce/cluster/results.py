"""Results of cluster experiments: the file with those of the last runs, and figures 2 and 10 as tables and a chart.

`read_results()` returns what docs/results/cluster/cluster.json holds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from dordis.errors import InputError
from dordis.records.run_records import RoundRecord
from dordis.report.charts import BarChart, Series
from reproduce import Experiment
from reproduce.cluster.links import Link, slowest_mbps
from reproduce.cluster.prediction import (
    aggregation_seconds,
    count_chunks,
    predict_from_costs,
    predict_from_rounds,
    relative_error,
)
from reproduce.costs import Costs

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "cluster" / "cluster.json"
PLAIN = 1
MILLION = 1_000_000


class MeasuredChunks(msgspec.Struct, frozen=True):
    """Rounds of one number of chunks: seconds of aggregation, and what two models predict."""

    chunks: int
    seconds: tuple[float, ...]
    stages: dict[str, float]
    """Seconds of every step in the fastest round, over all chunks."""
    from_costs: float | None = None
    """Predicted from the costs of steps and the links."""
    from_rounds: float | None = None
    """Predicted by the performance model, fitted to the rounds of the other numbers of chunks."""

    @property
    def best(self) -> float:
        """Return the seconds of the fastest round: other work on the machine only adds to them."""
        return min(self.seconds)


class Setting(msgspec.Struct, frozen=True):
    """The measured rounds of one setting; links are unknown where clients were on machines of their own."""

    clients: int
    dim: int
    dropped: int
    mbps: tuple[float, float] | None
    latency: float | None
    """The largest latency of a client, one way, in seconds."""
    slowness: float
    rows: tuple[MeasuredChunks, ...]
    auto: tuple[int, ...] = ()
    """Chunks that `auto` took, round by round after the first."""
    auto_seconds: tuple[float, ...] = ()
    load: float = 0.0
    """Processes that wanted a processor while the rounds ran, the mean over five minutes."""
    cores: int = 0
    command: str = ""

    @property
    def title(self) -> str:
        """Name the setting in one line."""
        parts = [f"n = {self.clients}", f"d = {self.dim / MILLION:g}M"]
        parts += [f"{self.mbps[0]:g}-{self.mbps[1]:g} Mbps"] if self.mbps else []
        parts += [f"{1000 * self.latency:g} ms"] if self.latency else []
        parts += [f"devices {self.slowness:g} times slower"] if self.slowness > 1 else []
        return ", ".join([*parts, *([f"{self.dropped} lost"] if self.dropped else [])])

    @property
    def plain(self) -> MeasuredChunks | None:
        """Return the rounds of one chunk, if there are any."""
        return next((row for row in self.rows if row.chunks == PLAIN), None)

    @property
    def fastest(self) -> MeasuredChunks:
        """Return the rounds of the number of chunks with the fastest round."""
        return min(self.rows, key=lambda row: row.best)

    @property
    def speedup(self) -> float | None:
        """Return plain over pipelined seconds of aggregation; None without plain rounds."""
        return None if self.plain is None else self.plain.best / self.fastest.best


class ClusterResults(msgspec.Struct, frozen=True):
    """All settings of the last runs."""

    settings: tuple[Setting, ...] = ()
    training: float | None = None
    """CPU seconds in which a client trains the paper's CNN on FEMNIST, measured apart: `other` of figures 2 and 10."""


def read_results(path: Path = RESULTS) -> ClusterResults:
    """Return the results of a file; raise InputError if it has none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterResults)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} holds no results of a cluster: {error}; run python -m reproduce cluster") from None


def write_results(results: ClusterResults, path: Path) -> None:
    """Write results to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def add_setting(results: ClusterResults, setting: Setting) -> ClusterResults:
    """Return results with a setting; an earlier one of the same title is merged into it (`merge_settings`)."""
    others = tuple(known for known in results.settings if known.title != setting.title)
    for known in results.settings:
        if known.title == setting.title:
            setting = merge_settings(known, setting)
    return msgspec.structs.replace(results, settings=(*others, setting))


def merge_settings(known: Setting, new: Setting) -> Setting:
    """Return a new measurement of a setting, with the numbers of chunks that only the known one has."""
    rows = {row.chunks: row for row in (*known.rows, *new.rows)}
    commands = dict.fromkeys(filter(None, (*known.command.split("\n"), *new.command.split("\n"))))
    return msgspec.structs.replace(
        new,
        rows=predict_rows([rows[m] for m in sorted(rows)], new.dim),
        auto=new.auto or known.auto,
        auto_seconds=new.auto_seconds or known.auto_seconds,
        command="\n".join(commands),
    )


def predict_rows(rows: Sequence[MeasuredChunks], dim: int) -> tuple[MeasuredChunks, ...]:
    """Return rows, each with its prediction from the fastest rounds of the other numbers of chunks."""
    stages = {row.chunks: row.stages for row in rows}
    return tuple(msgspec.structs.replace(row, from_rounds=predict_from_rounds(stages, dim, row.chunks)) for row in rows)


def summarise_rounds(
    rounds: Sequence[RoundRecord], auto: Sequence[RoundRecord], links: Sequence[Link], costs: Costs | None, cores: int
) -> Setting:
    """Return the setting of measured rounds, with predictions; `auto` are rounds whose chunks the run chose."""
    if not rounds and not auto:
        raise InputError("there are no rounds to summarise: a run has one round more than those that count")
    first = (*rounds, *auto)[0]
    n, dim, lost = len(first.clients), first.dim or 0, len(first.clients) - min(first.survivors)
    rows = []
    for m in sorted({count_chunks(record) for record in rounds}):
        same = [record for record in rounds if count_chunks(record) == m]
        modelled = predict_from_costs(costs, links, dim, lost, m, cores) if costs is not None and links else None
        rows.append(
            MeasuredChunks(
                m,
                tuple(round(aggregation_seconds(record), 3) for record in same),
                {name: round(value, 3) for name, value in min(same, key=aggregation_seconds).stages.items()},
                modelled,
            )
        )
    return Setting(
        clients=n,
        dim=dim,
        dropped=lost,
        mbps=(slowest_mbps(links), max(link.mbps for link in links)) if links else None,
        latency=max(link.latency for link in links) if links else None,
        slowness=max((link.slowness for link in links), default=1.0),
        rows=predict_rows(rows, dim),
        auto=tuple(map(count_chunks, auto)),
        auto_seconds=tuple(round(aggregation_seconds(record), 3) for record in auto),
        cores=cores,
    )


def compare_figure_10(results: ClusterResults) -> Experiment:
    """Return measured beside predicted seconds of aggregation, with tables and charts."""
    tables = [*map(figure_10_table, results.settings), *([figure_2_table(results)] if results.training else [])]
    charts = [("cluster", speed_chart(results.settings))] if results.settings else []
    return Experiment(results, tables, charts)


class Headline(msgspec.Struct, frozen=True):
    """The largest measured speed-up of aggregation, and how far predictions were off, over all settings."""

    speedup: float
    setting: str
    chunks: int
    from_costs: tuple[float, float] | None
    """Least and largest relative error of predictions from costs."""
    from_rounds: tuple[float, float] | None
    """Least and largest relative error of predictions from rounds with other numbers of chunks."""


def find_headline(results: ClusterResults) -> Headline:
    """Return the largest speed-up and the errors of predictions; raise InputError without plain rounds."""
    compared = [setting for setting in results.settings if setting.plain is not None]
    if not compared:
        raise InputError("no setting has plain rounds to compare with: measure --chunks 1 as well")
    best = max(compared, key=lambda setting: setting.speedup or 0.0)
    rows = [row for setting in results.settings for row in setting.rows]
    return Headline(
        best.speedup or 0.0,
        best.title,
        best.fastest.chunks,
        _range(relative_error(row.from_costs, row.best) for row in rows),
        _range(relative_error(row.from_rounds, row.best) for row in rows),
    )


def _range(errors: Iterable[float | None]) -> tuple[float, float] | None:
    known = [error for error in errors if error is not None]
    return (min(known), max(known)) if known else None


def figure_10_table(setting: Setting) -> Table:
    """Return the table of one setting: a row for each number of chunks."""
    table = Table("chunks", "seconds", "speed-up", "from costs", "error", "from rounds", "error", title=setting.title)
    for row in setting.rows:
        cells = [str(row.chunks), f"{row.best:.1f}"]
        cells.append("" if setting.plain is None else f"{setting.plain.best / row.best:.2f}")
        for predicted in (row.from_costs, row.from_rounds):
            error = relative_error(predicted, row.best)
            cells += ["", ""] if predicted is None or error is None else [f"{predicted:.1f}", f"{error:+.0%}"]
        table.add_row(*cells)
    if setting.auto:
        taken = ", ".join(f"{m}: {s:.1f}" for m, s in zip(setting.auto, setting.auto_seconds, strict=True))
        table.caption = f"auto, chunks and seconds round by round: {taken}"
    return table


def figure_2_table(results: ClusterResults) -> Table:
    """Return the share of aggregation in a round, training included."""
    title = f"share of aggregation in aggregation and training together; training takes {results.training:.1f} s"
    table = Table("setting", "plain", "pipelined", title=title)
    for setting in results.settings:
        shares = [aggregation_share(row, results) for row in (setting.plain, setting.fastest)]
        table.add_row(setting.title, *("" if share is None else f"{share:.0%}" for share in shares))
    return table


def aggregation_share(row: MeasuredChunks | None, results: ClusterResults) -> float | None:
    """Return the share of aggregation in aggregation and measured training; None if either was not measured."""
    return None if row is None or not results.training else row.best / (row.best + results.training)


def speed_chart(settings: Sequence[Setting]) -> BarChart:
    """Chart the seconds of aggregation, plain and pipelined, measured and predicted from costs."""
    bars = [(f"n={s.clients} m={row.chunks}", row) for s in settings for row in (s.plain, s.fastest) if row]
    series = (
        Series("measured", tuple(row.best for _, row in bars)),
        Series("predicted from costs", tuple(row.from_costs for _, row in bars)),
    )
    names = tuple(name for name, _ in bars)
    return BarChart("Aggregation, measured", "setting", "seconds", series, categories=names, stacked=False)
