"""The records of a run: finished rounds and evictions are stored, whenever the process stopped."""

import hashlib
import os

import msgspec
import numpy as np
import pytest

from dordis.errors import InputError
from dordis.privacy.mechanisms import NoiseFrom
from dordis.records import run_records
from dordis.records.manifest import Descriptions, Manifest, PlanRecord, Trust
from dordis.records.run_records import Evictions, RoundMetrics, RoundRecord, RunOutcome, RunRecords, load_run

PLAN = PlanRecord(650, 16, 100.0, 1.0, 2.0, 6.0, 1e-5, 11, 26, 19, 1, 2048)


def manifest(name="test"):
    return Manifest(
        name=name, created=run_records.timestamp(), version="0", config={"name": name}, clients=4, per_round=2,
        rounds=3,
        noise="xnoise", mechanism="skellam", protocol="secagg", mode="malicious", selection="balanced",
        fidelity="full", registry="", beacon="", plan=PLAN, trust=Trust(True, True, NoiseFrom.CLIENTS, True, False),
        words=Descriptions("noise is added", "integers"), terms=("for one client",),
    )  # fmt: skip


def record(number, index=None):
    return RoundRecord(
        number=number, index=number - 1 if index is None else index, started=run_records.timestamp(), seconds=1.0,
        stages={"upload": 0.5}, clients=(1, 2), survivors=(2,), dropped={"Unmask": (1,)}, up=10, down=20,
        wanted=4.0, left=4.0, charged=4.0, epsilon=1.5,
    )  # fmt: skip


def finish(run, number):
    run.finish(record(number), RoundMetrics(number, {"accuracy": number / 10}), {"weights": np.full(3, float(number))})


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "name = 'test'\n")
    finish(run, 1)
    finish(run, 2)
    run.close(RunOutcome("rounds", 2, 2.0, 1.5, 1e-5, "full", {"accuracy": 0.2}))
    read = load_run(run.path)
    assert [done.number for done in read.rounds] == [1, 2]
    assert [line.values for line in read.metrics] == [{"accuracy": 0.1}, {"accuracy": 0.2}]
    assert read.manifest == run.manifest
    assert read.result.stopped == "rounds"


def test_the_run_id_is_the_hash_of_the_manifest(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "")
    assert run.id == hashlib.sha256((run.path / "manifest.json").read_bytes()).digest()
    assert RunRecords.open(run.path).id == run.id


@pytest.mark.parametrize("name", ["rounds.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("kept", [0, 1, 7, -1], ids=["nothing", "a byte", "some", "all but the end"])
def test_a_stop_while_a_line_is_written_loses_nothing(tmp_path, name, kept):
    run = RunRecords.create(tmp_path, manifest(), "")
    finish(run, 1)
    before = (run.path / name).read_bytes()
    finish(run, 2)
    whole = (run.path / name).read_bytes()
    os.truncate(run.path / name, len(whole) - 1 if kept == -1 else len(before) + kept)
    again = RunRecords.open(run.path)
    assert (run.path / name).read_bytes() == whole
    assert again.last().number == 2
    np.testing.assert_array_equal(again.state()["weights"], np.full(3, 2.0))


def test_a_stop_before_the_checkpoint_leaves_the_round_before(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "")
    finish(run, 1)
    (run.path / ".model.npz.new").write_bytes(b"half a checkpoint")
    again = RunRecords.open(run.path)
    assert again.last().number == 1
    finish(again, 2)
    assert [done.number for done in load_run(run.path).rounds] == [1, 2]


def test_a_run_without_a_finished_round_can_be_opened(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "")
    assert RunRecords.open(run.path).last() is None
    assert load_run(run.path).rounds == ()
    assert load_run(run.path).result is None


def test_nothing_in_a_checkpoint_is_unpickled(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "")
    np.savez(run.path / "model.npz", lines=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):
        RunRecords.open(run.path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut", b"no archive"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, data):
    run = RunRecords.create(tmp_path, manifest(), "")
    (run.path / "model.npz").write_bytes(data)
    with pytest.raises(InputError, match="cannot be read"):
        RunRecords.open(run.path)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "a\n"])
def test_a_name_that_is_no_directory_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="name"):
        RunRecords.create(tmp_path, manifest(name), "")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_damaged_run_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="there is no run"):
        load_run(tmp_path / "none")
    run = RunRecords.create(tmp_path, manifest(), "")
    (run.path / "manifest.json").write_bytes(b'{"name": 3}')
    with pytest.raises(InputError, match="not what dordis wrote"):
        load_run(run.path)


def test_a_line_on_its_way_is_not_read(tmp_path):
    run = RunRecords.create(tmp_path, manifest(), "")
    finish(run, 1)
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(record(2))[:20])
    assert [done.number for done in load_run(run.path).rounds] == [1]


@pytest.mark.parametrize("name", ["lines", "file", "allow_pickle"])
def test_a_state_that_would_break_its_checkpoint_is_refused(tmp_path, name):
    run = RunRecords.create(tmp_path, manifest(), "")
    with pytest.raises(InputError, match=f"'{name}'"):
        run.finish(record(1), RoundMetrics(1, {}), {name: np.zeros(1)})
    assert RunRecords.open(run.path).last() is None


def test_evictions_are_on_disk_and_nobody_is_evicted_twice(tmp_path):
    path = tmp_path / "evictions.jsonl"
    evictions = Evictions(path)
    assert evictions.add(3, {7, 5}, "they lied") == (5, 7)
    assert evictions.add(4, {7}, "again") == ()
    assert evictions.add(9, {7, 1}, "again") == (1,)
    assert Evictions(path).clients == evictions.clients == {1, 5, 7}
    assert [(line.index, line.clients) for line in Evictions(path).lines] == [(3, (5, 7)), (9, (1,))]


def test_evictions_are_inherited_with_the_run_that_they_were_from(tmp_path):
    first, second, third = (Evictions(tmp_path / name) for name in ("1", "2", "3"))
    first.add(3, {7, 5}, "they lied")
    second.inherit(first.lines, "aa")
    second.add(3, {1, 5}, "again")
    third.inherit(second.lines, "bb")
    assert (second.after(3), third.after(3)) == ((1,), ())
    assert [(line.clients, line.run) for line in Evictions(tmp_path / "3").lines] == [((5, 7), "aa"), ((1,), "bb")]
    assert b"run" not in (tmp_path / "1").read_bytes()


def test_without_an_eviction_there_is_no_file(tmp_path):
    path = tmp_path / "evictions.jsonl"
    assert Evictions(path).add(0, (), "nobody") == ()
    assert not path.exists()
    assert Evictions().add(0, {1}, "in memory") == (1,)


def test_a_line_that_was_cut_is_left_out_and_another_file_is_refused(tmp_path):
    path = tmp_path / "evictions.jsonl"
    Evictions(path).add(3, {7}, "it lied")
    path.write_bytes(path.read_bytes() + b'{"index":4,"cli')
    assert Evictions(path).clients == {7}
    path.write_bytes(b"nothing of the kind\n")
    with pytest.raises(InputError, match="not what dordis wrote"):
        Evictions(path)
