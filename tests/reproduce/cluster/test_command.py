"""`python -m reproduce cluster`: its options, runs of one's own, and refusals in one line."""

import json

import pytest

from dordis.cli import run_app
from dordis.errors import InputError
from reproduce.cluster.command import describe_command, keep_setting, parse_chunks, read_own
from reproduce.cluster.experiment import Workload
from reproduce.commands import app
from tests.cli.in_process import run_command
from tests.reproduce.cluster.test_experiment import simulate_run


def run(*arguments):
    return run_command(lambda: run_app(app, "reproduce"), "reproduce", *arguments)


@pytest.mark.parametrize("wrong", ["", "0", "1,,2", "many", "-1"])
def test_numbers_of_chunks_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match="--chunks"):
        parse_chunks(wrong)


def test_where_the_rounds_come_from_must_be_said():
    for arguments in ((), ("--local", "3", "--runs", "run")):
        shown = run("cluster", *arguments)
        assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
        assert "--local N" in shown.stderr


def test_without_root_the_command_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr("reproduce.cluster.namespaces.os.geteuid", lambda: 1000)
    shown = run("cluster", "--local", "2", "--dim", "100")
    assert shown.returncode == 2
    assert "network namespaces need root" in shown.stderr


def test_runs_of_ones_own_are_read_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduce.cluster.command.measure_training", lambda: 4.0)
    for chunks in (1, 2):
        simulate_run(tmp_path, f"own-{chunks}", chunks, rounds=3)
    paths = [next((tmp_path / f"own-{chunks}").iterdir()) for chunks in (1, 2)]
    setting = read_own(paths)
    assert [(row.chunks, len(row.seconds)) for row in setting.rows] == [(1, 2), (2, 2)]
    assert (setting.clients, setting.dim, setting.mbps) == (6, 20_000, None)
    output = tmp_path / "results.json"
    shown = run("cluster", "--runs", str(paths[0]), "--runs", str(paths[1]), "--output", str(output), "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == json.loads(output.read_text())
    assert json.loads(shown.stdout)["training"] == 4.0


def test_training_is_measured_once(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr("reproduce.cluster.command.measure_training", lambda: measured.append(1) or 4.0)
    simulate_run(tmp_path, "own", 1, rounds=2)
    setting = read_own([next((tmp_path / "own").iterdir())])
    for _ in range(2):
        keep_setting(setting, tmp_path / "results.json")
    assert measured == [1]


def test_the_command_of_a_setting_can_be_run_again():
    text = describe_command(Workload(16, 1000, (1, 4), 3, 2, 0.1), "1,4", 10.0, 0.05, 1.0, 1)
    assert text == (
        "python -m reproduce cluster --local 16 --dim 1000 --chunks 1,4 --rounds 3 --repeats 2 --dropout 0.1 "
        "--slower 10 --latency 0.05 --slowness 1 --seed 1"
    )
