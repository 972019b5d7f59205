"""The paper's figures on privacy beside ours."""

from typing import Annotated

import typer

from dordis.cli.options import JsonArray


def epsilon(
    budget: Annotated[list[float] | None, typer.Option(help="The same, as an option that may be repeated.")] = None,
    more: Annotated[
        list[float] | None, typer.Argument(metavar="BUDGET", help="Values of epsilon to plan for: 6 if not given.")
    ] = None,
    as_json: JsonArray = False,
) -> None:
    """Show what dropout does to epsilon; the paper's beside ours."""
    from dordis.cli.reproduce import show
    from dordis.cli.tables import working
    from dordis.reproduce import epsilon

    with working("planning runs with dropout"):
        experiment = epsilon.epsilon([*(budget or ()), *(more or ())] or [epsilon.PAPER_BUDGET])
    show(experiment, as_json)
