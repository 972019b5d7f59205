"""Approve requests: their makers become members, and their certificates are written beside the requests."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json
from dordis.errors import InputError


def approve(
    directory: Annotated[Path, typer.Argument(help="The authority.")],
    requests: Annotated[list[Path], typer.Argument(metavar="NAME.request...", help="The requests to approve.")],
    fingerprint: Annotated[
        str | None, typer.Option(help="What the maker of the request has read out; another request is refused.")
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 365,
    as_json: Json = False,
) -> None:
    """Approve requests, and issue certificates.

    Compare the fingerprint with the one that the maker of the request sees: whoever you approve is a member.
    """
    from dordis.cli.identities import now, show_approved
    from dordis.federation.authority import Authority
    from dordis.federation.durable import replace
    from dordis.federation.identity import CERTIFICATE
    from dordis.federation.requests import LIMIT, read_request

    authority, approved = Authority(directory, now()), []
    if fingerprint is not None and len(requests) != 1:
        raise InputError("--fingerprint is of one request: approve one at a time with it")
    asked = []
    for path in requests:
        try:
            with path.open("rb") as file:
                asked.append(read_request(file.read(LIMIT + 1)))
        except OSError as error:
            raise InputError(f"cannot read the request {path}: {error.strerror}") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    for path, one in zip(requests, asked, strict=True):
        if fingerprint not in (None, one.fingerprint):
            raise InputError(f"{path} has the fingerprint {one.fingerprint}: it is not the request that was meant")
        made = authority.approve(one, days)
        replace(path.with_suffix(CERTIFICATE), made.pem)
        approved.append((path.with_suffix(CERTIFICATE), made, one.fingerprint))
    show_approved(authority, approved, as_json)
