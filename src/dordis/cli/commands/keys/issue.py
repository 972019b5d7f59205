"""Issue certificates again, for the same keys, before they expire."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json


def issue(
    directory: Annotated[Path, typer.Argument(help="The authority.")],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Clients or servers.")],
    to: Annotated[Path, typer.Option(help="The directory to write the certificates to.")] = Path(),
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 365,
    as_json: Json = False,
) -> None:
    """Issue certificates again, for keys that were approved before.

    The keys stay as they are; the certificates of before are good until they expire.
    """
    from dordis.cli.identities import now, show_approved
    from dordis.errors import InputError
    from dordis.federation.authority import Authority
    from dordis.federation.durable import replace
    from dordis.federation.identity import CERTIFICATE

    authority, made = Authority(directory, now()), []
    if not to.is_dir():
        raise InputError(f"there is no directory {to}")
    for name in names:
        again = authority.issue(name, days)
        replace(to / f"{name}{CERTIFICATE}", again.pem)
        made.append((to / f"{name}{CERTIFICATE}", again, ""))
    show_approved(authority, made, as_json)
