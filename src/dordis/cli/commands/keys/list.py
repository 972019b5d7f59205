"""Show the members of a federation, its servers, and who was revoked; or what is in a party's key file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.tables import facts, show, table

if TYPE_CHECKING:
    from dordis.federation.authority import Authority


def list(
    path: Annotated[Path, typer.Argument(help="The authority, or the key file of a client or a server.")],
    as_json: Json = False,
) -> None:
    """Show the members of a federation, or one identity."""
    from dordis.cli.identities import described, now
    from dordis.federation.authority import Authority
    from dordis.federation.certificates import fingerprint, subject_of, to_der

    if not path.is_dir():
        shown = described(path, now())
        show(as_json, shown, facts(shown))
        return
    authority = Authority(path, now())
    registry, own = authority.registry, authority.certificate
    rows = [*_rows(authority)]
    root = registry.root().hex() if registry.membership.members else ""
    fields = {"authority": subject_of(own), "fingerprint": fingerprint(to_der(own)), "version": registry.version}
    heads = ("name", "id", "state", "certificate until", "signing key")
    show(
        as_json,
        {**fields, "root": root, "parties": [dict(zip(heads, row, strict=True)) for row in rows]},
        table(*heads, rows=rows, title=f"authority '{subject_of(own)}', version {registry.version}"),
        f"fingerprint of the authority {fingerprint(to_der(own))}",
        f"root of the registry {root or '-: there are no members'}",
    )


def _rows(authority: "Authority") -> Iterator[tuple[str, ...]]:
    """Return every party: members by id, servers, then whoever was revoked."""
    from dordis.federation import certificates

    membership, names = authority.registry.membership, authority.names()
    until = {name: f"{authority.issued(name).not_valid_after_utc:%Y-%m-%d}" for name in names}
    for client, member in sorted(membership.members.items()):
        yield member.name, str(client), "member", until.get(member.name, "-"), member.signing[:16]
    for name in names:
        if certificates.bound_in(authority.issued(name)) is None:
            yield name, "-", "server", until[name], "-"
    for gone in membership.revoked:
        why = f"revoked {gone.when[:10]}" + (f": {gone.why}" if gone.why else "")
        yield gone.keys.name, str(gone.client), why, "-", gone.keys.signing[:16]
