"""A deployed run of forked processes, and the checks of its records."""

import base64
import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dordis import wire
from dordis.ledger.ledger import LedgerSummary
from dordis.ledger.verification import check_evidence
from dordis.records.run_records import RECEIPTS, StoredRun, load_run
from dordis.runs.job import prepare
from tests.network.forked_processes import ForkedProcesses
from tests.network.local_server import enrol
from tests.network.process_roles import OUTPUT, Total, settings, value


class DeployedRun:
    """A federation in a folder, its server process, and its client processes by id."""

    def __init__(self, processes: ForkedProcesses, folder: Path, clients: int, keys: Sequence[str]) -> None:
        self.processes, self.folder = processes, enrol(folder, clients)
        self.keys = [f"federation.clients={clients}", f"federation.per_round={clients}", *keys]
        self.clients: dict[int, int] = {}
        self.port = self.server = 0

    def pipe(self, name: str) -> Path:
        """Create a named pipe."""
        path = self.folder / name
        if not path.exists():
            os.mkfifo(path)
        return path

    def serve(self, **options: Any) -> None:
        """Start the server, and wait until it listens."""
        pipe = self.pipe("listening")
        keys = [*self.keys, f"deployment.port={self.port}"]  # a restarted server keeps its port
        options |= {"folder": self.folder, "keys": keys, "listening": pipe}
        self.server = self.processes.start("serve", self.folder / "server.log", **options)
        self.port = int(pipe.read_text())

    def join(self, u: int, **options: Any) -> None:
        """Start a client."""
        options = {"port": self.port} | options | {"folder": self.folder, "keys": self.keys, "client": u}
        self.clients[u] = self.processes.start("join", self.folder / f"c{u}.log", **options)

    def join_and_wait(self, u: int, **options: Any) -> None:
        """Start a client, and wait until it has logged in."""
        pipe = self.pipe("welcomed")
        self.join(u, welcomed=pipe, **options)
        pipe.read_text()

    def join_missing(self) -> None:
        """Start the clients that are not running."""
        for u in range(1, len(list(self.folder.glob("c*.key"))) + 1):
            if u not in self.clients:
                self.join(u)

    def kill_clients(self) -> None:
        """Kill all clients, so that `join_missing` starts them again."""
        self.processes.kill(*self.clients.values())
        self.clients.clear()

    def stop(self) -> None:
        """Kill all processes."""
        self.processes.kill(self.server, *self.clients.values())

    def end(self) -> int:
        """Wait for the end of the server and return its exit code; if it is 0, end the clients."""
        code = self.processes.wait(self.server)
        if code == 0:
            self.kill_clients()
        return code

    @property
    def run(self) -> Path:
        """Return the directory of the latest run."""
        return max((self.folder / "runs" / "digits").iterdir())

    def check_disclosed_once(self) -> set[str]:
        """Check that no chunk was disclosed by two different requests; return the disclosed rounds."""
        lines = {line for path in self.folder.glob("*.opened") for line in path.read_text().splitlines()}
        chunks = [tuple(line.split()[:2]) for line in lines]
        assert len(chunks) == len(set(chunks))
        return {round for round, _ in chunks}

    def log(self) -> str:
        """Return the output of the server processes."""
        return (self.folder / "server.log").read_text()

    def stored(self) -> StoredRun:
        """Return the records of the latest run."""
        return load_run(self.run)

    def receipt(self, index: int) -> dict[str, Any]:
        """Return the receipt of a round."""
        return json.loads((self.run / RECEIPTS / f"{index:06d}.json").read_text())

    def check_ledger(self) -> LedgerSummary:
        """Check that ledger and records agree on the epsilon that was spent and that is stated; return its summary."""
        stored = self.stored()
        told = check_evidence(stored)
        assert told.completed == len(stored.rounds)
        assert (told.epsilon, told.stated.epsilon) == (stored.result.spent, stored.result.epsilon)
        return told

    def check_sums(self) -> int:
        """Check that each sum is that of its survivors, chunk by chunk, up to noise; return how many were checked."""
        config = settings(self.keys)
        dim = config.app.options["dim"]
        job = prepare(config, Total(dim))
        design, kind = job.design, job.protocol.parameters
        with np.load(self.run / OUTPUT) as stored:
            sums = dict(stored)
        for record in self.stored().rounds:
            receipt = self.receipt(record.index)
            survivors, left = receipt["survivors"], [Fraction(value) for value in receipt["left"]]
            sized = design.for_clients(len(record.clients)) if job.protocol.has_cohort else design
            grid, ends = sized.mechanism.grid, [span.stop for span in sized.example(len(survivors)).chunks]
            blocks = grid.padded // grid.block
            chunk_of = np.searchsorted(ends, (np.arange(dim) % blocks) * grid.block, side="right")
            expected = np.array([sum(value(u, dim) for u in chunk) for chunk in survivors])[chunk_of]
            error = sums[f"total{record.index}"] - expected
            # A failed attempt may change the plan of later rounds: the scale is that of the parameters agreed on.
            scale = wire.decode(base64.b64decode(receipt["agreed"]), kind).encoding.scale
            rounding = len(record.clients) / 4 / scale**2
            assert dim >= 100_000
            for chunk, noise in enumerate(left):
                # The mean square of so many samples is within 8 standard deviations of its expectation but for a chance
                # below 1e-9, and rounding adds at most a quarter for each client to the integer variance.
                part, variance = error[chunk_of == chunk], float(noise) / scale**2
                spread, mean_square = 8 * (2 / len(part)) ** 0.5, float(np.mean(part**2))
                told = record, survivors, chunk, mean_square / variance, spread
                assert (1 - spread) * variance < mean_square < (1 + spread) * (variance + rounding), told
                assert abs(float(np.mean(part))) < 8 * ((variance + rounding) / len(part)) ** 0.5, told
        return len(self.stored().rounds)
