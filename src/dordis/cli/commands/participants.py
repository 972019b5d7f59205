"""Run a client, which takes part in a server's rounds, or a helper, which helps to unmask sums of assisted rounds."""

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import JsonLines, LogFormat, LogLines, Overrides, Preset, Quiet
from dordis.cli.output import INTERRUPTED
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.network.client import Participant
    from dordis.network.client_setup import ClientCheck
    from dordis.network.visitor import Visitor
    from dordis.owner.directory import ClientStatus


log = logging.getLogger("dordis.network")


ServerUrl = Annotated[str, typer.Argument(metavar="URL", help="The server: https://host:port.")]
SignedRegistry = Annotated[
    Path | None, typer.Option(help="The registry that the authority signed; beside the key file if not given.")
]
Trusted = Annotated[
    Path | None,
    typer.Option(help="PEM file of the authorities of a load balancer's certificate; the federation's if not given."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Stay for the next run of the server when a run is over.")]


def join(
    url: ServerUrl,
    identity: Annotated[Path, typer.Option(help="The client's key file; its certificate is beside it.")],
    registry: SignedRegistry = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The configuration that the owner agrees to, or with --follow a folder of them; the preset digits if "
            "not given."
        ),
    ] = None,
    preset: Preset = None,
    setting: Overrides = None,
    app: Annotated[str | None, typer.Option(help="The client's application, package.module:Class.")] = None,
    data: Annotated[str | None, typer.Option(help="The client's data: app.options.data of its application.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="The client's state; NAME.state beside the key file if not given.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="The owner's epsilon over all runs and servers; privacy.epsilon if not given."),
    ] = None,
    trusted: Trusted = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Read the data, show what was found, time the training; send nothing."),
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Do not reconnect when the connection breaks; in assisted rounds, leave after one contribution.",
        ),
    ] = False,
    follow: Follow = False,
    quiet: Quiet = False,
    as_json: JsonLines = False,
    log_format: LogLines = LogFormat.TEXT,
) -> None:
    """Take part in the rounds of a server.

    The application and the terms come from the owner's configuration, never from the server. Rounds outside these terms
    are refused.
    """
    from dordis.config import reading
    from dordis.network.client_setup import check_client, create_participant, with_client
    from dordis.network.deadlines import compile_kernels
    from dordis.network.log_lines import set_up_logging
    from dordis.owner.directory import ClientDirectory, default_state

    set_up_logging(
        quiet=quiet, as_json=as_json or log_format is LogFormat.JSON, stream=sys.stdout if as_json else sys.stderr
    )
    if once and follow:
        raise InputError("--once and --follow exclude each other: give one of them")
    paths = find_configs(config, follow=follow)
    for path in paths:
        reading.add_module_folders(path)
    configs = [reading.read_config(path, preset, setting or ()) for path in paths]
    own = str(Path(data).resolve()) if data and Path(data).is_file() else data
    seed, (here, *others) = configs[0].simulation.seed, [with_client(one, app, own) for one in configs]
    folder = default_state(identity) if state is None else state
    known = identity.with_name("registry.json") if registry is None else registry
    compile_kernels()
    if check:
        found = check_client(here, seed, identity, known, folder, budget)
        print_check(found, here.deployment.train_seconds, ClientDirectory(folder).status.read(), as_json=as_json)
        return
    joined = create_participant(url, here, seed, identity, known, folder, trusted, budget, tuple(others))
    try:
        ended = asyncio.run(stay_until_stopped(joined, once=once, follow=follow))
    except KeyboardInterrupt:
        joined.stop()
        log_status(ClientDirectory(folder).status.read())
        print("interrupted: the client has left; the same command joins again", file=sys.stderr)
        sys.exit(INTERRUPTED)
    log_status(ClientDirectory(folder).status.read())
    if not ended:
        print("stopped: the client has left; the same command joins again", file=sys.stderr)


def find_configs(config: Path | None, *, follow: bool) -> list[Path | None]:
    """Return the configurations that the owner agrees to: `config` or, if it is a folder, the paths of its .toml files.

    Raise InputError if `config` is a folder that has no .toml files, or if it is a folder and `follow` is False.
    """
    if config is None or not config.is_dir():
        return [config]
    found: list[Path | None] = [*sorted(config.glob("*.toml"))]
    if not follow or not found:
        raise InputError(f"--config {config} is a folder: it needs --follow and .toml files in the folder")
    return found


async def stay_until_stopped(joined: "Participant | Visitor", *, once: bool, follow: bool) -> bool:
    """Take part in a run; return True when the run is over, or False after SIGTERM.

    With `follow`, take part also in the server's next runs.  With `once`, return True after one connection or, in
    assisted rounds, after one contribution.  SIGHUP reloads the client's certificate.
    """
    loop, staying, stopped = asyncio.get_running_loop(), asyncio.ensure_future(joined.stay(once, follow)), False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        staying.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGHUP, joined.reload)
    try:
        await staying
    except asyncio.CancelledError:
        if not stopped:
            raise
        joined.stop()  # not in `stop`: there a request under way would fail, and the client would decline it
    return not stopped


def log_status(status: "ClientStatus") -> None:
    """Log the outcome of the client's trainings, when it stops; zero updates are logged even with --quiet."""
    log.log(logging.WARNING if status.zero_updates else logging.INFO, "%s", status.describe())


def print_check(found: "ClientCheck", agreed: float | None, status: "ClientStatus", *, as_json: bool) -> None:
    """Print what was found in the data, whether the train seconds suffice, and earlier failed trainings.

    `agreed` is `deployment.train_seconds`, or None if it is not set.
    """
    if as_json:
        import msgspec

        fields = {"seconds": found.seconds, "train_seconds": agreed, "data": dict(found.data)}
        print(json.dumps(fields | {"spending": found.spending, "status": msgspec.to_builtins(status)}))
        return
    from dordis.rounds.records import ROOM

    for topic, said in found.data.items():
        print(f"{topic}: {said}")
    print(found.spending)
    print(status.describe())
    print(f"training from the initial model took {found.seconds:.3g} s on this machine")
    enough = ROOM * found.seconds
    if agreed is None:
        print(
            f"deployment.train_seconds is not set: agree on one value with all owners; this machine needs {enough:.2g}"
        )
    elif agreed < enough:
        print(f"deployment.train_seconds = {agreed:g} leaves little room: agree on {enough:.2g} for a busy machine")
    else:
        print(f"deployment.train_seconds = {agreed:g} is enough")
    print("nothing was sent")


def assist(
    url: ServerUrl,
    identity: Annotated[Path, typer.Option(help="The helper's key file; its certificate is beside it.")],
    registry: SignedRegistry = None,
    policy: Annotated[
        Path | None, typer.Option(help="A TOML file with the rounds that this helper serves in; all if not given.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The helper's state; NAME.state beside the key file if not given.")
    ] = None,
    beacon: Annotated[
        Path | None, typer.Option(help="The file of public randomness, for runs whose clients it selects.")
    ] = None,
    trusted: Trusted = None,
    follow: Follow = False,
    quiet: Quiet = False,
    as_json: JsonLines = False,
    log_format: LogLines = LogFormat.TEXT,
) -> None:
    """Help to unmask the sums of assisted rounds.

    A helper sees no update and needs no data.  But more than f helpers (protocol.options.faulty) that collude with the
    server could see single updates: run a helper where the server's operator has no access.
    """
    from dordis.network.deadlines import compile_kernels
    from dordis.network.helper_setup import create_assistant
    from dordis.network.log_lines import set_up_logging
    from dordis.owner.directory import default_state

    set_up_logging(
        quiet=quiet, as_json=as_json or log_format is LogFormat.JSON, stream=sys.stdout if as_json else sys.stderr
    )
    folder = default_state(identity) if state is None else state
    known = identity.with_name("registry.json") if registry is None else registry
    assistant = create_assistant(url, identity, known, folder, policy, trusted, mutual=True, beacon=beacon)
    compile_kernels()
    try:
        ended = asyncio.run(stay_until_stopped(assistant, once=False, follow=follow))
    except KeyboardInterrupt:
        print("interrupted: the helper has left; the same command continues", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if not ended:
        print("stopped: the helper has left; the same command continues", file=sys.stderr)


TOP_LEVEL = (join, assist)
