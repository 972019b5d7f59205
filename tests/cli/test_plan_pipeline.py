"""`dordis plan pipeline`: the best number of chunks from a profile, beside all others."""

import json
from itertools import pairwise

import pytest

from dordis.cli.commands.profile import write_profile
from dordis.cli.plan_pipeline import show_pipeline
from dordis.errors import InputError
from dordis.pipeline.performance import PerformanceModel, Profile, SetupModel, StageModel
from dordis.pipeline.planner import schedule_stages
from dordis.protocol import Resource
from dordis.simulation.profiling import Hardware, MeasuredProfile

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
    show_pipeline(profile, dim, as_json=True)
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
    show_pipeline(profile, DIM, as_json=False)
    shown = capsys.readouterr().out
    for word in (f"{best} (best)", "Critical path: set-up", "the bottleneck is c-comp", "4.0%"):
        assert word in shown


def test_a_vector_of_one_block_has_one_chunk(profile, capsys):
    assert list(told(profile, 1000, capsys)["completions"]) == ["1"]


def test_no_coordinates_are_refused(profile):
    with pytest.raises(InputError, match="at least one coordinate"):
        show_pipeline(profile, 0, as_json=False)
