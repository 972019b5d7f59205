"""Rounds over Ray on this machine: the driver's share, the gain of two processors, and a thousand clients."""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import Figure
from benchmarks.timing import ratio, repetitions
from dordis.config.schema import Simulation
from dordis.crypto.suite import DEFAULT
from dordis.dropout_models import Rate
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting
from dordis.protocol import ClientId
from dordis.protocols.secagg import SECAGG, SECAGG_PLUS
from dordis.protocols.summing import SummingProtocol
from dordis.protocols.vector_backend import Vectors
from dordis.rounds.engine import RoundRunner
from dordis.runs.coordinator import FinishedRound
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.selection.selection import Selection
from dordis.simulation.run import home_of_updates, single_round

SHARE = (100, 1_000_000)
"""Clients and coordinates where the share of the driver is measured."""
MANY = (1000, 10_000)
QUICK = (8, 2000)
MASKS = 990
"""Of a server with 100 clients, of whom 10 are lost: 90 of their own, and 10 times 90 of pairs."""
NODES = 2
OF_A_NODE = {"num_cpus": 1, "object_store_memory": 500 << 20}
TICK = os.sysconf("SC_CLK_TCK")

FIGURES = {
    "ray_driver_share": Figure(
        "of all CPU",
        at_most=0.12,
        note="n = 100, d = 1M, XNoise, malicious server, a fifth drops out; without start-up",
    ),
    "ray_round_cpu_s": Figure("s", note="the same round: CPU seconds of the driver and of all processes of clients"),
    "ray_unmask_speedup": Figure(
        "times",
        at_least=1.5,
        note=f"{MASKS} masks of 1M coordinates: one thread over tasks of Ray, two idle processors",
    ),
    "ray_unmask_cpu_speedup": Figure(
        "times", note="the same: one thread's CPU over the longest task's, which other load hardly changes"
    ),
    "ray_n1000_s": Figure(
        "s", note="one round of SecAgg+, n = 1,000, d = 10k, two nodes on this machine, start-up included"
    ),
}


def run(quick: bool) -> dict[str, float]:
    """Measure on two nodes of one processor each, where Ray is installed."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # read at the import
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  other load slows both sides down alike
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        return {}
    nodes = Cluster(initialize_head=True, head_node_args=OF_A_NODE | {"include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            nodes.add_node(**OF_A_NODE)
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        return measured(quick)
    finally:
        ray.shutdown()
        nodes.shutdown()


def measured(quick: bool) -> dict[str, float]:
    """Measure all figures on the cluster that is there."""
    driver, others = shares(*(QUICK if quick else SHARE))
    figures = {"ray_driver_share": driver / (driver + others), "ray_round_cpu_s": driver + others}
    clock, cpu = speedups(QUICK[1] if quick else SHARE[1], repetitions(12, quick))
    figures |= {"ray_unmask_speedup": clock, "ray_unmask_cpu_speedup": cpu}
    started = time.perf_counter()
    clients, dim = QUICK if quick else MANY
    finished = round_of(clients, dim, SECAGG if quick else SECAGG_PLUS)
    assert len(finished.result.outputs[0].survivors) >= 0.8 * clients
    return figures | {"ray_n1000_s": time.perf_counter() - started}


def round_of(
    clients: int,
    dim: int,
    protocol: SummingProtocol,
    ready: Callable[[Any], None] = lambda rounds: None,
    dropout: float = 0.2,
) -> FinishedRound:
    """Run one round over Ray; `ready` is called when it is about to begin."""
    setting = Setting(ParticipationSchedule(clients, clients, 1), dim=dim, sparse=protocol.sparse)
    design = RoundPlan(XNoise(), setting, 6.0, ThreatModel(sparse=protocol.sparse))
    rate = Rate(dropout / 2 if protocol.sparse else dropout).model(1, protocol.stages)
    home = home_of_updates(design, protocol, Ones(dim), secrets.token_bytes, rate)
    home = replace(home, settings=Simulation(engine="ray"))

    def rounds(run: bytes, selection: Selection) -> RoundRunner:
        opened = home.open(run, selection, {})
        ready(opened)
        return opened

    return single_round(home, rounds=rounds)


class Ones:
    """The same update for every client."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def __call__(self, u: ClientId) -> Floats:
        """Return it."""
        return np.full(self._dim, 0.5 / self._dim**0.5)


def shares(clients: int, dim: int) -> tuple[float, float]:
    """Return the CPU seconds of the driver, and of the processes of Ray, in a round; their start is not counted."""
    before: list[tuple[float, float]] = []

    def ready(rounds: Any) -> None:
        rounds.available(0)  # every process is there
        before.append((time.process_time(), of_ray()))

    round_of(clients, dim, SECAGG, ready)
    ((driver, others),) = before
    return time.process_time() - driver, of_ray() - others


def of_ray() -> float:
    """Return the CPU seconds of all processes of Ray's that run our code, below this process."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, fields = (path / "cmdline").read_bytes(), (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(path.name)] = int(fields[1])
        if command.startswith(b"ray::") and b"Agent" not in command:
            seconds[int(path.name)] = (int(fields[11]) + int(fields[12])) / TICK
    return sum(taken for pid, taken in seconds.items() if _is_below(pid, parents))


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def speedups(dim: int, count: int) -> tuple[float, float]:
    """Return one thread's time for masks over that of Ray's tasks: on the clock, and CPU over the longest task's."""
    import ray

    from dordis.integrations.ray import RayVectors, Workers, sum_masks

    def timed(what: Any, first: int, dim: int) -> float:
        start = time.thread_time()
        sum_masks(what, first, dim)
        return time.thread_time() - start

    stream, total = DEFAULT.prg.Stream, np.zeros(dim, np.uint32)
    streams = [stream.from_bytes(i.to_bytes(DEFAULT.prg.STREAM_BYTES, "big")) for i in range(MASKS)]
    spread, here = RayVectors(Workers([], [])), Vectors()
    clock = ratio(
        lambda: here.add_masks(DEFAULT, total, streams, [], 20),
        lambda: spread.add_masks(DEFAULT, total, streams, [], 20),
        count,
        time.perf_counter,
    )
    what, half, task = (DEFAULT, streams, [], 20), dim // NODES, ray.remote(timed)
    alone = min(timed(what, 0, dim) for _ in range(count))
    tasks = [ray.get([task.remote(what, place * half, half) for place in range(NODES)]) for _ in range(count)]
    return clock, alone / min(max(taken) for taken in tasks)
