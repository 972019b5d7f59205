"""Rounds over a SuperLink and three SuperNodes on this machine: SecAgg beside assisted rounds, one run after the other.

The app is examples/flower_app with another policy, which both protocols and a semi-honest server are within; the nodes
are clients and, in assisted rounds, helpers too.  Each node has the SuperExec that comes with dordis.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

APP = Path(__file__).parents[1] / "examples" / "flower_app"
BIN = Path(sys.executable).parent
NODES, ROUNDS = 3, 3
PROTOCOLS = ("secagg", "assisted")
_MOD = """from dordis.integrations.flower import DordisMod
from dordis.owner.policy import Policy
from dordis.protocols.assisted.helper import HelperPolicy

_POLICY = Policy(
    epsilon=6.0,
    delta=1e-5,
    modes=frozenset({"semi-honest"}),
    protocols=frozenset({"secagg", "assisted"}),
    helpers=frozenset({1, 2, 3}),
)
dordis_mod = DordisMod(_POLICY, assists=HelperPolicy())
"""


def seconds() -> dict[str, float]:
    """Return the seconds of a round, enrolment included, by protocol."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        home = Path(folder)
        link, *nodes = _free_ports(1 + NODES)
        (home / "config.toml").write_text(f'[superlink.local]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
        options = ("--insecure", "--host", "127.0.0.1", "--disable-runtime-dependency-installation")
        running.enter_context(_Process(home, "flower-superlink", *options, "--port", str(link)))
        _wait_for(link)
        for place, port in enumerate(nodes):
            own = f"partition-id={place} num-partitions={NODES}"
            place_of = ("--superlink", f"127.0.0.1:{link}", "--port", str(port), "--isolation", "process")
            running.enter_context(
                _Process(home, "flower-supernode", "--insecure", *place_of, "--node-config", own, name=f"node{place}")
            )
            at = ("--insecure", "--runtime-api-address", f"127.0.0.1:{port}")
            command = (sys.executable, "-m", "dordis.integrations.flower.superexec", *at)
            running.enter_context(_Process(home, *command, name=f"exec{place}"))
        return {protocol: _run_app(home, protocol) for protocol in PROTOCOLS}


class _Process:
    """A process that ends with the block, and its log."""

    def __init__(self, home: Path, *command: str, name: str = "link", folder: Path | None = None) -> None:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        environment = os.environ | quiet | {"PATH": f"{BIN}:{os.environ['PATH']}"}
        self.log = home / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder or home, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def _run_app(home: Path, protocol: str) -> float:
    """Run the example over one protocol, and return the seconds of a round."""
    app = shutil.copytree(APP, home / protocol)
    settings = (app / "pyproject.toml").read_text()
    settings = settings.replace("rounds = 5 ", f"clients = {NODES}\nrounds = {ROUNDS} ")
    chosen = f'\n[tool.flwr.app.config.protocol]\nuse = "{protocol}"\nmode = "semi-honest"\n'
    (app / "pyproject.toml").write_text(settings + chosen)
    client, server = (app / "private_digits" / name for name in ("client.py", "server.py"))
    client.write_text(client.read_text().replace("from dordis.integrations.flower import dordis_mod\n", _MOD))
    patient = "registry=registry, patience=600.0, accept_hopeless=True)"
    server.write_text(server.read_text().replace("registry=registry)", patient))
    with _Process(home, "flwr", "run", ".", "local", "--stream", name=protocol, folder=app) as running:
        running.process.wait()
        found = re.search(r"Strategy execution finished in ([0-9.]+)s", running.log.read_text())
    if found is None:
        raise RuntimeError(f"the app over {protocol} did not end: {running.log.read_text()[-2000:]}")
    return float(found[1]) / ROUNDS


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens to."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listening.getsockname()[1]) for listening in sockets]


def _wait_for(port: int) -> None:
    """Wait until somebody listens to a port."""
    while True:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdout.write(f"{seconds()}\n")
