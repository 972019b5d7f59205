"""Runs of the paper's learning tasks, at its scale or at a small one, and what each came to round by round."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dordis.errors import InputError
from dordis.federation.records import load
from dordis.privacy.planning import plan
from dordis.reproduce.epsilon import PAPER_BUDGET
from dordis.reproduce.epsilon import TASKS as PLANNED
from dordis.simulation.reading import read, written
from dordis.simulation.run import prepare

Tell = Callable[[str], None]
Scale = str
SCALES = ("small", "paper")
REASON = (
    "Why they differ: the paper's figures cannot have the noise of epsilon = 6. Noise of z times the clip bound "
    "on each of d coordinates is z sqrt(d) times it as a whole, and the sum of n updates at most n times. Signal "
    "over noise is n / (z sqrt(d)) of the paper's task, all rounds counted as the paper does: nothing is learnt "
    "at a thousandth, and little at a fiftieth. See docs/results/large-models.md. So at the small scale other "
    "models on other data take the place of the paper's, which have few parameters: a softmax on public features, "
    "and counts of words."
)


@dataclass(frozen=True)
class PaperTask:
    """A task of the paper, the preset that has its hyperparameters, and what stands for it at a small scale."""

    name: str
    preset: str
    small: str
    keys: tuple[str, ...] = ()
    """Settings of the small scale beside those of its preset."""
    metric: str = "accuracy"
    needs_data: bool = True

    def settings(self, scale: Scale) -> tuple[str, tuple[str, ...]]:
        """Return the preset and the settings of a scale."""
        return (self.preset, ("simulation.fidelity=ideal",)) if scale == "paper" else (self.small, self.keys)

    def measured(self, scale: Scale) -> str:
        """Return the metric that is shown."""
        return "perplexity_user" if (self.metric, scale) == ("perplexity", "small") else self.metric

    def shown(self, value: float | None) -> str:
        """Write a value of the metric for people: accuracies in percent, as the paper does."""
        if value is None:
            return ""
        return f"{100 * value:.1f}" if self.metric == "accuracy" else f"{value:.0f}"

    @property
    def ratio(self) -> float | None:
        """Return what the signal is over the noise at most, in one round of the paper's task at epsilon = 6."""
        known = [task for task in PLANNED if task.name == self.name]
        if not known:
            return None
        planned = plan(known[0].setting(), PAPER_BUDGET)
        return float(known[0].per_round * known[0].clip / (planned.sigma * known[0].dim ** 0.5))


TASKS = (
    PaperTask("FEMNIST", "femnist", "mnist-writers", ("federation.rounds=10",)),
    PaperTask("CIFAR-10", "cifar10", "cifar10-features", ("federation.rounds=10", "app.options.partition.kind=lda")),
    PaperTask("Reddit", "reddit", "chat", (), "perplexity"),
)
DIGITS = PaperTask("digits", "digits", "ideal", (), needs_data=False)
"""What needs no files: it stands for all tasks where no folder with data is given."""


@dataclass(frozen=True)
class Course:
    """What a run came to, round by round: the metric, epsilon, and the part of its clients that a round lost."""

    metric: tuple[float | None, ...]
    epsilon: tuple[float | None, ...]
    dropped: tuple[float, ...]
    stopped: str

    @property
    def last(self) -> float | None:
        """Return the metric in the end."""
        return self.metric[-1] if self.metric else None

    @property
    def spent(self) -> float | None:
        """Return epsilon in the end."""
        return self.epsilon[-1] if self.epsilon else None


def chosen(scale: Scale, names: Sequence[str], data_dir: Path | None) -> list[PaperTask]:
    """Return the tasks that are meant: all, or those named; the digits where no data are given."""
    check_scale(scale)
    known = {task.name.lower(): task for task in (*TASKS, DIGITS)}
    if unknown := [name for name in names if name.lower() not in known]:
        raise InputError(f"there is no task '{unknown[0]}': there are {', '.join(known)}")
    if not names:
        return [DIGITS] if scale == "small" and data_dir is None else list(TASKS)
    return [known[name.lower()] for name in names]


def check_scale(scale: Scale) -> None:
    """Refuse a scale that is not known."""
    if scale not in SCALES:
        raise InputError(f"the scale is one of {', '.join(SCALES)}, not '{scale}'")


def course(task: PaperTask, scale: Scale, keys: Sequence[str], data_dir: Path | None, tell: Tell) -> Course:
    """Run a task with some settings, in a folder that is gone in the end."""
    preset, own = task.settings(scale)
    data = [f"app.options.data_dir={json.dumps(str(data_dir.resolve()))}"] if data_dir and task.needs_data else []
    config = read(preset=preset, keys=[*own, *data, *keys])
    name = task.measured(scale)
    with tempfile.TemporaryDirectory(prefix="dordis-") as folder:
        run = prepare(config).start(Path(folder), written(config))
        result = run.complete(told=lambda finished: tell(f"{task.name}, round {finished.record.number}"))
        stored = load(run.records.path)
    return Course(
        tuple(line.values.get(name) for line in stored.metrics),
        tuple(record.epsilon for record in stored.rounds),
        tuple(1 - min(record.survivors) / len(record.clients) for record in stored.rounds),
        result.stopped,
    )
