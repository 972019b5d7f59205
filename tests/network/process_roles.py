"""Roles of forked processes: a server, and clients to which something happens at a request of a round."""

import asyncio
import hashlib
import itertools
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dordis import cli
from dordis.config import reading
from dordis.config.schema import Config
from dordis.errors import RoundFailed
from dordis.network import client_setup
from dordis.network.client_setup import create_participant
from dordis.network.deployment import DeployedJob
from dordis.network.helper_setup import create_assistant
from dordis.network.log_lines import set_up_logging
from dordis.network.resumable_rounds import RoundStore
from dordis.protocol import ENCODER
from dordis.rounds.app import AppClient, AppServer
from tests.adversary.theft import stop_at_the_sum, take_out_gate

OUTPUT = "sums.npz"


class Total(AppServer):
    """Store every sum, or the `last` ones; with a `gate`, wait before each round for it.

    It writes to the pipe gate.out, then reads from gate.in.
    """

    def __init__(self, dim: int = 1000, gate: str = "", unready: str = "", last: int = 0) -> None:
        self._dim, self._gate, self._last, self.sums = dim, gate, last, {}
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
        for name in list(self.sums)[: -self._last] if self._last else ():
            del self.sums[name]

    def state(self) -> dict[str, np.ndarray]:
        return self.sums

    def restore(self, state) -> None:
        self.sums = dict(state)

    def export(self, directory: Path) -> None:
        np.savez(directory / OUTPUT, **self.sums)


class EarlyTotal(Total):
    """The same; clients of the next round are invited before a round is evaluated."""

    evaluates_beside = True


class Evaluated(Total):
    """A server that evaluates each round when the clients of the next one have trained.

    The file `verdict`, while it is there, has a word and a number of rounds after which that happens: `kill`ed,
    `fail`ed by a metric, or `wait`ed for with the pipes verdict.out and verdict.in.
    """

    evaluates_beside = True

    def __init__(self, dim: int = 1000, verdict: str = "") -> None:
        super().__init__(dim)
        self._verdict = Path(verdict)

    def evaluate(self) -> dict[str, float]:
        for thread in threading.enumerate():
            if thread.name == "dordis invitation":
                thread.join()
        word, rounds = self._verdict.read_text().split() if self._verdict.exists() else ("", "0")
        stops = len(self.sums) == int(rounds)
        if stops and word == "kill":
            _kill_this()
        if stops and word == "wait":
            self._verdict.with_suffix(".out").write_text("here")
            self._verdict.with_suffix(".in").read_text()
            stops = False
        return {"rounds": math.nan if stops else float(len(self.sums))}


class Constant(AppClient):
    """Return a constant vector whose norm identifies the client; it has no data while the file `unready` exists."""

    def __init__(self, place: int, dim: int = 1000, gate: str = "", unready: str = "", last: int = 0) -> None:
        self._unready = unready
        self.update = np.full(dim, value(place + 1, dim), np.float32)

    def is_ready(self, round) -> bool:
        return not (self._unready and Path(self._unready).exists())

    def prepare_data(self, round, model) -> np.ndarray:
        return self.update


class EvaluatedConstant(Constant):
    """The client of `Evaluated`."""

    def __init__(self, place: int, dim: int = 1000, verdict: str = "") -> None:
        super().__init__(place, dim)


class Following(Constant):
    """The same, which can tell the next model: missed sums are enough for it."""

    def next_model(self, round, model, aggregate) -> np.ndarray:
        return np.asarray(model) + 1


def value(client: int, dim: int) -> float:
    """Return the coordinate of a client's constant update, whose norm is between 1/2 and 1 for up to 20 clients."""
    return (client + 20) / 40 / dim**0.5


def settings(keys: list[str]) -> Config:
    """Return a configuration with the application above, changed by keys."""
    usual = {
        "app": {"server": "tests.network.process_roles:Total", "client": "tests.network.process_roles:Constant"},
        "deployment": {"host": "127.0.0.1", "port": 0, "train_seconds": 0.05, "deadlines": {"least": 60.0}},
    }
    given = usual
    for key in keys:
        given = reading.merge_settings(given, reading.parse_assignment(key))
    return reading.config_from_settings(given)


def serve(
    folder: str,
    keys: list[str],
    listening: str,
    resume: str = "",
    only: int = 0,
    dies: int = 0,
    steals: bool = False,
    gated: bool = True,
) -> None:
    """Serve a run in a folder with a federation, or `only` some rounds; write the port to a pipe.

    `dies` is the place among all that is made durable from then on where the process kills itself: see `_mortal`.  One
    that `steals` is killed as soon as it has a sum; one that is not `gated` lets every request pass the privacy gate.
    """
    if steals:
        stop_at_the_sum(pytest.MonkeyPatch(), _kill_this)
    if not gated:
        take_out_gate(pytest.MonkeyPatch())
    set_up_logging(quiet=False, as_json=False)
    home, config = Path(folder), settings(keys)
    job = DeployedJob.from_config(config, 0, home / "server.key", home / "registry.json")
    run = job.resume(Path(resume)) if resume else job.start(home / "runs", reading.config_to_toml(config))

    def listen(port: int) -> None:
        _mortal(dies)
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
    except RoundFailed:
        sys.stderr.write(run.home.explain_failure())
        raise
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
    more: list[str] | None = None,
) -> None:
    """Join as a client; `kill` and `cut` are a round and a request at which something happens; `more` keys are its own.

    The process kills itself, or tells a pipe, the third of `cut`, and goes on when it is told to by the fourth.
    `welcomed` is a pipe that is told of the first log-in.
    """
    set_up_logging(quiet=False, as_json=False)
    home = Path(folder)
    files = home / f"c{client}.key", home / "registry.json", home / f"c{client}.state"
    ungated = [key for key in keys if not key.startswith("app.options.gate=")]
    made = create_participant(f"https://localhost:{port}", settings([*ungated, *(more or ())]), 0, *files)
    at: dict[tuple[int, str], Callable[[], Any]] = {}
    if kill is not None:
        at[tuple(kill)] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    if cut is not None:
        at[cut[0], cut[1]] = lambda: (Path(cut[2]).write_text("here"), Path(cut[3]).read_text())
    made.create_party = _watched(made.create_party, at, welcomed, home / f"c{client}.opened")
    _mortal(dies)
    asyncio.run(made.stay())


def assist(folder: str, helper: int, port: int, dies: int = 0, policy: str = "", beacon: str = "") -> None:
    """Assist as a helper, by the number of its key file."""
    set_up_logging(quiet=False, as_json=False)
    home, given = Path(folder), Path(policy) if policy else None
    files = home / f"h{helper}.key", home / "registry.json", home / f"h{helper}.state"
    published = Path(beacon) if beacon else None
    made = create_assistant(f"https://localhost:{port}", *files, given, None, mutual=True, beacon=published)
    _mortal(dies)
    asyncio.run(made.stay())


def command(arguments: list[str], folder: str, opened: str = "", file_size: int = 0, stdout: str = "") -> None:
    """Run a command of `dordis` in a folder; a client notes in the file `opened` what discloses sums.

    `file_size` limits the bytes of a file, as a full disk does; `stdout` is another file, or a pipe that nobody reads.
    """
    os.chdir(folder)
    if opened:
        create = client_setup.create_participant

        def watched(*arguments: Any, **options: Any) -> Any:
            made = create(*arguments, **options)
            made.create_party = _watched(made.create_party, {}, "", Path(opened))
            return made

        client_setup.create_participant = watched
    if file_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    if stdout:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer if stdout == "closed pipe" else os.open(stdout, os.O_WRONLY), 1)
    sys.argv = ["dordis", *arguments]
    cli.main()


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _mortal(place: int) -> None:
    """Kill at a sync to the disk or a commit, counted from now on: even before it, odd after it."""
    count = 0

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if place == 2 * count:
                _kill_this()
            result = act(*arguments)
            if place == 2 * count + 1:
                _kill_this()
            return result

        return acted

    if place:
        os.fsync = dying(os.fsync)
        RoundStore._commit = dying(RoundStore._commit)


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
                with opened.with_suffix(".seeds").open("a") as file:
                    file.writelines(f"{seed.hex()}\n" for seed in _drawn_seeds(party.round.summing.state))
            return handle(request)

        party.handle = noticed
        if welcomed:
            Path(welcomed).write_text("welcomed")
        return party

    return watched


def _drawn_seeds(state: Any) -> Iterator[bytes]:
    """Yield the secrets that a client of SecAgg drew for a round: of masks, uploads and noise, in all chunks."""
    for drawn in getattr(state, "secrets", {}).values():
        yield from (drawn.masking, drawn.self_mask, drawn.token, *drawn.issued.private, *drawn.issued.deposited)
