"""The HTML page of one run, of several runs, or of a folder of runs, and the files of a report.

A page loads no other file.  `write_report` can also write charts and tables as separate files.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dordis.durable_files import write_atomically
from dordis.errors import DordisError, InputError, explain_os_errors
from dordis.ledger.combine_runs import DATA_LEDGER, combined_epsilon, find_data_ledger
from dordis.ledger.ledger import verify_ledger
from dordis.ledger.verification import VerifiedRun
from dordis.records import run_records
from dordis.records.manifest import Manifest
from dordis.records.run_records import MANIFEST, StoredRun
from dordis.report import tables
from dordis.report.charts import STYLE, Chart, draw_document, draw_inline, replace_control_characters
from dordis.report.facts import (
    Alert,
    Level,
    RunFacts,
    check_ledger,
    find_alerts,
    find_common_alerts,
    label_runs,
    read_facts,
)
from dordis.report.figures import draw_figures, metric_order
from dordis.report.numbers import format_count, format_duration, format_number, format_percent
from dordis.report.statement import write_statement
from dordis.report.tables import (
    comparison_table,
    complaints_table,
    evictions_table,
    failures_table,
    rounds_table,
    settings_table,
)

GENERATOR = b'<meta name="generator" content="dordis report">'
"""The HTML element by which a file is recognised as a report of dordis."""
_METRIC_TILES = 3
_OVERVIEW_HEAD = ("run", "begun, UTC", "result", "epsilon", "rounds", "dropout", "took", "run as")


class Badge(NamedTuple):
    """A label about a run, such as its fidelity; `kind` is a class of the style sheet."""

    text: str
    kind: str = "plain"


class Tile(NamedTuple):
    """A number in large type at the top of a report, with its name; `bad` marks a problem."""

    value: str
    name: str
    bad: bool = False


def render_report(all_facts: Sequence[RunFacts]) -> str:
    """Return the HTML report of one run, or the comparison of several runs."""
    versions = [facts.run.manifest.version for facts in all_facts]
    if len(all_facts) == 1:
        (facts,) = all_facts
        title, run = f"{facts.label}: report of a run", _run_values(facts, find_alerts(facts))
        return _render("report.html", versions, title=title, comparison=None, runs=[run])
    comparison = {
        "alerts": find_common_alerts(all_facts),
        "table": comparison_table(all_facts),
        "charts": draw_figures(all_facts),
    }
    notes = [[alert for alert in find_alerts(facts) if alert.level is Level.NOTE] for facts in all_facts]
    runs = [_run_values(facts, alerts) for facts, alerts in zip(all_facts, notes, strict=True)]
    title = f"Comparison of {format_count(len(all_facts), 'run')}"
    return _render("report.html", versions, title=title, comparison=comparison, runs=runs)


def render_live(manifest: Manifest) -> str:
    """Return the HTML of a run's live page, which a script fills with the state of the run."""
    return _render("live.html", [manifest.version], title=f"{manifest.name}: live", manifest=manifest)


def render_charts(charts: Mapping[str, Chart]) -> str:
    """Return the HTML of all charts that have data; the script of the live page puts it into the page."""
    return _render("charts.html", [], charts={name: chart for name, chart in charts.items() if not chart.is_empty})


def render_audit(facts: RunFacts, verified: VerifiedRun, files: Sequence[str]) -> str:
    """Return the HTML page in an audit archive: what to check, how, and what the checks prove."""
    title = f"{facts.label}: audit of a run"
    return _render("audit.html", [facts.run.manifest.version], title=title, facts=facts, verified=verified, files=files)


def render_overview(folder: Path, paths: Sequence[Path], report: str, home: Path) -> str:
    """Return an HTML list of the runs at `paths` in a folder; the links to their reports are relative to `home`.

    `report` is the file name of the report in each run.  Unreadable runs are listed with their error.
    """
    runs: list[StoredRun] = []
    unreadable: dict[Path, str] = {}
    for path in paths:
        try:
            runs.append(run_records.load_run(path))
        except InputError as error:
            unreadable[path] = str(error)
    rows = [_overview_row(RunFacts(run, label, check_ledger(run)), report, home) for run, label in _label_groups(runs)]
    title = f"{format_count(len(paths), 'run')} in {folder.resolve().name}"
    versions = [run.manifest.version for run in runs]
    totals = data_totals(runs)
    return _render(
        "overview.html", versions, title=title, head=_OVERVIEW_HEAD, rows=rows, unreadable=unreadable, totals=totals
    )


def data_totals(runs: Sequence[StoredRun]) -> list[tuple[str, str, str]]:
    """Return for each data set its name, the number of its runs, and their total epsilon, as text.

    If runs are charged to a ledger of the data set, the epsilon is that of the ledger.  Otherwise the epsilons of all
    runs on the same data file are composed, if at least two of these runs prove an epsilon.  Runs on data in memory
    without a ledger are left out, because it is unknown whether their data are the same.
    """
    ledgers: dict[Path, list[StoredRun]] = {}
    files: dict[str, list[StoredRun]] = {}
    for run in runs:
        app = run.manifest.config.get("app", {})
        data = app.get("options", {}).get("data")
        try:
            ledger = find_data_ledger(run.path)
        except InputError:
            ledger = Path((run.path / DATA_LEDGER).read_text(encoding="utf-8").strip())
        if ledger is not None:
            ledgers.setdefault(ledger, []).append(run)
        elif data and app.get("server") != "dordis.train" and run.manifest.trust.proves:
            files.setdefault(str(Path(app.get("folder", ""), data)), []).append(run)
    totals = [(f"ledger {path}", format_count(len(some), "run"), _ledger_total(path)) for path, some in ledgers.items()]
    combined = [
        (name, format_count(len(some), "run"), _combined(some)) for name, some in files.items() if len(some) > 1
    ]
    return totals + combined


def _ledger_total(path: Path) -> str:
    try:
        summary = verify_ledger(path)
    except (OSError, DordisError) as error:
        return f"cannot be stated: {error}"
    budget = "" if summary.budget is None else f" of {format_number(summary.budget)}"
    return f"epsilon {format_number(summary.epsilon)}{budget} at delta {format_number(summary.delta)}"


def _combined(runs: Sequence[StoredRun]) -> str:
    try:
        total = combined_epsilon([run.path for run in runs])
    except DordisError as error:
        return f"cannot be stated: {error}"
    return f"epsilon {format_number(total.epsilon)} at delta {format_number(total.delta)}"


def _render(template: str, versions: Iterable[str], **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("dordis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_replace_control_characters,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["draw"] = lambda chart: Markup(draw_inline(chart))  # noqa: S704 (it escapes its texts)
    style = Markup(STYLE)  # noqa: S704 (a constant)
    return environment.get_template(template).render(versions=versions, chart_style=style, **values)


def _run_values(facts: RunFacts, alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the values that the template of a report needs for one run, by name."""
    return {
        "facts": facts,
        "about": f"begun {_format_start(facts.run)} UTC; {facts.ending}",
        "alerts": alerts,
        "badges": _badges(facts),
        "tiles": _tiles(facts),
        "statement": write_statement(facts),
        "charts": draw_figures([facts]),
        "settings": settings_table(facts),
        "rounds": rounds_table(facts),
        "failures": failures_table(facts),
        "evictions": evictions_table(facts),
        "complaints": complaints_table(facts),
    }


def _badges(facts: RunFacts) -> list[Badge]:
    manifest = facts.run.manifest
    sent = "the protocol was not run" if manifest.fidelity == "ideal" else "every message was sent"
    how = f"simulated {manifest.where}, {sent}" if facts.trust.simulated else sent
    protocol = f"protocol: {manifest.protocol}, {manifest.mode}"
    return [
        Badge(f"fidelity: {manifest.fidelity} ({how})", "warning" if facts.trust.simulated else ""),
        Badge(f"noise: {manifest.noise}"),
        Badge(f"{protocol}, protects nobody", "warning") if facts.exposure else Badge(protocol),
        Badge(f"mechanism: {manifest.mechanism}"),
    ]


def _tiles(facts: RunFacts) -> list[Tile]:
    run = facts.run
    tiles = [Tile(format_number(value), f"{name}, last") for name, value in _first_metrics(facts, _METRIC_TILES)]
    if facts.trust.proves:
        is_bad = facts.is_overspent or bool(facts.ledger.problem)
        tiles.append(Tile(format_number(facts.reportable_epsilon), _epsilon_label(facts), is_bad))
        tiles.append(Tile(format_number(run.manifest.plan.delta), "delta"))
    else:
        tiles.append(Tile("none", "epsilon: nothing is proved", bad=True))
    here = f"{len(run.rounds)} of them in this run, " if run.manifest.before else ""
    took = f"rounds of {run.manifest.rounds}, {here}in {format_duration(facts.seconds)}"
    dropout = "dropout"
    if run.rounds:
        mean, cohort = fmean(facts.dropouts), fmean(len(record.clients) for record in run.rounds)
        dropout = f"dropout, {format_number(mean, 3)} of {format_number(cohort, 3)} clients on average"
    return [*tiles, Tile(f"{facts.run.finished}", took), Tile(format_percent(facts.dropout_rate), dropout)]


def _replace_control_characters(value: Any) -> Any:
    """Return plain text with a space for every character that cannot be displayed; other values unchanged."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return replace_control_characters(value) if is_text else value


def _epsilon_label(facts: RunFacts) -> str:
    """Return the label of the tile with the stated epsilon; if the epsilon spent is different, the label has it too."""
    budget = "" if facts.budget is None else f" of {format_number(facts.budget)}"
    if facts.stated_epsilon is None or facts.stated_epsilon.is_spent:
        return f"epsilon spent{budget}"
    return f"epsilon stated; spent so far {format_number(facts.spent)}{budget}"


def _first_metrics(facts: RunFacts, most: int) -> list[tuple[str, float]]:
    return sorted(facts.last_metrics.items(), key=lambda item: metric_order(item[0]))[:most]


def _format_start(run: StoredRun) -> str:
    return run.manifest.created[:19].replace("T", " ")


def _label_groups(runs: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Return each run with a label that is unique among all runs with the same name."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(run.manifest.name, []).append(run)
    named = {run.path: label for group in groups.values() for run, label in zip(group, label_runs(group), strict=True)}
    return [(run, named[run.path]) for run in runs]


def _overview_row(facts: RunFacts, report: str, home: Path) -> dict[str, Any]:
    """Return a row of the list of runs: name, link from the directory `home` to the report (empty if none), results."""
    run, manifest = facts.run, facts.run.manifest
    name = manifest.name if facts.label.startswith(manifest.name) else f"{manifest.name}: {facts.label}"
    page = run.path / report
    spent = f"{format_number(facts.spent)} of {format_number(facts.budget)} spent"
    spent += ", OVERSPENT" if facts.is_overspent else ""
    epsilon = f"{format_number(facts.reportable_epsilon)}; {spent}" if facts.trust.proves else "nothing is proved"
    cells = (
        _format_start(run),
        ", ".join(f"{metric} {format_number(value)}" for metric, value in _first_metrics(facts, 1)),
        "ledger does not verify" if facts.ledger.problem else epsilon,
        f"{facts.run.finished} of {manifest.rounds}" + ("" if run.result else ", no result"),
        format_percent(facts.dropout_rate),
        format_duration(facts.seconds),
        f"simulation, {manifest.fidelity}" if facts.trust.simulated else manifest.fidelity,
    )
    link = quote(os.path.relpath(page, home)) if page.is_file() else ""
    return {"name": name, "link": link, "cells": cells}


REPORT, INDEX, FIGURES = "report.html", "index.html", "figures"
_HEAD = 1000  # the first bytes of a report, which contain GENERATOR


def write_report(runs: Sequence[Path], output: Path | None = None, *, with_figures: bool = False) -> Path:
    """Write `report.html` about runs and return its path.

    The report is written to the directory `output`.  By default that is the run's directory or, for several runs, the
    current directory.  With `with_figures`, every chart is written as SVG, and rounds and metrics as CSV, into the
    folder `figures` beside the report.  An existing `report.html` is replaced only if it is a report of dordis.
    """
    if not runs:
        raise InputError("name at least one run")
    all_facts = read_facts(runs)
    target = (output or (runs[0] if len(runs) == 1 else Path())) / REPORT
    check_replaceable(target)
    files = {target: render_report(all_facts).encode()}
    if with_figures:
        beside = target.parent / FIGURES
        files[beside / "rounds.csv"] = tables.rounds_csv(all_facts).encode()
        files[beside / "metrics.csv"] = tables.metrics_csv(all_facts).encode()
        for name, chart in draw_figures(all_facts).items():
            if not chart.is_empty:
                files[beside / f"{name}.svg"] = draw_document(chart).encode()
    for path, data in files.items():
        _write(path, data)
    return target


def write_overview(folder: Path, output: Path | None = None) -> Path:
    """Write `index.html`, a list of all runs in `folder`, into `output`, by default into `folder`; return its path."""
    found = [path.parent for path in folder.rglob(MANIFEST)]
    paths = sorted(found, key=lambda path: (path.name, str(path)), reverse=True)  # the newest first
    if not paths:
        raise InputError(f"there is no run at {folder}, and none in it: dordis run makes one")
    target = (output or folder) / INDEX
    check_replaceable(target)
    _write(target, render_overview(folder, paths, REPORT, target.parent).encode())
    return target


def check_replaceable(path: Path) -> None:
    """Raise InputError if there is a file at `path` that is not a report of dordis."""
    try:
        with path.open("rb") as file:
            is_report = GENERATOR in file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error.strerror}") from None
    if not is_report:
        raise InputError(f"{path} is not a report of dordis and is left alone: choose another directory with --output")


def _write(path: Path, data: bytes) -> None:
    with explain_os_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
