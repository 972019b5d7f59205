"""A SuperLink, SuperNodes and our SuperExec, processes of their own on this machine, run the example app."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dordis.owner.participation import FileParticipation
from dordis.records import run_records

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from tests.integrations.flower.apps import pin

APP = Path(__file__).parents[3] / "examples" / "flower_app"
BIN = Path(sys.executable).parent
NODES = 3


def free_ports(count):
    """Return ports that nobody listens to."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in sockets]


def app_for(folder, port):
    """Write a copy of the example for one round with three nodes, and which SuperLink `local` is; return its folder."""
    app = shutil.copytree(APP, folder / "app")
    settings = (app / "pyproject.toml").read_text()
    settings = settings.replace("rounds = 5 ", f"clients = {NODES}\nrounds = 1 ")
    settings = settings.replace('registry = ""', f'registry = "{folder / "registry.json"}"')
    (app / "pyproject.toml").write_text(settings)
    server = app / "private_digits" / "server.py"
    server.write_text(server.read_text().replace("registry=registry)", "registry=registry, patience=600.0)"))
    (folder / "config.toml").write_text(f'[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    return app


@pytest.fixture
def start(tmp_path):
    """Start processes; all of them are ended after the test."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(tmp_path)}
    environment = os.environ | quiet | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    processes = []

    def started(*command, folder=tmp_path):
        with (tmp_path / f"{len(processes)}.log").open("w") as log:
            made = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        processes.append(made)
        return made

    yield started
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.wait()


def wait_for(port, process):
    """Wait until a process listens."""
    while process.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"it ended with {process.returncode}")


def test_a_round_over_loopback_with_clients_that_are_forked(tmp_path, start):
    link, *nodes = free_ports(1 + NODES)
    app, loopback = app_for(tmp_path, link), ("--insecure", "--port")
    options = ("--host", "127.0.0.1", "--disable-runtime-dependency-installation")
    superlink = start("flower-superlink", *loopback, str(link), *options)
    _, pins = pin(tmp_path, NODES)
    for place, port in enumerate(nodes):
        own = {"partition-id": place, "num-partitions": NODES, **pins[place]}
        config = ("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in own.items()))
        start(
            "flower-supernode",
            *loopback,
            str(port),
            "--superlink",
            f"127.0.0.1:{link}",
            "--isolation",
            "process",
            *config,
        )
        address = ("--runtime-api-address", f"127.0.0.1:{port}")
        start(sys.executable, "-m", "dordis.integrations.flower.superexec", "--insecure", *address)
    wait_for(link, superlink)
    assert start("flwr", "run", ".", "local", "--stream", folder=app).wait() == 0
    (path,) = (tmp_path / "runs").glob("*/*")
    run = run_records.load_run(path)
    assert (run.result.stopped, run.rounds[0].survivors) == ("rounds", (NODES,))
    assert run.manifest.how.startswith("deployed")
    counts = [FileParticipation(path).count() for path in (tmp_path / "state").glob("*/participations")]
    assert counts == [1] * NODES
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert any("SuperExec" in log for log in logs)
    assert not any("Start `flwr-clientapp` process" in log for log in logs)  # what Flower's command would say
