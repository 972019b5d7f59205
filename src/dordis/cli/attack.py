"""Attack the protocol: run the whole suite of attacks on real machines and show who refused each, and where."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from dordis.adversary.attack import Attack, Outcome
from dordis.adversary.suite import ATTACKS

Run = tuple[Attack, str, Outcome]


def attack(as_json: bool) -> bool:
    """Run all attacks, on every graph that they are made for, and print the outcomes; tell whether all were refused."""
    runs = [(each, graph, each.run(graph)) for each in ATTACKS for graph in each.graphs]
    succeeded = sum(outcome.succeeded for _, _, outcome in runs)
    if as_json:
        results = [{"attack": each.name, "graph": graph, **asdict(outcome)} for each, graph, outcome in runs]
        print(json.dumps({"attacks": len(runs), "succeeded": succeeded, "results": results}))
        return not succeeded
    console = Console(soft_wrap=True)
    console.print(table(runs))
    console.print(f"{len(ATTACKS)} attacks in {len(runs)} runs, {succeeded} succeeded")
    return not succeeded


def table(runs: list[Run]) -> Table:
    """Show one row a run; what an attack gained stands where who refused it would."""
    shown = Table("attack", "graph", "refused by", "stage")
    for each, graph, outcome in runs:
        shown.add_row(each.name, graph, outcome.refused_by or f"NOBODY: {outcome.detail}", outcome.stage)
    return shown
