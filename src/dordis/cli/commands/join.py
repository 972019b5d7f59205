"""Take part in the rounds of a server, as a client on a machine of its own."""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.exits import INTERRUPTED
from dordis.cli.options import JsonLines, Overrides, Preset, Quiet

if TYPE_CHECKING:
    from dordis.federation.client_status import ClientStatus

log = logging.getLogger("dordis.network")

ROOM = 3.0
"""Recommended ratio of the agreed time to the measured time of training."""


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: https://host:port.")],
    identity: Annotated[Path, typer.Option(help="The client's key file; its certificate is beside it.")],
    registry: Annotated[
        Path | None, typer.Option(help="The registry that the authority signed; beside the key file if not given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="What the owner agrees to: a configuration; that of digits if not given.")
    ] = None,
    preset: Preset = None,
    setting: Overrides = None,
    app: Annotated[str | None, typer.Option(help="The client's application, package.module:Class.")] = None,
    data: Annotated[str | None, typer.Option(help="The client's data: app.options.data of its application.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="A folder for what must survive a stop; beside the key file if not given.")
    ] = None,
    trusted: Annotated[
        Path | None,
        typer.Option(help="Authorities of a load balancer's certificate, PEM; the own one if not given."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Do not join: measure how long training takes on this machine.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Do not connect again when the connection breaks.")] = False,
    quiet: Quiet = False,
    as_json: JsonLines = False,
) -> None:
    """Take part in the rounds of a server.

    Nothing of what runs here comes from the server: the application and the terms are those of the configuration that
    the owner gives, and rounds outside of them are refused.
    """
    from dordis.federation.client_directory import ClientDirectory
    from dordis.network.deploy import measure_training, participant, with_client
    from dordis.network.warm import compile_kernels
    from dordis.simulation import reading

    log_events(quiet=quiet, as_json=as_json)
    reading.find_modules(config)
    settings = reading.read(config, preset, setting or ())
    here = with_client(settings, app, data)
    folder = identity.with_suffix(".state") if state is None else state
    known = identity.with_name("registry.json") if registry is None else registry
    compile_kernels()
    if check:
        took = measure_training(here, settings.simulation.seed, identity, known, folder)
        tell_training_time(took, here.deployment.train_seconds, ClientDirectory(folder).status.read(), as_json=as_json)
        return
    joined = participant(url, here, settings.simulation.seed, identity, known, folder, trusted)
    try:
        asyncio.run(joined.stay(once))
        log_status(ClientDirectory(folder).status.read())
    except KeyboardInterrupt:
        joined.stop()
        log_status(ClientDirectory(folder).status.read())
        print("interrupted: the client has left; the same command joins again", file=sys.stderr)
        sys.exit(INTERRUPTED)


def log_status(status: "ClientStatus") -> None:
    """Tell the owner at the end what became of the client's trainings; of zero updates, also if it is to be quiet."""
    log.log(logging.WARNING if status.zero_updates else logging.INFO, "%s", status.describe())


def tell_training_time(took: float, agreed: float | None, status: "ClientStatus", *, as_json: bool) -> None:
    """Print how long training took, whether the agreed time is enough, and what became of trainings before."""
    if as_json:
        import msgspec

        print(json.dumps({"seconds": took, "train_seconds": agreed, "status": msgspec.to_builtins(status)}))
        return
    print(status.describe())
    print(f"training from the initial model took {took:.3g} s on this machine")
    enough = ROOM * took
    if agreed is None:
        print(
            f"deployment.train_seconds is not set: agree on one value with all owners; this machine needs {enough:.2g}"
        )
    elif agreed < enough:
        print(f"deployment.train_seconds = {agreed:g} leaves little room: agree on {enough:.2g} for a busy machine")
    else:
        print(f"deployment.train_seconds = {agreed:g} is enough")


class JsonEvent(logging.Formatter):
    """Write an event as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        event = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps(event)


def log_events(*, quiet: bool, as_json: bool) -> None:
    """Write what happens, line by line: to stderr for people, to stdout for programs."""
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(JsonEvent() if as_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler])
