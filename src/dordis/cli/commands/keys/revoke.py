"""Revoke the keys of a member: they log in nowhere any more, from now on."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.tables import show


def revoke(
    directory: Annotated[Path, typer.Argument(help="The authority.")],
    member: Annotated[str, typer.Argument(help="The name of a client, or its id.")],
    reason: Annotated[str, typer.Option(help="Why; it stands in the registry, which is public.")] = "",
    as_json: Json = False,
) -> None:
    """Revoke the keys of a client.

    Servers that have the new registry refuse it at once. A run under way keeps its members; the next successor run goes
    on without it.
    """
    from dordis.cli.identities import now
    from dordis.federation.authority import REGISTRY_FILE, Authority

    authority = Authority(directory, now())
    client = authority.revoke(member, reason)
    registry = authority.registry
    show(
        as_json,
        {"client": client, "name": registry.name_of(client), "version": registry.version},
        f"client {client} ('{registry.name_of(client)}') is revoked in version {registry.version} of the registry",
        f"give {directory / REGISTRY_FILE} to the servers of this federation",
    )
