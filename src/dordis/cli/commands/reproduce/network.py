"""The paper's figures on traffic beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import JsonArray


def network(
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients in a round: 100, 200 and 300 if not given.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the chart into this SVG.")] = None,
    as_json: JsonArray = False,
) -> None:
    """Show what noise enforcement adds to the traffic.

    The paper's figures are beside ours. It takes minutes.
    """
    from dordis.cli import tables
    from dordis.cli.reproduce import draw, show
    from dordis.reproduce import network

    with tables.console(stderr=True).status("counting bytes") as status:
        experiment = network.network(clients or network.CLIENTS, lambda what: status.update(f"counting bytes: {what}"))
    if figure is not None:
        ((_, chart),) = experiment.charts
        draw(chart, figure)
    show(experiment, as_json)
