"""Run a configuration over simulated clients: train a model, or run another application."""

import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import (
    ConfigFile,
    DataDir,
    Json,
    Overrides,
    Preset,
    Quiet,
    Verbose,
    Yes,
    override_data_dir,
    override_settings,
    recorded_runs,
)
from dordis.cli.output import INTERRUPTED, OVER_BUDGET, make_console, print_result
from dordis.errors import Diverged, HopelessPlan, ImpossibleSum, InputError, RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from dordis.privacy.planning import Plan
    from dordis.records.run_records import RunOutcome
    from dordis.report.alert_command import AlertCommand
    from dordis.rounds.watch import WatchEvent
    from dordis.runs.coordinator import FinishedRound
    from dordis.runs.run import Run
    from dordis.simulation.run import SimulatedJob


def run(
    config: ConfigFile = None,
    preset: Preset = None,
    setting: Overrides = None,
    data_dir: DataDir = None,
    name: Annotated[str | None, typer.Option(help="The name of the run: -c name=...")] = None,
    output: Annotated[str | None, typer.Option(help="The folder of runs: -c output=...")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget: -c privacy.epsilon=...")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds: -c federation.rounds=...")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients there are: -c federation.clients=...")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume the run in this directory, or the newest run in this folder.", autocompletion=recorded_runs
        ),
    ] = None,
    succeed: Annotated[
        Path | None,
        typer.Option(
            help="Start a run that continues the one in this directory with other clients or settings.",
            autocompletion=recorded_runs,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Charge the run to this ledger of all runs and queries over the same data.", metavar="FILE"),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="For a new --ledger: the epsilon that all runs and queries may spend together.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the expected bytes and seconds; run nothing.")
    ] = False,
    yes: Yes = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a live page of the run on this machine, until the run ends.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train a model privately over simulated clients.

    The settings app.server and app.client name another application, such as your own.
    """
    from dordis.config import reading
    from dordis.durable_files import lock_directory
    from dordis.ledger.combine_runs import PlannedRun
    from dordis.records.run_records import CONFIG
    from dordis.runs.job import plan_charge
    from dordis.simulation.run import prepare

    short = {
        "name": name,
        "output": output,
        "privacy.epsilon": epsilon,
        "federation.rounds": rounds,
        "federation.clients": clients,
    }
    overrides = [*(setting or ()), *override_data_dir(data_dir), *override_settings(short)]
    resume, succeed = find_newest_run(resume), find_newest_run(succeed)
    if resume is not None:
        if config is not None or preset is not None or overrides or dry_run:
            raise InputError("a run is resumed as it was configured: give --resume alone")
        config = resume / CONFIG
    if succeed is not None:
        if resume is not None:
            raise InputError("give --resume or --succeed, not both")
        config = succeed / CONFIG if config is None and preset is None else config
    if resume is not None and (ledger is not None or budget is not None):
        raise InputError("--ledger and --budget are for new runs: a resumed run is charged already")
    if (began := resume or succeed) is not None and not (began / CONFIG).is_file():
        raise InputError(f"there is no run at {began}: it has no {CONFIG}")
    reading.add_module_folders(config)
    settings = reading.read_config(config, preset, overrides)
    console = make_console(stderr=as_json)
    with console.status("planning the noise") if console.is_terminal else nullcontext():
        job = prepare(settings)
    if dry_run:
        _print_forecast(job, as_json)
        return
    prospects = "" if resume else confirm_prospects(job.job.design.plan, yes=yes)
    text, folder = reading.config_to_toml(settings), Path(settings.output)
    charged = PlannedRun.resume(resume) if resume else plan_charge(job.job, ledger, budget, succeed)
    with ExitStack() as held:
        if began is not None:
            held.callback(os.close, lock_directory(began))
        if succeed is not None:
            under_way = job.succeed(succeed, folder, text)
        else:
            under_way = job.resume(resume) if resume else job.start(folder, text)
        if charged is not None and resume is None:
            charged.start(under_way.records.id, under_way.records.path)
        page = "0" if watch else None
        result = run_rounds(
            under_way, console, "run --resume", prospects, page, quiet=quiet or as_json, verbose=verbose
        )
        print_outcome(under_way, result, as_json, quiet=quiet)
        if charged is not None:
            total = charged.settle(under_way.records.id, under_way.records.path)
            where = charged.ledger.path
            console.print(f"all runs and queries in {where} have spent epsilon {total:.4g}", highlight=False)


def confirm_prospects(plan: "Plan | None", *, yes: bool) -> str:
    """Return in words what can be learnt under the noise of a plan; empty for a hopeless plan, or without a plan.

    A plan is hopeless if its noise leaves next to nothing to learn.  Ask the user whether to run a hopeless plan, and
    raise HopelessPlan if the user declines or if there is no terminal.  With `yes`, print a warning and do not ask.
    """
    from dordis.privacy.advice import check_prospects, describe_prospects

    if plan is None:
        return ""
    try:
        check_prospects(plan)
    except HopelessPlan as error:
        if yes:
            print(f"warning: {error}", file=sys.stderr)
        elif not sys.stdin.isatty() or not typer.confirm(f"{error}\nSpend it all the same?"):
            error.add_note("nothing was spent; --yes runs the plan all the same")
            raise
        return ""
    return describe_prospects(plan)


def find_newest_run(path: Path | None) -> Path | None:
    """Return `path` if it is a run, or the newest run in it if it is a folder of runs."""
    from dordis.records.run_records import CONFIG

    if path is None or (path / CONFIG).is_file():
        return path
    found = sorted((file.parent for file in path.glob(f"*/{CONFIG}")), key=lambda run: run.name)
    return found[-1] if found else path


def run_rounds(
    under_way: "Run",
    console: "Console",
    again: str,
    prospects: str = "",
    page: str | None = None,
    alerts: "AlertCommand | None" = None,
    *,
    quiet: bool,
    verbose: bool = False,
    terminated: int = INTERRUPTED,
) -> "RunOutcome":
    """Run all remaining rounds and display them, also on a live page at the address `page` if it is given.

    First print `prospects`, the expected outcome of the plan.  `again` is the command that resumes the run; each error
    that stops the run early states this command.  After SIGTERM exit with the code `terminated`.
    """
    from dordis.cli.run_display import Display, serve_page

    for warning in under_way.job.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    run_path = shlex.quote(str(under_way.records.path))
    resume_hint = f"resume with: dordis {again} {run_path}"
    shown = Display(under_way.job, under_way.home, under_way.done, console, quiet=quiet, verbose=verbose)
    try:
        if prospects and not quiet:
            console.print(prospects, highlight=False)
        with shown as display, catch_signals() as end_if_asked, serve_page(under_way, page, console) as live:

            def show_round(finished: "FinishedRound") -> None:
                display.add_round(finished)
                if live is not None:
                    live.finish_round(finished.record, finished.metrics)
                if alerts is not None:
                    alerts.finish_round(finished.record)
                for concern in under_way.job.app.concerns():
                    print(f"warning: round {finished.record.number}: {concern}", file=sys.stderr)
                    if live is not None:
                        live.warn(f"Round {finished.record.number}: {concern}")
                end_if_asked()

            def watch(event: "WatchEvent") -> None:
                display.watch(event)
                for watcher in (live, alerts):
                    if watcher is not None:
                        watcher.watch(event)

            result = under_way.complete(watch, show_round)
            if live is not None:
                live.end("stopped at its budget" if under_way.over_budget else "has finished all rounds")
            if under_way.over_budget is not None:
                display.print_note(f"stopped before round {under_way.done + 1}: {under_way.over_budget}")
    except RoundFailed as error:
        failed = InputError(_describe_failure(under_way, error))
        failed.__notes__ = [*getattr(error, "__notes__", ()), resume_hint]  # notes say what else went wrong
        raise failed from None
    except KeyboardInterrupt as error:
        print("; ".join(("interrupted", *getattr(error, "__notes__", ()), resume_hint)), file=sys.stderr)
        sys.exit(terminated if isinstance(error, Terminated) else INTERRUPTED)
    except Exception as error:
        error.add_note(f"the run is closed as failed: {run_path}" if isinstance(error, Diverged) else resume_hint)
        raise
    return result


class Terminated(KeyboardInterrupt):
    """The exception that SIGTERM raises; by this signal an operator stops the process."""


AGAIN = 0.1
"""Seconds after which a signal is sent again if Python discarded the exception that it raised."""


@contextmanager
def catch_signals() -> "Iterator[Callable[[], None]]":
    """Make SIGTERM end a run as Ctrl-C does, by KeyboardInterrupt.

    Python discards an exception that a signal raises in a finaliser or in a callback of C code.  Then the signal is
    sent again after AGAIN seconds.  In addition a function is yielded, to be called after each round; it raises
    KeyboardInterrupt if there was a signal.
    """
    asked: KeyboardInterrupt | None = None
    last, repeats = signal.SIGINT, list[threading.Timer]()

    def interrupt(number: int, _: object) -> None:
        nonlocal asked, last
        asked, last = Terminated() if number == signal.SIGTERM else KeyboardInterrupt(), signal.Signals(number)
        raise asked

    def send_again(discarded: "sys.UnraisableHookArgs") -> None:
        if asked is None or discarded.exc_value is not asked:
            report(discarded)
            return
        repeats.append(threading.Timer(AGAIN, os.kill, (os.getpid(), last)))
        repeats[-1].start()

    def end_if_asked() -> None:
        if asked is not None:
            raise asked

    if threading.current_thread() is not threading.main_thread():
        yield end_if_asked
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    report, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield end_if_asked
    finally:
        sys.unraisablehook = report
        for repeat in repeats:
            repeat.cancel()
            repeat.join()  # before SIGTERM would end this process again
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_failure(under_way: "Run", error: RoundFailed) -> str:
    """Return an error message: which round failed, how often, why, and what to do."""
    from dordis.runs.threat_model import describe_remedy

    federation = under_way.job.config.federation
    times = "once" if under_way.tries == 1 else f"{under_way.tries} times"
    if isinstance(error, ImpossibleSum):
        return (
            f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time "
            f"because {error}; one of the clients {', '.join(map(str, error.survivors))} or the server is faulty: "
            f"start a run without the faulty client; finished rounds are in {under_way.records.path}"
        )
    if reasons := under_way.home.explain_failure():
        return (
            f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time "
            f"because {error}; {reasons}; finished rounds are in {under_way.records.path}"
        )
    setting, mode = under_way.job.design.setting, under_way.job.config.protocol.mode
    remedy = describe_remedy(setting, mode, error) if under_way.job.protocol.has_cohort else ""
    return (
        f"round {under_way.done + 1} of {federation.rounds} failed {times} (federation.tries), the last time because "
        f"{error}: {remedy or 'start a run with a larger protocol.tolerance'}, or take more clients a round; finished "
        f"rounds are in {under_way.records.path}"
    )


def print_outcome(under_way: "Run", result: "RunOutcome", as_json: bool, *, quiet: bool = False) -> None:
    """Write the report of a run and print its outcome; exit with OVER_BUDGET if the run spent more than its budget."""
    from dordis.cli.run_display import summary_table
    from dordis.report.facts import read_facts
    from dordis.report.page import write_report

    path = under_way.records.path
    (facts,), report = read_facts([path]), write_report([path])
    outcome = {
        "clients": under_way.job.app.unit,
        "accuracy": result.metrics.get("accuracy"),
        **result.metrics,
        "measured": facts.run.manifest.measured,
        "epsilon": facts.reportable_epsilon,
        "spent": facts.spent,
        "delta": result.delta,
        "budget": facts.budget,
        "warnings": list(under_way.job.warnings),
        "overspent": facts.is_overspent,
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
        print_result(as_json, outcome, summary_table(facts, result), f"report: {report}")
    if facts.is_overspent:
        raise typer.Exit(OVER_BUDGET)


def _print_forecast(simulated: "SimulatedJob", as_json: bool) -> None:
    """Print the plan of a run, and the expected bytes and seconds of a round."""
    from dordis.cli.run_display import forecast_table
    from dordis.kernels.ring import packed_size
    from dordis.privacy.advice import describe_prospects
    from dordis.runs.threat_model import describe_rates
    from dordis.simulation.profiling import rehearse

    job = simulated.job
    rehearsed, design = rehearse(simulated), job.design
    for warning in job.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    grid, setting = design.mechanism.grid, design.setting
    rounds = job.config.federation.rounds
    forecast: dict[str, float | int | str | None] = {
        "epsilon": None if not design.proves else design.plan.epsilon if design.plan else design.epsilon,
        "delta": design.delta,
        "rounds_of_a_client": design.cap,
        "coordinates": setting.dim,
        "coordinates_summed": setting.summed_dim,
        "projection": design.saving.description if design.saving else "off",
        "bits": grid.bits,
        "sigma": design.sigma,
        "threshold": setting.t,
        "tolerance": setting.T,
        "needed_at_dropout": describe_rates(setting, job.config.protocol.mode) if job.protocol.has_cohort else None,
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
        "prospects": None if design.plan is None else describe_prospects(design.plan),
    }
    print_result(as_json, forecast, forecast_table(job, simulated.config.simulation, forecast))
