"""The report of runs: write the page, say where it is, and show it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dordis.errors import InputError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs; several are compared.")],
    output: Annotated[
        Path | None, typer.Option(help="The directory to write into: the run, or this one for several, if not given.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every chart as SVG and the tables as CSV.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write what runs did and prove as one HTML page."""
    import webbrowser

    from dordis.report.files import write

    if output is not None and output.suffix == ".html":
        raise InputError(f"--output is the directory that report.html is written into, not a file: {output}")
    path = write(runs, output, with_figures=figures)
    print(path)
    if show and not webbrowser.open(path.resolve().as_uri()):
        print("there is no browser to open it in", file=sys.stderr)
