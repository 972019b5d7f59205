"""dordis serve before its first round: what is wrong with the configuration is said before it listens."""

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dordis.cli.commands.serve import ALERTS, alerts_file, check_tries, start_alerts
from dordis.config import reading
from dordis.errors import InputError
from dordis.network.deployment import NetworkPopulation
from dordis.report import alert_command
from tests.network.local_server import enrol

CLIENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), CLIENTS)


def serve(folder, delta, *configs):
    keys = {
        "federation.clients": CLIENTS,
        "federation.per_round": CLIENTS,
        "privacy.delta": delta,
        "deployment.train_seconds": 1,
        "deployment.port": 0,
        "output": folder / "runs",
    }
    settings = [part for key, value in keys.items() for part in ("-c", f"{key}={value}")]
    files = ["--identity", folder / "server.key", "--registry", folder / "registry.json"]
    command = [sys.executable, "-m", "dordis", "serve", *configs, *files, *settings, "--quiet"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (folder / "stderr").open("w+") as errors:
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors) as server:
            shown = server.stdout.readline()  # warnings come before
            server.kill()
        assert b"listening at" in shown
        return (folder / "stderr").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delta", "warnings"),
    [
        ("1e-5", []),
        ("1e-2", ["delta = 0.01 is above 0.001"]),
        ("0.1", ["delta = 0.1 is not below 0.0833, one over the clients", "delta = 0.1 is above 0.001"]),
    ],
)
def test_a_large_delta_is_warned_about(folder, delta, warnings):
    said = [line for line in serve(folder, delta).splitlines() if line.startswith("warning: delta")]
    assert len(said) == len(warnings)
    assert all(line.startswith(f"warning: {warning}") for line, warning in zip(said, warnings, strict=True))


ALERT = """[alerts]
command = "page-me --password swordfish"
"""


@pytest.mark.slow
def test_the_alert_command_is_stored_for_a_resumption_only(folder):
    (folder / "alert.toml").write_text(ALERT)
    serve(folder, "1e-5", "alert.toml")
    (run,) = (folder / "runs" / "alert").iterdir()
    holding = [path for path in run.rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]
    assert [path.name for path in holding] == [ALERTS]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    assert reading.read_alerts(alerts_file(None, run)).command == "page-me --password swordfish"
    assert alerts_file(folder / "alert.toml", None) == folder / "alert.toml"
    assert alerts_file(None, folder) is None


def test_alerts_are_raised_from_the_start(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(alert_command, "EXPIRY", timedelta(days=4000))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))"
    command = shlex.join([sys.executable, "-c", script, str(pipe)])
    home = NetworkPopulation(None, None, None)
    run = SimpleNamespace(records=SimpleNamespace(manifest=SimpleNamespace(name="digits", budget=6.0)), home=home)
    with ExitStack() as held:
        assert start_alerts("", folder / "server.key", run, held) is None
        start_alerts(command, folder / "server.key", run, held)
        assert pipe.read_text().startswith("certificate digits the server's certificate expires on")


def test_tries_are_raised_only_when_a_run_is_resumed():
    assert check_tries(7, 5, resumed=True) == 7
    with pytest.raises(InputError, match="for --resume"):
        check_tries(7, 5, resumed=False)
    with pytest.raises(InputError, match=r"below federation\.tries = 5"):
        check_tries(4, 5, resumed=True)
