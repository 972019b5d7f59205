"""`dordis reproduce rounds` and `overhead`: one JSON object, tables, charts; costs are measured once and read again."""

import json

import msgspec
import pytest

from dordis.cli import reproduce_overhead, reproduce_rounds
from dordis.errors import InputError
from dordis.reproduce import round_times
from dordis.reproduce.costs import Costs
from dordis.reproduce.paper_mix import OVERLAP, PAPER
from dordis.reproduce.round_times import configurations


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Show one rate on the complete graph, and two sizes."""
    shown = [each for each in configurations() if not each.plus and each.rate * 10 == 1]
    monkeypatch.setattr(round_times, "configurations", lambda: iter(shown))
    monkeypatch.setattr(round_times, "SIZES", (16, 32))
    monkeypatch.setattr("dordis.reproduce.claims.RATES", round_times.RATES[1:2])


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(PAPER, name="measured", padded=False)))
    return path


def test_rounds_prints_one_json_object(capsys):
    reproduce_rounds.rounds(None, paper=True, charts=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"costs", "rounds", "claims"}
    assert len(found["rounds"]) == 2 * 4 * 3
    assert {"plain", "pipelined", "chunks", "speedup", "over_bound", "plain_busy", "other"} <= found["rounds"][0].keys()
    for mix in ("paper", "overlap"):
        assert all(claim["holds"] is not False for claim in found["claims"][mix])


def test_rounds_shows_both_costs_and_draws_charts(costs, capsys, tmp_path):
    reproduce_rounds.rounds(costs, paper=False, charts=tmp_path / "charts", as_json=False)
    shown = capsys.readouterr().out
    for text in ("claims, paper costs", "claims, measured costs", "measured on this machine", "VGG-19"):
        assert text in shown
    names = {path.stem for path in (tmp_path / "charts").iterdir()}
    assert {"gantt-paper-cnn-1m-100-secagg", "bars-measured-vgg-19-20m-16-secagg-10"} <= names
    assert "<svg" in (tmp_path / "charts" / "gantt-paper-cnn-1m-100-secagg.svg").read_text()


def test_costs_are_measured_once_and_kept(monkeypatch, tmp_path):
    measured = Costs("measured", {"encode": {"client": {"dim": 1e-9}}})
    calls = []
    monkeypatch.setattr(reproduce_rounds, "measure", lambda: calls.append(1) or measured)
    path = tmp_path / "costs.json"
    assert reproduce_rounds.mixes_of(path, paper=False) == [PAPER, OVERLAP, measured]
    assert reproduce_rounds.mixes_of(path, paper=False) == [PAPER, OVERLAP, measured]
    assert calls == [1]
    assert reproduce_rounds.mixes_of(path, paper=True) == [PAPER, OVERLAP]


def test_a_file_that_holds_no_costs_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="holds no costs"):
        reproduce_rounds.mixes_of(path, paper=False)


def test_overhead_prints_shares_and_draws_them(costs, capsys, tmp_path):
    reproduce_overhead.overhead(costs, paper=False, charts=tmp_path, as_json=False)
    shown = capsys.readouterr().out
    assert "no noise" in shown
    assert "86-91 %" in shown
    assert (tmp_path / "share-paper-secagg.svg").exists()
    reproduce_overhead.overhead(None, paper=True, charts=None, as_json=True)
    assert len(json.loads(capsys.readouterr().out)["rounds"]) == 2 * 2 * 4
