"""What several runs and queries over the same clients cost together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json, finished_runs
from dordis.cli.tables import show, table

if TYPE_CHECKING:
    from dordis.federation.joint import JointAccount


def sum(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Runs, or ledgers of queries.", autocompletion=finished_runs)
    ],
    delta: Annotated[float | None, typer.Option(help="Of the sum; the smallest of theirs if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Add up what runs and queries over the same clients have cost.

    A run counts with the epsilon that is stated of it: its budget, if it ended before its planned rounds. Clients are
    joined by their registered keys. Where a run keeps no registry, as simulated runs and ledgers of queries do not, the
    client that has spent most there is added to everybody.
    """
    from dordis.federation.joint import joint

    account = joint(runs, delta)
    rows = ((str(part.path), part.how, f"{part.epsilon:.4g}") for part in account.parts)
    show(
        as_json,
        fields(account),
        table("run", "clients", "epsilon stated", rows=rows),
        f"together: epsilon {account.epsilon:.4g} at delta {account.delta:.4g}, for the client for which that is most",
    )


def fields(account: "JointAccount") -> dict[str, object]:
    """Return what is printed as JSON."""
    parts = [{"path": str(part.path), "clients": part.how, "epsilon": part.epsilon} for part in account.parts]
    return {"epsilon": account.epsilon, "delta": account.delta, "runs": parts}
