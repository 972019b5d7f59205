"""docs/results: pages link only to what is there, few charts are committed, and their numbers are those of the code."""

import re
from pathlib import Path

import msgspec
import pytest

from reproduce.costs import Costs
from reproduce.costs_paper import OVERLAP, PAPER
from reproduce.round_times import RESNET, Configuration, run_figure

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LINK = re.compile(r"\]\(([^)#:]+)\)")
KEY = ("costs", "model", "clients", "graph", "scheme", "dropout")


def test_pages_link_to_what_is_there_and_show_every_chart():
    linked = {
        (page.parent / link).resolve() for page in RESULTS.rglob("*.md") for link in LINK.findall(page.read_text())
    }
    assert [path for path in linked if not path.exists()] == []
    charts = set(RESULTS.resolve().rglob("*.svg"))
    assert charts <= linked
    assert len(charts) <= 11


@pytest.mark.parametrize("name", ["paper", "overlap", "measured"])
def test_round_times_are_those_of_the_code(name):
    results = msgspec.json.decode((RESULTS / "rounds" / "rounds.json").read_bytes())
    measured = msgspec.json.decode((RESULTS / "rounds" / "costs.json").read_bytes(), type=Costs)
    mix = {"paper": PAPER, "overlap": OVERLAP, "measured": measured}[name]
    assert results["costs"][name] == msgspec.to_builtins(mix, str_keys=True)
    computed = msgspec.to_builtins(run_figure(mix, [Configuration(RESNET)])[0])
    (recorded,) = (row for row in results["rounds"] if all(row[key] == computed[key] for key in KEY))
    for key, value in computed.items():
        assert recorded[key] == (pytest.approx(value) if isinstance(value, float | dict) else value)


def test_folded_rounds_take_less_and_keep_to_their_own_bound():
    rows = msgspec.json.decode((RESULTS / "rounds" / "rounds.json").read_bytes())["rounds"]
    for row in rows:
        assert row["projected_bound"] <= row["projected"] < row["pipelined"] / 2
        assert row["projected_bound"] < row["bound"] / 2
