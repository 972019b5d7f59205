"""Simulated rounds a second: the digits task, 20 of 100 clients a round, beside Flower's simulation engine."""

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.timing import repetitions
from dordis.config.schema import App, Config, Federation, Privacy, Simulation
from dordis.dropout_models import Rate
from dordis.privacy.noise_strategies import NoNoise, Strategy, XNoise
from dordis.rounds.app import Task
from dordis.simulation.run import prepare

CLIENTS, PER_ROUND = 100, 20
FEDAVG = {"optimiser": {"kind": "fedavg", "lr": 1.0}, "average": 0.0}
"""Plain FedAvg, as Flower has it: the next model is the mean of the clients' models."""
LEARNT = 0.8
"""Accuracy on the test data that plain FedAvg reaches in a few rounds: both sides did the work."""
WARM_UP = 3
"""First rounds of a run that are not counted: kernels are loaded, processes begin, data are read."""
TURNS = 3
"""How often the sides are taken in turn."""
MEMORY = Path("/dev/shm")  # noqa: S108  a file system in memory, where there is one

_JOB = "digits, softmax regression, 5 epochs of plain FedAvg, 20 of 100 clients a round, evaluated every round"
_FLOWER = "ray, one process for each processor (num_cpus = 1), nothing is written"

FIGURES = {
    "rounds_per_s": Figure("1/s", note=f"{_JOB}; fidelity ideal, noise none, records in memory"),
    "disk_rounds_per_s": Figure("1/s", note="the same, each round synced to the disk"),
    "xnoise_rounds_per_s": Figure("1/s", note="fidelity ideal, noise xnoise, with the privacy ledger"),
    "secagg_rounds_per_s": Figure("1/s", note="fidelity full: xnoise, and every message of SecAgg, malicious server"),
    "flwr_apps_rounds_per_s": Figure("1/s", note=f"flwr, run_simulation of a ClientApp and a ServerApp; {_FLOWER}"),
    "flwr_start_rounds_per_s": Figure("1/s", note=f"flwr, start_simulation; {_FLOWER}"),
    "flwr_rounds_per_s": Figure("1/s", note="the same job as rounds_per_s, by the faster of the two"),
    "vs_flwr": Figure("times", at_least=10, note="rounds_per_s, records in memory, over flwr_rounds_per_s; best turns"),
}

Side = Callable[[], float]
"""Runs some rounds, and returns how many it did in a second."""


def run(quick: bool) -> dict[str, float]:
    """Take all sides in turn and keep the best of each: other load only ever adds time."""
    sides = _ours(quick) | _flower(quick)
    best = dict.fromkeys(sides, 0.0)
    for _ in range(1 if quick else TURNS):
        for name, side in sides.items():
            best[name] = max(best[name], side())
    flower = max((speed for name, speed in best.items() if name.startswith("flwr_")), default=0.0)
    return best | ({"flwr_rounds_per_s": flower, "vs_flwr": best["rounds_per_s"] / flower} if flower else {})


def _ours(quick: bool) -> dict[str, Side]:
    many, some, few = (repetitions(full, quick) for full in (200, 60, 6))
    memory = MEMORY if MEMORY.is_dir() else None
    return {
        "rounds_per_s": lambda: simulated(many, NoNoise(), memory),
        "disk_rounds_per_s": lambda: simulated(some, NoNoise(), None),
        "xnoise_rounds_per_s": lambda: simulated(some, XNoise(), memory),
        "secagg_rounds_per_s": lambda: simulated(few, XNoise(), memory, secure=True),
    }


def _flower(quick: bool) -> dict[str, Side]:
    """Return the sides of Flower, if it is there with what it needs to simulate."""
    try:
        from benchmarks import flower_simulation as flower
    except ImportError:
        return {}
    rounds, task = WARM_UP + repetitions(20, quick), Task(FEDAVG, CLIENTS)

    def side(play: Callable[[Task, int, int], flower.Progress]) -> float:
        progress = play(task, PER_ROUND, rounds)
        assert progress.accuracy > LEARNT
        return speed(progress.times)

    return {
        "flwr_apps_rounds_per_s": lambda: side(flower.by_apps),
        "flwr_start_rounds_per_s": lambda: side(flower.by_start),
    }


def simulated(rounds: int, noise: Strategy, directory: Path | None, secure: bool = False) -> float:
    """Run rounds as `dordis run` does, recorded in a directory, and return how many are done in a second."""
    config = Config(
        app=App(options=FEDAVG),
        federation=Federation(CLIENTS, PER_ROUND, WARM_UP + rounds),
        privacy=Privacy(noise=noise),
        simulation=Simulation("full" if secure else "ideal", dropout=Rate(0.0)),
    )
    with tempfile.TemporaryDirectory(dir=directory) as root:
        run = prepare(config).start(Path(root), "")
        begun = time.perf_counter()
        ended = [(time.perf_counter(), finished.metrics.values["accuracy"]) for finished in run.rounds()]
    assert not isinstance(noise, NoNoise) or ended[-1][1] > LEARNT
    return speed([begun, *(at for at, _ in ended)])


def speed(times: list[float], uncounted: int = WARM_UP) -> float:
    """Return rounds a second, from when the run began and when each of its rounds ended, but for the first ones."""
    seconds = [end - start for start, end in pairwise(times)][uncounted:]
    return len(seconds) / sum(seconds)
