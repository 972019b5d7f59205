"""Chaos: a deployed run of the real commands while everything that happens to operators happens to it.

`python -m tests.network.chaos --rounds 30 --clients 20` writes the figures of docs/results/chaos.md.
"""

import argparse
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dordis.identity.authority import REGISTRY_FILE, Authority
from dordis.records.run_records import ROUNDS
from tests.network.deployed_commands import DeployedCommands, wait_until
from tests.network.forked_processes import STACKS, ForkedProcesses
from tests.network.local_server import publish
from tests.network.proxies import FaultyProxy

KEYS = [
    "app.options.dim=100000",
    "performance.chunks=2",
    "privacy.epsilon=200",
    "deployment.wait=120",
    "deployment.deadlines.grace=60",
    "deployment.deadlines.retry=0.5",
    "federation.tries=9",
]
FULL = 1 << 17
"""Bytes of a file that a full disk has room for: fewer than a stored sum has."""


class Chaos:
    """A run whose parties are killed, stopped, cut off and deceived, at random places of its rounds."""

    def __init__(self, processes: ForkedProcesses, folder: Path, clients: int, rounds: int, seed: int) -> None:
        keys = [f"federation.rounds={rounds}", f"protocol.tolerance={clients // 3}", *KEYS]
        self._fleet = DeployedCommands(processes, folder, clients, keys)
        self._processes, self._rounds, self._random = processes, rounds, random.Random(seed)
        self._proxy = FaultyProxy(self._fleet.port)
        self._fleet.client_port = self._proxy.port
        self._gone: set[int] = set()
        self.events: Counter[str] = Counter()

    def run(self) -> dict[str, object]:
        """Run all rounds, with an event in each but the first and the last; return the figures."""
        began, fleet = time.monotonic(), self._fleet
        fleet.serve()
        for u in range(1, len(list(fleet.folder.glob("c*.key"))) + 1):
            self._join(u)
        schedule = self._schedule()
        for done in range(1, self._rounds - 1):
            self._wait_for_round(done)
            time.sleep(self._random.random())  # anywhere in the next round
            if not self._processes.is_running(fleet.server):
                break
            event = schedule[(done - 1) % len(schedule)]
            if event == self._member_revoked and self._gone:  # the cohort may lose a third, not more
                event = self._registry_rewritten_in_place
            self.events[event.__name__.strip("_").replace("_", " ")] += 1
            event()
        code = self._processes.wait(fleet.server)
        assert code == 0, fleet.log()[-2000:]
        codes = {u: self._processes.wait(pid) for u, pid in fleet.clients.items()}
        self._proxy.close()
        return self._figures(codes, time.monotonic() - began)

    def stop(self) -> None:
        """Kill what is left."""
        self._fleet.stop()

    def write_stacks(self) -> None:
        """Have every process write the stacks of its threads to its log: some round does not finish."""
        running = filter(self._processes.is_running, (self._fleet.server, *self._fleet.clients.values()))
        self._fleet.signal(STACKS, *running)

    def _wait_for_round(self, done: int) -> None:
        """Wait for the end of a round, or of the server, which a whole run reaches only after all rounds."""
        fleet = self._fleet
        wait_until(lambda: self._finished() >= done or not self._processes.is_running(fleet.server))
        assert self._finished() >= done, f"the server ended after {self._finished()} rounds: {fleet.log()[-2000:]}"

    def _schedule(self) -> list[Callable[[], None]]:
        return [
            self._clients_killed,
            self._server_killed,
            self._connections_cut,
            self._member_revoked,
            self._server_terminated,
            self._bytes_duplicated,
            self._registry_rewritten_in_place,
            self._disk_full,
            self._clients_terminated,
        ]

    def _figures(self, codes: dict[int, int], seconds: float) -> dict[str, object]:
        fleet = self._fleet
        stored, ledger = fleet.stored(), fleet.check_ledger()
        right, disclosed = fleet.check_sums(), fleet.check_disclosed_once()  # raise at the first that is wrong
        honest = [code for u, code in codes.items() if u not in self._gone]
        log = fleet.log() + "".join(fleet.client_log(u) for u in codes)
        sys.stderr.write(log[log.index("Traceback") - 200 :][:4000] if "Traceback" in log else "")
        return {
            "rounds finished": f"{len(stored.rounds)} of {self._rounds}",
            "failed tries": len(stored.failures),
            "clients home with exit code 0": f"{honest.count(0)} of {len(honest)}",
            "revoked clients": len(self._gone),
            "right sums": f"{right} of {len(stored.rounds)}",
            "rounds with one set of survivors for each chunk": f"{len(disclosed)} of {len(stored.rounds)}",
            "reserved rounds left in the ledger": ledger.reserved,
            "tracebacks": log.count("Traceback"),
            "seconds": round(seconds),
            "seconds of a round, median": round(statistics.median(record.seconds for record in stored.rounds), 1),
            "seconds of a round, longest": round(max(record.seconds for record in stored.rounds), 1),
        }

    def _finished(self) -> int:
        path = self._fleet.folder / "runs" / "digits"
        found = sorted(path.glob(f"*/{ROUNDS}"))
        return found[-1].read_bytes().count(b"\n") if found else 0

    def _join(self, u: int) -> None:
        self._fleet.join(u, "--budget", "1e6")

    def _victims(self) -> list[int]:
        there = sorted(set(self._fleet.clients) - self._gone)
        return self._random.sample(there, max(1, len(there) // 5))

    def _clients_killed(self) -> None:
        for u in self._victims():
            self._processes.kill(self._fleet.clients[u])
            self._join(u)

    def _clients_terminated(self) -> None:
        victims = self._victims()
        for u in victims:
            self._fleet.signal(signal.SIGTERM, self._fleet.clients[u])
        for u in victims:
            self._processes.wait(self._fleet.clients[u])
            self._join(u)

    def _server_killed(self) -> None:
        self._processes.kill(self._fleet.server)
        self._fleet.resume()

    def _server_terminated(self) -> None:
        self._fleet.signal(signal.SIGTERM, self._fleet.server)
        assert self._processes.wait(self._fleet.server) == 0
        self._fleet.resume()

    def _disk_full(self) -> None:
        self._fleet.signal(signal.SIGTERM, self._fleet.server)
        assert self._processes.wait(self._fleet.server) == 0
        self._fleet.resume(file_size=FULL)
        assert self._processes.wait(self._fleet.server) == 2
        self._fleet.resume()

    def _connections_cut(self) -> None:
        self._proxy.cut()

    def _bytes_duplicated(self) -> None:
        self._proxy.duplicate()

    def _member_revoked(self) -> None:
        u = max(self._fleet.clients)
        self._gone.add(u)
        Authority(self._fleet.folder / "authority", datetime.now(UTC)).revoke(f"c{u}", "lost its machine")
        publish(self._fleet.folder)

    def _registry_rewritten_in_place(self) -> None:
        path, data = (
            self._fleet.folder / "registry.json",
            (self._fleet.folder / "authority" / REGISTRY_FILE).read_bytes(),
        )
        path.unlink()
        time.sleep(0.3)
        path.write_bytes(data[: len(data) // 2])
        time.sleep(0.3)
        path.write_bytes(data)


def describe(figures: dict[str, object], events: Counter[str]) -> str:
    """Return the figures as two tables in Markdown."""
    lines = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in figures.items())]
    lines += [
        "",
        "| event | times |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(events.items())),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run chaos, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    processes = ForkedProcesses()
    folder = Path(tempfile.mkdtemp(prefix="dordis-chaos-"))
    chaos = Chaos(processes, folder, arguments.clients, arguments.rounds, arguments.seed)
    try:
        sys.stdout.write(describe(chaos.run(), chaos.events))
    except BaseException:
        sys.stderr.write(f"logs and records are in {folder}\n")
        chaos.write_stacks()
        raise
    else:
        shutil.rmtree(folder)
    finally:
        chaos.stop()
        processes.close()


if __name__ == "__main__":
    main()
