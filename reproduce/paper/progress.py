"""Progress of the command: a line when a section begins and when it ends, with elapsed and expected time."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from reproduce.paper import Job, Section
from reproduce.paper.jobs import Finished, Progress

ROW = re.compile(r"^\| ((?:figure|table|experiment) \w+) \|.*\| ([\d,]+) \|$", re.MULTILINE)
"""A section and its seconds in the first table of the page."""


def read_expected(page: Path) -> dict[str, float]:
    """Read the seconds of each section's jobs from an earlier version of the page; empty if there is no page."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return {name: float(seconds.replace(",", "")) for name, seconds in ROW.findall(text)}


def assign_jobs(sections: Sequence[Section], scale: str, cached: Iterable[str]) -> dict[str, list[Job]]:
    """Return each section's jobs that are to run; a job of several sections is assigned to the first of them."""
    known, found = set(cached), {}
    for section in sections:
        found[section.number] = [job for job in section.jobs(scale) if job.label not in known]
        known |= {job.label for job in found[section.number]}
    return found


class SectionProgress(Progress):
    """Report where sections begin and end, and every job that fails."""

    def __init__(
        self,
        assigned: Mapping[str, Sequence[Job]],
        expected: Mapping[str, float],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._section = {job.label: number for number, jobs in assigned.items() for job in jobs}
        self._left = {number: len(jobs) for number, jobs in assigned.items() if jobs}
        self._seconds = dict.fromkeys(self._left, 0.0)
        self._begun: set[str] = set()
        self._expected, self._report, self._clock, self._start = expected, report, clock, clock()

    def start(self, job: Job) -> None:
        """Report a section whose first job starts."""
        number = self._section[job.label]
        if number not in self._begun:
            self._begun.add(number)
            self._say(f"{number}: begins, {self._left[number]} jobs{self._expectation(number)}")

    def end(self, job: Job, finished: Finished) -> None:
        """Report a job that failed, and a section whose last job has ended."""
        number = self._section[job.label]
        if finished.error:
            self._say(f"{number}: FAILED, {job.label}: {' '.join(finished.error.split())}")
        self._left[number] -= 1
        self._seconds[number] += finished.seconds
        if not self._left[number]:
            self._say(f"{number}: ends, jobs took {self._seconds[number]:,.0f} s{self._expectation(number)}")

    def _expectation(self, number: str) -> str:
        return f" (expected: {self._expected[number]:,.0f} s)" if number in self._expected else ""

    def _say(self, text: str) -> None:
        ended = sum(not count for count in self._left.values())
        minutes = (self._clock() - self._start) / 60
        self._report(f"{minutes:5.1f} min, {ended} of {len(self._left)} sections: {text}")
