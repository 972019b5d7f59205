"""Simulate one private round, and show what the server sees of it, the private mean, and the costs."""

import time
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.output import print_result, show_progress

COORDINATES = 4
"""Number of coordinates of each vector that are printed."""


def demo(
    clients: Annotated[int, typer.Option(help="How many clients take part.")] = 50,
    dropped: Annotated[int, typer.Option(help="How many of them drop out during the round.")] = 5,
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the round.")] = 6.0,
    as_json: Json = False,
) -> None:
    """Show one private round from the inside."""
    from dordis.cli.demo_round import mean_table, outcome_fields, outcome_table, simulate_round

    started = time.perf_counter()
    with show_progress(f"one round of {clients} clients"):
        outcome = simulate_round(clients, dropped, epsilon)
    seconds = time.perf_counter() - started
    terms = "For each client, against a malicious server that colludes with one other client; see docs/security.md."
    tables = mean_table(outcome, COORDINATES), outcome_table(outcome, seconds)
    print_result(as_json, outcome_fields(outcome, seconds), *tables, terms)
