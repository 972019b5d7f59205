"""The table of sections: every figure and table of the paper that software can regenerate."""

import pytest

from dordis.errors import InputError
from reproduce.paper.sections import SECTIONS, find_sections

FIGURES = ("1a", "1b", "1c", "1d", "2", "3", "4", "6", "8", "9", "10")


def test_every_figure_and_table_has_a_section() -> None:
    assert [key for key in SECTIONS if key.startswith("figure")] == [f"figure {number}" for number in FIGURES]
    assert [key for key in SECTIONS if key.startswith("table")] == ["table 1", "table 2", "table 3"]


def test_every_section_says_first_what_was_run() -> None:
    for section in SECTIONS.values():
        assert section.what.startswith(("Real ", "A model computes", "A CNN ", "The code of dordis computes"))
        assert section.command == f"python -m reproduce {section.number} --data-dir DIR"


def test_a_figure_with_parts_is_found_as_a_whole() -> None:
    assert [section.number[-2:] for section in find_sections("figure", "1")] == ["1a", "1b", "1c", "1d"]
    assert [section.number for section in find_sections("figure", "10")] == ["figure 10"]
    with pytest.raises(InputError, match="there is no table 4: there are 1, 2, 3"):
        find_sections("table", "4")


def test_jobs_of_all_sections_agree_on_what_a_label_means() -> None:
    found: dict[str, object] = {}
    for section in SECTIONS.values():
        for job in section.jobs("small"):
            assert found.setdefault(job.label, job) == job
    assert {job.label for job in SECTIONS["figure 9"].jobs("small")} <= {
        job.label for job in SECTIONS["table 2"].jobs("small")
    }
