"""Attack the protocol: run the whole suite of attacks on real machines and show who refused each, and where."""

from dataclasses import asdict

import typer

from dordis.cli.exits import FOUND
from dordis.cli.options import Json
from dordis.cli.tables import show, table, working


def attack(as_json: Json = False) -> None:
    """Run every known attack on the protocol.

    The exit code is 1 if one succeeds.
    """
    from dordis.adversary.suite import ATTACKS

    runs = []
    with working("attacks", sum(len(known.graphs) for known in ATTACKS)) as done:
        for known in ATTACKS:
            for graph in known.graphs:
                runs.append((known.name, graph, known.run(graph)))
                done()
    succeeded = sum(outcome.succeeded for _, _, outcome in runs)
    results = [{"attack": name, "graph": graph, **asdict(outcome)} for name, graph, outcome in runs]
    # What an attack gained stands where who refused it would.
    rows = ((name, graph, end.refused_by or f"NOBODY: {end.detail}", end.stage) for name, graph, end in runs)
    show(
        as_json,
        {"attacks": len(runs), "succeeded": succeeded, "results": results},
        table("attack", "graph", "refused by", "stage", rows=rows),
        f"{len(ATTACKS)} attacks in {len(runs)} runs, {succeeded} succeeded",
    )
    if succeeded:
        raise typer.Exit(FOUND)
