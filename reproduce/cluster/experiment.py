"""Run real rounds on a cluster: `dordis serve` with one configuration for each number of chunks, and its clients.

Everything happens in two network namespaces of this machine and a folder of its own, which are removed at the end.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dordis.config import reading
from dordis.config.schema import Config
from dordis.errors import InputError
from dordis.identity.authority import REGISTRY_FILE, Authority, new_request, read_request
from dordis.identity.certificates import new_tls_key
from dordis.identity.keys import Keys, PrivateKeys, save_keys
from dordis.records.run_records import RoundRecord, load_run
from reproduce.cluster.links import SERVER, Link
from reproduce.cluster.namespaces import Namespaces, open_namespaces
from reproduce.cluster.relay import READY

PORT = 8765
NEVER = 3600.0
"""Seconds of a deadline that no client misses."""
PATIENCE = 1200.0
"""Seconds after which an experiment is given up, unless the workload says otherwise."""
AUTO = 0
"""Stands for `chunks = "auto"` among numbers of chunks."""


@dataclass(frozen=True)
class Workload:
    """The rounds of an experiment: clients, length of an update, dropout, and numbers of chunks to compare."""

    clients: int
    dim: int
    chunks: Sequence[int]
    rounds: int = 2
    """Rounds of each run, of which the first does not count."""
    repeats: int = 1
    """Runs with each number of chunks; they take turns."""
    dropout: float = 0.0
    """Fraction of clients that drop out before they upload, in every round."""
    processes: int = 2
    """Processes over which the clients are spread."""
    patience: float = PATIENCE
    """Seconds after which an experiment is given up."""

    @property
    def lost(self) -> list[int]:
        """Return the clients that drop out: those with the highest numbers."""
        count = int(self.dropout * self.clients)
        return list(range(self.clients - count + 1, self.clients + 1))

    def config(self, chunks: int, repeat: int, folder: Path) -> Config:
        """Return the configuration of one run: the paper's threat model and bits, updates that are not folded."""
        app = "reproduce.cluster.app"
        settings: dict[str, Any] = {
            "name": run_name(chunks, repeat),
            "output": str(folder / "runs"),
            "app": {"server": f"{app}:FixedServer", "client": f"{app}:FixedClient", "options": {"dim": self.dim}},
            "federation": {"clients": self.clients, "per_round": self.clients, "rounds": self.rounds},
            "privacy": {"bits": 20, "projection": "off"},
            "protocol": {"mode": "semi-honest"},
            "performance": {"chunks": "auto" if chunks == AUTO else chunks},
            "deployment": {
                "host": SERVER,
                "port": PORT,
                "wait": PATIENCE,
                "train_seconds": 0.01,
                "runs_a_day": 100,
                "deadlines": {"stage": NEVER, "train": NEVER, "least": NEVER},
            },
        }
        return reading.config_from_settings(settings)


def run_name(chunks: int, repeat: int) -> str:
    """Return the name of a run, by which runs are ordered.

    >>> run_name(4, 1), run_name(AUTO, 0)
    ('1-04', '0-auto')
    """
    return f"{repeat}-auto" if chunks == AUTO else f"{repeat}-{chunks:02}"


def enrol(folder: Path, clients: int) -> None:
    """Make the keys and certificates of a server and its clients, and the registry that lists them."""
    authority = Authority.create(folder / "authority", "cluster", datetime.now(UTC))
    for name in ("server", *(f"c{u}" for u in range(1, clients + 1))):
        private = PrivateKeys(new_tls_key(), None if name == "server" else Keys.generate())
        save_keys(folder / f"{name}.key", private)
        asked = new_request(name, private, ("localhost",) if name == "server" else ())
        (folder / f"{name}.cert").write_bytes(authority.approve(read_request(asked)).pem)
    shutil.copy(folder / "authority" / REGISTRY_FILE, folder / "registry.json")


def write_experiment(folder: Path, workload: Workload, links: Sequence[Link]) -> None:
    """Write keys, links and configurations of an experiment into a folder."""
    enrol(folder, workload.clients)
    (folder / "links.json").write_bytes(msgspec.json.encode(links))
    (folder / "lost.json").write_bytes(msgspec.json.encode(workload.lost))
    configs = folder / "configs"
    configs.mkdir()
    for repeat in range(workload.repeats):
        for chunks in workload.chunks:
            text = reading.config_to_toml(workload.config(chunks, repeat, folder))
            (configs / f"{run_name(chunks, repeat)}.toml").write_text(text, encoding="utf-8")


def run_experiment(workload: Workload, links: Sequence[Link]) -> dict[int, list[RoundRecord]]:
    """Run all rounds; return the records by configured number of chunks, without the first round of each run."""
    with terminated_like_interrupted(), temporary_folder() as folder:
        write_experiment(folder, workload, links)
        with open_namespaces(links, str(os.getpid())) as names:
            serve_and_join(folder, workload, names)
        return collect_records(folder / "runs", workload)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder, and remove it with everything in it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="dordis-cluster-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end an experiment as Ctrl-C does, so that everything is removed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve_and_join(folder: Path, workload: Workload, names: Namespaces) -> None:
    """Start the server, the relays and the clients; return when the server has run all configurations."""
    module = [sys.executable, "-m"]
    serve = ["serve", folder / "configs", "--identity", folder / "server.key", "--registry", folder / "registry.json"]
    with ExitStack() as processes:
        server = processes.enter_context(
            started(names.server, [*module, "dordis", *serve, "--yes"], folder / "server.log", awaited="listening at")
        )
        relay = [*module, "reproduce.cluster.relay", folder / "links.json", SERVER, PORT]
        processes.enter_context(started(names.clients, relay, folder / "relay.log", awaited=READY))
        groups = min(workload.processes, workload.clients)
        for group in range(groups):
            join = [*module, "reproduce.cluster.clients", folder, group, groups]
            processes.enter_context(started(names.clients, join, folder / f"clients-{group}.log"))
        try:
            code = server.wait(workload.patience)
        except subprocess.TimeoutExpired:
            reason = f"the experiment was given up after {workload.patience:g} s: use fewer rounds or clients"
            raise InputError(reason) from None
        if code:
            raise InputError(f"the server failed:\n{tail(folder / 'server.log')}\n{tail(folder / 'clients-0.log')}")


@contextmanager
def started(
    namespace: str, command: Sequence[object], log: Path, awaited: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command in a namespace, wait for the text `awaited` in its output, and end it when the context ends."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *map(str, command)],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        wait_for_text(process, log, awaited)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_text(process: "subprocess.Popen[bytes]", log: Path, awaited: str) -> None:
    """Wait until a process has written a text; raise InputError if it ends before."""
    while awaited and awaited not in log.read_text(errors="replace"):
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        if awaited not in log.read_text(errors="replace"):
            raise InputError(f"a process of the cluster failed:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log; empty if there is none."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def collect_records(runs: Path, workload: Workload) -> dict[int, list[RoundRecord]]:
    """Read the records of all finished runs, by number of chunks, without the first round of each run."""
    records: dict[int, list[RoundRecord]] = {}
    for repeat in range(workload.repeats):
        for chunks in workload.chunks:
            name = run_name(chunks, repeat)
            paths = sorted((runs / name).iterdir()) if (runs / name).is_dir() else []
            if len(paths) != 1:
                raise InputError(f"there is not one run in {runs / name}: the experiment did not finish")
            records.setdefault(chunks, []).extend(load_run(paths[0]).rounds[min(1, workload.rounds - 1) :])
    return records
