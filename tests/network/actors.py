"""What the processes of the network's tests do: a server, and clients that stop at a request of a round."""

import asyncio
import hashlib
import itertools
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dordis.network.deploy import DeployedJob, participant
from dordis.network.state import ServerState
from dordis.protocol import ENCODER
from dordis.rounds.app import AppClient, AppServer
from dordis.simulation import reading
from dordis.simulation.config import Config
from tests.adversarial.theft import stop_at_the_sum, take_out_gate

OUTPUT = "sums.npz"


class Total(AppServer):
    """Keep every sum; before a round it may wait at a gate: two pipes, one tells, one is told to go on."""

    def __init__(self, dim: int = 1000, gate: str = "") -> None:
        self._dim, self._gate, self.sums = dim, gate, {}
        self._passed = 0

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def model_lengths(self) -> tuple[int, ...]:
        return (1000,)

    def model(self) -> np.ndarray:
        if self._gate and self._passed == len(self.sums):
            Path(self._gate + ".out").write_text("here")
            Path(self._gate + ".in").read_text()
            self._passed += 1
        return np.full(1000, len(self.sums), np.float32)

    def use_output(self, round, aggregate) -> None:
        self.sums[f"total{round.index}"] = aggregate.total

    def state(self) -> dict[str, np.ndarray]:
        return self.sums

    def restore(self, state) -> None:
        self.sums = dict(state)

    def export(self, directory: Path) -> None:
        np.savez(directory / OUTPUT, **self.sums)


class Constant(AppClient):
    """Give a vector of which all coordinates are the same, of a norm that tells who gave it."""

    def __init__(self, place: int, dim: int = 1000, gate: str = "") -> None:
        self.update = np.full(dim, value(place + 1, dim), np.float32)

    def prepare_data(self, round, model) -> np.ndarray:
        return self.update


def value(client: int, dim: int) -> float:
    """Return the coordinates of a client's update, whose norm is at most 1."""
    return client / 16 / dim**0.5


def settings(keys: list[str]) -> Config:
    """Return a configuration with the application above, and keys over it."""
    usual = {
        "app": {"server": "tests.network.actors:Total", "client": "tests.network.actors:Constant"},
        "deployment": {"host": "127.0.0.1", "port": 0, "train_seconds": 0.05},
    }
    given = usual
    for key in keys:
        given = reading.merged(given, reading.assignment(key))
    return reading.over_defaults(given)


def serve(
    folder: str,
    keys: list[str],
    listening: str,
    resume: str = "",
    only: int = 0,
    dies: int = 0,
    victim: str = "",
    steals: bool = False,
    gated: bool = True,
) -> None:
    """Serve a run in a folder with a federation, or `only` some rounds; write the port to a pipe.

    `dies` is the place among all that is made durable from then on where the process kills itself: see `_mortal`.  With
    a `victim` it kills one of the processes that receive for it, and writes its id to that file.  One that `steals` is
    killed as soon as it has a sum, and one that is not `gated` lets every request pass the privacy gate.
    """
    if steals:
        stop_at_the_sum(pytest.MonkeyPatch(), _kill_this)
    if not gated:
        take_out_gate(pytest.MonkeyPatch())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    home, config = Path(folder), settings(keys)
    job = DeployedJob.of(config, 0, home / "server.key", home / "registry.json")
    run = job.resume(Path(resume)) if resume else job.start(home / "runs", reading.written(config))

    def listen(port: int) -> None:
        _mortal(dies, partial(_kill_receiver, Path(victim)) if victim else _kill_this)
        Path(listening).write_text(str(port))

    run.home.listening = listen
    try:
        if only and run.done >= only:  # killed when the round was on the disk already: nobody is listened to
            listen(0)
            run.close("rounds")
        elif only:
            list(itertools.islice(run.rounds(), only - run.done))
            run.close("rounds")
        else:
            run.complete()
    finally:
        run.home.close()


def join(
    folder: str,
    keys: list[str],
    client: int,
    port: int,
    kill: list[Any] | None = None,
    cut: list[Any] | None = None,
    welcomed: str = "",
    dies: int = 0,
) -> None:
    """Join as a client; `kill` and `cut` are a round and a request at which something happens.

    The process kills itself, or tells a pipe, the third of `cut`, and goes on when it is told to by the fourth.
    `welcomed` is a pipe that is told of the first log-in.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    home = Path(folder)
    files = home / f"c{client}.key", home / "registry.json", home / f"c{client}.state"
    ungated = [key for key in keys if not key.startswith("app.options.gate=")]
    made = participant(f"https://localhost:{port}", settings(ungated), 0, *files)
    at: dict[tuple[int, str], Callable[[], Any]] = {}
    if kill is not None:
        at[tuple(kill)] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    if cut is not None:
        at[cut[0], cut[1]] = lambda: (Path(cut[2]).write_text("here"), Path(cut[3]).read_text())
    made.made = _watched(made.made, at, welcomed, home / f"c{client}.opened")
    _mortal(dies)
    asyncio.run(made.stay())


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_receiver(victim: Path) -> None:
    process = min(multiprocessing.active_children(), key=lambda process: process.pid)
    process.kill()
    victim.write_text(str(process.pid))


def _mortal(place: int, kill: Callable[[], None] = _kill_this) -> None:
    """Kill at a sync to the disk or a commit, counted from now on: even before it, odd after it."""
    count = 0

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if place == 2 * count:
                kill()
            result = act(*arguments)
            if place == 2 * count + 1:
                kill()
            return result

        return acted

    if place:
        os.fsync = dying(os.fsync)
        ServerState._commit = dying(ServerState._commit)


def _watched(made: Any, at: dict[tuple[int, str], Callable[[], Any]], welcomed: str, opened: Path) -> Any:
    """Make clients to which something happens when a request of a round comes, once; they note what opens sums."""

    def watched(welcome: Any) -> Any:
        party = made(welcome)
        handle, number = party.handle, 0

        def noticed(request: Any) -> Any:
            nonlocal number
            number = getattr(request, "number", number)
            at.pop((number, type(request).__name__), lambda: None)()
            if request.discloses:
                with opened.open("a") as file:
                    digest = hashlib.sha256(ENCODER.encode(request)).hexdigest()
                    file.write(f"{party.round.invite.round.hex()} {request.chunk} {digest}\n")
            return handle(request)

        party.handle = noticed
        if welcomed:
            Path(welcomed).write_text("welcomed")
        return party

    return watched
