"""The report of runs: write the page, say where it is, and show it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli import tables
from dordis.cli.options import Json, finished_runs
from dordis.errors import InputError


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Directories of runs: several are compared. Of a folder of runs, or of runs/, an index is made.",
            autocompletion=finished_runs,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The directory to write into: the run, or this one for several, if not given.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every chart as SVG and the tables as CSV.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write what runs did and prove as one HTML page."""
    import webbrowser

    from dordis.federation.records import MANIFEST
    from dordis.report.files import write, write_overview

    if output is not None and output.suffix == ".html":
        raise InputError(f"--output is the directory that report.html is written into, not a file: {output}")
    paths = runs or [Path("runs")]
    with tables.working("reading runs, and checking their ledgers"):
        if len(paths) == 1 and paths[0].is_dir() and not (paths[0] / MANIFEST).exists():
            path = write_overview(paths[0], output)
        else:
            path = write(paths, output, with_figures=figures)
    tables.show(as_json, {"report": str(path)}, str(path))
    if show and not webbrowser.open(path.resolve().as_uri()):
        print("there is no browser to open it in", file=sys.stderr)
