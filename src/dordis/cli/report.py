"""The report of runs: write the page, say where it is, and show it."""

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from dordis.report.files import write


def report(runs: Sequence[Path], output: Path | None, *, figures: bool, png: bool, show: bool) -> None:
    """Write the report and print its path; with `show`, open it in a browser."""
    path = write(runs, output, with_figures=figures, with_png=png)
    print(path)
    if show:
        webbrowser.open(path.resolve().as_uri())
