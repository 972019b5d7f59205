"""docs/paper_map.md maps the paper's names to ours: every name of ours exists."""

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "paper_map.md"
NAME = re.compile(r"`([^`]*)`")


def rows() -> Iterator[list[str]]:
    """Yield the cells of every row, without headings."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| Paper |")):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names() -> list[str]:
    """Return what the second column names."""
    return [name for _, ours, _ in rows() for name in NAME.findall(ours)]


def test_every_row_has_the_papers_name_and_ours():
    assert len(list(rows())) > 40
    for paper, ours, _ in rows():
        assert paper
        assert NAME.findall(ours)
        assert not NAME.sub("", ours).strip(", ")


def test_nothing_of_the_paper_is_listed_twice():
    listed = [paper for paper, _, _ in rows()]
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("name", names())
def test_every_name_of_ours_exists(name):
    assert name.startswith(("dordis.", "reproduce."))
    pkgutil.resolve_name(name)


def test_a_name_that_does_not_exist_would_be_found():
    with pytest.raises(AttributeError):
        pkgutil.resolve_name("dordis.protocol.ProtocolServer.set_graph_dict")
