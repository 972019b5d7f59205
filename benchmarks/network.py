"""A deployment on loopback with TLS: round times, the server's CPU and memory, receiving, idle clients.

The server is a process of its own; clients are processes too, some of them with many clients each.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hostile_clients, receiving
from benchmarks.deployments import FORK, HANG, federation
from benchmarks.figure import Figure
from benchmarks.server_process import peak_bytes
from dordis.config import reading
from dordis.config.schema import Config
from dordis.network.client_setup import create_participant
from dordis.network.deadlines import compile_kernels
from dordis.network.deployment import DeployedJob
from dordis.protocol import Message
from dordis.protocols.secagg.messages import CollectInput
from dordis.rounds.app import AppClient, AppServer, RoundInfo

FIGURES = {
    "n12_round_s": Figure("s", at_most=1.0, note="12 client processes, d = 200k, m = 4, malicious: a warm round"),
    "n100_server_cpu_s": Figure("s", at_most=2.0, note="100 clients, d = 1M, 20 bits, semi-honest: CPU of the server"),
    "n100_rss_mb": Figure("MB", at_most=600.0, note="the same: most memory of the server's process"),
    "receive_mb_per_cpu_s": Figure("MB/s", at_least=500.0, note="vectors of 2.5 MB, received and added"),
    "receive_vs_bare": Figure("", at_least=0.6, note="the same, against an aiohttp PUT that drops what comes"),
    "receive_vs_read": Figure("", note="the same, against an aiohttp PUT that has the whole body at last"),
    "silent_client_deadlines": Figure("", at_most=1.2, note="deadlines that a silent client costs, m = 4"),
    "ping_flood_cut_s": Figure("s", at_most=1.0, note="pings of a member as fast as it can: until it is cut off"),
    "fragment_flood_cut_s": Figure("s", at_most=1.0, note="the same with fragments of a message without content"),
    "flood_round_ratio": Figure("", at_most=1.5, note="rounds of 12 honest clients during the floods, against before"),
    "half_open_login_s": Figure("s", at_most=2.0, note="slowest log-in among 2,500 half-open connections, three waves"),
    "half_open_memory_ratio": Figure("", at_most=1.05, note="memory after the third wave, against after the first"),
    "idle_client_kb": Figure("kB", at_most=350.0, note="800 clients, connected: memory of the server for each"),
    "idle_cpu_percent": Figure("%", at_most=1.0, note="the same: CPU of the server, in percent of a core"),
}

DIM, BITS = 1_000_000, 20


class Nothing(AppServer):
    """Sum, and do nothing with it."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Any) -> None:
        """Do nothing."""


class Zero(AppClient):
    """Give an update of zeros."""

    def __init__(self, place: int, dim: int) -> None:
        self._update = np.zeros(dim, np.float32)

    def prepare_data(self, round: RoundInfo, model: Any) -> Any:
        """Return zeros."""
        return self._update


def run(quick: bool) -> dict[str, float]:
    """Measure everything."""
    compile_kernels()
    clients = 20 if quick else 100
    with federation(12) as folder:
        warm = rounds(folder, 12, 2 if quick else 10, ["app.options.dim=200000", "performance.chunks=4"])
    with federation(clients) as folder:
        large = rounds(
            folder,
            clients,
            1,
            [f"app.options.dim={DIM // (10 if quick else 1)}", "protocol.mode=semi-honest", f"privacy.bits={BITS}"],
            processes=4,
        )
    deadline = 2.0
    with federation(5) as folder:
        keys = ["app.options.dim=200000", "performance.chunks=4", f"deployment.deadlines.stage={deadline}"]
        keys += ["protocol.threshold=4", "protocol.tolerance=1"]
        silent = rounds(folder, 5, 3, keys, silent=True)
    receive, dropped, kept = receiving.against_bare(2 if quick else 8)
    return {
        "n12_round_s": min(warm["seconds"][1:]),
        "n100_server_cpu_s": large["cpu"],
        "n100_rss_mb": large["rss"] / 1e6,
        "receive_mb_per_cpu_s": receive,
        "receive_vs_bare": receive / dropped,
        "receive_vs_read": receive / kept,
        "silent_client_deadlines": (silent["seconds"][2] - silent["seconds"][1]) / deadline,
        **hostile_clients.floods(quick),
        **hostile_clients.half_open(quick),
        **hostile_clients.idle(80 if quick else 800, 5.0 if quick else 45.0),
    }


def settings(clients: int, keys: Sequence[str]) -> Config:
    """Return the configuration of a run of the applications above."""
    given: dict[str, Any] = {
        "app": {"server": "benchmarks.network:Nothing", "client": "benchmarks.network:Zero"},
        "federation": {"clients": clients, "per_round": clients},
        "deployment": {
            "host": "127.0.0.1",
            "port": 0,
            "wait": HANG,
            "train_seconds": 0.01,
            "deadlines": {"stage": HANG, "train": HANG},
        },
    }
    for key in keys:
        given = reading.merge_settings(given, reading.parse_assignment(key))
    return reading.config_from_settings(given)


def rounds(
    folder: Path, clients: int, count: int, keys: Sequence[str], processes: int = 0, silent: bool = False
) -> dict[str, Any]:
    """Run rounds; return the seconds of each, and the CPU and the memory of the server."""
    config = settings(clients, [*keys, f"federation.rounds={count}"])
    ours, theirs = FORK.Pipe()
    server = FORK.Process(target=serve, args=(folder, config, theirs))
    server.start()
    port, groups = ours.recv(), processes or clients
    everyone = range(1, clients + 1)
    joined = [
        FORK.Process(target=join, args=(folder, config, port, list(everyone[g::groups]), silent and g == 0))
        for g in range(groups)
    ]
    for process in joined:
        process.start()
    measured = ours.recv()
    server.join()
    for process in joined:
        process.kill()
        process.join()
    return measured


def serve(folder: Path, config: Config, pipe: Any) -> None:
    """Serve a run, and tell what it took."""
    job = DeployedJob.from_config(config, 0, folder / "server.key", folder / "registry.json")
    under_way = job.start(folder / "runs", reading.config_to_toml(config))
    under_way.home.listening = pipe.send  # type: ignore[attr-defined]
    stages: list[float] = []
    finished = [done.record.seconds for done in under_way.rounds(lambda stage: stages.append(time.process_time()))]
    cpu = time.process_time() - stages[0]
    pipe.send({"seconds": finished, "cpu": cpu, "rss": peak_bytes()})
    under_way.home.close()  # type: ignore[attr-defined]


def join(folder: Path, config: Config, port: int, clients: list[int], silent: bool, host: str = "localhost") -> None:
    """Join as some clients; a silent one hangs when it is asked for its upload in the third round."""

    async def stay() -> None:
        made = [
            create_participant(f"https://{host}:{port}", config, 0, folder / f"c{u}.key", folder / "registry.json",
                        folder / f"c{u}.state")
            for u in clients
        ]  # fmt: skip
        if silent:
            made[0].create_party = falling_silent(made[0].create_party)
        await asyncio.gather(*(one.stay() for one in made))

    asyncio.run(stay())


def falling_silent(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a client that answers nothing from the upload of the third round on."""

    def quiet(welcome: Any) -> Any:
        party = made(welcome)
        handle, number = party.handle, 0

        def handled(request: Message) -> Message:
            nonlocal number
            number = getattr(request, "number", number)
            if number == 3 and isinstance(request, CollectInput):
                time.sleep(HANG)
            return handle(request)

        party.handle = handled
        return party

    return quiet
