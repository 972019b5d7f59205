"""Verify the privacy ledger of a run: is it whole, what has each client spent, and which epsilon is stated."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json, finished_runs
from dordis.cli.tables import facts, show, table
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.federation.ledger import Summary

SHOWN = 10
"""Clients that are listed, those who have spent most first; --json lists all."""


def verify(
    path: Annotated[Path, typer.Argument(help="A run, or its ledger.jsonl.", autocompletion=finished_runs)],
    run: Annotated[str | None, typer.Option(help="The run that it must be of, in hex.")] = None,
    head: Annotated[str | None, typer.Option(help="The hash of a line that must still be there.")] = None,
    as_json: Json = False,
) -> None:
    """Check every line of a ledger.

    What the run has cost each client is computed again from it. The ledger of a run is also compared with the receipts
    and the records beside it.
    """
    from dordis.federation import evidence, ledger, records
    from dordis.federation.records import LEDGER, MANIFEST

    file = path / LEDGER if path.is_dir() else path
    try:
        stored = records.load(file.parent) if (file.parent / MANIFEST).is_file() and file.name == LEDGER else None
        summary = ledger.verify(file, run=read_run(run), head=head)
        if stored is not None:
            summary = evidence.check_evidence(stored) or summary
    except OSError as error:
        raise InputError(f"cannot read the ledger {file}: {error.strerror}") from None
    how = stored.manifest.how if stored else ""
    if summary.budget is None:  # the run was never stopped, and it was planned for something
        summary = replace(summary, budget=summary.stated.budget)
    show(as_json, fields(summary) | {"run_as": how or None}, *shown(summary, how))
    summary.check_budget()


def read_run(text: str | None) -> bytes | None:
    """Read a run id in hex."""
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise InputError(f"--run takes the run id in hex, not '{text}'") from None


def against(summary: "Summary") -> str:
    """Say whom the epsilon is a statement about: the least that one of the mechanisms says of itself."""
    from dordis.privacy import mechanisms
    from dordis.privacy.mechanisms.mechanism import NoiseFrom

    foreign = [name for name in summary.mechanisms if name not in mechanisms.TABLE]
    if foreign:
        return f"against whom, the author of '{foreign[0]}' has to say"
    noise = {mechanisms.known(name).noise_from for name in summary.mechanisms}
    return (NoiseFrom.SERVER if NoiseFrom.SERVER in noise else NoiseFrom.CLIENTS).against


def shown(summary: "Summary", how: str) -> "Iterator[Table | str]":
    """Say what is in the ledger, and for whom and against whom its epsilon is a statement."""
    rows = {
        "lines": str(summary.lines),
        "runs before": ", ".join(run[:16] for run in summary.predecessors) or "none",
        "mechanisms": ", ".join(summary.mechanisms) or "-",
        "rounds completed": str(summary.completed),
        "rounds charged without an output": str(summary.reserved),
        "epsilon stated, delta": f"{summary.stated.epsilon:.4g}, {summary.delta:.4g}",
        "epsilon spent": f"{summary.epsilon:.4g}",
        "of delta, for graphs and lots": f"{summary.failure:.3g}",
        "budget": "none" if summary.budget is None else f"{summary.budget:.4g}",
    }
    most = sorted(summary.clients.items(), key=lambda spent: (-spent[1], spent[0]))[:SHOWN]
    spenders = ((str(client), f"{epsilon:.4g}") for client, epsilon in most)
    yield f"run {summary.run}\nhead {summary.head}"
    yield facts(rows, "the ledger is whole")
    yield table("client", "epsilon", rows=spenders, title=f"spent: {len(most)} of {len(summary.clients)} clients")
    yield f"epsilon: {summary.stated.basis.value}"
    yield "epsilon: for one client, its update replaced by zero, over the rounds it took part in"
    yield f"epsilon: {against(summary)}"
    yield "epsilon: dropout that depends on a client's data is outside the guarantee"
    if how:
        yield f"the run: {how}"


def fields(summary: "Summary") -> dict[str, object]:
    """Return what is printed as JSON; an epsilon that is infinite is null."""
    from dordis.cli.plan import finite

    clients = {str(u): finite(spent) for u, spent in summary.clients.items()}
    stated = {
        "epsilon": finite(summary.stated.epsilon),
        "spent": finite(summary.epsilon),
        "stated": summary.stated.basis.value,
    }
    return asdict(summary) | stated | {"clients": clients}
