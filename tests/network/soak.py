"""A deployed run for many minutes with clients that come and go: python -m tests.network.soak [--minutes 20].

It prints the server's memory over time.  Memory that grows with the rounds would end a deployment of a year.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dordis.records.run_records import ROUNDS
from tests.network.deployed_run import DeployedRun
from tests.network.forked_processes import ForkedProcesses

CLIENTS, LEAVES, SAMPLES = 8, 7.0, 5.0
"""Clients, seconds from one kill of a client to the next, and seconds between two looks at the memory."""
GROWTH = 1.05
"""Largest ratio of the memory of the last fifth to that of the second fifth: the first warms up."""
KEYS = (
    "app.options.last=1",  # an application that keeps all sums would grow by itself
    "federation.rounds=20000",
    "privacy.epsilon=1000",
    "privacy.delta=1e-3",
    "protocol.threshold=5",
    "protocol.tolerance=3",
    "deployment.wait=60",
    "deployment.deadlines.grace=1",
    "federation.tries=20",
    "deployment.trainings=1000",
)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1e3


@dataclass(frozen=True)
class Sample:
    """Memory of the server and finished rounds, some seconds after the start."""

    seconds: float
    megabytes: float
    rounds: int


def soak(fleet: DeployedRun, seconds: float, take: Callable[[Sample], None]) -> None:
    """Kill and restart one client after the other, and take samples meanwhile."""
    fleet.serve()
    fleet.join_missing()
    began, leaving = time.monotonic(), itertools.cycle(range(1, CLIENTS + 1))
    next_leave = began + LEAVES
    while (now := time.monotonic()) < began + seconds:
        take(Sample(round(now - began, 1), resident_mb(fleet.server), count_rounds(fleet)))
        if now >= next_leave:
            u = next(leaving)
            fleet.processes.kill(fleet.clients.pop(u))
            fleet.join(u)
            next_leave = now + LEAVES
        time.sleep(SAMPLES)


def count_rounds(fleet: DeployedRun) -> int:
    """Return the number of finished rounds."""
    path = fleet.run / ROUNDS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def mean_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the mean megabytes and the mean number of rounds of some samples."""
    return statistics.mean(s.megabytes for s in samples), statistics.mean(s.rounds for s in samples)


def main() -> None:
    """Run, print, and exit with 1 if memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    processes, samples = ForkedProcesses(), list[Sample]()

    def take(sample: Sample) -> None:
        samples.append(sample)
        sys.stderr.write(f"{sample.seconds:7.1f} s {sample.rounds:6d} rounds {sample.megabytes:7.1f} MB\n")

    with tempfile.TemporaryDirectory(prefix="dordis-soak-") as folder:
        fleet = DeployedRun(processes, Path(folder), CLIENTS, KEYS)
        try:
            soak(fleet, 60 * minutes, take)
            stored = fleet.stored()
            size = stored_bytes(stored.path)
        finally:
            fleet.stop()
            processes.close()
    fifths = [samples[k * len(samples) // 5 : (k + 1) * len(samples) // 5] for k in range(5)]
    (early, first), (late, last) = mean_of(fifths[1]), mean_of(fifths[4])
    outcome = {
        "minutes": minutes,
        "rounds": len(stored.rounds),
        "dropouts": sum(len(us) for one in stored.rounds for us in one.dropped.values()),
        "server_mb_by_fifth_of_the_time": [round(mean_of(fifth)[0], 1) for fifth in fifths],
        "growth": round(late / early, 3),
        "kb_per_round_in_memory": round((late - early) * 1e3 / max(1, last - first), 2),
        "kb_per_round_on_disk": round(size / max(1, len(stored.rounds)) / 1e3, 2),
    }
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.exit(int(late > GROWTH * early))


def stored_bytes(path: Path) -> int:
    """Return the bytes of a run's directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
