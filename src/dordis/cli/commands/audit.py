"""An audit of the noise that clients add: canaries in a run of the real mechanism, and an attack on its sums."""

from dataclasses import asdict
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.tables import facts, show
from dordis.errors import InputError

FEWEST, MOST = 10, 2_000
MOST_ROUNDS = 1000


def audit(
    rounds: Annotated[int, typer.Option(help="How many rounds the run has.")] = 1,
    clients: Annotated[int, typer.Option(help="How many clients take part, a canary each.")] = 300,
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run is planned for, and claims.")] = 2.0,
    dropped: Annotated[int | None, typer.Option(help="How many drop out: half of those tolerated by default.")] = None,
    as_json: Json = False,
) -> None:
    """Attack the noise of a run with canaries.

    The epsilon that the attack shows must not exceed what is claimed: else the exit code is 2.
    """
    from dordis.apps import audit as auditing

    if not FEWEST <= clients <= MOST:
        raise InputError(f"an audit takes {FEWEST} to {MOST} clients, not {clients}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"an audit takes 1 to {MOST_ROUNDS} rounds, not {rounds}")
    design = auditing.toy_design(clients, rounds, epsilon)
    result = auditing.audit(design, design.setting.T // 2 if dropped is None else dropped)
    rows = {
        "epsilon, delta claimed": f"{result.claimed:.4g}, {result.delta:.4g}",
        "epsilon shown, at least": f"{result.shown:.4g}, with {result.confidence:.0%} confidence",
        "epsilon shown, at best": f"{result.most:.4g}, had every guess been right",
        "canaries": str(result.canaries),
        "guesses": f"{result.guesses}, of which {result.correct} are right",
        "noise on the sum, sigma / clip": f"{(design.plan.sigma if design.plan else 0.0) / design.setting.clip:.4f}",
        "the claim": "is REFUTED" if result.refuted else "stands",
    }
    title = f"{clients} clients, {clients - result.canaries} of them drop out, {rounds} rounds"
    fields = {"rounds": rounds, "clients": clients, "refuted": result.refuted} | asdict(result)
    show(as_json, fields, facts(rows, title))
    result.check()
