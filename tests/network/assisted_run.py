"""A deployed run of the assisted protocol: a server, helpers that stay connected, and clients that visit."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dordis.identity.authority import Authority
from tests.network.deployed_commands import DeployedCommands
from tests.network.deployed_run import DeployedRun
from tests.network.forked_processes import ForkedProcesses
from tests.network.local_server import publish
from tests.runs.parties import joined

HELPERS = 4


def enrol_helpers(folder: Path, count: int = HELPERS) -> None:
    """Enrol helpers `h1.key`, `h2.key`, ... in a federation; their ids follow those of the clients."""
    authority = Authority(folder / "authority", datetime.now(UTC))
    for h in range(1, count + 1):
        joined(authority, folder / f"h{h}.key")
    publish(folder)


def assisted_keys(clients: int, n_max: int, n_min: int, helpers: int = HELPERS) -> list[str]:
    """Return the settings of a run with open arrival whose helpers follow the clients."""
    ids = list(range(clients + 1, clients + helpers + 1))
    return [
        "protocol.use=assisted",
        "federation.arrival=open",
        f"federation.per_round={n_max}",
        f"protocol.tolerance={n_max - n_min}",
        "protocol.colluders=1",
        f"protocol.options.helpers={ids}",
        "deployment.poll=0.1",
    ]


class AssistedRun(DeployedRun):
    """A federation with helpers."""

    def __init__(self, processes: ForkedProcesses, folder: Path, clients: int, keys: Sequence[str]) -> None:
        super().__init__(processes, folder, clients, keys)
        enrol_helpers(folder)
        self.helpers: dict[int, int] = {}

    def assist(self, h: int, **options: Any) -> None:
        """Start a helper."""
        options = {"port": self.port} | options | {"folder": self.folder, "helper": h}
        self.helpers[h] = self.processes.start("assist", self.folder / f"h{h}.log", **options)

    def assist_missing(self) -> None:
        """Start the helpers that are not running."""
        for h in range(1, HELPERS + 1):
            if h not in self.helpers or not self.processes.is_running(self.helpers[h]):
                self.assist(h)

    def join_missing(self) -> None:
        """Start the clients that are not running."""
        for u in range(1, len(list(self.folder.glob("c*.key"))) + 1):
            if u not in self.clients or not self.processes.is_running(self.clients[u]):
                self.join(u)

    def stop(self) -> None:
        """Kill all processes."""
        super().stop()
        self.processes.kill(*self.helpers.values())

    def end(self, but: int = 0) -> int:
        """Wait for the end of the server and return its exit code; if it is 0, end clients and helpers `but` one."""
        code = super().end()
        if code == 0:
            self.processes.kill(*(pid for h, pid in self.helpers.items() if h != but))
        return code


class AssistedCommands(DeployedCommands):
    """The same by commands of `dordis`."""

    def __init__(self, processes: ForkedProcesses, folder: Path, clients: int, keys: Sequence[str]) -> None:
        super().__init__(processes, folder, clients, keys)
        enrol_helpers(folder)
        self.helpers: dict[int, int] = {}

    def assist_all(self) -> None:
        """Start all helpers."""
        for h in range(1, HELPERS + 1):
            command = ["assist", f"https://localhost:{self.client_port}", "--identity", f"h{h}.key"]
            options = {"arguments": command, "folder": self.folder}
            self.helpers[h] = self.processes.start("command", self.folder / f"h{h}.log", **options)

    def stop(self) -> None:
        """Kill all processes."""
        super().stop()
        self.processes.kill(*self.helpers.values())
