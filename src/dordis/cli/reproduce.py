"""The experiments of the paper: tables or JSON, and charts on demand; what they need is imported when one is run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dordis.report.charts import Chart
    from dordis.reproduce import Experiment

app = typer.Typer(help="Reproduce figures of the paper.", rich_markup_mode=None)

Costs = Annotated[
    Path | None, typer.Option("--costs", help="Measured costs: read from here, or measured and written here.")
]
Paper = Annotated[bool, typer.Option("--paper", help="Only under the paper's cost mix: measure nothing.")]
Charts = Annotated[Path | None, typer.Option("--charts", help="Write every chart as SVG into this directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("epsilon")
def epsilon(
    budget: Annotated[list[float] | None, typer.Option(help="The same, as an option that may be repeated.")] = None,
    more: Annotated[
        list[float] | None, typer.Argument(metavar="BUDGET", help="Values of epsilon to plan for: 6 if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what dropout does to epsilon; the paper's beside ours."""
    from dordis.reproduce import epsilon

    _show(epsilon.epsilon([*(budget or ()), *(more or ())] or [epsilon.PAPER_BUDGET]), as_json)


@app.command("network")
def network(
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients in a round: 100, 200 and 300 if not given.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the chart into this SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Show what noise enforcement adds to the traffic.

    The paper's figures are beside ours. It takes minutes.
    """
    from rich.console import Console

    from dordis.reproduce import network

    with Console(stderr=True).status("counting bytes") as status:
        experiment = network.network(clients or network.CLIENTS, lambda what: status.update(f"counting bytes: {what}"))
    if figure is not None:
        ((_, chart),) = experiment.charts
        _draw(chart, figure)
    _show(experiment, as_json)


@app.command("rounds")
def rounds(costs: Costs = None, paper: Paper = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how long rounds take, plain and in a pipeline.

    The paper's claims are beside ours.
    """
    from dordis.reproduce import rounds

    _show(rounds.rounds(rounds.cost_mixes(costs, paper)), as_json, charts)


@app.command("overhead")
def overhead(costs: Costs = None, paper: Paper = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how much of a round is aggregation.

    The number of clients grows, with and without noise.
    """
    from dordis.reproduce import rounds

    _show(rounds.overhead(rounds.cost_mixes(costs, paper)), as_json, charts)


def _show(experiment: "Experiment", as_json: bool, charts: Path | None = None) -> None:
    """Write the charts, if a directory is named, and print the rest."""
    import msgspec
    from rich.console import Console

    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)
        for name, chart in experiment.charts:
            _draw(chart, charts / f"{name}.svg")
    if as_json:
        print(msgspec.json.encode(experiment.data).decode())
        return
    console = Console(soft_wrap=True)
    for table in experiment.tables:
        console.print(table)


def _draw(chart: "Chart", path: Path) -> None:
    from dordis.report.svg import document

    path.write_text(document(chart) + "\n", encoding="utf-8")
