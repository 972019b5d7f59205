"""Progress: one line where a section begins, one where it ends, with elapsed and expected time."""

from pathlib import Path

from reproduce.paper import Content, Job, Section
from reproduce.paper.jobs import Finished
from reproduce.paper.progress import SectionProgress, assign_jobs, read_expected

FIRST, SHARED, LAST = (Job("kind", {}, name) for name in ("first", "shared", "last"))
SECTIONS = [
    Section("figure 1a", "", "", lambda scale: [FIRST, SHARED], lambda results: Content()),
    Section("table 2", "", "", lambda scale: [SHARED, LAST], lambda results: Content()),
]


def test_expected_seconds_are_those_of_the_page_written_before(tmp_path: Path) -> None:
    page = tmp_path / "paper.md"
    assert read_expected(page) == {}
    page.write_text("| section | seconds |\n| figure 1a | 1 | 0 | 0 | 1,137 |\n| table 2 | not run |  |  |  |\n")
    assert read_expected(page) == {"figure 1a": 1137.0}


def test_a_job_belongs_to_the_first_section_that_needs_it_and_a_cached_one_to_none() -> None:
    assert assign_jobs(SECTIONS, "small", []) == {"figure 1a": [FIRST, SHARED], "table 2": [LAST]}
    assert assign_jobs(SECTIONS, "small", ["shared", "last"]) == {"figure 1a": [FIRST], "table 2": []}


def test_sections_are_reported_where_they_begin_and_end() -> None:
    said: list[str] = []
    now = [0.0]
    assigned = assign_jobs(SECTIONS, "small", [])
    progress = SectionProgress(assigned, {"figure 1a": 90.0}, said.append, lambda: now[0])
    for job in (FIRST, SHARED):
        progress.start(job)
    now[0] = 60.0
    progress.end(FIRST, Finished([], "", 50.0))
    progress.end(SHARED, Finished(None, "no\ndata", 30.0))
    assert said == [
        "  0.0 min, 0 of 2 sections: figure 1a: begins, 2 jobs (expected: 90 s)",
        "  1.0 min, 0 of 2 sections: figure 1a: FAILED, shared: no data",
        "  1.0 min, 1 of 2 sections: figure 1a: ends, jobs took 80 s (expected: 90 s)",
    ]
