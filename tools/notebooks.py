"""Execute the notebooks from clean kernels: `python -m tools.notebooks [FOLDER]`, or `make notebooks`.

The sources are the scripts in `notebooks`, in jupytext's percent format.  Executed notebooks go to build/notebooks.
"""

import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
SECONDS = 600
"""Longest time of one cell."""


def execute(source: Path, folder: Path) -> Path:
    """Execute a notebook, and return the path of the result; an exception in a cell is raised."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(ROOT)}}).execute()
    target = folder / f"{source.stem}.ipynb"
    nbformat.write(notebook, target)
    return target


if __name__ == "__main__":
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "notebooks"
    results.mkdir(parents=True, exist_ok=True)
    for script in sorted((ROOT / "notebooks").glob("*.py")):
        started = time.monotonic()
        written = execute(script, results)
        print(f"{written}: {time.monotonic() - started:.0f} s, {written.stat().st_size // 1000} kB", flush=True)
