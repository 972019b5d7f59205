"""Round times and shares of aggregation: data, tables and charts; costs are measured once and read again."""

import msgspec
import pytest

from dordis.errors import InputError
from reproduce import round_times, rounds
from reproduce.costs import Costs
from reproduce.costs_paper import OVERLAP, PAPER
from reproduce.round_times import configurations

MEASURED = msgspec.structs.replace(PAPER, name="measured", padded=False)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Show one rate on the complete graph, and two sizes."""
    shown = [shown for shown in configurations() if not shown.plus and shown.rate * 10 == 1]
    monkeypatch.setattr(round_times, "configurations", lambda: shown)
    monkeypatch.setattr(round_times, "SIZES", (16, 32))
    monkeypatch.setattr("reproduce.claims.RATES", round_times.RATES[1:2])


def titles(experiment):
    return [str(table.title) for table in experiment.tables]


@pytest.mark.slow
def test_every_mix_has_its_rounds_its_tables_and_its_claims():
    experiment = rounds.compare_rounds([PAPER, OVERLAP, MEASURED])
    data = msgspec.to_builtins(experiment.data, str_keys=True)
    assert set(data) == {"costs", "rounds", "claims"}
    assert len(data["rounds"]) == 3 * 4 * 3
    assert {"plain", "pipelined", "chunks", "speedup", "over_bound", "plain_busy", "other"} <= data["rounds"][0].keys()
    for mix in ("paper", "overlap", "measured"):
        assert all(claim["holds"] or claim["reason"] for claim in data["claims"][mix])
    assert [title for title in titles(experiment) if title.startswith("claims")] == [
        f"claims, {mix} costs" for mix in ("paper", "overlap", "measured")
    ]
    assert sum("measured on this machine" in title for title in titles(experiment)) == 1


def test_every_configuration_has_its_chart():
    charts = dict(rounds.compare_rounds([PAPER]).charts)
    assert len(charts) == 4 + 4 * 2
    gantt, bars = charts["gantt-paper-cnn-1m-100-secagg"], charts["bars-paper-vgg-19-20m-16-secagg-10"]
    assert gantt.rows == ("plain", "chunk 1", "chunk 2")
    assert bars.categories == ("orig", "orig+p", "single", "single+p", "exact", "exact+p")


def test_costs_are_measured_once_and_kept(monkeypatch, tmp_path):
    measured = Costs("measured", {"encode": {"client": {"vector": 1e-9}}})
    calls = []
    monkeypatch.setattr(rounds, "measure", lambda: calls.append(1) or measured)
    path = tmp_path / "costs.json"
    assert rounds.cost_mixes(path, paper=False) == [PAPER, OVERLAP, measured]
    assert rounds.cost_mixes(path, paper=False) == [PAPER, OVERLAP, measured]
    assert calls == [1]
    assert rounds.cost_mixes(path, paper=True) == [PAPER, OVERLAP]


def test_a_file_that_holds_no_costs_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="holds no costs"):
        rounds.cost_mixes(path, paper=False)


def test_overhead_shows_shares_and_charts_them():
    experiment = rounds.compare_overhead([PAPER, OVERLAP, MEASURED])
    assert len(experiment.data["rounds"]) == 2 * 2 * 2 * 4
    assert [column.header for column in experiment.tables[0].columns] == [
        "graph",
        "n",
        "no noise",
        "orig",
        "single",
        "exact",
    ]
    assert titles(experiment)[-1] == "claims, paper costs"
    assert list(dict(experiment.charts)) == [
        f"share-{mix}-{graph}" for mix in ("paper", "measured") for graph in ("secagg", "secaggplus")
    ]
