"""The paper's table of final accuracy beside ours."""

from typing import Annotated

import typer

from dordis.cli.options import Charts, DataDir, JsonArray, PaperTasks, Scale, Seed


def utility(
    scale: Scale = "small",
    task: PaperTasks = None,
    rate: Annotated[list[float] | None, typer.Option(help="Rates of dropout; 0 to 0.4 if not given.")] = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show the accuracy that Orig and XNoise reach at several rates of dropout.

    The paper's figures are beside ours, with the reason why they differ.
    """
    from dordis.cli import tables
    from dordis.cli.reproduce import show
    from dordis.reproduce import utility

    with tables.console(stderr=True).status("training") as status:
        experiment = utility.utility(scale, task or (), rate or (), seed, data_dir, status.update)
    show(experiment, as_json, charts)
