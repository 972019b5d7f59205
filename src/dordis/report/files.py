"""Write a report: one page, and on demand its figures and tables as files beside it."""

from collections.abc import Sequence
from pathlib import Path

from dordis.errors import InputError
from dordis.federation.durable import replace
from dordis.report import svg, tables
from dordis.report.facts import gather
from dordis.report.figures import figures
from dordis.report.overview import overview, runs_in
from dordis.report.page import GENERATOR, page

REPORT, INDEX, FIGURES = "report.html", "index.html", "figures"
_HEAD = 1000  # bytes of a page among which a report names itself


def write(runs: Sequence[Path], output: Path | None = None, *, with_figures: bool = False) -> Path:
    """Write `report.html` and return its path: into `output`, or else into the run, or here if there are several.

    `with_figures` writes the directory `figures` as well: every chart as SVG and two tables as CSV.  An earlier report
    is replaced; another file is not.
    """
    if not runs:
        raise InputError("name at least one run")
    all_facts = gather(runs)
    target = (output or (runs[0] if len(runs) == 1 else Path())) / REPORT
    check_own(target)
    files = {target: page(all_facts).encode()}
    if with_figures:
        beside = target.parent / FIGURES
        files[beside / "rounds.csv"] = tables.rounds_csv(all_facts).encode()
        files[beside / "metrics.csv"] = tables.metrics_csv(all_facts).encode()
        for name, chart in figures(all_facts).items():
            if not chart.is_empty:
                files[beside / f"{name}.svg"] = svg.document(chart).encode()
    for path, data in files.items():
        _write(path, data)
    return target


def write_overview(folder: Path, output: Path | None = None) -> Path:
    """Write `index.html` about all runs in a folder, and return its path."""
    paths = runs_in(folder)
    if not paths:
        raise InputError(f"there is no run at {folder}, and none in it: dordis run makes one")
    target = (output or folder) / INDEX
    check_own(target)
    _write(target, overview(folder, paths, REPORT, target.parent).encode())
    return target


def check_own(path: Path) -> None:
    """What is replaced is a report, not somebody's page."""
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
        replace(path, data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
