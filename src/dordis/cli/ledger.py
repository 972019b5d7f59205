"""The privacy ledger of a run, from the outside: is it whole, and what has the run cost whom."""

import json
import math
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dordis.errors import InputError
from dordis.federation import ledger
from dordis.federation.ledger import Summary
from dordis.federation.records import LEDGER
from dordis.privacy import mechanisms
from dordis.privacy.mechanisms.mechanism import NoiseFrom

SHOWN = 10
"""Clients that are listed, those who have spent most first; --json lists all."""


def verify(path: Path, run: str | None, head: str | None, as_json: bool) -> None:
    """Check a ledger line by line, print what it says, and refuse if a client has spent more than the budget."""
    file = path / LEDGER if path.is_dir() else path
    try:
        summary = ledger.verify(file, run=read_run(run), head=head)
    except OSError as error:
        raise InputError(f"cannot read the ledger {file}: {error.strerror}") from None
    if as_json:
        print(json.dumps(fields(summary)))
    else:
        console = Console(soft_wrap=True)
        console.print(f"run {summary.run}\nhead {summary.head}", highlight=False)
        console.print(facts(summary))
        console.print(spenders(summary))
        console.print("epsilon: for one client, its update replaced by zero, over the rounds it took part in")
        console.print(f"epsilon: {against(summary)}")
        console.print("epsilon: dropout that depends on a client's data is outside the guarantee")
    summary.check_budget()


def against(summary: Summary) -> str:
    """Say whom the epsilon is a statement about: the least that one of the mechanisms says of itself."""
    foreign = [name for name in summary.mechanisms if name not in mechanisms.TABLE]
    if foreign:
        return f"against whom, the author of '{foreign[0]}' has to say"
    noise = {mechanisms.known(name).noise_from for name in summary.mechanisms}
    return (NoiseFrom.SERVER if NoiseFrom.SERVER in noise else NoiseFrom.CLIENTS).against


def read_run(text: str | None) -> bytes | None:
    """Read a run id in hex."""
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise InputError(f"--run takes the run id in hex, not '{text}'") from None


def facts(summary: Summary) -> Table:
    """Show what the ledger says as a whole."""
    table = Table("what", "value", title="the ledger is whole", show_header=False)
    rows = {
        "lines": str(summary.lines),
        "mechanisms": escape(", ".join(summary.mechanisms) or "-"),
        "rounds completed": str(summary.completed),
        "rounds charged without an output": str(summary.reserved),
        "rounds cancelled": str(summary.cancelled),
        "epsilon, delta": f"{summary.epsilon:.4g}, {summary.delta:.4g}",
        "budget": "none" if summary.budget is None else f"{summary.budget:.4g}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def spenders(summary: Summary) -> Table:
    """Show the clients who have spent most."""
    shown = sorted(summary.clients, key=lambda u: (-summary.clients[u], u))[:SHOWN]
    table = Table("client", "epsilon", title=f"{len(shown)} of {len(summary.clients)} clients")
    for client in shown:
        table.add_row(str(client), f"{summary.clients[client]:.4g}")
    return table


def fields(summary: Summary) -> dict[str, object]:
    """Return what is printed as JSON; an epsilon that is infinite is null."""
    clients = {str(u): finite(spent) for u, spent in summary.clients.items()}
    return asdict(summary) | {"epsilon": finite(summary.epsilon), "clients": clients}


def finite(epsilon: float) -> float | None:
    """Return an epsilon that JSON can hold, or None."""
    return None if math.isinf(epsilon) else epsilon
