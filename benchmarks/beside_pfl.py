"""Ideal rounds beside those of Apple's pfl-research: same samples, model, steps, noise and threads, sides in turn.

pfl gets a virtual environment of its own, made once and kept in the user's cache, with the version of torch that is
here.  Each side is a process, started anew for every turn.  `python -m benchmarks.beside_pfl JOB` is our side.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.figure import Figure
from benchmarks.simulation import MEMORY, speed
from dordis.apps.learning.app import Server
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.task import prepare_learning
from dordis.config.schema import App, Config, Federation, Performance, Privacy, Simulation
from dordis.dropout_models import NoDropout
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian
from dordis.privacy.noise_strategies import Central, NoNoise
from dordis.rounds.app import Task
from dordis.simulation.run import SimulatedJob, prepare

CLIENTS, PER_ROUND = 100, 20
UNCOUNTED = 2
"""First rounds of a turn: kernels are loaded, and pfl evaluates its clients in the first one."""
SEEDS = 5
"""Turns of either side; both have the same clients and the same first model in a turn, other ones in the next."""
SPEED_SEEDS = 2
"""Turns of a job whose speed alone is compared."""
CNN_ROUNDS, SPEED_ROUNDS, SOFTMAX_ROUNDS = 25, 10, 200
WRONG = 0.2
"""Part of the labels that are random, so that neither side comes near an accuracy of 1."""
PFL = "pfl==0.6.*"
SOFTMAX = {"optimiser": {"kind": "fedavg", "lr": 1.0}, "average": 0.0, "balance": 0.0, "lr": 1.0}

_RATIOS = {
    "softmax_vs_pfl": Figure("times", at_least=1.5, note="rounds a second, ours over pfl's: digits, softmax, 5 steps"),
    "cnn_vs_pfl": Figure("times", at_least=1.2, note="the same with the CNN, one step, no noise; one thread each"),
    "cnn_central_vs_pfl": Figure("times", at_least=1.0, note="the same under Gaussian noise of the server"),
    "cnn_vs_pfl_2": Figure("times", note="the CNN without noise, two threads each"),
}
_PARTS = {
    "cpu": Figure("times", note="processor time of pfl's round over ours: other load matters less"),
    "ours_per_s": Figure("1/s", note="ours: fidelity ideal, evaluated every round, records in memory"),
    "pfl_per_s": Figure("1/s", note="pfl's: evaluated every round, nothing is written"),
}
_MEASURED = {
    "ours": Figure("", note="on the test data after the last round, ours: mean over the seeds"),
    "ours_error": Figure("", note="standard error of that mean"),
    "pfl": Figure("", note="the same, pfl's"),
    "pfl_error": Figure("", note="standard error of that mean"),
    "gap": Figure("", note="ours less pfl's, of the same clients and first model: mean over the seeds"),
    "gap_error": Figure("", note="standard error of that mean"),
}
METRICS = ("accuracy", "loss")
SPEED_ONLY = frozenset({"cnn_vs_pfl_2"})
"""Jobs that are too short to compare what they learn."""
FIGURES = (
    _RATIOS
    | {f"{name}_{part}": figure for name in _RATIOS for part, figure in _PARTS.items()}
    | {
        f"{name}_{metric}_{part}": one
        for name in _RATIOS.keys() - SPEED_ONLY
        for metric in METRICS
        for part, one in _MEASURED.items()
    }
)
Turns = tuple[dict[str, Any], ...]
"""What one side printed in each of its turns."""


class Job(msgspec.Struct):
    """What both sides run: the settings of learning, whether the server adds noise, rounds, and threads."""

    options: dict[str, Any]
    central: bool
    rounds: int
    threads: int = 1
    seed: int = 0

    def prepare(self) -> SimulatedJob:
        """Return the run on our side."""
        return prepare(
            Config(
                app=App(options=self.options),
                federation=Federation(CLIENTS, PER_ROUND, self.rounds),
                privacy=Privacy(noise=Central() if self.central else NoNoise()),
                simulation=Simulation("ideal", dropout=NoDropout(), seed=self.seed),
                performance=Performance(threads=self.threads),
            )
        )


def measure(quick: bool, cnn_options: Mapping[str, Any]) -> dict[str, float]:
    """Take both sides of every job in turn; nothing where pfl is not there and cannot be installed."""
    python = environment(make=not quick)
    if python is None:
        return {}
    few, many = (6, 20) if quick else (CNN_ROUNDS, SOFTMAX_ROUNDS)
    jobs = {
        "softmax_vs_pfl": Job(SOFTMAX, central=False, rounds=many),
        "cnn_vs_pfl": Job(dict(cnn_options), central=False, rounds=few),
        "cnn_central_vs_pfl": Job(dict(cnn_options), central=True, rounds=few),
        "cnn_vs_pfl_2": Job(dict(cnn_options), central=False, rounds=min(few, SPEED_ROUNDS), threads=2),
    }
    found: dict[str, float] = {}
    for name, job in jobs.items():
        seeds = 1 if quick else SPEED_SEEDS if name in SPEED_ONLY else SEEDS
        turns = [both_sides(msgspec.structs.replace(job, seed=seed), python) for seed in range(seeds)]
        ours, theirs = zip(*turns, strict=True)
        found |= compare_speeds(name, ours, theirs)
        if not quick and name not in SPEED_ONLY:
            found |= compare_metrics(name, ours, theirs)
    return found


def both_sides(job: Job, python: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a job here and in pfl's environment, one after the other."""
    with exported(job) as (samples, settings):
        ours = turn([sys.executable, "-m", "benchmarks.beside_pfl", msgspec.json.encode(job).decode()], job.threads)
        theirs = turn([str(python), _side("pfl_side.py"), samples, json.dumps(settings)], job.threads)
    return ours, theirs


def compare_speeds(name: str, ours: Turns, theirs: Turns) -> dict[str, float]:
    """Return the speeds of a job in the best turn of each side, on the clock and in processor time."""
    fast, slow = (max(speed(side["times"], UNCOUNTED) for side in turns) for turns in (ours, theirs))
    spent, spent_there = (max(speed(side["spent"], UNCOUNTED) for side in turns) for turns in (ours, theirs))
    return {
        name: fast / slow, f"{name}_cpu": spent / spent_there, f"{name}_ours_per_s": fast, f"{name}_pfl_per_s": slow,
    }  # fmt: skip


def compare_metrics(name: str, ours: Turns, theirs: Turns) -> dict[str, float]:
    """Return the metrics of both sides and their difference, means over the seeds with standard errors."""
    found = {}
    for metric in METRICS:
        here, there = (np.array([side[metric] for side in turns]) for turns in (ours, theirs))
        for part, values in (("ours", here), ("pfl", there), ("gap", here - there)):
            found[f"{name}_{metric}_{part}"] = float(values.mean())
            found[f"{name}_{metric}_{part}_error"] = math.sqrt(values.var() / max(1, len(values) - 1))
    return found


def turn(command: list[str], threads: int) -> dict[str, Any]:
    """Run one side once, and return what it printed: both clocks at the end of every round, and metrics."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    ended = subprocess.run(command, env=os.environ | limits, stdout=subprocess.PIPE, text=True, check=True)
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


@contextmanager
def exported(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write the samples of all clients and the first model for pfl; give the file and what else pfl's side is told."""
    settings, task = msgspec.convert(job.options, Settings), Task(job.options, CLIENTS, job.seed)
    common = prepare_learning(settings, task)
    held = [common.samples(place) for place in range(CLIENTS)]
    assert common.test is not None
    mechanism = job.prepare().job.design.mechanism
    noise = (mechanism.clip, mechanism.sigma / mechanism.clip) if isinstance(mechanism, CentralGaussian) else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.npz"
        np.savez(
            path,
            x=np.concatenate([x for x, _ in held]),
            y=np.concatenate([y for _, y in held]),
            ends=np.cumsum([len(y) for _, y in held]),
            test_x=common.test[0],
            test_y=common.test[1],
            initial=Server.from_task(task).model(),
        )
        yield str(path), {
            "model": settings.model, "classes": common.classes, "rounds": job.rounds, "per_round": PER_ROUND,
            "epochs": settings.epochs, "lr": settings.lr, "batch": settings.batch, "threads": job.threads,
            "noise": noise, "seed": job.seed,
        }  # fmt: skip


def environment(make: bool) -> Path | None:
    """Return the Python of pfl's environment, made if it is not there; None, and why, if that does not work."""
    torch = version("torch").partition("+")[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "dordis" / f"benchmarks-pfl-torch-{torch}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists() or not make:
        return python if done.exists() else None
    venv.create(folder, clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={torch}", PFL]
    if subprocess.run(install, stdout=sys.stderr, check=False).returncode:
        print(f"the comparison with pfl is left out: it could not be installed into {folder}", file=sys.stderr)
        return None
    done.touch()
    return python


def _side(name: str) -> str:
    return str(Path(__file__).with_name(name))


def main() -> None:
    """Run our side of a job, and print what pfl's side prints."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    if job.options.get("model") == "cnn":
        from dordis.apps.learning.trainer import import_torch

        import_torch().set_num_threads(job.threads)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
        under_way = job.prepare().start(Path(root), "")
        times, spent, values = [time.perf_counter()], [time.process_time()], {}
        for finished in under_way.rounds():
            times.append(time.perf_counter())
            spent.append(time.process_time())
            values = finished.metrics.values
    print(json.dumps({"times": times, "spent": spent, **values}))


if __name__ == "__main__":
    main()
