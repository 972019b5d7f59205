"""`python -m reproduce`: tables or JSON on standard output, charts as files, refusals in one line."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest

from dordis.cli import run_app
from reproduce import round_times
from reproduce.commands import app, network, overhead, rounds
from reproduce.costs_paper import PAPER
from reproduce.round_times import configurations
from tests.cli.in_process import run_command


def run(*arguments: object) -> CompletedProcess[str]:
    return run_command(lambda: run_app(app, "reproduce"), "reproduce", *arguments)


def test_the_table_has_the_papers_figures_beside_ours() -> None:
    shown = run("epsilon")
    assert shown.returncode == 0, shown.stderr
    for value in ("8.33", "8.18", "8.70", "8.3)", "8.2)", "8.7)"):
        assert value in shown.stdout
    assert "dropout that depends on a client's data is outside the guarantee" in shown.stdout


def test_json_has_every_budget_task_and_rate() -> None:
    rows = json.loads(run("epsilon", "--budget", "3", "6", "9", "--json").stdout)
    assert len(rows) == 3 * 3 * 5
    for row in rows:
        assert row["xnoise"] == pytest.approx(row["budget"], abs=1e-6)
        assert row["orig"] >= row["budget"] - 1e-6
    printed = {row["task"]: (row["paper_orig"], round(row["orig"], 1)) for row in rows if row["paper_orig"]}
    assert printed == {"FEMNIST": (8.3, 8.3), "CIFAR-10": (8.2, 8.2), "Reddit": (8.7, 8.7)}


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "six"])
def test_a_budget_that_cannot_be_is_refused_in_one_line(budget: str) -> None:
    shown = run("epsilon", "--budget", budget)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)


def test_network_prints_tables_or_json_and_draws_the_chart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    network([8], figure=tmp_path / "network.svg", as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 3 * 4
    assert "<svg" in (tmp_path / "network.svg").read_text()
    network([8])
    assert "1192.1" in capsys.readouterr().out


@pytest.mark.slow
def test_rounds_and_overhead_print_tables_or_json_and_draw_charts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = [shown for shown in configurations() if not shown.plus and shown.rate * 10 == 1]
    monkeypatch.setattr(round_times, "configurations", lambda: few)
    monkeypatch.setattr(round_times, "SIZES", (16, 32))
    monkeypatch.setattr("reproduce.claims.RATES", round_times.RATES[1:2])
    costs, charts = tmp_path / "costs.json", tmp_path / "all" / "charts"
    costs.write_bytes(msgspec.json.encode(msgspec.structs.replace(PAPER, name="measured")))
    rounds(costs, charts=charts)
    overhead(costs, charts=charts)
    shown = capsys.readouterr().out
    for text in ("claims, paper costs", "claims, measured costs", "measured on this machine", "no noise", "86-91 %"):
        assert text in shown
    assert len(list(charts.iterdir())) == 3 * (4 + 4 * 2) + 2 * 2
    assert "<svg" in (charts / "gantt-paper-cnn-1m-100-secagg.svg").read_text()
    rounds(paper=True, as_json=True)
    assert set(json.loads(capsys.readouterr().out)) == {"costs", "rounds", "claims"}
    overhead(paper=True, as_json=True)
    assert len(json.loads(capsys.readouterr().out)["rounds"]) == 2 * 2 * 4
