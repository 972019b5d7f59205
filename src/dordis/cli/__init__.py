"""The command line: options and exit codes here, each command's work in a file of its own, imported when it is run.

Exit codes: 0 done, 1 `dordis attack` found a way in, 2 refused with one line on stderr, 130 interrupted.  Anything else
is a bug and keeps its traceback.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dordis import __version__
from dordis.errors import DordisError

# Plain tracebacks, because pretty ones may print local variables, and those may be secrets.
app = typer.Typer(name="dordis", add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
reproduce = typer.Typer(help="Reproduce figures of the paper.", rich_markup_mode=None)
app.add_typer(reproduce, name="reproduce")
ledger = typer.Typer(help="Look into the privacy ledger of a run.", rich_markup_mode=None)
app.add_typer(ledger, name="ledger")

MISSING = "Missing command."
"""What typer says if there is no command, without a word on which ones there are."""


def main() -> None:
    """Run the command line and exit."""
    try:
        sys.exit(app(prog_name="dordis", standalone_mode=False))
    except typer.TyperException as error:
        reason = error.format_message()
        _refuse("Missing command: --help lists them." if reason == MISSING else reason)
    except typer.Abort:
        sys.exit(130)
    except DordisError as error:
        _refuse(str(error))


def _refuse(reason: str) -> None:
    typer.echo("dordis: " + " ".join(reason.split()), err=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dordis {__version__}")
        raise typer.Exit


@app.callback()
def _dordis(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning with distributed differential privacy that survives client dropout."""


@app.command("run")
def _run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="A configuration; that of the preset digits if not given."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="One that comes with dordis, below the file's: digits, ideal, quick, sparse.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Override a setting: -c privacy.epsilon=3.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, and the bytes and seconds to expect; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a model privately over simulated clients.

    Any other private mean can be computed, too: app.server and app.client name what is.
    """
    from dordis.cli.run import run

    run(config, preset, setting or (), resume, dry_run, as_json)


@app.command("report")
def _report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs; several are compared.")],
    output: Annotated[
        Path | None, typer.Option(help="The directory to write into: the run, or this one for several, if not given.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every chart as SVG and the tables as CSV.")
    ] = False,
    png: Annotated[
        bool, typer.Option("--png", help="The same, and every chart as PNG: needs the extra 'plots'.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write what runs did and prove as one HTML page."""
    from dordis.cli.report import report

    report(runs, output, figures=figures, png=png, show=show)


@app.command("mean")
def _mean(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="One row for each client; the first may name the columns.")
    ],
    epsilon: Annotated[float, typer.Option(help="The privacy budget of all that is printed.")],
    delta: Annotated[
        float | None, typer.Option(help="Its delta; min(n^-1.1, 1e-5) for n clients if not given.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW,HIGH", help="Public bounds, for all columns or once for each; found privately if not given."
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME,...", help="Which columns: all if not given.")] = None,
    dropped: Annotated[int, typer.Option(help="How many clients vanish on the way, for trying it out.")] = 0,
    fidelity: Annotated[
        str, typer.Option(help="ideal, or full: every message of the protocol, which takes long.")
    ] = "ideal",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute the private mean of columns of a CSV file."""
    from dordis.cli.mean import mean

    mean(file, epsilon, delta, bounds or (), columns, dropped, fidelity, as_json)


@app.command("histogram")
def _histogram(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="One row for each client; the first may name the columns.")
    ],
    epsilon: Annotated[float, typer.Option(help="The privacy budget of all that is printed.")],
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="E1,E2,...", help="Public values between the bins; the first and the last bin have no end."
        ),
    ] = None,
    bins: Annotated[int | None, typer.Option(help="Instead of edges: so many bins between the bounds.")] = None,
    bounds: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="Public bounds; found privately if not given.")
    ] = None,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="Which column, if there are several.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Its delta; min(n^-1.1, 1e-5) for n clients if not given.")
    ] = None,
    dropped: Annotated[int, typer.Option(help="How many clients vanish on the way, for trying it out.")] = 0,
    fidelity: Annotated[
        str, typer.Option(help="ideal, or full: every message of the protocol, which takes long.")
    ] = "ideal",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count privately how many clients have a value in each bin."""
    from dordis.cli.histogram import histogram

    histogram(file, epsilon, delta, edges, bins, bounds, column, dropped, fidelity, as_json)


@app.command("init")
def _init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("dordis.toml"),
    preset: Annotated[
        str, typer.Option(help="What to begin with: digits, which explains every setting, ideal, quick or sparse.")
    ] = "digits",
) -> None:
    """Write a configuration with explanations, to be edited."""
    from dordis.cli.init import init

    init(path, preset)


@app.command("doctor")
def _doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False) -> None:
    """Look at this machine: versions, kernels, speed.

    The exit code is 1 if something is missing.
    """
    from dordis.cli.doctor import doctor

    if not doctor(as_json):
        raise typer.Exit(1)


@app.command("demo")
def _demo(
    clients: Annotated[int, typer.Option(help="How many clients take part.")] = 50,
    dropped: Annotated[int, typer.Option(help="How many of them vanish on the way.")] = 5,
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the round.")] = 6.0,
) -> None:
    """Show one private round from the inside."""
    from dordis.cli.demo import demo

    demo(clients, dropped, epsilon)


@app.command("profile")
def _profile(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="A configuration; that of the preset digits if not given."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="One that comes with dordis, below the file's: digits, ideal, quick, sparse.")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Override a setting.")] = None,
    bandwidth: Annotated[float, typer.Option(help="Mbps of the slowest client's link.")] = 21.0,
    slowness: Annotated[float, typer.Option(help="How many times slower than this machine the slowest client is.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Where to write: profile.json if not given, nothing with --json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time the stages of a round, for plan --pipeline.

    What is timed are small rounds of zeros, as the configuration has them.
    """
    from dordis.cli.profile import profile
    from dordis.simulation.profiling import Hardware

    profile(config, preset, setting or (), Hardware(bandwidth, slowness), output, as_json)


@app.command("plan")
def _plan(
    clients: Annotated[int | None, typer.Option(help="How many clients there are; with --graph, in a round.")] = None,
    per_round: Annotated[int | None, typer.Option(help="How many clients take part in a round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds there are.")] = None,
    dim: Annotated[int | None, typer.Option(help="How many coordinates an update has.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget: find the least noise for it.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise on the sum, in units of updates: find epsilon.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="For N clients min(N^-1.1, 1e-5) if not given; the paper's is 1/N.")
    ] = None,
    clip: Annotated[float, typer.Option(help="The largest norm of an update.")] = 1.0,
    clip_share: Annotated[
        float, typer.Option(help="Part of the budget for a clip bound that follows a quantile; 0: it is fixed.")
    ] = 0.0,
    bits: Annotated[str, typer.Option(help="Bits of a coordinate, or auto for as few as do no harm.")] = "auto",
    accounting: Annotated[
        str, typer.Option(help="cap: over the rounds one client takes part in; all-rounds: as in the paper.")
    ] = "cap",
    graph: Annotated[bool, typer.Option("--graph", help="Plan the graph of SecAgg+ instead.")] = False,
    dropout: Annotated[
        float | None, typer.Option(help="Which part of a round may drop out; with --graph 0.1 if not given.")
    ] = None,
    tolerance: Annotated[
        int | None, typer.Option(help="How many clients of a round may drop out, instead of --dropout.")
    ] = None,
    colluders: Annotated[int, typer.Option(help="How many clients of a round may collude with the server.")] = 1,
    mode: Annotated[
        str, typer.Option(help="With --graph: semi-honest or malicious, the server that is guarded against.")
    ] = "malicious",
    pipeline: Annotated[bool, typer.Option("--pipeline", help="Plan the number of chunks instead.")] = False,
    profile: Annotated[Path | None, typer.Option(help="With --pipeline: a file of `dordis profile`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose the noise for a budget, or find epsilon for given noise.

    With --graph choose the graph of SecAgg+ instead, with --pipeline the number of chunks.
    """
    if pipeline:
        from dordis.cli.plan_pipeline import plan as plan_pipeline

        plan_pipeline(profile, dim, as_json)
        return
    if clients is None:
        raise typer.BadParameter("give the number of clients", param_hint="--clients")
    if graph:
        from dordis.cli.graph import plan as plan_graph

        plan_graph(clients, dropout, tolerance, colluders, mode, as_json)
        return
    from dordis.cli.plan import plan

    plan(
        clients=clients,
        per_round=per_round,
        rounds=rounds,
        dim=dim,
        epsilon=epsilon,
        sigma=sigma,
        delta=delta,
        clip=clip,
        clip_share=clip_share,
        bits=bits,
        accounting=accounting,
        dropout=dropout,
        tolerance=tolerance,
        colluders=colluders,
        as_json=as_json,
    )


@reproduce.command("epsilon")
def _reproduce_epsilon(
    budget: Annotated[list[float] | None, typer.Option(help="The same, as an option that may be repeated.")] = None,
    more: Annotated[
        list[float] | None, typer.Argument(metavar="BUDGET", help="Values of epsilon to plan for: 6 if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show what dropout does to epsilon; the paper's beside ours."""
    from dordis.cli.reproduce import epsilon

    epsilon([*(budget or ()), *(more or ())] or [6.0], as_json)


@reproduce.command("network")
def _reproduce_network(
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients in a round: 100, 200 and 300 if not given.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the chart into this SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show what noise enforcement adds to the traffic.

    The paper's figures are beside ours. It takes minutes.
    """
    from dordis.cli.reproduce_network import CLIENTS, network

    network(clients or CLIENTS, figure, as_json)


_Costs = Annotated[
    Path | None, typer.Option("--costs", help="Measured costs: read from here, or measured and written here.")
]
_Paper = Annotated[bool, typer.Option("--paper", help="Only under the paper's cost mix: measure nothing.")]
_Charts = Annotated[Path | None, typer.Option("--charts", help="Write every chart as SVG into this directory.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@reproduce.command("rounds")
def _reproduce_rounds(
    costs: _Costs = None, paper: _Paper = False, charts: _Charts = None, as_json: _Json = False
) -> None:
    """Show how long rounds take, plain and in a pipeline.

    The paper's claims are beside ours.
    """
    from dordis.cli.reproduce_rounds import rounds

    rounds(costs, paper, charts, as_json)


@reproduce.command("overhead")
def _reproduce_overhead(
    costs: _Costs = None, paper: _Paper = False, charts: _Charts = None, as_json: _Json = False
) -> None:
    """Show how much of a round is aggregation.

    The number of clients grows, with and without noise.
    """
    from dordis.cli.reproduce_overhead import overhead

    overhead(costs, paper, charts, as_json)


@app.command("attack")
def _attack(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Run every known attack on the protocol.

    The exit code is 1 if one succeeds.
    """
    from dordis.cli.attack import attack

    if not attack(as_json):
        raise typer.Exit(1)


@ledger.command("verify")
def _ledger_verify(
    path: Annotated[Path, typer.Argument(help="A run, or its ledger.jsonl.")],
    run: Annotated[str | None, typer.Option(help="The run that it must be of, in hex.")] = None,
    head: Annotated[str | None, typer.Option(help="The hash of a line that must still be there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every line of a ledger.

    What the run has cost each client is computed again from it.
    """
    from dordis.cli.ledger import verify

    verify(path, run, head, as_json)


@app.command("audit")
def _audit(
    rounds: Annotated[int, typer.Option(help="How many rounds the run has.")] = 1,
    clients: Annotated[int, typer.Option(help="How many clients take part, a canary each.")] = 2000,
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run is planned for, and claims.")] = 2.0,
    dropped: Annotated[int | None, typer.Option(help="How many drop out: half of those tolerated by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attack the noise of a run with canaries.

    The epsilon that the attack shows must not exceed what is claimed: else the exit code is 2.
    """
    from dordis.cli.audit import run

    run(clients, rounds, epsilon, dropped, as_json)
