"""Write the report of runs as one HTML page, and on demand its charts and tables as separate files."""

from collections.abc import Sequence
from pathlib import Path

from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.report import tables
from dordis.report.charts import draw_document
from dordis.report.facts import read_facts
from dordis.report.figures import draw_figures
from dordis.report.page import GENERATOR, find_runs, render_overview, render_report

REPORT, INDEX, FIGURES = "report.html", "index.html", "figures"
_HEAD = 1000  # the first bytes of a report, which contain GENERATOR


def write_report(runs: Sequence[Path], output: Path | None = None, *, with_figures: bool = False) -> Path:
    """Write `report.html` about runs and return its path.

    It is written to the directory `output`; by default to the run's, or for several runs to the current one.
    `with_figures` also writes every chart as SVG, and rounds and metrics as CSV, into the folder `figures` beside it.
    An existing `report.html` is replaced only if it is a report of dordis.
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
    """Write `index.html`, a list of all runs in a folder, to `output` or else to the folder, and return its path."""
    paths = find_runs(folder)
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
