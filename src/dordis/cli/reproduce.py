"""The paper's figures on privacy beside ours: epsilon if clients drop out, under Orig and under XNoise."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dordis.cli.plan import finite, shown
from dordis.privacy.accounting import ALL_ROUNDS, PAPER_ORDERS, Participation, check_epsilon
from dordis.privacy.planning import RATES, Outlook, Setting, forecast, plan

PAPER_BUDGET = 6.0
PAPER_RATE = RATES[-1]


@dataclass(frozen=True)
class Task:
    """One of the paper's learning tasks, and the epsilon it reports for Orig at a budget of 6 and 40 % dropout."""

    name: str
    population: int
    per_round: int
    rounds: int
    clip: float
    dim: int
    paper: float

    def setting(self) -> Setting:
        """Return the paper's way to plan: all rounds count, one block, 20 bits, nobody colludes, delta = 1 / N."""
        return Setting(
            Participation(self.population, self.per_round, self.rounds, ALL_ROUNDS),
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


TASKS = (
    Task("FEMNIST", population=1000, per_round=100, rounds=50, clip=1.0, dim=1_018_174, paper=8.3),
    Task("CIFAR-10", population=100, per_round=16, rounds=150, clip=3.0, dim=11_183_562, paper=8.2),
    Task("Reddit", population=200, per_round=20, rounds=50, clip=5.0, dim=15_091_680, paper=8.7),
)


def epsilon(budgets: Sequence[float], as_json: bool) -> None:
    """Print epsilon for each task, budget and rate of dropout."""
    for budget in budgets:
        check_epsilon(budget)
    found = [(budget, task, forecast(plan(task.setting(), budget))) for budget in budgets for task in TASKS]
    if as_json:
        print(json.dumps([fields(budget, task, row) for budget, task, rows in found for row in rows]))
        return
    console = Console(soft_wrap=True)
    for budget in budgets:
        console.print(table(budget, {task: rows for planned, task, rows in found if planned == budget}))
    for term in TASKS[0].setting().participation.terms()[1:]:
        console.print(f"epsilon: {term}")


def table(budget: float, found: dict[Task, tuple[Outlook, ...]]) -> Table:
    """Show one budget: a row for each rate of dropout, Orig and XNoise for each task."""
    title = f"epsilon, planned {budget:g}, all rounds counted"
    heads = [f"{task.name} {scheme}" for task in found for scheme in ("Orig", "XNoise")]
    shape = Table("dropout", *heads, title=title)
    for place, rate in enumerate(RATES):
        cells: list[str] = []
        for task, rows in found.items():
            paper = printed(task, budget, rows[place])
            orig = shown(rows[place].orig) + (f" (paper {paper})" if paper else "")
            cells += [orig, shown(rows[place].xnoise)]
        shape.add_row(f"{float(rate):.0%}", *cells)
    return shape


def printed(task: Task, budget: float, row: Outlook) -> float | None:
    """Return what the paper prints for Orig, if it does."""
    return task.paper if (budget, row.rate) == (PAPER_BUDGET, PAPER_RATE) else None


def fields(budget: float, task: Task, row: Outlook) -> dict[str, object]:
    """Return one cell as JSON."""
    return {
        "budget": budget,
        "task": task.name,
        "rate": float(row.rate),
        "dropped": row.dropped,
        "orig": finite(row.orig),
        "xnoise": finite(row.xnoise),
        "paper_orig": printed(task, budget, row),
    }
