"""The commands of `python -m reproduce`: each repeats an experiment of the paper and shows both figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import DataDir, Json, JsonArray
from dordis.cli.output import make_console, show_progress

if TYPE_CHECKING:
    from dordis.report.charts import Chart
    from reproduce import Experiment

app = typer.Typer(
    help="Reproduce figures of the paper.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Costs = Annotated[Path | None, typer.Option(help="File of measured costs; without it they are measured and written.")]
PaperOnly = Annotated[bool, typer.Option("--paper", help="Use only the paper's two cost mixes: measure nothing.")]
Charts = Annotated[Path | None, typer.Option(help="Write every chart as SVG into this directory.")]
Scale = Annotated[str, typer.Option(help="small, or paper: the paper's models and rounds, which take days.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option(help="FEMNIST, CIFAR-10, Reddit or digits; if not given, the first three, or without data digits."),
]
Seed = Annotated[int, typer.Option(help="Seed of data, selection and dropout.")]


def show(experiment: "Experiment", as_json: bool, charts: Path | None = None) -> None:
    """Write the charts, if a directory is named, and print the tables or JSON."""
    import msgspec

    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)
        for name, chart in experiment.charts:
            draw(chart, charts / f"{name}.svg")
    if as_json:
        print(msgspec.json.encode(experiment.data).decode())
        return
    for table in experiment.tables:
        make_console().print(table)


def draw(chart: "Chart", path: Path) -> None:
    """Write a chart as SVG."""
    from dordis.report.charts import draw_document

    path.write_text(draw_document(chart) + "\n", encoding="utf-8")


@app.command()
def epsilon(
    budget: Annotated[list[float] | None, typer.Option(help="An epsilon to plan for; may be repeated.")] = None,
    more: Annotated[
        list[float] | None, typer.Argument(metavar="BUDGET", help="Values of epsilon to plan for: 6 if not given.")
    ] = None,
    as_json: JsonArray = False,
) -> None:
    """Show how much epsilon grows with dropout, under Orig and under XNoise."""
    from reproduce.epsilon import PAPER_BUDGET, compare_epsilon

    with show_progress("planning runs with dropout"):
        experiment = compare_epsilon([*(budget or ()), *(more or ())] or [PAPER_BUDGET])
    show(experiment, as_json)


@app.command()
def utility(
    scale: Scale = "small",
    task: Tasks = None,
    rate: Annotated[list[float] | None, typer.Option(help="Rates of dropout; 0 to 0.4 if not given.")] = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show the accuracy that Orig and XNoise reach at several rates of dropout, and why it differs from the paper's."""
    from reproduce.utility import compare_utility

    with make_console(stderr=True).status("training") as status:
        experiment = compare_utility(scale, task or (), rate or (), seed, data_dir, status.update)
    show(experiment, as_json, charts)


@app.command()
def curves(
    scale: Scale = "small",
    task: Tasks = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show how Orig and XNoise learn round by round, at 20 % dropout."""
    from reproduce.utility import compare_curves

    with make_console(stderr=True).status("training") as status:
        experiment = compare_curves(scale, task or (), seed, data_dir, status.update)
    show(experiment, as_json, charts)


@app.command()
def dynamics(
    trace: Annotated[
        Path, typer.Argument(help="Trace of real devices: FedScale's behaviours in .json, or availability in .npz.")
    ],
    scale: Scale = "small",
    seed: Seed = 0,
    data_dir: DataDir = None,
    charts: Charts = None,
    as_json: JsonArray = False,
) -> None:
    """Show privacy and accuracy when clients drop out as in a trace of real devices.

    The command compares Orig, early stopping, Con-2, Con-5, Con-8 and XNoise.
    """
    from reproduce.dynamics import compare_dynamics

    with make_console(stderr=True).status("training") as status:
        experiment = compare_dynamics(scale, trace, seed, data_dir, status.update)
    show(experiment, as_json, charts)


@app.command()
def network(
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients in a round: 100, 200 and 300 if not given.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the chart into this SVG.")] = None,
    as_json: JsonArray = False,
) -> None:
    """Show the bytes that XNoise and rebasing add to the traffic of a client; this takes minutes."""
    from reproduce.network import CLIENTS, compare_traffic

    with make_console(stderr=True).status("counting bytes") as status:
        experiment = compare_traffic(clients or CLIENTS, lambda what: status.update(f"counting bytes: {what}"))
    if figure is not None:
        ((_, chart),) = experiment.charts
        draw(chart, figure)
    show(experiment, as_json)


@app.command()
def rounds(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how long rounds take, plain and in a pipeline."""
    from reproduce.rounds import compare_rounds, cost_mixes

    with show_progress("rounds in virtual time, and their costs"):
        experiment = compare_rounds(cost_mixes(costs, paper))
    show(experiment, as_json, charts)


@app.command()
def overhead(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show the share of aggregation in a round for growing numbers of clients, with and without noise."""
    from reproduce.rounds import compare_overhead, cost_mixes

    with show_progress("rounds in virtual time, and their costs"):
        experiment = compare_overhead(cost_mixes(costs, paper))
    show(experiment, as_json, charts)


@app.command()
def refinement(as_json: JsonArray = False) -> None:
    """Show how much of a round would be saved by changing the global model after every chunk."""
    from reproduce.refinement import compare_refinement

    with show_progress("decoding and steps of chunks"):
        experiment = compare_refinement()
    show(experiment, as_json)


Cache = Annotated[Path, typer.Option(help="Folder of jobs' results; a job with a result is not run again.")]
Jobs = Annotated[int, typer.Option(min=1, help="Jobs that run side by side, each on one core.")]
CACHE = Path("runs") / "reproduce"
INTERRUPTED = 130
"""Exit status of a command that was interrupted."""


@app.command("all")
def all_sections(
    scale: Scale = "small",
    data_dir: DataDir = None,
    output: Annotated[Path, typer.Option(help="The folder of paper.md and paper.html.")] = Path("docs") / "results",
    cache: Cache = CACHE,
    jobs: Jobs = 2,
    dry: Annotated[bool, typer.Option("--no-run", help="Run nothing: write the page from cached results.")] = False,
) -> None:
    """Regenerate every figure and table, and write one page with the paper's numbers beside ours.

    A section that fails is marked, and the others go on. After an interrupt the page has the finished sections; the
    same command then runs the remaining jobs.
    """
    from reproduce.paper.command import run_all

    if not run_all(scale, data_dir, output, cache, 0 if dry else jobs):
        raise typer.Exit(INTERRUPTED)


@app.command()
def figure(
    number: Annotated[str, typer.Argument(help="Its number in the paper: 1, 1a to 1d, 2, 3, 4, 6, 8, 9 or 10.")],
    scale: Scale = "small",
    data_dir: DataDir = None,
    cache: Cache = CACHE,
    jobs: Jobs = 2,
) -> None:
    """Regenerate one figure of the paper."""
    from reproduce.paper.command import print_sections

    print_sections("figure", number, scale, data_dir, cache, jobs)


@app.command()
def table(
    number: Annotated[str, typer.Argument(help="Its number in the paper: 1, 2 or 3.")],
    scale: Scale = "small",
    data_dir: DataDir = None,
    cache: Cache = CACHE,
    jobs: Jobs = 2,
) -> None:
    """Regenerate one table of the paper."""
    from reproduce.paper.command import print_sections

    print_sections("table", number, scale, data_dir, cache, jobs)


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="artifact: the missing scale in the paper's artifact.")] = "artifact",
    scale: Scale = "small",
    data_dir: DataDir = None,
    cache: Cache = CACHE,
    jobs: Jobs = 2,
) -> None:
    """Run an experiment that explains why a figure differs."""
    from reproduce.paper.command import print_sections

    print_sections("experiment", name, scale, data_dir, cache, jobs)


@app.command()
def cluster(
    local: Annotated[
        int | None, typer.Option(metavar="N", help="Run a server and N clients in namespaces here.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option(help="Read a finished run of a cluster of your own; may be repeated.")
    ] = None,
    dim: Annotated[int, typer.Option(min=1, help="Coordinates of an update.")] = 1_000_000,
    chunks: Annotated[str, typer.Option(help="Numbers of chunks and auto, such as 1,4,auto.")] = "1,2,4,8",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each run; the first one does not count.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Runs with each number of chunks; they take turns.")] = 1,
    dropout: Annotated[float, typer.Option(min=0, max=0.3, help="Fraction of clients lost before the upload.")] = 0.0,
    slower: Annotated[float, typer.Option(help="Divide all bandwidths (21 to 210 Mbps) by this number.")] = 1.0,
    latency: Annotated[float, typer.Option(min=0, help="Largest latency of a client, one way, in seconds.")] = 0.05,
    slowness: Annotated[float, typer.Option(min=1, help="How many times slower the slowest device is.")] = 1.0,
    seed: Seed = 1,
    processes: Annotated[int, typer.Option(min=1, help="Processes that the clients share.")] = 2,
    output: Annotated[Path | None, typer.Option(help="Add the results to this file.")] = None,
    charts: Charts = None,
    as_json: Json = False,
) -> None:
    """Measure rounds of `dordis serve` and real clients behind throttled links, beside predictions.

    --local needs root. It makes network namespaces with an address and a bandwidth for each client, and relays that add
    latency, and removes all of them at the end.
    """
    from dordis.errors import InputError
    from reproduce.cluster.command import keep_setting, parse_chunks, plan_and_measure, read_own
    from reproduce.cluster.experiment import Workload
    from reproduce.cluster.results import compare_figure_10

    if (local is None) == (not runs):
        raise InputError("give --local N to measure on this machine, or --runs RUN for rounds of a cluster of your own")
    if local is None:
        setting = read_own(runs or ())
    else:
        workload = Workload(local, dim, parse_chunks(chunks), rounds, repeats, dropout, processes)
        with show_progress("rounds on a local cluster"):
            setting = plan_and_measure(workload, chunks, slower, latency, slowness, seed)
    show(compare_figure_10(keep_setting(setting, output)), as_json, charts)
