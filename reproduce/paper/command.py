"""Run sections of the page, print them, or write the page."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dordis.durable_files import write_atomically
from reproduce.paper import Section
from reproduce.paper.jobs import Finished, read_cached, run_jobs
from reproduce.paper.page import write_html, write_markdown
from reproduce.paper.table import find_sections
from reproduce.training_runs import check_scale


def run_sections(
    sections: Sequence[Section], scale: str, data_dir: Path | None, cache: Path, workers: int
) -> dict[str, Finished]:
    """Run the jobs of sections that have no cached result, `workers` at a time; 0: run nothing."""
    check_scale(scale)
    jobs = [job for section in sections for job in section.jobs(scale)]
    folder = cache / scale
    if not workers:
        return read_cached(folder, jobs)
    return run_jobs(jobs, folder, data_dir, workers, lambda text: print(text, file=sys.stderr, flush=True))


def write_pages(sections: Sequence[Section], scale: str, finished: dict[str, Finished], output: Path) -> None:
    """Write paper.md and paper.html."""
    output.mkdir(parents=True, exist_ok=True)
    for name, write in (("paper.md", write_markdown), ("paper.html", write_html)):
        write_atomically(output / name, write(sections, scale, finished).encode())
        print(output / name)


def print_sections(kind: str, number: str, scale: str, data_dir: Path | None, cache: Path, workers: int) -> None:
    """Run and print one section, or all parts of a figure."""
    sections = find_sections(kind, number)
    finished = run_sections(sections, scale, data_dir, cache, workers)
    text = write_markdown(sections, scale, finished)
    print(text[text.index("## ") :])
    for label, job in finished.items():
        if job.error:
            print(f"not run: {label}: {job.error}", file=sys.stderr)
