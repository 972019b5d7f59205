"""Runs of the paper's learning tasks, at its scale or at a small one, with metric and epsilon of every round."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dordis.config.reading import config_to_toml, read_config
from dordis.errors import InputError
from dordis.privacy.planning import plan
from dordis.records.run_records import load_run
from dordis.simulation.run import prepare
from reproduce.epsilon import PAPER_BUDGET
from reproduce.epsilon import TASKS as PLANNED

Progress = Callable[[str], None]
Scale = str
SCALES = ("small", "paper")
REASON = (
    "Why they differ: the paper's figures cannot have the noise of epsilon = 6. If the noise on each of d coordinates "
    "has a standard deviation of z clip bounds, its norm is z sqrt(d) clip bounds. The norm of the sum of n updates is "
    "at most n clip bounds. Signal over noise is n / (z sqrt(d)) for the paper's task, with all rounds charged as in "
    "the paper. At a thousandth nothing is learnt, and at a fiftieth little: see docs/results/large-models.md. So at "
    "the small scale models with few parameters take the place of the paper's: a softmax on public features, and "
    "counts of words."
)


@dataclass(frozen=True)
class PaperTask:
    """A task of the paper: the preset with its hyperparameters, and the preset used instead at the small scale."""

    name: str
    preset: str
    small: str
    keys: tuple[str, ...] = ()
    """Settings of the small scale, in addition to its preset's."""
    metric: str = "accuracy"
    needs_data: bool = True

    def settings(self, scale: Scale) -> tuple[str, tuple[str, ...]]:
        """Return the preset and the settings of a scale."""
        return (self.preset, ("simulation.fidelity=ideal",)) if scale == "paper" else (self.small, self.keys)

    def metric_name(self, scale: Scale) -> str:
        """Return the name of the metric to show."""
        return "perplexity_user" if (self.metric, scale) == ("perplexity", "small") else self.metric

    def format_value(self, value: float | None) -> str:
        """Format a value of the metric, accuracies in percent as in the paper."""
        if value is None:
            return ""
        return f"{100 * value:.1f}" if self.metric == "accuracy" else f"{value:.0f}"

    @property
    def signal_to_noise(self) -> float | None:
        """Return the largest signal-to-noise ratio of one round of the paper's task at epsilon = 6."""
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
"""The task that needs no data files, used where no data directory is given."""


@dataclass(frozen=True)
class TrainingRun:
    """The metric, epsilon and share of dropouts of every round of a run, and why it stopped."""

    metric: tuple[float | None, ...]
    epsilon: tuple[float | None, ...]
    dropped: tuple[float, ...]
    stopped: str

    @property
    def last(self) -> float | None:
        """Return the metric after the last round."""
        return self.metric[-1] if self.metric else None

    @property
    def spent(self) -> float | None:
        """Return epsilon after the last round."""
        return self.epsilon[-1] if self.epsilon else None


def choose_tasks(scale: Scale, names: Sequence[str], data_dir: Path | None) -> list[PaperTask]:
    """Return the named tasks; without names the paper's three, or the digits at the small scale without data."""
    check_scale(scale)
    known = {task.name.lower(): task for task in (*TASKS, DIGITS)}
    if unknown := [name for name in names if name.lower() not in known]:
        raise InputError(f"there is no task '{unknown[0]}': there are {', '.join(known)}")
    if not names:
        return [DIGITS] if scale == "small" and data_dir is None else list(TASKS)
    return [known[name.lower()] for name in names]


def check_scale(scale: Scale) -> None:
    """Raise InputError if the scale is not known."""
    if scale not in SCALES:
        raise InputError(f"the scale is one of {', '.join(SCALES)}, not '{scale}'")


def run_task(
    task: PaperTask, scale: Scale, keys: Sequence[str], data_dir: Path | None, report: Progress
) -> TrainingRun:
    """Run a task with additional settings in a temporary folder."""
    preset, own = task.settings(scale)
    data = [f"app.options.data_dir={json.dumps(str(data_dir.resolve()))}"] if data_dir and task.needs_data else []
    config = read_config(preset=preset, keys=[*own, *data, *keys])
    name = task.metric_name(scale)
    with tempfile.TemporaryDirectory(prefix="dordis-") as folder:
        run = prepare(config).start(Path(folder), config_to_toml(config))
        result = run.complete(told=lambda finished: report(f"{task.name}, round {finished.record.number}"))
        stored = load_run(run.records.path)
    return TrainingRun(
        tuple(line.values.get(name) for line in stored.metrics),
        tuple(record.epsilon for record in stored.rounds),
        tuple(1 - min(record.survivors) / len(record.clients) for record in stored.rounds),
        result.stopped,
    )
