"""`dordis profile`: five stages timed on small rounds, a model of each, and a file that can be read again."""

import itertools
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dordis.cli.commands import plan as command
from dordis.config.reading import read_config as read_config
from dordis.errors import InputError
from dordis.simulation import profiling, virtual_devices
from dordis.simulation.profiling import Bench, Hardware
from dordis.simulation.run import prepare
from dordis.simulation.virtual_devices import ServerProcessor

FEW = ["federation.clients=8", "federation.per_round=4", "federation.rounds=2"]
FIVE = ["c-comp", "comm", "s-comp", "comm-down", "c-comp"]


@pytest.fixture(scope="module")
def job():
    return prepare(read_config(None, None, FEW))


@pytest.fixture(scope="module", autouse=True)
def _ticking():
    """Let whatever is measured take a millisecond: what is found does not depend on this machine."""
    ticks = partial(next, itertools.count(step=1e-3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_devices, "thread_time", ticks)
        patch.setattr(ServerProcessor.__init__, "__defaults__", (ticks,))
        yield


@pytest.fixture(scope="module")
def profiled(job):
    return profiling.profile(job, dims=(20_000, 60_000), numbers=(1, 2, 4), repeats=1)


@pytest.fixture
def quick(monkeypatch, profiled):
    """Profile nothing anew: show what was found."""
    monkeypatch.setattr(profiling, "profile", lambda job, hardware, progress=None: profiled)


def test_the_five_stages_come_out_with_their_steps(profiled):
    assert [resource.value for resource in profiled.resources] == FIVE
    assert profiled.steps == (
        ("prepare_inputs",),
        ("collect_inputs",),
        ("agree", "unmask", "release_secrets", "remove_noise", "decode"),
        ("dispatch",),
        ("store",),
    )


def test_every_length_and_number_of_chunks_is_timed(profiled):
    kinds = {(sample.dim, sample.chunks) for sample in profiled.profile.setup}
    assert kinds == {(d, m) for d in (20_000, 60_000) for m in (1, 2, 4)}
    for samples in profiled.profile.stages:
        assert len(samples) == 2 * (1 + 2 + 4)
        assert all(sample.seconds > 0 for sample in samples)


def test_the_network_takes_what_its_bandwidth_says(profiled):
    upload = profiled.model.stages[1]
    per_coordinate = profiled.bits / 21e6  # the slowest link
    assert upload.partition == pytest.approx(per_coordinate, rel=0.2)
    assert upload.error < 0.2


@pytest.mark.parametrize(("hardware", "faster"), [(Hardware(bandwidth=210.0), 1), (Hardware(slowness=50.0), 0)])
def test_hardware_changes_the_stages_that_use_it(job, hardware, faster):
    usual, other = (Bench(job, each, 60_000).virtual(60_000, 1).stage_seconds for each in (Hardware(), hardware))
    ratio = usual[faster][0] / other[faster][0]
    assert ratio > 5 if faster else ratio < 0.2


def test_a_device_of_no_speed_is_refused(job):
    with pytest.raises(InputError, match="above 0"):
        Bench(job, Hardware(slowness=0.0), 60_000).virtual(60_000, 1)


@pytest.mark.usefixtures("quick")
def test_json_is_what_is_written_and_nothing_is_written_unasked(capsys, tmp_path, monkeypatch, profiled):
    monkeypatch.chdir(tmp_path)
    command.profile(setting=FEW, as_json=True)
    assert list(tmp_path.iterdir()) == []
    assert msgspec.json.decode(capsys.readouterr().out, type=profiling.MeasuredProfile) == profiled
    command.profile(setting=FEW, output=Path("some.json"), as_json=True)
    assert command.read_profile(Path("some.json")) == profiled
    assert json.loads(capsys.readouterr().out)["clients"] == 4


@pytest.mark.usefixtures("quick")
def test_the_table_shows_every_stage_and_how_well_it_fits(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    command.profile(setting=FEW, as_json=False)
    shown = capsys.readouterr().out
    for word in ("prepare inputs", "remove noise", "dispatch", "set-up", "error", "%", "profile.json"):
        assert word in shown
    assert (tmp_path / "profile.json").exists()


@pytest.mark.usefixtures("quick")
def test_a_file_that_cannot_be_written_or_read_is_an_error_in_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        command.profile(setting=FEW, output=tmp_path / "no" / "such.json", as_json=False)
    with pytest.raises(InputError, match="cannot read"):
        command.read_profile(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="is not a profile"):
        command.read_profile(tmp_path / "other.json")
