"""Records as the unit of privacy beside Opacus on the pooled records: accuracy at equal epsilon, and cost of a step.

Both sides have the same records, model, initial weights, steps, rates, clip bound, epsilon and delta.  Opacus gets the
noise of its own PRV accountant.  Ours has 10 clients, two of which drop out in every round (for the table 8, one of
which drops out), the colluder and the spare events that a deployment plans for.
`records_*_local_accuracy` is that of clients that add all
the noise themselves, each to its own sum.

Opacus is installed once into the user's cache, without its dependencies.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dordis
from benchmarks.figure import Figure
from benchmarks.record_jobs import Job, cifar_job, data_folder, mnist_job, table_job
from dordis.apps.learning.record_gradients import RecordLearner
from dordis.dropout_models import Rate
from dordis.kernels.reals import LEAST_LENGTH
from dordis.privacy.record_accounting import calibrate, sampling_word
from dordis.privacy.record_encoding import RecordEncoding
from dordis.rounds.app import RoundInfo
from dordis.rounds.records import sum_records

BEFORE_UPLOAD = ("CollectInput",)
OPACUS = ("opacus==1.*", "opt_einsum")
STEPS = {"mnist": 200, "cifar": 200}
RATES = {"mnist": (0.25, 0.5, 1.0, 2.0), "cifar": (0.5, 1.0, 2.0)}
TITLES = {
    "mnist": "MNIST over 10 clients, small CNN, epsilon 3",
    "cifar": "CIFAR-10 features over 10 clients, softmax, epsilon 6",
    "table": "breast cancer over 8 clients, softmax, epsilon 3",
}
BARS = {"mnist": 0.6, "cifar": 1.0, "table": 1.5}
FIGURES = {"records_step_vs_opacus": Figure("times", at_most=1.5, note="CPU of our step over Opacus's, the same batch")}
for _name, _title in TITLES.items():
    FIGURES |= {
        f"records_{_name}_gap": Figure("points", at_most=BARS[_name], note=f"Opacus less ours: {_title}"),
        f"records_{_name}_error": Figure("points", note="standard error of the gap"),
        f"records_{_name}_accuracy": Figure("%", note="ours, a fifth (of 8: one) dropping out before every upload"),
        f"records_{_name}_opacus": Figure("%", note="Opacus on the pooled records"),
        f"records_{_name}_ideal_gap": Figure("points", note="without dropout and colluders: zero within two errors"),
        f"records_{_name}_ideal_error": Figure("points", note="standard error of that"),
        f"records_{_name}_local_accuracy": Figure("%", note="every client adds all the noise by itself"),
    }
    FIGURES |= {
        f"records_{_name}_rate_{_rate:g}": Figure("%", note="Opacus at this rate") for _rate in RATES.get(_name, ())
    }


class Results:
    """Accuracies that were measured already, one line of JSON each, in the file that DORDIS_RECORDS_RESULTS names.

    A long comparison can be stopped and started again: what the file has with the same settings is not run again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def measure(self, part: str, side: str, job: Job, work: Callable[[], dict[str, float]]) -> float:
        """Return the accuracy in percent that the file has for these settings, or measure and store it."""
        key = {"part": part, "side": side, **job.settings}
        for line in self._lines():
            if {name: line.get(name) for name in key} == key:
                return float(line["accuracy"])
        began = time.process_time()
        found = work()
        found["accuracy"] *= 100
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(key | {"cpu_seconds": time.process_time() - began} | found) + "\n")
        return found["accuracy"]

    def multiplier(self, job: Job) -> float:
        """Return the noise multiplier that Opacus found for the same budget; 0 if it has to be found first."""
        names = ("epsilon", "delta", "sampling", "steps")
        for line in self._lines():
            if (
                "multiplier" in line
                and line["side"] == "opacus"
                and all(line[name] == job.settings[name] for name in names)
            ):
                return float(line["multiplier"])
        return 0.0

    def _lines(self) -> list[dict[str, Any]]:
        found = self._path.read_text().splitlines() if self._path and self._path.is_file() else []
        return [json.loads(line) for line in found]


def seeds(count: int) -> range:
    """Return the seeds of a comparison: `count`, or the first few of them if DORDIS_RECORDS_SEEDS says so."""
    return range(min(count, int(os.environ.get("DORDIS_RECORDS_SEEDS", count))))


def stored_results() -> Results:
    """Return the results of the file that the environment names."""
    name = os.environ.get("DORDIS_RECORDS_RESULTS")
    return Results(Path(name) if name else None)


def ours(job: Job, dropout: float = 0.2, colluders: int = 1, epsilon: float | None = None) -> float:
    """Return our accuracy: ideal fidelity, records dealt to clients at random."""
    order = np.random.default_rng(job.seed).permutation(len(job.y))
    parts = [order[place :: job.clients] for place in range(job.clients)]
    with tempfile.TemporaryDirectory() as folder:
        result = dordis.train(
            job.module(),
            [(job.x[part], job.y[part]) for part in parts],
            test=(job.x_test, job.y_test),
            epsilon=epsilon or job.epsilon,
            delta=job.delta,
            rounds=job.steps,
            clip=job.clip,
            unit="record",
            records=max(map(len, parts)),
            sampling=job.sampling,
            dropout=Rate(dropout, BEFORE_UPLOAD) if dropout else 0.0,
            colluders=colluders,
            fidelity="ideal",
            output=folder,
            seed=job.seed,
            average=0.0,
            device="cpu",
            tested=1,
            optimiser={"kind": "fedavg", "lr": job.lr, "momentum": job.momentum},
        )
    return accuracy(result.model, job)


def accuracy(module: Any, job: Job) -> float:
    """Return the accuracy of a module on the test data."""
    import torch

    module.eval()
    with torch.no_grad():
        scores = torch.cat([module(part) for part in torch.tensor(job.x_test).split(1000)])
    return float((scores.argmax(1).numpy() == job.y_test).mean())


def theirs(job: Job, multiplier: float = 0.0) -> dict[str, float]:
    """Return what Opacus's side prints; with a `multiplier` it adds that noise instead of its accountant's."""
    import torch

    start = torch.nn.utils.parameters_to_vector(job.module().parameters()).detach().numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.npz"
        data = {"x": job.x, "y": job.y, "x_test": job.x_test, "y_test": job.y_test, "start": start}
        np.savez(path, **data, how=json.dumps(job.settings | {"multiplier": multiplier}))
        command = [sys.executable, str(Path(__file__).with_name("opacus_side.py")), str(path)]
        paths = os.pathsep.join([str(opacus_folder()), os.environ.get("PYTHONPATH", "")])
        run = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True
        )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def opacus_folder() -> Path:
    """Return the folder with Opacus, installed there if it is not: its dependencies are here already."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "dordis" / "benchmarks-opacus"
    if not (folder / "opacus").is_dir():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *OPACUS]
        subprocess.run(install, stdout=sys.stderr, check=True)
    return folder


def compare(name: str, jobs: list[Job], more: bool = True) -> dict[str, float]:
    """Return the mean gap over jobs in points, ours, and the standard error of the gap.

    With `more`, also the gap without dropout and colluders, and clients that add all the noise by themselves.
    """
    results = stored_results()
    mine, others = [], []
    for job in jobs:
        mine.append(results.measure(name, "ours", job, lambda job=job: {"accuracy": ours(job)}))
        others.append(results.measure(name, "opacus", job, lambda job=job: theirs(job, results.multiplier(job))))
    values = {f"records_{name}_accuracy": float(np.mean(mine)), f"records_{name}_opacus": float(np.mean(others))}
    values |= _gap(f"records_{name}", others, mine)
    if more:
        ideal = [results.measure(name, "ideal", job, lambda job=job: {"accuracy": ours(job, 0.0, 0)}) for job in jobs]
        local = [results.measure(name, "local", job, lambda job=job: alone(job)) for job in jobs]
        values |= _gap(f"records_{name}_ideal", others, ideal)
        values[f"records_{name}_local_accuracy"] = float(np.mean(local))
    return values


def _gap(name: str, others: list[float], mine: list[float]) -> dict[str, float]:
    """Return the mean of the differences and its standard error."""
    gaps = np.subtract(others, mine)
    error = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
    return {f"{name}_gap": float(np.mean(gaps)), f"{name}_error": error}


def alone(job: Job) -> dict[str, float]:
    """Return what Opacus's side prints for clients that each add all the noise: the sum has sqrt(n) times as much."""
    plan = calibrate(job.epsilon, job.delta, sampling_word(job.sampling), job.steps)
    return theirs(job, math.sqrt(job.clients) * plan.multiplier)


def measure_table(quick: bool) -> dict[str, float]:
    """Compare on breast cancer: 30 seeds over 10 splits, with and without dropout and colluders."""
    return compare("table", [table_job(seed, seed % 10) for seed in seeds(2 if quick else 30)])


def measure_mnist(quick: bool) -> dict[str, float]:
    """Compare on MNIST, five seeds; nothing without the data."""
    folder = data_folder("mnist")
    if folder is None:
        return {}
    first = mnist_job(folder, 5 if quick else STEPS["mnist"], 0)
    return compare("mnist", [replace(first, seed=seed) for seed in seeds(1 if quick else 5)], more=not quick)


def measure_cifar(quick: bool) -> dict[str, float]:
    """Compare on CIFAR-10 features, five seeds; nothing without the data."""
    folder = data_folder("cifar-10-batches-bin")
    if folder is None or quick:
        return {}
    first = cifar_job(folder, STEPS["cifar"], 0)
    return compare("cifar", [replace(first, seed=seed) for seed in seeds(5)])


def measure_rates(quick: bool) -> dict[str, float]:
    """Return Opacus's accuracy at several rates, on a seed of its own: the best ones are those of the jobs."""
    results, values = stored_results(), {}
    for name, load in (("mnist", mnist_job), ("cifar", cifar_job)):
        folder = data_folder({"mnist": "mnist", "cifar": "cifar-10-batches-bin"}[name])
        if folder is None or quick:
            continue
        first = replace(load(folder, STEPS[name], 0), seed=1000)
        for rate in RATES[name]:
            job = replace(first, lr=rate)
            found = results.measure(name, "opacus", job, lambda job=job: theirs(job, results.multiplier(job)))
            values[f"records_{name}_rate_{rate:g}"] = found
    return values


def measure_step(quick: bool) -> dict[str, float]:
    """Compare the processor time of a step on a batch of about 600 images: slices, clipping and quantising included."""
    rng, count = np.random.default_rng(0), 2400
    x, y = rng.normal(size=(count, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, count)
    job = Job(x, y, x[:100], y[:100], "cnn", 3.0, 0.25, 4 if quick else 20, 0.1, 0.0, 1.0)
    from dordis.apps.learning.torch_model import TorchModel

    model = TorchModel(job.module())
    parameters, client = model.initial(rng), RecordLearner(model, (x, y))
    encoding = RecordEncoding(sampling_word(0.25), LEAST_LENGTH, 20, count, 3)

    def step() -> None:
        sum_records(client, RoundInfo(1, 0, clip=1.0), parameters, model.dim, encoding, lambda work: work(), os.urandom)

    best = [(_median(step, job.steps), theirs(job, 1.0)["step"]) for _ in range(2 if quick else 5)]
    return {"records_step_vs_opacus": min(a for a, _ in best) / min(b for _, b in best)}


def _median(work: Callable[[], None], times: int) -> float:
    spent = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return float(np.median(spent))


PARTS = {
    "step": measure_step,
    "table": measure_table,
    "mnist": measure_mnist,
    "cifar": measure_cifar,
    "rates": measure_rates,
}


def run(quick: bool) -> dict[str, float]:
    """Measure all parts whose data are there."""
    parts = [part for name, part in PARTS.items() if name != "rates"]
    return {name: value for part in parts for name, value in part(quick).items()}
