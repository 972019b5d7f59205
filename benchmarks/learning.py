"""Training and aggregation of the paper's CNN, many small clients at once, beside a loop, Flower's simulation and pfl.

What clients learn from is made up here: images of 28 by 28, a pattern for each class, ten of them a client.
"""

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import beside_pfl
from benchmarks.figure import Figure
from benchmarks.simulation import MEMORY, speed
from benchmarks.timing import ratio, repetitions, side_by_side
from dordis.apps.learning import Client, Server, training_buffers
from dordis.apps.learning.models import Work
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import Training, use_threads
from dordis.config.schema import App, Config, Federation, Privacy, Simulation
from dordis.dropout_models import NoDropout
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import NoNoise, XNoise
from dordis.privacy.setting import Setting
from dordis.protocols import summing_protocol
from dordis.protocols.parameters import MALICIOUS
from dordis.rounds.app import RoundInfo, Task
from dordis.rounds.watch import StageBegan
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.run import home_of_updates, prepare, single_round

CLIENTS, PER_ROUND, SAMPLES, CLASSES, SIDE = 100, 20, 10, 62, 28
CNN = 1_018_174
STAGES = ("AdvertiseKeys", "ShareKeys", "DeliverShares", "CollectInput", "Agree", "Unmask", "Dispatch", "Store")
"""The requests of a round, with what is computed from one to the next; removing noise and decoding are in Unmask."""
ROUNDS = 4
"""Rounds that are counted, after a first one in which kernels are loaded and processes begin."""
PLAIN = {"average": 0.0, "balance": 0.0, "optimiser": {"kind": "fedavg", "lr": 1.0}}
TRAINED = {"epochs": 1, "batch": 10, "lr": 0.05}
INK = 0.15
"""Part of an image that is not background, as in images of handwriting: the CNN learns such images in few rounds."""
LEARNING_RATE = 0.3
"""At which the CNN learns in the few rounds beside pfl, so that accuracies can be compared."""

_JOB = f"CNN of {CNN:,} parameters, {PER_ROUND} of {CLIENTS} clients a round, {SAMPLES} images each, one step, no noise"
FIGURES = (
    {
        "vmap_vs_loop": Figure(
            "times", at_least=2, note="CPU of 64 clients, MLP of 2,410 parameters: loop over one pass"
        ),
        "vmap_vs_loop_58": Figure("times", at_least=2, note="the same with a model of 58 parameters"),
        "cnn_vmap_vs_loop": Figure(
            "times", note="the same with the CNN: its time is arithmetic, so it trains in a loop"
        ),
        "one_thread_58": Figure("times", at_most=1.3, note="a model of 58 parameters, as it is over one thread; CPU"),
        "cnn_rounds_per_s": Figure("1/s", note=f"{_JOB}; fidelity ideal, evaluated every round, records in memory"),
        "flwr_cnn_rounds_per_s": Figure(
            "1/s", note="the same job in flwr's simulation, the faster of its two interfaces"
        ),
        "cnn_vs_flwr": Figure("times", at_least=2, note="both of them, best turns"),
        "cnn_cpu_vs_flwr": Figure("times", note="processor time of flwr's round over ours: other load matters less"),
        "cnn_training_cpu_s": Figure("s", note="processor time of what both compute: train 20 clients, evaluate once"),
        "cnn_round_cpu_s": Figure("s", note="processor time of such a round, ours"),
        "flwr_cnn_round_cpu_s": Figure("s", note="processor time of such a round, flwr's, with the processes of ray"),
        "cnn_aggregation_s": Figure(
            "s",
            at_most=15,
            note=f"one round, n = 100, d = {CNN:,}, SecAgg+ malicious, XNoise, all parties: processor time",
        ),
        "cnn_aggregation_wall_s": Figure("s", note="the same on the clock, one client after the other"),
    }
    | {f"cnn_{name}_s": Figure("s", note="of it") for name in STAGES}
    | beside_pfl.FIGURES
)


def run(quick: bool) -> dict[str, float]:
    """Measure all of it; a quick run leaves pfl out, which has an environment of its own (--only pfl measures it)."""
    found: dict[str, float] = {}
    for name, part in PARTS.items():
        if not (quick and name == "pfl"):
            found |= part(quick)
    return found


def works(features: int, classes: int, clients: int = 64) -> list[Work]:
    """Return what small clients train on."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(5, 2 * SAMPLES, clients)
    samples = [(rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, classes, n)) for n in sizes]
    return [Work(held, classes, (1, place)) for place, held in enumerate(samples)]


def linear() -> Any:
    """Return a model of 58 parameters."""
    import torch

    return torch.nn.Linear(28, 2)


def mlp() -> Any:
    """Return a network of 64 features, 32 hidden units and 10 classes."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def cnn() -> Any:
    """Return the paper's CNN."""
    from dordis.apps.learning.networks import Inputs
    from dordis.apps.learning.networks import cnn as network

    return network(Inputs((SIDE, SIDE), CLASSES))


def _batched(quick: bool) -> dict[str, float]:
    """Take one pass beside a loop, both on one thread."""
    how, found = Training(epochs=5, batch=10, lr=0.05), {}
    for name, module, features, classes, clients in (
        ("vmap_vs_loop", mlp(), 64, 10, 64),
        ("vmap_vs_loop_58", linear(), 28, 2, 64),
        ("cnn_vmap_vs_loop", cnn(), SIDE * SIDE, CLASSES, 8),
    ):
        largest = training_buffers.LARGEST
        training_buffers.LARGEST = CNN  # what is too large for a pass is measured, too
        try:
            count = 1 if name.startswith("cnn") else repetitions(6, quick)
            found[name] = loop_over_pass(TorchModel(module), works(features, classes, clients), how, count)
        finally:
            training_buffers.LARGEST = largest
    return found


def loop_over_pass(model: TorchModel, given: list[Work], how: Training, count: int) -> float:
    """Return the processor time of one client after the other, over that of one pass."""
    start = model.initial(np.random.default_rng(0))

    def loop() -> None:
        for work in given:
            model.fit(start, work, how)

    return ratio(loop, lambda: model.fit_together(start, given, how), count)


def _threads(quick: bool) -> dict[str, float]:
    """Train a tiny model with as many threads as torch likes, and inside one."""
    model, given = TorchModel(linear()), works(28, 2, 20)
    start, how = model.initial(np.random.default_rng(0)), Training(epochs=20, batch=10, lr=0.05)

    def trained() -> None:
        for work in given:
            model.fit(start, work, how)

    def alone() -> None:
        with use_threads(1):
            trained()

    return {"one_thread_58": ratio(trained, alone, repetitions(10, quick), time.process_time)}


@contextmanager
def cnn_job(wrong: float = 0.0) -> Iterator[dict[str, object]]:
    """Write images, a pattern with noise for each class, and give the options of the job.

    `wrong` is the part of the labels that are drawn at random: no model is right about these.
    """
    rng = np.random.default_rng(2)
    patterns = np.where(rng.random((CLASSES, SIDE, SIDE)) < INK, 255, 0)
    with tempfile.TemporaryDirectory() as folder:
        arrays = {}
        for part, count in (("train", CLIENTS * SAMPLES), ("test", 200)):
            y = rng.integers(0, CLASSES, count)
            y[0] = CLASSES - 1
            noisy = patterns[y] + rng.normal(0, 40, (count, SIDE, SIDE))
            y = np.where(rng.random(count) < wrong, rng.integers(0, CLASSES, count), y)
            y[0] = CLASSES - 1
            arrays |= {f"x_{part}": noisy.clip(0, 255).astype(np.uint8), f"y_{part}": y}
        path = Path(folder) / "images.npz"
        np.savez(path, **arrays, scale=np.array(255), keys=np.arange(CLIENTS * SAMPLES) % CLIENTS)
        yield {"data": str(path), "model": "cnn", **PLAIN, **TRAINED}


def _beside_flower(quick: bool) -> dict[str, float]:
    """Take both simulations of the same job in turn, and keep the best of each."""
    rounds = 1 + (2 if quick else ROUNDS)
    with cnn_job() as options:
        both = _training(options)
        turns = [(_ours(options, rounds), _theirs(options, rounds)) for _ in range(1 if quick else 2)]
    (ours, own), (theirs, their_own) = (
        (max(speed for speed, _ in side), min(spent for _, spent in side)) for side in zip(*turns, strict=True)
    )
    found = {"cnn_training_cpu_s": both, "cnn_rounds_per_s": ours, "cnn_round_cpu_s": own}
    if not theirs:
        return found
    return found | {
        "flwr_cnn_rounds_per_s": theirs, "cnn_vs_flwr": ours / theirs,
        "flwr_cnn_round_cpu_s": their_own, "cnn_cpu_vs_flwr": their_own / own,
    }  # fmt: skip


def _beside_pfl(quick: bool) -> dict[str, float]:
    """Take both simulations of the softmax, and of the CNN without and with noise of the server, in turn."""
    with cnn_job(beside_pfl.WRONG) as options:
        return beside_pfl.measure(quick, {**options, "lr": LEARNING_RATE})


def _training(options: dict[str, object]) -> float:
    """Return the processor time of one round's training and evaluation, one client after the other."""
    task = Task(options, CLIENTS)
    server, clients = Server.from_task(task), [Client.from_task(task, place) for place in range(PER_ROUND)]
    model = server.model().astype(np.float32)

    def compute() -> None:
        for client in clients:
            client.prepare_data(RoundInfo(1, 0), model)
        server.evaluate()

    (spent,) = side_by_side([compute], 3, time.process_time)
    return spent


def _ours(options: dict[str, object], rounds: int) -> tuple[float, float]:
    """Return rounds a second, and the processor time of a round."""
    config = Config(
        app=App(options=options),
        federation=Federation(CLIENTS, PER_ROUND, rounds),
        privacy=Privacy(noise=NoNoise()),
        simulation=Simulation("ideal", dropout=NoDropout()),
    )
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
        under_way = prepare(config).start(Path(root), "")
        times, spent = [time.perf_counter()], [time.process_time()]
        for _ in under_way.rounds():
            times.append(time.perf_counter())
            spent.append(time.process_time())
    return speed(times, 1), each(spent)


def each(spent: list[float]) -> float:
    """Return the processor time of a round, the first one left out."""
    return (spent[-1] - spent[1]) / (len(spent) - 2)


def _theirs(options: dict[str, object], rounds: int) -> tuple[float, float]:
    """Return the same of flwr, or zeros where it is not installed with what it needs to simulate."""
    try:
        from benchmarks import flower_simulation as flower
    except ImportError:
        return 0.0, 0.0
    task = Task(options, CLIENTS)
    sides = (flower.by_start,) if rounds <= ROUNDS else (flower.by_start, flower.by_apps)
    played = [play(task, PER_ROUND, rounds) for play in sides]
    return max(speed(progress.times, 1) for progress in played), min(each(progress.spent) for progress in played)


def _aggregation(quick: bool) -> dict[str, float]:
    """Sum the updates of one round with every message of the protocol."""
    n, dim = (20, 1 << 14) if quick else (100, CNN)
    schedule = ParticipationSchedule(population=10 * n, per_round=n, rounds=50)
    design = RoundPlan(
        XNoise(), Setting(schedule, dim=dim, delta=1e-3, sparse=True), 6.0, ThreatModel(MALICIOUS, sparse=True)
    )
    update = np.random.default_rng(3).normal(size=dim).astype(np.float32) / np.float32(dim**0.5)
    protocol, stay = summing_protocol("secagg+"), NoDropout().model(0, ())
    home = home_of_updates(design, protocol, lambda u: update, secrets.token_bytes, stay)
    design.example()
    begun, moments = time.perf_counter(), [("", time.process_time())]

    def watch(event: object) -> None:
        if isinstance(event, StageBegan) and event.clients:
            moments.append((event.stage, time.process_time()))

    single_round(home, watch=watch)
    moments.append(("", time.process_time()))
    spent = dict.fromkeys(STAGES, 0.0)
    for (name, start), (_, end) in pairwise(moments):
        if name in spent:
            spent[name] += end - start
    whole = {"cnn_aggregation_s": sum(spent.values()), "cnn_aggregation_wall_s": time.perf_counter() - begun}
    return whole | {f"cnn_{name}_s": seconds for name, seconds in spent.items()}


PARTS: dict[str, Callable[[bool], dict[str, float]]] = {
    "batched": _batched,
    "threads": _threads,
    "flwr": _beside_flower,
    "pfl": _beside_pfl,
    "aggregation": _aggregation,
}
"""What can be measured by itself, with --only."""
