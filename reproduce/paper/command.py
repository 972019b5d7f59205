"""Run the jobs of sections, and print the sections or write the pages."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dordis.durable_files import write_atomically
from reproduce.cluster.experiment import terminated_like_interrupted
from reproduce.paper import Section
from reproduce.paper.jobs import Finished, read_cached, run_jobs
from reproduce.paper.page import write_html, write_markdown
from reproduce.paper.progress import SectionProgress, assign_jobs, read_expected
from reproduce.paper.sections import find_sections
from reproduce.training_runs import check_scale

PAGE = Path("docs") / "results" / "paper.md"
NOTE = "run.json"


class RunNote(msgspec.Struct, frozen=True):
    """Time, processors and jobs of a run of the command, and whether it was interrupted."""

    minutes: float
    cores: int
    workers: int
    run: int
    """Jobs that were run."""
    cached: int
    """Jobs whose results were cached before the run."""
    failed: int
    is_interrupted: bool

    def describe(self) -> str:
        """Return this note as a sentence of the page."""
        end = "was interrupted after" if self.is_interrupted else "took"
        return (
            f"The command {end} {self.minutes:.0f} minutes on {self.cores} cores, {self.workers} jobs at a time: "
            f"{self.run} jobs were run, {self.failed} of them without a result, and {self.cached} had been run before."
        )


def run_sections(
    sections: Sequence[Section], scale: str, data_dir: Path | None, cache: Path, workers: int
) -> tuple[dict[str, Finished], RunNote | None]:
    """Return the results of the sections' jobs, and a note on the run; run the jobs without a cached result.

    `workers` jobs run at a time; with 0 nothing is run, and the note is None.  After an interrupt the results of
    finished jobs are returned, and the note says that the run was interrupted.
    """
    check_scale(scale)
    jobs = {job.label: job for section in sections for job in section.jobs(scale)}
    folder = cache / scale
    cached = read_cached(folder, jobs.values())
    if not workers:
        return cached, None
    assigned = assign_jobs(sections, scale, cached)
    progress = SectionProgress(assigned, read_expected(PAGE), lambda text: print(text, file=sys.stderr, flush=True))
    started, is_interrupted = time.monotonic(), False
    try:
        with terminated_like_interrupted():
            finished = run_jobs(jobs.values(), folder, data_dir, workers, progress)
    except KeyboardInterrupt:
        is_interrupted, finished = True, read_cached(folder, jobs.values())
    failed = sum(bool(one.error) for one in finished.values())
    minutes = (time.monotonic() - started) / 60
    run = len(finished) - len(cached)
    return finished, RunNote(minutes, os.cpu_count() or 1, workers, run, len(cached), failed, is_interrupted)


def write_pages(
    sections: Sequence[Section], scale: str, finished: dict[str, Finished], note: RunNote | None, output: Path
) -> None:
    """Write paper.md and paper.html."""
    output.mkdir(parents=True, exist_ok=True)
    how_run = note.describe() if note else ""
    for name, write in (("paper.md", write_markdown), ("paper.html", write_html)):
        write_atomically(output / name, write(sections, scale, finished, how_run).encode())
        print(output / name)


def run_all(scale: str, data_dir: Path | None, output: Path, cache: Path, workers: int) -> bool:
    """Run every section and write the pages, or with 0 workers only write them; return False after an interrupt."""
    from reproduce.paper.sections import SECTIONS

    sections, path = list(SECTIONS.values()), cache / scale / NOTE
    finished, note = run_sections(sections, scale, data_dir, cache, workers)
    if note is None:
        note = msgspec.json.decode(path.read_bytes(), type=RunNote) if path.is_file() else None
    elif note.run or not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(note))
    write_pages(sections, scale, finished, note, output)
    return not workers or note is None or not note.is_interrupted


def print_sections(kind: str, number: str, scale: str, data_dir: Path | None, cache: Path, workers: int) -> None:
    """Run and print one section, or all parts of a figure."""
    sections = find_sections(kind, number)
    finished, _ = run_sections(sections, scale, data_dir, cache, workers)
    text = write_markdown(sections, scale, finished)
    print(text[text.index("## ") :])
    for label, job in finished.items():
        if job.error:
            print(f"not run: {label}: {job.error}", file=sys.stderr)
