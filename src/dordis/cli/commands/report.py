"""Write the report of runs, print its path, and open it on demand."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json, finished_runs
from dordis.cli.output import print_result, show_progress
from dordis.errors import InputError


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Directories of runs, which are compared, or a folder of runs, which is indexed; runs/ if not given.",
            autocompletion=finished_runs,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The directory to write into; the run's if not given, for several runs the current one."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every chart as SVG and the tables as CSV.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write the results and the privacy of runs as one HTML page."""
    import webbrowser

    from dordis.records.run_records import MANIFEST
    from dordis.report.page import write_overview, write_report

    if output is not None and output.suffix == ".html":
        raise InputError(f"--output takes a directory, into which report.html is written, not the file {output}")
    paths = runs or [Path("runs")]
    with show_progress("reading runs, and verifying their ledgers"):
        if len(paths) == 1 and paths[0].is_dir() and not (paths[0] / MANIFEST).exists():
            path = write_overview(paths[0], output)
        else:
            path = write_report(paths, output, with_figures=figures)
    print_result(as_json, {"report": str(path)}, str(path))
    if show and not webbrowser.open(path.resolve().as_uri()):
        print("cannot open the report: there is no browser", file=sys.stderr)
