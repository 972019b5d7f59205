"""The paper's table of final accuracy and its learning curves, Orig beside XNoise, with ours."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from rich.table import Table

from dordis.errors import InputError
from dordis.report.charts import LineChart, Mark, Series
from reproduce import Experiment
from reproduce.training_runs import REASON, PaperTask, Progress, Scale, TrainingRun, choose_tasks, run_task

RATES = (0.0, 0.1, 0.2, 0.3, 0.4)
CURVE_RATE = 0.2
NOISES = ("orig", "xnoise")
PAPER: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "FEMNIST": ((61.3, 61.4, 61.2, 61.2, 61.4), (61.4, 61.4, 61.4, 61.2, 61.5)),
    "CIFAR-10": ((66.5, 66.7, 66.6, 64.3, 63.8), (66.3, 66.9, 65.7, 65.7, 64.2)),
    "Reddit": ((2169, 2158, 2286, 2294, 2299), (2142, 2179, 2285, 2317, 2329)),
}
"""Accuracy in percent, or perplexity, of Orig and of XNoise by rate of dropout."""

TrainingRuns = dict[tuple[str, float, str], TrainingRun]
"""Runs by task, rate of dropout and noise strategy."""


def paper_value(task: PaperTask, rate: float, noise: str) -> float | None:
    """Return the paper's figure, or None if it prints none."""
    if task.name not in PAPER or rate not in RATES:
        return None
    return PAPER[task.name][NOISES.index(noise)][RATES.index(rate)]


def run_tasks(
    scale: Scale, tasks: Sequence[PaperTask], rates: Sequence[float], seed: int, data_dir: Path | None, report: Progress
) -> TrainingRuns:
    """Run every task with Orig and with XNoise at every rate of dropout."""
    if any(not 0 <= rate < 1 for rate in rates):
        raise InputError("a rate of dropout lies in 0..1, below 1")
    found = {}
    for task, rate, noise in product(tasks, rates, NOISES):
        keys = [f"privacy.noise.kind={noise}", f"simulation.seed={seed}", "simulation.dropout.kind=rate"]
        keys.append(f"simulation.dropout.rate={rate}")

        def report_run(what: str, rate: float = rate, noise: str = noise) -> None:
            report(f"{what}, {rate:.0%} dropout, {noise}")

        found[task.name, rate, noise] = run_task(task, scale, keys, data_dir, report_run)
    return found


def compare_utility(
    scale: Scale, names: Sequence[str], rates: Sequence[float], seed: int, data_dir: Path | None, report: Progress
) -> Experiment:
    """Compare the final metric and epsilon by rate of dropout."""
    tasks = choose_tasks(scale, names, data_dir)
    found = run_tasks(scale, tasks, rates or RATES, seed, data_dir, report)
    data = [_row(task, scale, found, rate, noise) for task in tasks for rate in rates or RATES for noise in NOISES]
    return Experiment(data, [*(table(task, scale, found, rates or RATES) for task in tasks), _reason(tasks)])


def compare_curves(
    scale: Scale, names: Sequence[str], seed: int, data_dir: Path | None, report: Progress
) -> Experiment:
    """Compare the metric round by round, at 20 % dropout."""
    tasks = choose_tasks(scale, names, data_dir)
    found = run_tasks(scale, tasks, [CURVE_RATE], seed, data_dir, report)
    data = [
        _row(task, scale, found, CURVE_RATE, noise) | {"rounds": found[task.name, CURVE_RATE, noise].metric}
        for task in tasks
        for noise in NOISES
    ]
    charts = [(f"curve-{task.name.lower()}", curve(task, scale, found)) for task in tasks]
    tables = [table(task, scale, found, [CURVE_RATE]) for task in tasks]
    return Experiment(data, [*tables, _reason(tasks)], charts)


def _row(task: PaperTask, scale: Scale, found: TrainingRuns, rate: float, noise: str) -> dict[str, object]:
    run = found[task.name, rate, noise]
    return {
        "task": task.name,
        "scale": scale,
        "preset": task.settings(scale)[0],
        "rate": rate,
        "noise": noise,
        "metric": task.metric_name(scale),
        "ours": run.last,
        "epsilon": run.spent,
        "paper": paper_value(task, rate, noise),
        "paper_signal_over_noise": task.signal_to_noise,
    }


def table(task: PaperTask, scale: Scale, found: TrainingRuns, rates: Iterable[float]) -> Table:
    """Return the table of a task, with a row for each rate of dropout."""
    preset, _ = task.settings(scale)
    unit = "accuracy in %" if task.metric == "accuracy" else task.metric_name(scale)
    heads = [head for noise in NOISES for head in (f"paper {noise}", f"ours {noise}", f"epsilon {noise}")]
    ratio = task.signal_to_noise
    note = "" if ratio is None else f"; signal over noise of the paper's task {ratio:.2g}"
    shown = Table("dropout", *heads, title=f"{task.name}: {unit}; ours is the preset {preset}{note}")
    for rate in rates:
        cells = [f"{rate:.0%}"]
        for noise in NOISES:
            run, paper = found[task.name, rate, noise], paper_value(task, rate, noise)
            spent = "" if run.spent is None else f"{run.spent:.2f}"
            cells += ["" if paper is None else f"{paper:g}", task.format_value(run.last), spent]
        shown.add_row(*cells)
    return shown


def curve(task: PaperTask, scale: Scale, found: TrainingRuns) -> LineChart:
    """Return the chart of a task's metric by round."""
    factor = 100.0 if task.metric == "accuracy" else 1.0
    series = []
    for noise in NOISES:
        values = found[task.name, CURVE_RATE, noise].metric
        points = tuple((i, None if value is None else factor * value) for i, value in enumerate(values, 1))
        series.append(Series(f"ours, {noise}", points))
    paper = paper_value(task, CURVE_RATE, "xnoise")
    marks = () if paper is None else (Mark(f"the paper's {task.name} in the end", paper),)
    unit = "accuracy, %" if task.metric == "accuracy" else task.metric_name(scale)
    title = f"{task.name}, preset {task.settings(scale)[0]}, {CURVE_RATE:.0%} dropout"
    return LineChart(title, "round", unit, tuple(series), marks=marks if task.metric == "accuracy" else ())


def _reason(tasks: Sequence[PaperTask]) -> str:
    return REASON if any(task.name in PAPER for task in tasks) else ""
