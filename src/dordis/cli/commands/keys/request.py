"""Make the keys of a client, or of a server, where they are used, and a request for a certificate."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json


def request(
    key: Annotated[Path, typer.Argument(metavar="NAME.key", help="The key file to make.")],
    server: Annotated[
        list[str] | None, typer.Option(help="A host name or address of the server that the key is for; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make keys, and a request to have them approved.

    The key file stays here. The request is public: send it to the authority, and read them its fingerprint.
    """
    from dordis.cli.identities import show_request
    from dordis.federation.certificates import check_name, new_tls_key
    from dordis.federation.identity import PrivateKeys, check_key_file_name
    from dordis.federation.registry import Keys
    from dordis.federation.requests import new_request

    check_key_file_name(key)
    check_name(key.stem)
    private = PrivateKeys(new_tls_key(), None if server else Keys.generate())
    show_request(key, private, new_request(key.stem, private, server or ()), as_json)
