"""One private round from the inside: what each party knows of it, and what it cost."""

import time
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.tables import show, working

SHOWN = 4
"""Coordinates that are shown."""


def demo(
    clients: Annotated[int, typer.Option(help="How many clients take part.")] = 50,
    dropped: Annotated[int, typer.Option(help="How many of them vanish on the way.")] = 5,
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the round.")] = 6.0,
    as_json: Json = False,
) -> None:
    """Show one private round from the inside."""
    from dordis.cli.demo import facts, fields, simulate, vectors

    started = time.perf_counter()
    with working(f"one round of {clients} clients"):
        outcome = simulate(clients, dropped, epsilon)
    seconds = time.perf_counter() - started
    terms = "For each client, against a server that may deviate and one more client; see docs/security.md."
    show(as_json, fields(outcome, seconds), vectors(outcome, SHOWN), facts(outcome, seconds), terms)
