"""A deployed run for many minutes with clients that come and go: python -m tests.network.soak [--minutes 20].

It prints the server's memory over time.  Memory that grows with the rounds would end a deployment of a year.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.network.deployed_run import DeployedRun
from tests.network.forked_processes import ForkedProcesses

CLIENTS, LEAVES, SAMPLES = 8, 7.0, 5.0
"""Clients, seconds from one kill of a client to the next, and seconds between two looks at the memory."""
GROWTH = 1.10
"""Largest ratio of the memory of the last fifth to that of the second fifth: the first warms up."""
KEYS = (
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


def soak(fleet: DeployedRun, seconds: float) -> list[tuple[float, float]]:
    """Kill and restart one client after the other; return the seconds and megabytes of every sample."""
    fleet.serve()
    fleet.join_missing()
    began, leaving, samples = time.monotonic(), itertools.cycle(range(1, CLIENTS + 1)), []
    next_leave = began + LEAVES
    while (now := time.monotonic()) < began + seconds:
        samples.append((now - began, resident_mb(fleet.server)))
        if now >= next_leave:
            u = next(leaving)
            fleet.processes.kill(fleet.clients.pop(u))
            fleet.join(u)
            next_leave = now + LEAVES
        time.sleep(SAMPLES)
    return samples


def main() -> None:
    """Run, print, and exit with 1 if memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    processes = ForkedProcesses()
    with tempfile.TemporaryDirectory(prefix="dordis-soak-") as folder:
        fleet = DeployedRun(processes, Path(folder), CLIENTS, KEYS)
        try:
            samples = soak(fleet, 60 * minutes)
            stored = fleet.stored()
            size = stored_bytes(stored.path)
        finally:
            fleet.stop()
            processes.close()
    fifth = max(1, len(samples) // 5)
    early, late = (sum(mb for _, mb in part) / len(part) for part in (samples[fifth : 2 * fifth], samples[-fifth:]))
    outcome = {
        "minutes": minutes,
        "rounds": len(stored.rounds),
        "dropouts": sum(len(us) for one in stored.rounds for us in one.dropped.values()),
        "server_mb_second_fifth": round(early, 1),
        "server_mb_last_fifth": round(late, 1),
        "growth": round(late / early, 3),
        "kb_per_round_on_disk": round(size / max(1, len(stored.rounds)) / 1e3, 2),
    }
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.exit(int(late > GROWTH * early))


def stored_bytes(path: Path) -> int:
    """Return the bytes of a run's directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
