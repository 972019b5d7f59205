"""dordis serve before its first round: what is wrong with the configuration is said before it listens."""

import os
import subprocess
import sys

import pytest

from dordis.cli.commands.serve import check_tries
from dordis.errors import InputError
from tests.network.local_server import enrol

CLIENTS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return enrol(tmp_path_factory.mktemp("federation"), CLIENTS)


def serve(folder, delta):
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
    command = [sys.executable, "-m", "dordis", "serve", *files, *settings, "--quiet"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (folder / "stderr").open("w+") as errors:
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors) as server:
            shown = server.stdout.readline()  # warnings come before
            server.kill()
        assert b"listening at" in shown
        return (folder / "stderr").read_text()


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


def test_tries_are_raised_only_when_a_run_is_resumed():
    assert check_tries(7, 5, resumed=True) == 7
    with pytest.raises(InputError, match="for --resume"):
        check_tries(7, 5, resumed=False)
    with pytest.raises(InputError, match=r"below federation\.tries = 5"):
        check_tries(4, 5, resumed=True)
