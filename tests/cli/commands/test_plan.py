"""`dordis plan`: its three commands, the default one, the graph of a round, and the best number of chunks."""

import json
from functools import partial
from itertools import pairwise

import pytest

from dordis.cli.commands.plan import plan_pipeline, write_profile
from dordis.errors import InputError
from dordis.pipeline.performance_model import PerformanceModel, Profile, SetupModel, StageModel
from dordis.pipeline.planner import schedule_stages
from dordis.protocol import Resource
from dordis.protocols.sparse_graph import solve
from dordis.runs.threat_model import count_dropouts
from dordis.simulation.profiling import Hardware, MeasuredProfile
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


FIVE = tuple(Resource(name) for name in ("c-comp", "comm", "s-comp", "comm", "c-comp"))
MODEL = PerformanceModel(
    SetupModel(constant=0.1, per_chunk=0.05),
    (
        StageModel(4e-6, 0.01, 0.1),
        StageModel(1e-6, 0.0, 0.0),
        StageModel(3e-6, 0.0, 0.1),
        StageModel(1e-6, 0.0, 0.0, error=0.04),
        StageModel(5e-7, 0.0, 0.0),
    ),
)
DIM = 1_018_174  # 16 blocks


@pytest.fixture
def profile(tmp_path):
    steps = (("prepare_inputs",), ("collect_inputs",), ("unmask",), ("dispatch",), ("store",))
    path = tmp_path / "profile.json"
    found = MeasuredProfile(10, "secagg", "malicious", "xnoise", 16, Hardware(), FIVE, steps, Profile(), MODEL)
    write_profile(path, found)
    return path


def told(profile, dim, capsys):
    plan_pipeline(profile, dim, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_every_number_of_chunks_up_to_the_blocks_has_its_time_and_the_least_is_chosen(profile, capsys):
    found = told(profile, DIM, capsys)
    assert list(found["completions"]) == [str(m) for m in range(1, 17)]
    for m, seconds in found["completions"].items():
        planned = schedule_stages(FIVE, MODEL.stage_seconds(DIM, int(m)), int(m), MODEL.setup.seconds(int(m)))
        assert seconds == pytest.approx(planned.completion)
    assert found["completions"][str(found["chunks"])] == min(found["completions"].values()) == found["seconds"]
    assert 1 < found["chunks"] < 16
    assert found["speedup"] == pytest.approx(found["completions"]["1"] / found["seconds"])


def test_the_critical_path_goes_from_the_set_up_to_the_end_without_a_gap(profile, capsys):
    found = told(profile, DIM, capsys)
    path = found["critical"]
    assert path[0]["start"] == pytest.approx(found["setup"])
    assert path[-1]["end"] == pytest.approx(found["seconds"])
    for before, after in pairwise(path):
        assert after["start"] == pytest.approx(before["end"])
    assert 0 < found["utilisation"]["comm"] < found["utilisation"]["c-comp"] <= 1
    assert found["utilisation_plain"]["c-comp"] < found["utilisation"]["c-comp"]
    assert found["bottleneck"] == "c-comp"
    assert found["fit_error"] == 0.04


def test_the_table_marks_the_best_and_says_why(profile, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    best = told(profile, DIM, capsys)["chunks"]
    plan_pipeline(profile, DIM, as_json=False)
    shown = capsys.readouterr().out
    for word in (f"{best} (best)", "Critical path: set-up", "the bottleneck is c-comp", "4.0%"):
        assert word in shown


def test_a_vector_of_one_block_has_one_chunk(profile, capsys):
    assert list(told(profile, 1000, capsys)["completions"]) == ["1"]


def test_no_coordinates_are_refused(profile):
    with pytest.raises(InputError, match="at least one coordinate"):
        plan_pipeline(profile, 0, as_json=False)
