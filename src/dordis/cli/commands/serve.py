"""Run a server, which executes configurations with clients that join over the network."""

import logging
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json, LogFormat, LogLines, Overrides, Preset, Quiet, Verbose, Yes, recorded_runs
from dordis.cli.output import DONE, make_console
from dordis.errors import DISK_FULL, DordisError, InputError

if TYPE_CHECKING:
    from dordis.config.schema import Config
    from dordis.network.deployment import NetworkPopulation
    from dordis.report.alert_command import AlertCommand
    from dordis.runs.run import Run

log = logging.getLogger("dordis.network")

ALERTS = "alerts.toml"
"""File in a run's directory with the section [alerts], for --resume.  It has mode 0600 and is in no audit archive."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of `dordis serve` that are the same for all configurations of a folder."""

    identity: Path
    registry: Path
    preset: str | None
    overrides: Sequence[str]
    yes: bool
    quiet: bool
    verbose: bool
    as_json: bool
    page: str | None = None
    """Address of the live page, `[HOST:]PORT`."""


def serve(
    identity: Annotated[Path, typer.Option(help="The server's key file; its certificate is beside it.")],
    registry: Annotated[Path, typer.Option(help="The registry that the authority signed.")],
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG.toml|FOLDER",
            help="A configuration file, or a folder of them; the preset digits if not given.",
        ),
    ] = None,
    preset: Preset = None,
    setting: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this directory.", autocompletion=recorded_runs)
    ] = None,
    succeed: Annotated[
        Path | None,
        typer.Option(
            help="Start a run that continues this one with the present members.", autocompletion=recorded_runs
        ),
    ] = None,
    yes: Yes = False,
    tries: Annotated[
        int | None, typer.Option(help="With --resume: tries of a failing round, at least federation.tries.")
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve a live page, /metrics, /healthz and /readyz; readers on other machines need a token.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
    log_format: LogLines = LogFormat.TEXT,
) -> None:
    """Run rounds with clients that join over the network.

    The configuration is the same as for dordis run: a run that can be simulated can be deployed.  Its section
    deployment sets the address and the waiting times.  The configurations of a folder run one after the other, in the
    order of their names.  If the server stops, run the same command again: it resumes the unfinished run, and then runs
    the remaining configurations.
    """
    from dordis.network.deadlines import compile_kernels
    from dordis.network.log_lines import set_up_logging
    from dordis.records.server_status import RunQueue

    if resume is not None and (config is not None or preset is not None or succeed is not None):
        raise InputError("a run is resumed as it was configured: give --resume without a configuration")
    set_up_logging(quiet=quiet, as_json=log_format is LogFormat.JSON)
    options = ServeOptions(identity, registry, preset, setting or (), yes, quiet, verbose, as_json, page)
    compile_kernels()
    if config is None or not config.is_dir():
        serve_run(options, config, resume, succeed, tries)
        return
    if succeed is not None or tries is not None:
        raise InputError("--succeed and --tries are for one run: give a configuration file, not a folder")
    queue = RunQueue(config)
    while (waiting := queue.next_run()) is not None:
        name, path = waiting
        begin = None if path else lambda run, name=name: queue.begin(name, run)
        serve_run(options, None if path else config / name, path, None, None, begin)
        queue.finish(name)
    make_console(stderr=as_json).print(f"all {len(queue.entries())} configurations of {config} are done")


def serve_run(
    options: ServeOptions,
    config: Path | None,
    resume: Path | None,
    succeed: Path | None,
    tries: int | None,
    begin: Callable[[Path], None] | None = None,
) -> None:
    """Start, resume or succeed one run, and serve it to its end.

    `config` is the file of the configuration; if it is None, the configuration is `options.preset`, or that of the run
    in `resume` or `succeed`.  `resume` is the directory of a run to resume, `succeed` that of a run to continue in a
    new run.  `tries` replaces the setting `federation.tries` of a resumed run, unless it is None; other runs refuse it.
    `begin` is called with the run's directory before the first round.
    """
    from dordis.cli.commands.run import confirm_prospects, print_outcome, run_rounds
    from dordis.config import reading
    from dordis.durable_files import lock_directory, write_new
    from dordis.network.deployment import DeployedJob, NetworkPopulation
    from dordis.records.run_records import CONFIG

    began = resume or (succeed if config is None and options.preset is None else None)
    source = config if began is None else began / CONFIG
    reading.add_module_folders(source)
    preset = options.preset if resume is None else None
    settings = reading.read_config(source, preset, options.overrides)
    alerts = reading.read_alerts(alerts_file(config, began), options.overrides)
    console, quiet = make_console(stderr=options.as_json), options.quiet or options.as_json
    job = DeployedJob.from_config(settings, settings.simulation.seed, options.identity, options.registry)
    prospects = "" if resume else confirm_prospects(job.job.design.plan, yes=options.yes)
    output, text = Path(settings.output), reading.config_to_toml(settings)
    with ExitStack() as held:
        if (before := resume or succeed) is not None:
            held.callback(os.close, lock_directory(before))
        if succeed is not None:
            under_way = job.succeed(succeed, output, text)
        else:
            under_way = job.start(output, text) if resume is None else job.resume(resume)
        if begin is not None:
            begin(under_way.records.path)
        if resume is None and alerts.command:
            write_new(under_way.records.path / ALERTS, reading.alerts_to_toml(alerts).encode())
        if tries is not None:
            under_way.tries = check_tries(tries, settings.federation.tries, resumed=resume is not None)
        home = under_way.home
        assert isinstance(home, NetworkPopulation)  # noqa: S101
        held.callback(home.close)
        host = f"[{there}]" if ":" in (there := settings.deployment.host) else there
        home.listening = lambda port: console.print(f"listening at {host}:{port}", markup=False)
        files = "--identity", str(options.identity), "--registry", str(options.registry)
        again = shlex.join(("serve", *files, "--resume"))
        held.enter_context(
            reload_at_hangup(home, settings, lambda: reading.read_config(source, preset, options.overrides))
        )
        hook = start_alerts(alerts.command, options.identity, under_way, held)
        try:
            result = run_rounds(
                under_way,
                console,
                again,
                prospects,
                options.page,
                hook,
                quiet=quiet,
                verbose=options.verbose,
                terminated=DONE,
            )
        except BaseException as error:
            home.close(reason=stop_reason(error))
            raise
        home.close(run_over=True)
    print_outcome(under_way, result, options.as_json, quiet=options.quiet)


def alerts_file(config: Path | None, began: Path | None) -> Path | None:
    """Return the file from which to read the section [alerts], or None if there is none.

    It is the configuration file `config` or, if the configuration comes from the directory `began` of a run, the file
    ALERTS in that directory.
    """
    if began is None:
        return config
    return began / ALERTS if (began / ALERTS).exists() else None


def start_alerts(command: str, identity: Path, under_way: "Run", held: ExitStack) -> "AlertCommand | None":
    """Start and return the watcher that runs the alert command of a run, or None if `command` is empty.

    The watcher stops when `held` is closed.
    """
    from dordis.identity.keys import CERTIFICATE, read_certificates
    from dordis.network.deployment import NetworkPopulation
    from dordis.report.alert_command import AlertCommand

    if not command:
        return None
    certificate, _ = read_certificates(identity.with_suffix(CERTIFICATE))
    manifest, home = under_way.records.manifest, under_way.home
    assert isinstance(home, NetworkPopulation)  # noqa: S101
    expires = certificate.not_valid_after_utc
    hook = AlertCommand(command, manifest.name, manifest.budget, expires, refusals=home.refusals)
    hook.start()
    held.callback(hook.stop)
    return hook


def stop_reason(error: BaseException) -> str:
    """Return why the server stops before the end of the run, in words for its clients, which learn no paths or data.

    >>> stop_reason(SystemExit(0))
    'its operator stopped it'
    """
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "its operator stopped it"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return "it cannot write to its disk"
    return "a round failed" if isinstance(error, DordisError) else "it failed"


@contextmanager
def reload_at_hangup(home: "NetworkPopulation", settings: "Config", read: "Callable[[], Config]") -> Iterator[None]:
    """At SIGHUP during the block, reload the server's certificate, `deployment.deadlines` and `deployment.balancers`.

    `read` reads the configuration again; a warning lists other settings that now differ from `settings`, those of the
    run, and are ignored.
    """

    def reload(*_: object) -> None:
        try:
            fresh = read()
            home.reload(fresh.deployment)
        except (DordisError, OSError) as error:
            log.warning("nothing was reloaded: %s", error)
            return
        log.warning("reloaded deployment.deadlines, deployment.balancers and the server's certificate")
        if ignored := ignored_changes(settings, fresh):
            log.warning("these settings have changed and need a new run: %s", ", ".join(ignored))

    before = signal.signal(signal.SIGHUP, reload)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def ignored_changes(settings: "Config", fresh: "Config") -> list[str]:
    """Return the dotted keys whose values differ in `settings` and `fresh`, except those that a server reloads."""
    import msgspec

    now, then = (msgspec.to_builtins(config) for config in (fresh, settings))
    for config in (now, then):
        for name in ("deadlines", "balancers"):
            config["deployment"].pop(name)
    return [
        f"{section}.{key}" if isinstance(now[section], dict) else section
        for section in now
        if now[section] != then[section]
        for key in (now[section] if isinstance(now[section], dict) else [""])
        if not isinstance(now[section], dict) or now[section][key] != then[section][key]
    ]


def check_tries(tries: int, configured: int, *, resumed: bool) -> int:
    """Return `tries`, the value of --tries; raise InputError if the run is new, or if `tries` is below `configured`.

    `configured` is the setting `federation.tries` of the run.
    """
    if not resumed:
        raise InputError("--tries is for --resume: for a new run set federation.tries in the configuration")
    if tries < configured:
        raise InputError(f"--tries {tries} is below federation.tries = {configured}: give at least that many")
    return tries
