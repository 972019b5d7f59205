"""What the commands under `dordis keys` share: the clock, and what they show."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dordis.cli.tables import show

if TYPE_CHECKING:
    from dordis.federation.authority import Approved, Authority
    from dordis.federation.identity import PrivateKeys


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def show_request(key: Path, private: "PrivateKeys", asked: bytes, as_json: bool) -> None:
    """Write a key file and the request beside it, and show the fingerprint."""
    from dordis.federation.durable import replace
    from dordis.federation.identity import REQUEST, save_keys
    from dordis.federation.requests import read_request

    save_keys(key, private)
    replace(key.with_suffix(REQUEST), asked)
    mark = read_request(asked).fingerprint
    show(
        as_json,
        {"key": str(key), "request": str(key.with_suffix(REQUEST)), "fingerprint": mark},
        f"{key}: the secret keys, which never leave this machine",
        f"{key.with_suffix(REQUEST)}: the request, for the authority; its fingerprint is {mark}",
    )


def show_approved(authority: "Authority", approved: "Sequence[tuple[Path, Approved, str]]", as_json: bool) -> None:
    """Show whom a certificate was made for, and where it is; `approved` has the fingerprint of each request, if any."""
    from dordis.federation.certificates import alternative_names

    fields, lines = [], []
    for path, made, mark in approved:
        until = f"{made.certificate.not_valid_after_utc:%Y-%m-%d}"
        hosts = [str(name.value) for name in alternative_names(made.certificate)] if made.client is None else []
        who = f"client {made.client}" if hosts == [] else f"a server: {', '.join(hosts)}"
        fields.append({"name": made.name, "client": made.client, "hosts": hosts, "until": until, "path": str(path)})
        lines += [f"{made.name} is {who}" + (f"; the fingerprint of the request is {mark}" if mark else "")]
        lines += [f"    {path}: the certificate until {until}, to be handed back"]
    version = authority.registry.version
    show(as_json, {"version": version, "approved": fields}, *lines, f"the registry has the version {version}")


def described(path: Path, now: datetime) -> dict[str, str]:
    """Return what is known of the party of a key file."""
    from dordis.federation.certificates import bound_in, fingerprint, subject_of, to_der
    from dordis.federation.identity import load_identity, load_keys, load_server_identity

    own = load_identity(path, now) if load_keys(path).keys is not None else load_server_identity(path, now)
    bound = bound_in(own.certificate)
    return {
        "name": own.name,
        "id": "server" if bound is None else str(bound.client),
        "certificate until": f"{own.certificate.not_valid_after_utc:%Y-%m-%d}",
        "authority": subject_of(own.authority),
        "fingerprint of the authority": fingerprint(to_der(own.authority)),
    }
