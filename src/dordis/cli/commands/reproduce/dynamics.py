"""The paper's figure on client dynamics beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Charts, DataDir, JsonArray, Scale, Seed


def dynamics(
    trace: Annotated[
        Path, typer.Argument(help="Of real devices: FedScale's behaviours in .json, or availability in .npz.")
    ],
    scale: Scale = "small",
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show what a real trace of clients does to privacy and accuracy.

    Orig, early stopping, Con-2, Con-5, Con-8 and XNoise, beside what the paper says.
    """
    from dordis.cli import tables
    from dordis.cli.reproduce import show
    from dordis.reproduce import dynamics

    with tables.console(stderr=True).status("training") as status:
        experiment = dynamics.dynamics(scale, trace, seed, data_dir, status.update)
    show(experiment, as_json, charts)
