"""Run every attack on real machines and show which check refuses it: `make attack`, or `python -m tests.adversary`."""

from dataclasses import asdict
from typing import Annotated

import typer

from dordis.cli.output import FOUND, make_table, print_result, show_progress
from tests.adversary import suite


def attack(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Run every attack; the exit code is 1 if one succeeds."""
    runs = []
    with show_progress("attacks", sum(len(attack.graphs) for attack in suite.ATTACKS)) as advance:
        for known in suite.ATTACKS:
            for graph in known.graphs:
                runs.append((known.name, graph, known.run(graph)))
                advance()
    succeeded = sum(outcome.succeeded for _, _, outcome in runs)
    results = [{"attack": name, "graph": graph, **asdict(outcome)} for name, graph, outcome in runs]
    rows = ((name, graph, end.refused_by or f"SUCCEEDED: {end.detail}", end.stage) for name, graph, end in runs)
    print_result(
        as_json,
        {"attacks": len(runs), "succeeded": succeeded, "results": results},
        make_table("attack", "graph", "refused by", "stage", rows=rows),
        f"{len(suite.ATTACKS)} attacks in {len(runs)} runs, {succeeded} succeeded",
    )
    if succeeded:
        raise typer.Exit(FOUND)


if __name__ == "__main__":
    typer.run(attack)
