"""Make new keys for a client that has some, and a request that the old ones sign."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.errors import InputError


def rotate(
    old: Annotated[Path, typer.Argument(metavar="OLD.key", help="The key file of now.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.key", help="The key file to make.")],
    identity: Annotated[
        bool,
        typer.Option("--identity", help="New signing and VRF keys, too: they count from the next successor run on."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make new keys for the same client.

    Only the TLS key is new, and goes at once, unless --identity asks for all. The old key file works until the request
    is approved.
    """
    from dordis.cli.identities import show_request
    from dordis.federation.certificates import new_tls_key, subject_of
    from dordis.federation.identity import CERTIFICATE, PrivateKeys, check_key_file_name, load_keys, read_certificates
    from dordis.federation.registry import Keys
    from dordis.federation.requests import new_request

    check_key_file_name(new)
    before = load_keys(old)
    if before.keys is None:
        raise InputError(
            f"{old} is a server's: make a new one with keys request, and have it approved by the same name"
        )
    name = subject_of(read_certificates(old.with_suffix(CERTIFICATE))[0])
    private = PrivateKeys(new_tls_key(), Keys.generate() if identity else before.keys)
    show_request(new, private, new_request(name, private, replaces=before.keys), as_json)
