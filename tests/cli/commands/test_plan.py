"""`dordis plan`: its three commands, the default one, and the graph of a round."""

import json
from functools import partial

import pytest

from dordis.protocols.sparse_graph import solve
from dordis.runs.threat_model import count_dropouts
from tests.cli.in_process import dordis

run = partial(dordis, "plan")


def test_the_table_shows_degree_thresholds_and_what_may_fail() -> None:
    shown = run("graph", "--clients", "1000")
    assert shown.returncode == 0, shown.stderr
    assert "1000 clients, of which 100 may drop out and 1 collude: a circulant graph" in " ".join(shown.stdout.split())
    assert all(word in shown.stdout for word in ("neighbours", "secrecy fails", "round fails"))
    assert [cell.strip() for cell in shown.stdout.splitlines()[-2].split("│")[1:-1]] == [
        *("64", "35", "501", "1"),
        *("never", "-41.9"),
    ]


def test_json_is_one_object_with_the_solution() -> None:
    shown = run("graph", "--clients", "500", "--tolerance", "60", "--colluders", "5", "--mode", "semi-honest", "--json")
    found, solution = json.loads(shown.stdout), solve(500, 60, 5, "semi-honest")
    assert (found["clients"], found["tolerance"], found["tolerated_colluders"]) == (500, 60, 5)
    assert found["mode"] == "semi-honest"
    for name in ("degree", "threshold", "quorum", "colluders", "complete", "p_split", "p_security", "p_correctness"):
        assert found[name] == getattr(solution, name)
    assert found["p_colluders"] is None


def test_without_a_command_the_noise_is_planned() -> None:
    options = ("--clients", "100", "--per-round", "20", "--rounds", "5", "--dim", "100", "--epsilon", "6", "--json")
    assert json.loads(run(*options).stdout) == json.loads(run("noise", *options).stdout)
    assert all(name in run("--help").stdout for name in ("noise", "graph", "pipeline"))


def test_a_small_round_gets_the_complete_graph() -> None:
    shown = run("graph", "--clients", "10", "--tolerance", "4")
    assert "the complete graph" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(("clients", "rate", "expected"), [(100, 0.29, 29), (30, 0.1, 3), (39, 0.1, 3), (7, 0.0, 0)])
def test_a_dropout_rate_means_what_is_written(clients: int, rate: float, expected: int) -> None:
    assert count_dropouts(clients, rate) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--clients", "100"), "--per-round"),
        (("pipeline", "--dim", "100"), "--profile"),
        (("nose",), "nose"),
        ((), "--clients"),
        (("graph",), "--clients"),
        (("graph", "--clients", "100", "--dropout", "1"), "dropout"),
        (("graph", "--clients", "100", "--dropout", "nan"), "dropout"),
        (("graph", "--clients", "100", "--dropout", "0.6"), "tolerance"),
        (("graph", "--clients", "100", "--tolerance", "-1"), "T = -1"),
        (("graph", "--clients", "100", "--colluders", "95"), "colluders"),
        (("graph", "--clients", "100", "--dropout", "0.1", "--tolerance", "10"), "not both"),
        (("graph", "--clients", "0"), "n = 0"),
        (("graph", "--clients", "100", "--mode", "covert"), "mode"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    shown = run(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr
