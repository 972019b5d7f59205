"""Verify the privacy ledger of a run, or add up several."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json, finished_runs
from dordis.cli.output import facts_table, finite, make_table, print_result
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.ledger.combine_runs import CombinedEpsilon
    from dordis.ledger.ledger import LedgerSummary

LISTED_CLIENTS = 10
"""Number of clients that are listed, those with the largest epsilon first; --json lists all."""


def verify_ledger(
    path: Annotated[Path, typer.Argument(help="A run, or its ledger.jsonl.", autocompletion=finished_runs)],
    run: Annotated[str | None, typer.Option(help="The expected run id, in hex.")] = None,
    head: Annotated[str | None, typer.Option(help="The hash of a line that the ledger must still contain.")] = None,
    as_json: Json = False,
) -> None:
    """Check every line of a ledger.

    The epsilon of each client is computed again. The ledger of a run is also compared with the receipts and the records
    beside it.
    """
    from dordis.ledger import consistency, ledger
    from dordis.records import run_records
    from dordis.records.run_records import LEDGER, MANIFEST

    file = path / LEDGER if path.is_dir() else path
    try:
        stored = (
            run_records.load_run(file.parent) if (file.parent / MANIFEST).is_file() and file.name == LEDGER else None
        )
        summary = ledger.verify_ledger(file, run=_read_run_id(run), head=head)
        if stored is not None:
            summary = consistency.check_evidence(stored) or summary
    except OSError as error:
        raise InputError(f"cannot read the ledger {file}: {error.strerror}") from None
    how = stored.manifest.how if stored else ""
    if summary.budget is None:  # a run without a stopping rule was still planned for a budget
        summary = replace(summary, budget=summary.stated.budget)
    print_result(as_json, _summary_fields(summary) | {"run_as": how or None}, *_describe_summary(summary, how))
    summary.check_budget()


def add_ledgers(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, or ledgers of queries.", autocompletion=finished_runs)
    ],
    delta: Annotated[float | None, typer.Option(help="Delta of the sum; the smallest of all if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Add up the epsilon of runs and queries over the same clients.

    A run counts with its stated epsilon: its budget, if it ended before its planned rounds. Clients are matched by
    their registered keys. Where a run has no registry (simulated runs, ledgers of queries), its largest epsilon is
    added to every client.
    """
    from dordis.ledger.combine_runs import combined_epsilon

    account = combined_epsilon(runs, delta)
    rows = ((str(part.path), part.how, f"{part.epsilon:.4g}") for part in account.parts)
    print_result(
        as_json,
        _account_fields(account),
        make_table("run", "clients", "epsilon stated", rows=rows),
        f"together: epsilon {account.epsilon:.4g} at delta {account.delta:.4g}, the largest of all clients",
    )


COMMANDS = {"verify": verify_ledger, "sum": add_ledgers}


def _read_run_id(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise InputError(f"--run takes the run id in hex, not '{text}'") from None


def _describe_adversary(summary: "LedgerSummary") -> str:
    """Return in words against whom the epsilon holds; of several mechanisms, the weakest guarantee counts."""
    from dordis.privacy import mechanisms
    from dordis.privacy.mechanisms import NoiseFrom

    foreign = [name for name in summary.mechanisms if name not in mechanisms.TABLE]
    if foreign:
        return f"against whom, the author of '{foreign[0]}' has to say"
    noise = {mechanisms.find_builtin_mechanism(name).noise_from for name in summary.mechanisms}
    return (NoiseFrom.SERVER if NoiseFrom.SERVER in noise else NoiseFrom.CLIENTS).adversary


def _describe_summary(summary: "LedgerSummary", how: str) -> "Iterator[Table | str]":
    """Yield tables and lines: the contents of the ledger, and for whom and against whom its epsilon holds."""
    rows = {
        "lines": str(summary.lines),
        "runs before": ", ".join(run[:16] for run in summary.predecessors) or "none",
        "mechanisms": ", ".join(summary.mechanisms) or "-",
        "rounds completed": str(summary.completed),
        "rounds charged without an output": str(summary.reserved),
        "epsilon stated, delta": f"{summary.stated.epsilon:.4g}, {summary.delta:.4g}",
        "epsilon spent": f"{summary.epsilon:.4g}",
        "part of delta for graphs and draws": f"{summary.failure:.3g}",
        "budget": "none" if summary.budget is None else f"{summary.budget:.4g}",
    }
    largest = sorted(summary.clients.items(), key=lambda spent: (-spent[1], spent[0]))[:LISTED_CLIENTS]
    spenders = ((str(client), f"{epsilon:.4g}") for client, epsilon in largest)
    title = f"spent: {len(largest)} of {len(summary.clients)} clients"
    yield f"run {summary.run}\nhead {summary.head}"
    yield facts_table(rows, "the ledger is whole")
    yield make_table("client", "epsilon", rows=spenders, title=title)
    yield f"epsilon: {summary.stated.basis.value}"
    yield "epsilon: for one client, its updates replaced by zero, over the rounds it took part in"
    yield f"epsilon: {_describe_adversary(summary)}"
    yield "epsilon: dropout that depends on a client's data is outside the guarantee"
    if how:
        yield f"the run: {how}"


def _summary_fields(summary: "LedgerSummary") -> dict[str, object]:
    """Return the summary of a ledger as JSON fields; an infinite epsilon is None."""
    clients = {str(u): finite(spent) for u, spent in summary.clients.items()}
    stated = {
        "epsilon": finite(summary.stated.epsilon),
        "spent": finite(summary.epsilon),
        "stated": summary.stated.basis.value,
    }
    return asdict(summary) | stated | {"clients": clients}


def _account_fields(account: "CombinedEpsilon") -> dict[str, object]:
    parts = [{"path": str(part.path), "clients": part.how, "epsilon": part.epsilon} for part in account.parts]
    return {"epsilon": account.epsilon, "delta": account.delta, "runs": parts}
