"""`dordis reproduce epsilon`: the paper's figures beside ours."""

import json
from functools import partial

import pytest

from tests.cli.commands import dordis

run = partial(dordis, "reproduce", "epsilon")


def test_the_table_has_the_papers_figures_beside_ours() -> None:
    shown = run()
    assert shown.returncode == 0, shown.stderr
    for value in ("8.33", "8.18", "8.70", "8.3)", "8.2)", "8.7)"):
        assert value in shown.stdout
    assert "dropout that depends on a client's data is outside the guarantee" in shown.stdout


def test_json_has_every_budget_task_and_rate() -> None:
    rows = json.loads(run("--budget", "3", "6", "9", "--json").stdout)
    assert len(rows) == 3 * 3 * 5
    for row in rows:
        assert row["xnoise"] == pytest.approx(row["budget"], abs=1e-6)
        assert row["orig"] >= row["budget"] - 1e-6
    printed = {row["task"]: (row["paper_orig"], round(row["orig"], 1)) for row in rows if row["paper_orig"]}
    assert printed == {"FEMNIST": (8.3, 8.3), "CIFAR-10": (8.2, 8.2), "Reddit": (8.7, 8.7)}


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "six"])
def test_a_budget_that_cannot_be_is_refused_in_one_line(budget: str) -> None:
    shown = run("--budget", budget)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
