"""An audit of the noise that clients add: canaries in a run of the real mechanism, and an attack on its sums."""

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from dordis.errors import InputError
from dordis.privacy.audit import Audit, audit, toy_plan
from dordis.privacy.planning import Plan

FEWEST, MOST = 10, 10_000
MOST_ROUNDS = 1000


def run(clients: int, rounds: int, epsilon: float, dropped: int | None, as_json: bool) -> None:
    """Attack a planned run, print what was found out, and refuse if that is more than the plan allows."""
    if not FEWEST <= clients <= MOST:
        raise InputError(f"an audit takes {FEWEST} to {MOST} clients, not {clients}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"an audit takes 1 to {MOST_ROUNDS} rounds, not {rounds}")
    planned = toy_plan(clients, rounds, epsilon)
    found = audit(planned, planned.setting.T // 2 if dropped is None else dropped)
    if as_json:
        print(json.dumps({"rounds": rounds, "clients": clients, "refuted": found.refuted} | asdict(found)))
    else:
        Console(soft_wrap=True).print(facts(planned, found))
    found.check()


def facts(planned: Plan, found: Audit) -> Table:
    """Show the attack and what it proves."""
    n, rounds = planned.setting.clients, planned.cap
    title = f"{n} clients, {n - found.canaries} of them drop out, {rounds} rounds"
    table = Table("what", "value", title=title, show_header=False)
    rows = {
        "epsilon, delta claimed": f"{found.claimed:.4g}, {found.delta:.4g}",
        "epsilon shown, at least": f"{found.shown:.4g}, with {found.confidence:.0%} confidence",
        "epsilon shown, at best": f"{found.most:.4g}, had every guess been right",
        "canaries": str(found.canaries),
        "guesses": f"{found.guesses}, of which {found.correct} are right",
        "noise on the sum, sigma / clip": f"{planned.sigma / planned.setting.clip:.4f}",
        "the claim": "is REFUTED" if found.refuted else "stands",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
