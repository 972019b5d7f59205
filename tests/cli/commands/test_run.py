"""`dordis run`, as people use it: with its exit codes, and where it matters in a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dordis.ledger.ledger import verify_ledger
from dordis.records import run_records
from tests.cli.in_process import dordis
from tests.paused_processes import HANG, start_paused
from tests.simulation.whole_runs import TOY

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = ("--preset", "quick", "-c", "federation.rounds=2", "-c", "simulation.fidelity=ideal")


def test_a_run_ends_with_a_summary_records_and_a_report(tmp_path):
    command = [sys.executable, "-m", "dordis", "run", *SMALL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "round 2:" in done.stdout
    assert "ideal" in done.stdout
    (run,) = (tmp_path / "runs" / "quick").iterdir()
    assert f"report: {Path('runs') / 'quick' / run.name / 'report.html'}" in done.stdout
    kept = {path.name for path in run.iterdir()}
    assert kept >= {"config.toml", "manifest.json", "rounds.jsonl", "metrics.jsonl", "ledger.jsonl", "receipts",
                    "model.npz", "result.json", "report.html"}  # fmt: skip


def test_json_is_one_object_and_nothing_else(tmp_path):
    done = dordis("run", *SMALL, "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert {"accuracy", "epsilon", "delta", "rounds", "seconds", "fidelity"} <= told.keys()
    assert told["simulated"]
    assert told["run_as"].startswith("simulated in one process")
    assert not told["overspent"]
    assert told["rounds"] == 2
    assert 0 < told["epsilon"] <= 6
    assert told["delta"] == 1e-5


def test_a_dry_run_tells_plan_bytes_and_time_and_writes_nothing(tmp_path):
    told = json.loads(dordis("run", "--preset", "quick", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert told["epsilon"] <= 6
    assert told["bytes_up"] > told["bytes_of_an_update"] > 0
    assert told["seconds"] == pytest.approx(5 * told["seconds_of_a_round"])
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_of_a_run_runs_again(tmp_path):
    dordis("run", *SMALL, cwd=tmp_path)
    (config,) = tmp_path.glob("runs/*/*/config.toml")
    again = dordis("run", str(config), "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["rounds"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("absent.toml",),
        ("-c", "privacy.epsilom=3"),
        ("-c", "protocol.threshold=200"),
        ("-c", "protocol.tolerance=60"),
        ("-c", "app.options.data=absent.npz"),
        ("-c", "app.options.lr=1e308", "-c", "app.options.epochs=50"),
        ("-c", "app.options.model=nowhere:Net"),
        ("-c", "federation.clients=0"),
        ("--preset", "absent"),
        ("--resume", "absent"),
        ("-c", "output=/dev/null/runs"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments):
    done = dordis("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("dordis: ")
    assert done.stderr.count("\n") == 1
    left = list(tmp_path.glob("runs/*/*/rounds.jsonl"))
    assert left == []  # a run that diverges in its first round has begun, and has no finished round


def test_a_model_for_other_data_is_named(tmp_path):
    import numpy as np

    np.savez(tmp_path / "data.npz", x_train=np.zeros((50, 3)), y_train=np.zeros(49, int), x_test=np.zeros((5, 3)),
             y_test=np.zeros(5, int))  # fmt: skip
    done = dordis("run", "-c", "app.options.data=data.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "data.npz" in done.stderr
    assert list(tmp_path.glob("runs/*")) == []


def test_short_options_stand_for_keys(tmp_path):
    given = ("--name", "mine", "--output", "here", "--epsilon", "7", "--rounds", "1", "--clients", "60")
    done = dordis("run", *SMALL, *given, "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (path,) = tmp_path.glob("here/mine/*")
    manifest = run_records.load_run(path).manifest
    assert (manifest.rounds, manifest.clients, manifest.config["privacy"]["epsilon"]) == (1, 60, 7.0)


def test_a_setting_of_the_application_that_is_nearly_right_is_named(tmp_path):
    done = dordis("run", *SMALL, "-c", "app.options.lrr=1", cwd=tmp_path)
    assert done.stderr == "dordis: there is no setting 'app.options.lrr': did you mean 'lr'?\n"


def test_resume_stands_alone(tmp_path):
    done = dordis("run", "--resume", "somewhere", "-c", "federation.rounds=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--resume alone" in done.stderr


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path):
    keys = [f"-c{key}" for key in (*TOY, "app.server=tests.simulation.paused_toys:Server", "name=quick")]
    command = [sys.executable, "-m", "dordis", "run", *keys]
    process = start_paused(command, "use_output 1", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.send_signal(signal.SIGINT)
    shown = process.communicate()[0].decode()
    assert process.returncode == 130
    assert "Traceback" not in shown
    (path,) = tmp_path.glob("runs/quick/*")
    assert f"dordis run --resume {Path('runs') / 'quick' / path.name}" in shown.replace("\n", "")
    assert len(run_records.load_run(path).rounds) == 1
    assert run_records.load_run(path).result.stopped == "interrupted"
    done = dordis("run", "--resume", str(path), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == 3
    assert verify_ledger(path / "ledger.jsonl").completed == 4  # the interrupted round was charged, and stays so


@pytest.mark.parametrize("preset", ["quick", "ideal"])
def test_init_writes_a_configuration_that_runs(tmp_path, preset):
    assert dordis("init", "mine.toml", "--preset", preset, cwd=tmp_path).returncode == 0
    rounds = "federation.rounds=1"
    done = dordis("run", "mine.toml", "-c", rounds, "-c", "simulation.fidelity=ideal", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == 1
    again = dordis("init", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "not overwritten" in again.stderr


def test_a_model_of_ones_own_in_one_short_file_is_trained(tmp_path):
    text = (EXAMPLES / "own_model" / "your_model.py").read_text()
    assert len(text.splitlines()) <= 40
    (tmp_path / "your_model.py").write_text(text)
    keys = (
        "-c",
        "app.options.model=your_model:Template",
        "-c",
        "app.options.lr=1.0",
        "-c",
        "simulation.fidelity=ideal",
    )
    told = json.loads(dordis("run", *keys, "--json", cwd=tmp_path).stdout)
    assert told["accuracy"] > 0.8
    assert told["epsilon"] <= 6


@pytest.mark.torch
def test_a_torch_model_of_ones_own_in_one_short_file_is_trained(tmp_path):
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    text = (EXAMPLES / "own_model" / "your_torch_model.py").read_text()
    assert len(text.splitlines()) <= 40
    (tmp_path / "your_torch_model.py").write_text(text)
    keys = ("-c", "app.options.model=your_torch_model:Net", "-c", "app.options.lr=1.0",
            "-c", "simulation.fidelity=ideal", "-c", "federation.rounds=2",
            "-c", "federation.clients=12", "-c", "federation.per_round=6")  # fmt: skip
    done = dordis("run", *keys, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epsilon"] <= 6


@pytest.mark.slow
def test_the_default_run_learns_as_much_with_dropout_as_without(tmp_path):
    told, calm = (
        json.loads(dordis("run", "-c", f"simulation.dropout.kind={kind}", "--json", cwd=tmp_path).stdout)
        for kind in ("rate", "none")
    )
    assert told["accuracy"] >= 0.88
    assert told["epsilon"] <= 6
    assert (told["rounds"], told["fidelity"]) == (20, "full")
    assert told["accuracy"] >= calm["accuracy"] - 0.03  # one test image is 0.3 points


def test_a_budget_that_is_overspent_is_named_so(tmp_path):
    keys = ("-c", "federation.rounds=3", "-c", "privacy.noise.kind=orig")
    done = dordis("run", "--preset", "ideal", *keys, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "OVERSPENT" in done.stdout
    (path,) = (tmp_path / "runs").glob("*/*/")
    verified = dordis("ledger", "verify", path, "--json")
    assert (verified.returncode, verified.stderr.count("\n")) == (3, 1)
    told = json.loads(verified.stdout)
    assert told["epsilon"] > told["budget"] == pytest.approx(6, rel=1e-3)


def test_a_trusted_server_is_said_to_be_one(tmp_path):
    done = dordis("run", *SMALL, "-c", "privacy.noise.kind=central", cwd=tmp_path)
    assert "against everybody but the server, who is trusted" in done.stdout.splitlines()[0]


def test_a_round_that_fails_for_good_is_told_with_what_to_do(tmp_path):
    done = dordis("run", *SMALL, "-c", "simulation.dropout.rate=0.9", "-c", "federation.tries=2", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "round 1 of 2 failed 2 times" in done.stderr
    assert "protocol.tolerance" in done.stderr


def test_what_is_no_run_cannot_be_resumed(tmp_path):
    done = dordis("run", "--resume", "absent", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "dordis: there is no run at absent: it has no config.toml\n")


def test_a_large_delta_is_warned_about(tmp_path: Path) -> None:
    keys = ("simulation.fidelity=ideal", "federation.rounds=1", f"output={tmp_path}", "privacy.delta=0.05")
    shown = dordis("run", *(part for key in keys for part in ("-c", key)), "--json")
    assert shown.returncode == 0, shown.stderr
    assert "one over the clients" in shown.stderr
    assert len(json.loads(shown.stdout)["warnings"]) == 2
