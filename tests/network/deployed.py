"""A federation of processes as a test drives it, and what must be true of the run that it leaves."""

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dordis.federation.evidence import check_evidence
from dordis.federation.job import prepare
from dordis.federation.ledger import Summary
from dordis.federation.records import RECEIPTS, StoredRun, load
from tests.network.actors import OUTPUT, Total, settings, value
from tests.network.federation import enrol
from tests.network.zygote import Zygote

EPHEMERAL = 32768
"""Ports from here on are given to whoever connects."""


def ports_in_a_row(count: int) -> int:
    """Return the first of some ports that are free, below those that are given to whoever connects."""
    for first in range(EPHEMERAL // 2 + os.getpid() % 10_000, EPHEMERAL - count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no ports are free")


class Deployed:
    """A folder with a federation, a server, and clients by their ids."""

    def __init__(self, zygote: Zygote, folder: Path, clients: int, keys: Sequence[str]) -> None:
        self.zygote, self.folder = zygote, enrol(folder, clients)
        self.keys = [f"federation.clients={clients}", f"federation.per_round={clients}", *keys]
        self.clients: dict[int, int] = {}
        self.port = self.server = 0

    def pipe(self, name: str) -> Path:
        """Make a named pipe."""
        path = self.folder / name
        if not path.exists():
            os.mkfifo(path)
        return path

    def serve(self, **options: Any) -> None:
        """Start the server, and wait until it listens."""
        pipe = self.pipe("listening")
        keys = [*self.keys, f"deployment.port={self.port}"]  # the same as before, so that clients find it again
        options |= {"folder": self.folder, "keys": keys, "listening": pipe}
        self.server = self.zygote.start("serve", self.folder / "server.log", **options)
        self.port = int(pipe.read_text())

    def join(self, u: int, **options: Any) -> None:
        """Start a client."""
        options = {"port": self.port} | options | {"folder": self.folder, "keys": self.keys, "client": u}
        self.clients[u] = self.zygote.start("join", self.folder / f"c{u}.log", **options)

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

    def stop(self) -> None:
        """Kill everybody."""
        self.zygote.kill(self.server, *self.clients.values())

    def end(self) -> int:
        """Wait for the end of the server; clients end with the run, at the latest.  Return how the server ended."""
        code = self.zygote.wait(self.server)
        if code == 0:
            self.zygote.kill(*self.clients.values())
            self.clients.clear()
        return code

    @property
    def run(self) -> Path:
        """Return the directory of the run that began last."""
        return max((self.folder / "runs" / "digits").iterdir())

    def check_opened_once(self) -> set[str]:
        """No chunk of any round was opened by two different requests; return the rounds that were opened."""
        lines = {line for path in self.folder.glob("*.opened") for line in path.read_text().splitlines()}
        chunks = [tuple(line.split()[:2]) for line in lines]
        assert len(chunks) == len(set(chunks))
        return {round for round, _ in chunks}

    def stored(self) -> StoredRun:
        """Return what was recorded."""
        return load(self.run)

    def receipt(self, index: int) -> dict[str, Any]:
        """Return the receipt of a round."""
        return json.loads((self.run / RECEIPTS / f"{index:06d}.json").read_text())

    def check_ledger(self) -> Summary:
        """Verify the ledger: it is the run's, and says what the records say, of what was spent and what is stated."""
        stored = self.stored()
        told = check_evidence(stored)
        assert told.completed == len(stored.rounds)
        assert (told.epsilon, told.stated.epsilon) == (stored.result.spent, stored.result.epsilon)
        return told

    def check_sums(self) -> None:
        """Every sum is that of its survivors, chunk by chunk, but for noise of the variance that was left in it."""
        config = settings(self.keys)
        dim = config.app.options["dim"]
        design = prepare(config, Total(dim)).design
        with np.load(self.run / OUTPUT) as stored:
            sums = dict(stored)
        for record in self.stored().rounds:
            survivors = self.receipt(record.index)["survivors"]
            sized = design.sized(len(record.clients))
            grid, ends = sized.mechanism.grid, [span.stop for span in sized.example(len(survivors)).chunks]
            blocks = grid.padded // grid.block
            chunk_of = np.searchsorted(ends, (np.arange(dim) % blocks) * grid.block, side="right")
            expected = np.array([sum(value(u, dim) for u in chunk) for chunk in survivors])[chunk_of]
            error = sums[f"total{record.index}"] - expected
            variance, rounding = record.left / grid.scale**2, len(record.clients) / 4 / grid.scale**2
            # The mean square of so many samples is within 5 % of its expectation but for a chance far below 1e-9, and
            # rounding adds at most a quarter for each client to the integer variance.
            assert dim >= 100_000
            assert 0.95 * variance < float(np.mean(error**2)) < 1.05 * (variance + rounding)
            assert abs(float(np.mean(error))) < 8 * (1.05 * (variance + rounding) / dim) ** 0.5
