"""Rounds whose clients are invited while the round before is evaluated, beside rounds one after the other.

Deployed: the server is idle while clients train.  Simulated, which `dordis run` does one after the other: clients and
evaluation share the processors and the module of a torch model, so `early` shows the most that could be gained.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import network
from benchmarks.deployments import FORK, federation
from benchmarks.figure import Figure
from benchmarks.learning import CLIENTS, PER_ROUND, cnn_job
from benchmarks.simulation import MEMORY, speed
from benchmarks.timing import repetitions
from dordis.config import reading
from dordis.config.schema import App, Config, Federation, Privacy, Simulation
from dordis.dropout_models import NoDropout
from dordis.errors import InputError
from dordis.network.deadlines import compile_kernels
from dordis.network.deployment import DeployedJob
from dordis.privacy.noise_strategies import NoNoise
from dordis.simulation.run import prepare

TURNS = 3
"""How often the sides are taken in turn; the best of each is kept."""
DEPLOYED, TRAINING, EVALUATION = 5, 0.5, 0.4
"""Clients of the deployment, and the seconds for which they train and the server evaluates."""
DATA = os.environ.get("DORDIS_DATA", "")
"""Folder of the images of mnist-writers; without it these rounds are left out."""

_SIDES = {"alone": "one round after the other", "early": "the next round's clients train while a round is evaluated"}
_JOBS = {
    "deployed": f"{DEPLOYED} client processes, training {TRAINING:g} s, evaluation {EVALUATION:g} s",
    "cnn": "CNN with a million parameters, ideal, no noise, records in memory",
    "digits": "preset digits, ideal, records on disk",
    "writers": "preset mnist-writers, ideal, records on disk",
}
FIGURES = {
    f"{job}_{side}_rounds_per_s": Figure("1/s", note=f"{text}; {_SIDES[side]}")
    for job, text in _JOBS.items()
    for side in _SIDES
} | {f"{job}_early_vs_alone": Figure("times", note="of the two, best turns") for job in _JOBS}

Side = Callable[[bool], float]
"""Runs some rounds, early or one after the other, and returns how many it did in a second."""


class Slow(network.Nothing):
    """A server that takes long to evaluate, and needs no processor for it."""

    evaluates_beside = True

    def evaluate(self) -> dict[str, float]:
        """Wait."""
        time.sleep(EVALUATION)
        return {}


def run(quick: bool) -> dict[str, float]:
    """Take the sides of every job in turn."""
    found: dict[str, float] = {}
    for part in PARTS.values():
        found |= part(quick)
    return found


def compare(job: str, side: Side, quick: bool) -> dict[str, float]:
    """Return the best speeds of both sides, and their ratio."""
    turns = [(side(False), side(True)) for _ in range(1 if quick else TURNS)]
    alone, early = (max(speeds) for speeds in zip(*turns, strict=True))
    named = {"alone_rounds_per_s": alone, "early_rounds_per_s": early, "early_vs_alone": early / alone}
    return {f"{job}_{name}": value for name, value in named.items()}


def _deployed(quick: bool) -> dict[str, float]:
    compile_kernels()
    return compare("deployed", lambda early: deployed_speed(early, 2 + repetitions(20, quick)), quick)


def deployed_speed(early: bool, rounds: int) -> float:
    """Serve rounds to client processes; return how many are done in a second."""
    keys = ["app.server=benchmarks.evaluation:Slow", "app.options.dim=1000", f"deployment.train_seconds={TRAINING}"]
    config = network.settings(DEPLOYED, [*keys, f"federation.rounds={rounds}"])
    with federation(DEPLOYED) as folder:
        ours, theirs = FORK.Pipe()
        server = FORK.Process(target=serve, args=(folder, config, theirs, early))
        server.start()
        port = ours.recv()
        clients = [
            FORK.Process(target=network.join, args=(folder, config, port, [u], False)) for u in range(1, DEPLOYED + 1)
        ]
        for process in clients:
            process.start()
        times = ours.recv()
        server.join()
        for process in clients:
            process.kill()
            process.join()
    return speed(times, 2)


def serve(folder: Path, config: Config, pipe: Any, early: bool) -> None:
    """Serve a run, and send the times at which its rounds ended."""
    job = DeployedJob.from_config(config, 0, folder / "server.key", folder / "registry.json")
    under_way = job.start(folder / "runs", reading.config_to_toml(config))
    under_way.home.listening = pipe.send  # type: ignore[attr-defined]
    times = [time.perf_counter(), *(time.perf_counter() for _ in under_way.rounds(early=early))]
    pipe.send(times)
    under_way.home.close(run_over=True)  # type: ignore[attr-defined]


def _cnn(quick: bool) -> dict[str, float]:
    with cnn_job() as options:
        config = Config(
            app=App(options=options),
            federation=Federation(CLIENTS, PER_ROUND, 2 + repetitions(20, quick)),
            privacy=Privacy(noise=NoNoise()),
            simulation=Simulation("ideal", dropout=NoDropout()),
        )
        memory = MEMORY if MEMORY.is_dir() else None
        return compare("cnn", lambda early: simulated_speed(config, early, memory), quick)


def _digits(quick: bool) -> dict[str, float]:
    rounds = 2 + repetitions(100, quick)
    config = reading.read_config(preset="digits", keys=["simulation.fidelity=ideal", f"federation.rounds={rounds}"])
    return compare("digits", lambda early: simulated_speed(config, early, None), quick)


def _writers(quick: bool) -> dict[str, float]:
    keys = ["simulation.fidelity=ideal", f"federation.rounds={2 + repetitions(40, quick)}"]
    config = reading.read_config(preset="mnist-writers", keys=[*keys, f"app.options.data_dir={DATA}"])
    try:
        prepare(config)
    except InputError:  # the images are not there
        return {}
    return compare("writers", lambda early: simulated_speed(config, early, None), quick)


def simulated_speed(config: Config, early: bool, folder: Path | None) -> float:
    """Simulate rounds; return how many are done in a second."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        under_way = prepare(config).start(Path(root), "")
        return speed([time.perf_counter(), *(time.perf_counter() for _ in under_way.rounds(early=early))], 2)


PARTS: dict[str, Callable[[bool], dict[str, float]]] = {
    "deployed": _deployed,
    "cnn": _cnn,
    "digits": _digits,
    "writers": _writers,
}
"""Jobs that can be measured by themselves, with --only."""
