"""The paper's figure on client dynamics: availability in a real trace, and what it does to privacy and accuracy.

Orig spends more than its budget.  Early stopping ends the run when the budget is spent.  Con-2, Con-5 and Con-8 have
noise for 20, 50 and 80 % dropout in every round.  XNoise keeps to the budget at any dropout up to its tolerance.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.table import Table

from dordis.errors import InputError
from dordis.report.charts import Chart, LineChart, Mark, Series
from reproduce import Experiment
from reproduce.epsilon import PAPER_BUDGET
from reproduce.training_runs import (
    DIGITS,
    REASON,
    TASKS,
    PaperTask,
    Progress,
    Scale,
    TrainingRun,
    check_scale,
    run_task,
)

CIFAR100 = PaperTask("CIFAR-100", "cifar100", "ideal")
NOISES = {
    "orig": ("privacy.noise.kind=orig",),
    "early": ("privacy.noise.kind=early",),
    "con-2": ("privacy.noise.kind=conservative", "privacy.noise.rate=0.2"),
    "con-5": ("privacy.noise.kind=conservative", "privacy.noise.rate=0.5"),
    "con-8": ("privacy.noise.kind=conservative", "privacy.noise.rate=0.8"),
    "xnoise": ("privacy.noise.kind=xnoise",),
}
PAPER_EPSILON = {("CIFAR-10", "orig"): 8.6, ("CIFAR-100", "orig"): 7.9}
"""Final epsilon of Orig in the paper's text; its other figures are in a plot without numbers."""
CLAIMS = (
    "The paper says in words: early stopping loses 19 to 29 % of utility against training without noise; Con-8 has too "
    "much noise, Con-2 too little; Con-5 is nearly the best for CIFAR-10 and loses 16 % for CIFAR-100."
)


def compare_dynamics(scale: Scale, trace: Path, seed: int, data_dir: Path | None, report: Progress) -> Experiment:
    """Run a task under every noise strategy with the dropouts of a trace of real devices."""
    check_scale(scale)
    tasks = (TASKS[1], CIFAR100) if scale == "paper" else (DIGITS,) if data_dir is None else (TASKS[0],)
    keys = [*trace_keys(trace), f"simulation.seed={seed}", *cohort_keys(scale)]
    found = {
        (task.name, noise): run_task(task, scale, [*keys, *own], data_dir, _add_noise_name(report, noise))
        for task in tasks
        for noise, own in NOISES.items()
    }
    data = [
        {
            "task": task.name,
            "noise": noise,
            "rounds": len(run.epsilon),
            "stopped": run.stopped,
            "accuracy": run.last,
            "epsilon": run.spent,
            "paper_epsilon": PAPER_EPSILON.get((task.name, noise)),
            "dropped": run.dropped,
        }
        for task in tasks
        for noise in NOISES
        for run in [found[task.name, noise]]
    ]
    said = CLAIMS if scale == "small" else f"{CLAIMS} {REASON}"
    charts = [chart for task in tasks for chart in _charts(task, scale, found)]
    return Experiment(data, [*(table(task, scale, found) for task in tasks), said], charts)


def trace_keys(path: Path) -> list[str]:
    """Return the settings that replay a trace: one of FedScale in JSON, or a matrix of availability in an npz.

    With FedScale's traces a round takes two hours, so that devices leave during a round.
    """
    kinds = {".json": "fedscale", ".npz": "matrix"}
    if path.suffix not in kinds:
        raise InputError(f"a trace is FedScale's .json or a matrix of availability in an .npz, not {path.name}")
    kind = kinds[path.suffix]
    keys = [f"simulation.dropout.kind={kind}", f"simulation.dropout.path={json.dumps(str(path.resolve()))}"]
    times = ["simulation.dropout.seconds=7200", "simulation.dropout.stage_seconds=600"]
    return [*keys, *times] if kind == "fedscale" else keys


def cohort_keys(scale: Scale) -> list[str]:
    """Return settings under which a round survives the dropout of 15 of 30 clients, or 10 of 16 at the paper's scale.

    The server selects among available clients, and each round is charged to all clients.
    """
    n, tolerance = (30, 15) if scale == "small" else (16, 10)
    size = [f"federation.per_round={n}", "federation.rounds=15"] if scale == "small" else []
    common = ["federation.selection=uniform", "protocol.mode=semi-honest", "protocol.threshold=6"]
    return [*size, *common, f"protocol.tolerance={tolerance}", "federation.tries=20", "privacy.accounting=all-rounds"]


def _add_noise_name(report: Progress, noise: str) -> Progress:
    return lambda what: report(f"{what}, {noise}")


def table(task: PaperTask, scale: Scale, found: dict[tuple[str, str], TrainingRun]) -> Table:
    """Return the table of the final accuracy and epsilon with every noise strategy."""
    lost = found[task.name, "orig"].dropped
    heads = ("rounds", "ended by", "accuracy in %", "epsilon", "epsilon in the paper")
    mean = f"{fmean(lost):.0%} dropped in a round, {min(lost):.0%} to {max(lost):.0%}" if lost else "no round"
    shown = Table("noise", *heads, title=f"{task.name}, preset {task.settings(scale)[0]}, under a trace: {mean}")
    for noise in NOISES:
        run, paper = found[task.name, noise], PAPER_EPSILON.get((task.name, noise))
        cells = [str(len(run.epsilon)), run.stopped, task.format_value(run.last)]
        cells += ["" if run.spent is None else f"{run.spent:.2f}", "" if paper is None else f"{paper}"]
        shown.add_row(noise, *cells)
    return shown


def _charts(task: PaperTask, scale: Scale, found: dict[tuple[str, str], TrainingRun]) -> list[tuple[str, Chart]]:
    lost = Series("dropped", tuple((i, 100 * part) for i, part in enumerate(found[task.name, "orig"].dropped, 1)))
    spent = tuple(Series(noise, _points(found[task.name, noise].epsilon)) for noise in NOISES)
    learnt = tuple(Series(noise, _points(found[task.name, noise].metric, 100.0)) for noise in NOISES)
    budget, name, preset = Mark("budget", PAPER_BUDGET), task.name.lower(), task.settings(scale)[0]
    return [
        (f"dynamics-{name}-dropped", LineChart(f"{preset}: who leaves", "round", "% of the clients", (lost,))),
        (f"dynamics-{name}-epsilon", LineChart(f"{preset}: spent", "round", "epsilon", spent, marks=(budget,))),
        (f"dynamics-{name}-accuracy", LineChart(f"{preset}: learnt", "round", "accuracy, %", learnt)),
    ]


def _points(values: Sequence[float | None], factor: float = 1.0) -> tuple[tuple[float, float | None], ...]:
    return tuple((i, None if value is None else factor * value) for i, value in enumerate(values, 1))
