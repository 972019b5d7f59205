"""The report of runs: write the page, say where it is, and show it."""

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from dordis.errors import InputError
from dordis.report.files import write


def report(runs: Sequence[Path], output: Path | None, *, figures: bool, show: bool) -> None:
    """Write the report and print its path; with `show`, open it in a browser."""
    if output is not None and output.suffix == ".html":
        raise InputError(f"--output is the directory that report.html is written into, not a file: {output}")
    path = write(runs, output, with_figures=figures)
    print(path)
    if show and not webbrowser.open(path.resolve().as_uri()):
        print("there is no browser to open it in", file=sys.stderr)
