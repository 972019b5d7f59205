"""A deployed run of the commands `dordis serve` and `dordis join`, each in a forked process."""

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dordis.config import reading
from tests.network.deployed_run import DeployedRun
from tests.network.forked_processes import HANG, ForkedProcesses
from tests.network.process_roles import settings

CONFIG, OWN = "deployment.toml", "client.toml"
LOWEST_PORT = 20000
"""Lowest port of a server that is to have the same one again after a restart."""


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait for an event that shows in a file or a process."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "an event did not come"
        time.sleep(0.02)


def free_port() -> int:
    """Return a port that nobody listens at, and that the system gives to no other socket while its server is down.

    Ports that the system chooses itself may be taken by any connection, even by one to the stopped server.
    """
    lowest_chosen = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(LOWEST_PORT, lowest_chosen)  # other test runs draw other ports
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class DeployedCommands(DeployedRun):
    """A federation whose server and clients are run by commands, at a fixed port."""

    def __init__(self, processes: ForkedProcesses, folder: Path, clients: int, keys: Sequence[str]) -> None:
        super().__init__(processes, folder, clients, keys)
        self.port = self.client_port = free_port()
        self.keys += [f"deployment.port={self.port}", f"output={folder / 'runs'}", "name=digits"]
        self.write_config(CONFIG)
        self.keys, keys = [key for key in self.keys if not key.startswith("app.options.gate=")], self.keys
        self.write_config(OWN)  # without the gate, at which a client's rehearsal would wait
        self.keys = keys

    def write_config(self, name: str, *keys: str) -> None:
        """Write a configuration with changed keys into the folder."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(reading.config_to_toml(settings([*self.keys, *keys])))

    def serve(self, *arguments: object, wait: bool = True, **limits: Any) -> None:
        """Start the server with a configuration or other arguments, and wait until it listens."""
        before = self.log().count("listening at")
        files = ["--identity", "server.key", "--registry", "registry.json", "--yes"]
        command = ["serve", *map(str, arguments or (CONFIG,)), *files]
        options = {"arguments": command, "folder": self.folder, **limits}
        self.server = self.processes.start("command", self.folder / "server.log", **options)
        if wait:
            wait_until(lambda: self.log().count("listening at") > before or not self.processes.is_running(self.server))

    def resume(self, **limits: Any) -> None:
        """Resume the latest run."""
        self.serve("--resume", self.run, **limits)

    def join(self, u: int, *arguments: str, config: str = OWN, **limits: Any) -> None:
        """Start a client."""
        url, files = f"https://localhost:{self.client_port}", ["--identity", f"c{u}.key", "--config", config]
        command = ["join", url, *files, *arguments]
        options = {"arguments": command, "folder": self.folder, "opened": self.folder / f"c{u}.opened", **limits}
        self.clients[u] = self.processes.start("command", self.folder / f"c{u}.log", **options)

    def log(self) -> str:
        """Return the output of the server processes so far."""
        path = self.folder / "server.log"
        return path.read_text() if path.exists() else ""

    def client_log(self, u: int) -> str:
        """Return the output of a client's processes so far."""
        path = self.folder / f"c{u}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_client(self, u: int, text: str, count: int = 1) -> None:
        """Wait until a client has logged a text."""
        wait_until(lambda: self.client_log(u).count(text) >= count)

    def signal(self, number: signal.Signals, *pids: int) -> None:
        """Send a signal to processes."""
        for pid in pids:
            os.kill(pid, number)
