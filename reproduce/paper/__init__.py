"""The paper, figure by figure: one section for each figure and table, from cached jobs to one page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dordis.report.charts import Chart

HOLDS = "holds"
DIFFERS = "differs, because "
CANNOT = "cannot be run here: "
SMALL, FULL = "small", "paper"
"""Scales: small runs on data at hand, in minutes, or the paper's models and rounds."""


@dataclass(frozen=True)
class Job:
    """A computation of a section: `kind` names its function, `arguments` are plain data and make its cache key."""

    kind: str
    arguments: Mapping[str, Any]
    label: str
    alone: bool = False
    """The job measures seconds: no other job runs meanwhile.  Its section is shown even if this job cannot run."""


CANNOT_RUN = "cannot"
"""Key of the reason, in place of the result of an `alone` job that could not run on this machine."""
Results = Mapping[str, Any]
"""Results of jobs by label; a job that was not run is missing."""


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper, the paper's number, our number, and whether the statement holds here."""

    statement: str
    paper: str
    ours: str
    verdict: str

    @classmethod
    def decide(cls, statement: str, paper: str, ours: str, holds: bool, reason: str) -> "Verdict":
        """Return a verdict, which is NO with the reason if `holds` is false."""
        return cls(statement, paper, ours, HOLDS if holds else f"NO: {DIFFERS}{reason}")

    @property
    def holds(self) -> bool:
        """Tell whether the statement holds."""
        return self.verdict == HOLDS


@dataclass(frozen=True)
class Grid:
    """A table of strings."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Content:
    """What a section shows: verdicts on the paper's statements, tables, charts and remarks."""

    verdicts: Sequence[Verdict] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A figure or table of the paper: the jobs that it needs at a scale, and its content once they were run."""

    number: str
    title: str
    what: str
    """The first paragraph: whether training, messages and times are real, or computed by a model."""
    jobs: Callable[[str], Sequence[Job]]
    show: Callable[[Results], Content]

    @property
    def command(self) -> str:
        """Return the command that runs this section alone."""
        return f"python -m reproduce {self.number} --data-dir DIR"


def no_jobs(scale: str) -> Sequence[Job]:
    """Return no jobs, for a section that is computed when it is shown."""
    return ()
