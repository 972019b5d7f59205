"""Begin a federation: a key and a certificate that sign everybody else's, and a registry without members."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.tables import show


def ca(
    directory: Annotated[Path, typer.Argument(help="Where the authority is to be: a new directory.")],
    name: Annotated[str | None, typer.Option(help="Its name; that of the directory if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Begin a federation: make its authority.

    Whoever has ca.key decides who is a member. Keep it on a machine of its own.
    """
    from dordis.cli.identities import now
    from dordis.federation.authority import CERTIFICATE_FILE, KEY_FILE, REGISTRY_FILE, Authority
    from dordis.federation.certificates import fingerprint, subject_of, to_der

    made = Authority.create(directory, name or directory.resolve().name, now())
    called, mark = subject_of(made.certificate), fingerprint(to_der(made.certificate))
    show(
        as_json,
        {"name": called, "fingerprint": mark, "path": str(directory)},
        f"authority '{called}', fingerprint {mark}",
        f"{directory / KEY_FILE}: the secret key, for nobody else",
        f"{directory / CERTIFICATE_FILE}, {directory / REGISTRY_FILE}: public",
    )
