"""Deployed rounds behind slow links: network namespaces with veth and `tc tbf`, plain against pipelined.

    sudo python -m benchmarks.slow_links [--dim 11000000] [--chunks 1 4] [--slower 1]

Eight clients, each a process in a network namespace of its own, behind 21 to 210 Mbps in both directions.  It needs
root, `ip` and `tc`, and makes a bridge and namespaces that it takes away again.  Latency is not emulated.  All clients
share the processors of this machine: `--slower 10` with a tenth of the coordinates takes as long on the links and a
tenth of the processors, as if they did not.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import network
from benchmarks.deployments import FORK, federation
from dordis.config import reading
from dordis.config.schema import Config
from dordis.network.deployment import DeployedJob
from dordis.network.population import NetworkRounds
from dordis.network.precompile import compile_kernels
from dordis.pipeline.executor import Timeline
from dordis.pipeline.planner import schedule_stages
from dordis.protocol import Resource

CLIENTS, SLOWEST, FASTEST = 8, 21.0, 210.0
BRIDGE, NET = "dordis-br", "10.77.0"
_NEW_NETWORK = 0x40000000
"""Linux's CLONE_NEWNET."""


def rates(slower: float) -> list[float]:
    """Return the Mbps of every client, evenly spaced on a logarithmic scale."""
    return [float(rate) / slower for rate in np.geomspace(SLOWEST, FASTEST, CLIENTS)]


def missing() -> str | None:
    """Return why this cannot be measured here, if it cannot."""
    if os.geteuid() != 0:
        return "this needs root: it makes network namespaces"
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} are missing: install iproute2" if lacking else None


def command(line: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(line.split(), check=True, stdout=subprocess.DEVNULL)


@contextmanager
def links(slower: float) -> Iterator[None]:
    """Lay a link from every client's namespace to a bridge, at whose other end the server is."""
    names = [f"dordis-{u}" for u in range(1, CLIENTS + 1)]
    try:
        command(f"ip link add {BRIDGE} type bridge")
        command(f"ip addr add {NET}.1/24 dev {BRIDGE}")
        command(f"ip link set {BRIDGE} up")
        for u, (name, rate) in enumerate(zip(names, rates(slower), strict=True), start=1):
            command(f"ip netns add {name}")
            command(f"ip link add dv{u} type veth peer name eth0 netns {name}")
            command(f"ip link set dv{u} master {BRIDGE} up")
            command(f"ip -n {name} addr add {NET}.{10 + u}/24 dev eth0")
            command(f"ip -n {name} link set eth0 up")
            shaped = f"root tbf rate {rate:.1f}mbit burst 64kb latency 100ms"
            command(f"tc qdisc add dev dv{u} {shaped}")
            command(f"tc -n {name} qdisc add dev eth0 {shaped}")
        yield
    finally:
        for line in [*(f"ip netns del {name}" for name in names), f"ip link del {BRIDGE}"]:
            subprocess.run(line.split(), check=False, stderr=subprocess.DEVNULL)


def serve(folder: Path, config: Config, pipe: Any) -> None:
    """Serve one round; tell when its steps ran."""
    timelines: list[Timeline] = []
    sums = NetworkRounds.sum

    def summed(self: NetworkRounds, *arguments: Any) -> Any:
        result = sums(self, *arguments)
        timelines.extend([result.timeline] if result.timeline is not None else [])
        return result

    NetworkRounds.sum = summed  # type: ignore[method-assign]
    under_way = DeployedJob.from_config(config, 0, folder / "server.key", folder / "registry.json").start(
        folder / "runs", reading.config_to_toml(config)
    )
    under_way.home.listening = pipe.send  # type: ignore[attr-defined]
    for _ in under_way.rounds(lambda stage: None):
        pass
    pipe.send(timelines[-1])
    under_way.home.close()  # type: ignore[attr-defined]


def join(folder: Path, config: Config, port: int, u: int) -> None:
    """Join as a client, from its namespace."""
    with Path(f"/var/run/netns/dordis-{u}").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
    network.join(folder, config, port, [u], silent=False, host=f"{NET}.1")


def round_of(folder: Path, dim: int, chunks: int) -> Timeline:
    """Run one round; return when its steps ran."""
    keys = [f"app.options.dim={dim}", f"performance.chunks={chunks}", "privacy.bits=20", "federation.rounds=1"]
    config = network.settings(CLIENTS, [*keys, f"deployment.host={NET}.1", f"name=chunks-{chunks}"])
    ours, theirs = FORK.Pipe()
    server = FORK.Process(target=serve, args=(folder, config, theirs))
    server.start()
    port = ours.recv()
    joined = [FORK.Process(target=join, args=(folder, config, port, u)) for u in range(1, CLIENTS + 1)]
    for process in joined:
        process.start()
    timeline: Timeline = ours.recv()
    server.join()
    for process in joined:
        process.kill()
        process.join()
    return timeline


def predicted(plain: Timeline, m: int) -> float:
    """Return what the planner says of m chunks, from the stages of a plain round: each chunk takes its part of them.

    Clients and server share the processors of this machine: what they compute is one resource.
    """
    shared = [Resource.CLIENT if one is Resource.SERVER else one for one in plain.resources]
    seconds = [sum(durations) / m for durations in plain.stage_seconds]
    return schedule_stages(shared, seconds, m, plain.setup_seconds).completion


def measure(dim: int, chunks: Sequence[int], slower: float) -> None:
    """Print a table."""
    compile_kernels()
    plain: Timeline | None = None
    print("| chunks | seconds | predicted | speed-up | seconds of the stages |\n|---:|---:|---:|---:|---|", flush=True)
    with links(slower):
        for m in chunks:
            with federation(CLIENTS, hosts=[f"{NET}.1"]) as folder:
                timeline = round_of(folder, dim, m)
            plain = plain or timeline
            stages = zip(timeline.resources, timeline.stage_seconds, strict=True)
            told = ", ".join(f"{resource.value} {sum(seconds):.1f}" for resource, seconds in stages)
            taken, foretold = timeline.completion, predicted(plain, m)
            print(f"| {m} | {taken:.1f} | {foretold:.1f} | {plain.completion / taken:.2f} | {told} |", flush=True)


def main() -> None:
    """Measure, or say why not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_links", description=__doc__)
    parser.add_argument("--dim", type=int, default=11_000_000)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--slower", type=float, default=1.0)
    chosen = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(f"skipped: {reason}")
    measure(chosen.dim, chosen.chunks, chosen.slower)


if __name__ == "__main__":
    main()
