"""The paper's learning curves beside ours."""

from dordis.cli.options import Charts, DataDir, JsonArray, PaperTasks, Scale, Seed


def curves(
    scale: Scale = "small",
    task: PaperTasks = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show how Orig and XNoise learn round by round, at 20 % dropout.

    What the paper reaches in the end is beside it.
    """
    from dordis.cli import tables
    from dordis.cli.reproduce import show
    from dordis.reproduce import utility

    with tables.console(stderr=True).status("training") as status:
        experiment = utility.curves(scale, task or (), seed, data_dir, status.update)
    show(experiment, as_json, charts)
