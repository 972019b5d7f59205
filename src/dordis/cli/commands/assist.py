"""Run a helper, which opens the sums of a server's assisted rounds together with other helpers."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import JsonLines, LogFormat, LogLines, Quiet
from dordis.cli.output import INTERRUPTED


def assist(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: https://host:port.")],
    identity: Annotated[Path, typer.Option(help="The helper's key file; its certificate is beside it.")],
    registry: Annotated[
        Path | None, typer.Option(help="The registry that the authority signed; beside the key file if not given.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A TOML file with the rounds that this helper serves in; all if not given.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The helper's state; NAME.state beside the key file if not given.")
    ] = None,
    beacon: Annotated[
        Path | None, typer.Option(help="The file of public randomness, for runs whose clients it selects.")
    ] = None,
    trusted: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the authorities of a load balancer's certificate; the federation's if not given."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay for the next run of the server when a run is over.")
    ] = False,
    quiet: Quiet = False,
    as_json: JsonLines = False,
    log_format: LogLines = LogFormat.TEXT,
) -> None:
    """Help to open the sums of assisted rounds.

    A helper sees no update and needs no data. But more than f helpers (protocol.options.faulty) that collude with the
    server could see single updates: run a helper where the server's operator has no access.
    """
    from dordis.cli.commands.join import stay_until_stopped
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
