"""Train a model, or compute anything else that is a mean, over simulated clients, as a configuration says."""

import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli import tables
from dordis.cli.exits import INTERRUPTED, OVER_BUDGET
from dordis.cli.options import (
    ConfigFile,
    DataDir,
    Json,
    Overrides,
    Preset,
    Quiet,
    Verbose,
    as_keys,
    finished_runs,
    given_data,
)
from dordis.errors import ImpossibleSum, InputError, RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from dordis.federation.coordinator import Finished
    from dordis.federation.records import Result
    from dordis.federation.run import Run
    from dordis.simulation.run import SimulatedJob


def run(
    config: ConfigFile = None,
    preset: Preset = None,
    setting: Overrides = None,
    data_dir: DataDir = None,
    name: Annotated[str | None, typer.Option(help="The name of the run: -c name=...")] = None,
    output: Annotated[str | None, typer.Option(help="Where runs are kept: -c output=...")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget: -c privacy.epsilon=...")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds: -c federation.rounds=...")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients there are: -c federation.clients=...")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the run in this directory, or with the newest in it.", autocompletion=finished_runs
        ),
    ] = None,
    succeed: Annotated[
        Path | None,
        typer.Option(
            help="Begin a run that goes on from the one in this directory, with other clients or settings.",
            autocompletion=finished_runs,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, and the bytes and seconds to expect; run nothing.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train a model privately over simulated clients.

    Any other private mean can be computed, too: app.server and app.client name what is.
    """
    from dordis.federation.durable import hold
    from dordis.federation.records import CONFIG
    from dordis.simulation import reading
    from dordis.simulation.run import prepare

    short = {
        "name": name,
        "output": output,
        "privacy.epsilon": epsilon,
        "federation.rounds": rounds,
        "federation.clients": clients,
    }
    given = [*(setting or ()), *given_data(data_dir), *as_keys(short)]
    resume, succeed = newest(resume), newest(succeed)
    if resume is not None:
        if config is not None or preset is not None or given or dry_run:
            raise InputError("a run goes on as it was configured: give --resume alone")
        config = resume / CONFIG
    if succeed is not None:
        if resume is not None:
            raise InputError("a run goes on by --resume, or is succeeded by another one, not both")
        config = succeed / CONFIG if config is None and preset is None else config
    if (began := resume or succeed) is not None and not (began / CONFIG).is_file():
        raise InputError(f"there is no run at {began}: it has no {CONFIG}")
    reading.find_modules(config)
    settings = reading.read(config, preset, given)
    console = tables.console(stderr=as_json)
    with console.status("planning the noise") if console.is_terminal else nullcontext():
        job = prepare(settings)
    if dry_run:
        _tell(job, as_json)
        return
    text, folder = reading.written(settings), Path(settings.output)
    with ExitStack() as held:
        if began is not None:
            held.callback(os.close, hold(began))
        if succeed is not None:
            under_way = job.succeed(succeed, folder, text)
        else:
            under_way = job.resume(resume) if resume else job.start(folder, text)
        result = drive(under_way, console, "run --resume", quiet=quiet or as_json, verbose=verbose)
        show(under_way, result, as_json, quiet=quiet)


def newest(path: Path | None) -> Path | None:
    """Return a run, or the newest one in a folder of runs."""
    from dordis.federation.records import CONFIG

    if path is None or (path / CONFIG).is_file():
        return path
    found = sorted((file.parent for file in path.glob(f"*/{CONFIG}")), key=lambda run: run.name)
    return found[-1] if found else path


def drive(under_way: "Run", console: "Console", again: str, *, quiet: bool, verbose: bool = False) -> "Result":
    """Run all rounds that are left, showing them; whatever ends the run is written down.

    `again` is how to go on: whatever stops the run before its end, an exception of an application too, is told with it.
    """
    from dordis.cli.run_display import Display

    for warning in under_way.job.design.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    go_on = f"go on with: dordis {again} {shlex.quote(str(under_way.records.path))}"
    shown = Display(under_way.job, under_way.home, under_way.done, console, quiet=quiet, verbose=verbose)
    try:
        with shown as display, interruptible() as end_if_asked:

            def told(finished: "Finished") -> None:
                display.finished(finished)
                end_if_asked()

            result = under_way.complete(display.stage, told)
            if under_way.over_budget is not None:
                display.note(f"stopped before round {under_way.done + 1}: {under_way.over_budget}")
    except RoundFailed as error:
        failed = InputError(_failed(under_way, error))
        failed.add_note(go_on)
        raise failed from None
    except KeyboardInterrupt:
        print(f"interrupted; {go_on}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        error.add_note(go_on)
        raise
    return result


@contextmanager
def interruptible() -> "Iterator[Callable[[], None]]":
    """Let Ctrl-C and a request to end, SIGTERM, end a run alike: what was done is kept, and told.

    Python ignores exceptions in finalisers and in callbacks of C code; what is given ends the run for those too.
    """
    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def end_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield end_if_asked
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield end_if_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(under_way: "Run", error: RoundFailed) -> str:
    """Say which round failed, how often, why, and what can be done."""
    federation = under_way.job.config.federation
    times = "once" if federation.tries == 1 else f"{federation.tries} times"
    if isinstance(error, ImpossibleSum):
        return (
            f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time "
            f"because {error}; one of the clients {', '.join(map(str, error.survivors))} or the server is faulty: "
            f"begin a run without the faulty client; finished rounds are in {under_way.records.path}"
        )
    return (
        f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time because "
        f"{error}: begin a run that allows for more dropout with protocol.threshold and protocol.tolerance, or has "
        f"more clients a round; what was done is in {under_way.records.path}"
    )


def show(under_way: "Run", result: "Result", as_json: bool, *, quiet: bool = False) -> None:
    """Tell how a run ended, and where its report is; that it has spent too much has an exit code of its own."""
    from dordis.cli.run_display import summary
    from dordis.report.facts import gather
    from dordis.report.files import write

    path = under_way.records.path
    (facts,), report = gather([path]), write([path])
    outcome = {
        "clients": under_way.job.app.unit,
        "accuracy": result.metrics.get("accuracy"),
        **result.metrics,
        "measured": facts.run.manifest.measured,
        "epsilon": facts.stated,
        "spent": facts.spent,
        "delta": result.delta,
        "budget": facts.budget,
        "warnings": list(under_way.job.design.warnings),
        "overspent": facts.overspent,
        "simulated": facts.trust.simulated,
        "run_as": facts.run.manifest.how,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 3),
        "fidelity": result.fidelity,
        "stopped": result.stopped,
        "evicted": list(facts.run.evicted),
        "sum_check": facts.run.sum_checks,
        "path": str(path),
    }
    if as_json or not quiet:
        tables.show(as_json, outcome, summary(facts, result), f"report: {report}")
    if facts.overspent:
        raise typer.Exit(OVER_BUDGET)


def _tell(simulated: "SimulatedJob", as_json: bool) -> None:
    """Tell what a run would be: its plan, and the bytes and seconds of a rehearsed round."""
    from dordis.cli.run_display import upcoming
    from dordis.kernels.packing import packed_size
    from dordis.simulation.rehearsal import rehearse

    job = simulated.job
    rehearsed, design = rehearse(simulated), job.design
    grid, setting = design.mechanism.grid, design.setting
    rounds = job.config.federation.rounds
    expected: dict[str, float | int | str | None] = {
        "epsilon": None if not design.proves else design.plan.epsilon if design.plan else design.epsilon,
        "delta": design.delta,
        "rounds_of_a_client": design.cap,
        "coordinates": setting.dim,
        "coordinates_summed": setting.kept,
        "projection": design.saving.words if design.saving else "off",
        "bits": grid.bits,
        "sigma": design.sigma,
        "threshold": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "bytes_of_an_update": packed_size(grid.padded, grid.bits),
        "bytes_up": rehearsed.up,
        "bytes_down": rehearsed.down,
        "bytes_of_the_model": rehearsed.model_bytes,
        "bytes_of_a_missed_sum": rehearsed.missed_bytes,
        "seconds_of_a_round": rehearsed.seconds,
        "seconds": rehearsed.seconds * rounds,
        "fidelity": simulated.config.simulation.fidelity,
        "clients": job.app.unit or None,
    }
    tables.show(as_json, expected, upcoming(job, simulated.config.simulation, expected))
