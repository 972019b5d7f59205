"""The paper's figures on privacy beside ours: epsilon if clients drop out, under Orig and under XNoise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from dordis.privacy.accounting import ALL_ROUNDS, PAPER_ORDERS, ParticipationSchedule, check_epsilon
from dordis.privacy.advice import RATES, DropoutForecast, forecast_dropout
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from reproduce import Experiment

PAPER_BUDGET = 6.0
PAPER_RATE = RATES[-1]


@dataclass(frozen=True)
class LearningTask:
    """One of the paper's learning tasks, and the epsilon it reports for Orig at a budget of 6 and 40 % dropout."""

    name: str
    population: int
    per_round: int
    rounds: int
    clip: float
    dim: int
    paper: float

    def setting(self) -> Setting:
        """Return the paper's assumptions: all rounds charged to all, one block, 20 bits, no colluders, delta 1 / N."""
        return Setting(
            ParticipationSchedule(self.population, self.per_round, self.rounds, ALL_ROUNDS),
            dim=self.dim,
            clip=self.clip,
            delta=1 / self.population,
            bits=20,
            headroom=3.0,
            colluders=0,
            tolerance=math.floor(PAPER_RATE * self.per_round),
            one_block=True,
            orders=PAPER_ORDERS,
        )

    def paper_value(self, budget: float, row: DropoutForecast) -> float | None:
        """Return the paper's epsilon of Orig, or None if the paper prints none."""
        return self.paper if (budget, row.rate) == (PAPER_BUDGET, PAPER_RATE) else None


TASKS = (
    LearningTask("FEMNIST", population=1000, per_round=100, rounds=50, clip=1.0, dim=1_018_174, paper=8.3),
    LearningTask("CIFAR-10", population=100, per_round=16, rounds=150, clip=3.0, dim=11_183_562, paper=8.2),
    LearningTask("Reddit", population=200, per_round=20, rounds=50, clip=5.0, dim=15_091_680, paper=8.7),
)


def compare_epsilon(budgets: Sequence[float]) -> Experiment:
    """Compute epsilon for each task, budget and rate of dropout."""
    for budget in budgets:
        check_epsilon(budget)
    outlooks = {(budget, task): forecast_dropout(plan(task.setting(), budget)) for budget in budgets for task in TASKS}
    data = [
        {
            "budget": budget,
            "task": task.name,
            "rate": float(row.rate),
            "dropped": row.dropped,
            "orig": row.orig,
            "xnoise": row.xnoise,
            "paper_orig": task.paper_value(budget, row),
        }
        for (budget, task), rows in outlooks.items()
        for row in rows
    ]
    tables = [table(budget, [outlooks[budget, task] for task in TASKS]) for budget in budgets]
    terms = TASKS[0].setting().participation.terms()[1:]
    return Experiment(data, [*tables, *(f"epsilon: {term}" for term in terms)])


def table(budget: float, outlooks: Sequence[Sequence[DropoutForecast]]) -> Table:
    """Return the table of one budget: a row for each rate of dropout, Orig and XNoise for each task."""
    heads = [f"{task.name} {scheme}" for task in TASKS for scheme in ("Orig", "XNoise")]
    shown = Table("dropout", *heads, title=f"epsilon, planned {budget:g}, all rounds counted")
    for rows in zip(*outlooks, strict=True):
        cells = [f"{float(rows[0].rate):.0%}"]
        for task, row in zip(TASKS, rows, strict=True):
            paper = task.paper_value(budget, row)
            cells += [f"{row.orig:.2f}" + (f" (paper {paper})" if paper else ""), f"{row.xnoise:.2f}"]
        shown.add_row(*cells)
    return shown
