"""Run what a configuration says with clients on machines of their own, which join over the network."""

import logging
import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli import tables
from dordis.cli.options import ConfigFile, Json, Overrides, Preset, Quiet, Verbose, finished_runs
from dordis.errors import InputError


def serve(
    identity: Annotated[Path, typer.Option(help="The server's key file; its certificate is beside it.")],
    registry: Annotated[Path, typer.Option(help="The registry that the authority signed.")],
    config: ConfigFile = None,
    preset: Preset = None,
    setting: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this directory.", autocompletion=finished_runs)
    ] = None,
    succeed: Annotated[
        Path | None,
        typer.Option(
            help="Begin a run with the members of now, which carries this one on.", autocompletion=finished_runs
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run rounds with clients that join over the network.

    The configuration is that of dordis run: what can be simulated can be deployed. Its section deployment says where
    to listen, and how long to wait for whom.
    """
    from dordis.cli.commands import run as simulated
    from dordis.federation.durable import hold
    from dordis.federation.records import CONFIG
    from dordis.network.deploy import DeployedJob
    from dordis.network.home import NetworkHome
    from dordis.network.warm import compile_kernels
    from dordis.simulation import reading

    if resume is not None and (config is not None or preset is not None or succeed is not None):
        raise InputError("a run goes on as it was configured: give --resume without a configuration")
    began = resume or (succeed if config is None and preset is None else None)
    source = config if began is None else began / CONFIG
    reading.find_modules(source)
    settings = reading.read(source, preset, setting or ())
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", stream=sys.stderr)
    console = tables.console(stderr=as_json)
    job = DeployedJob.of(settings, settings.simulation.seed, identity, registry)
    compile_kernels()
    output, text = Path(settings.output), reading.written(settings)
    with ExitStack() as held:
        if (before := resume or succeed) is not None:
            held.callback(os.close, hold(before))
        if succeed is not None:
            under_way = job.succeed(succeed, output, text)
        else:
            under_way = job.start(output, text) if resume is None else job.resume(resume)
        home = under_way.home
        assert isinstance(home, NetworkHome)  # noqa: S101
        held.callback(home.close)
        home.listening = lambda port: console.print(f"listening at {settings.deployment.host}:{port}")
        again = f"serve --identity {shlex.quote(str(identity))} --registry {shlex.quote(str(registry))} --resume"
        result = simulated.drive(under_way, console, again, quiet=quiet or as_json, verbose=verbose)
        home.close(over=True)
    simulated.show(under_way, result, as_json, quiet=quiet)
