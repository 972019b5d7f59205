"""Manage identities: the authority, members, keys, certificates."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.output import facts_table, make_table, print_result
from dordis.errors import InputError, explain_os_errors

if TYPE_CHECKING:
    from dordis.identity.authority import Authority, CertificateRequest, IssuedCertificate
    from dordis.identity.keys import PrivateKeys

AuthorityFolder = Annotated[Path, typer.Argument(help="The directory of the authority.")]
Days = Annotated[int, typer.Option(help="How many days the certificates are valid.")]


def create_authority(
    directory: Annotated[Path, typer.Argument(help="A new directory for the authority.")],
    name: Annotated[str | None, typer.Option(help="Its name; that of the directory if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Create the authority of a federation.

    The holder of ca.key decides who is a member.  Keep this file on a machine that is used for nothing else.
    """
    from dordis.identity.authority import CERTIFICATE_FILE, KEY_FILE, REGISTRY_FILE, Authority
    from dordis.identity.certificates import fingerprint, subject_name, to_der

    created = Authority.create(directory, name or directory.resolve().name, _now())
    subject, mark = subject_name(created.certificate), fingerprint(to_der(created.certificate))
    print_result(
        as_json,
        {"name": subject, "fingerprint": mark, "path": str(directory)},
        f"authority '{subject}', fingerprint {mark}",
        f"{directory / KEY_FILE}: the secret key, which stays here",
        f"{directory / CERTIFICATE_FILE}, {directory / REGISTRY_FILE}: public",
    )


def request_certificate(
    key: Annotated[Path, typer.Argument(metavar="NAME.key", help="The key file to create.")],
    server: Annotated[
        list[str] | None, typer.Option(help="For a server: a host name or address of it; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create keys, and a request to have them approved.

    The key file stays on this machine.  The request is public: send it to the holder of the authority, and read out its
    fingerprint to that person.
    """
    from dordis.identity.authority import new_request
    from dordis.identity.certificates import check_name, new_tls_key
    from dordis.identity.keys import Keys, PrivateKeys, check_key_file_name

    check_key_file_name(key)
    check_name(key.stem)
    private = PrivateKeys(new_tls_key(), None if server else Keys.generate())
    _write_keys_and_request(key, private, new_request(key.stem, private, server or ()), as_json)


def approve_requests(
    directory: AuthorityFolder,
    requests: Annotated[list[Path], typer.Argument(metavar="NAME.request...", help="The requests to approve.")],
    fingerprint: Annotated[
        str | None, typer.Option(help="The fingerprint that the sender read out; any other request is refused.")
    ] = None,
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Approve requests, and issue certificates.

    Have the sender of a request read out its fingerprint, and compare: approval makes the sender a member.
    """
    from dordis.durable_files import write_atomically
    from dordis.identity.authority import Authority
    from dordis.identity.keys import CERTIFICATE

    authority, approved = Authority(directory, _now()), []
    if fingerprint is not None and len(requests) != 1:
        raise InputError("--fingerprint belongs to one request: approve one at a time with it")
    for path, request in [(path, _read_request_file(path)) for path in requests]:
        if fingerprint not in (None, request.fingerprint):
            raise InputError(f"{path} has the fingerprint {request.fingerprint}, not the one given: check its sender")
        certified = authority.approve(request, days)
        write_atomically(path.with_suffix(CERTIFICATE), certified.pem)
        approved.append((path.with_suffix(CERTIFICATE), certified, request.fingerprint))
    _print_approved(authority, approved, as_json)


def issue_certificates(
    directory: AuthorityFolder,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Clients or servers.")],
    to: Annotated[Path, typer.Option(help="The directory to write the certificates to.")] = Path(),
    days: Days = 365,
    as_json: Json = False,
) -> None:
    """Issue new certificates for approved keys.

    The keys stay the same.  An old certificate is valid until it expires: issue the new certificate before that day.
    """
    from dordis.durable_files import write_atomically
    from dordis.identity.authority import Authority
    from dordis.identity.keys import CERTIFICATE

    authority, issued = Authority(directory, _now()), []
    if not to.is_dir():
        raise InputError(f"there is no directory {to}")
    for name in names:
        certified = authority.issue(name, days)
        write_atomically(to / f"{name}{CERTIFICATE}", certified.pem)
        issued.append((to / f"{name}{CERTIFICATE}", certified, ""))
    _print_approved(authority, issued, as_json)


def list_parties(
    path: Annotated[Path, typer.Argument(help="The authority's directory, or the key file of a client or a server.")],
    as_json: Json = False,
) -> None:
    """List the members of a federation, or show whose a key file is."""
    from dordis.identity.authority import Authority
    from dordis.identity.certificates import fingerprint, subject_name, to_der

    if not path.is_dir():
        identity = _describe_identity(path, _now())
        print_result(as_json, identity, facts_table(identity))
        return
    authority = Authority(path, _now())
    registry, own = authority.registry, authority.certificate
    rows = [*_party_rows(authority)]
    root = registry.registry.root().hex() if registry.membership.members else ""
    fields = {"authority": subject_name(own), "fingerprint": fingerprint(to_der(own)), "version": registry.version}
    heads = ("name", "id", "state", "certificate until", "signing key")
    print_result(
        as_json,
        {**fields, "root": root, "parties": [dict(zip(heads, row, strict=True)) for row in rows]},
        make_table(*heads, rows=rows, title=f"authority '{subject_name(own)}', version {registry.version}"),
        f"fingerprint of the authority {fingerprint(to_der(own))}",
        f"root of the registry {root or '-: there are no members'}",
    )


def revoke_member(
    directory: AuthorityFolder,
    member: Annotated[str, typer.Argument(help="The name of a client, or its id.")],
    reason: Annotated[str, typer.Option(help="Why; the public registry shows it.")] = "",
    as_json: Json = False,
) -> None:
    """Revoke the keys of a client.

    Servers with the new registry refuse the client at once. A run under way keeps its list of members, and continues
    without the client; later runs do not list the client.
    """
    from dordis.identity.authority import REGISTRY_FILE, Authority

    authority = Authority(directory, _now())
    client = authority.revoke(member, reason)
    registry = authority.registry
    print_result(
        as_json,
        {"client": client, "name": registry.name_of(client), "version": registry.version},
        f"client {client} ('{registry.name_of(client)}') is revoked in version {registry.version} of the registry",
        f"give {directory / REGISTRY_FILE} to the servers of this federation",
    )


def rotate_keys(
    old: Annotated[Path, typer.Argument(metavar="OLD.key", help="The present key file.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.key", help="The key file to create.")],
    identity: Annotated[
        bool,
        typer.Option("--identity", help="Also create signing and VRF keys, valid from the next successor run on."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Replace the keys of a client.

    The command writes new keys, and a request that is signed with the old keys; the authority has to approve it.
    Without --identity only the TLS key is new; it is valid as soon as the request is approved.  The old key file works
    until then.  The client's state, with the count of its participations, belongs to the client's name, and is used
    with the new keys too.
    """
    from dordis.identity.authority import new_request
    from dordis.identity.certificates import new_tls_key, subject_name
    from dordis.identity.keys import CERTIFICATE, Keys, PrivateKeys, check_key_file_name, load_keys, read_certificates
    from dordis.owner.directory import default_state

    check_key_file_name(new)
    before = load_keys(old)
    if before.keys is None:
        raise InputError(f"{old} is a server's key: create a new one with keys request, and approve it under its name")
    name = subject_name(read_certificates(old.with_suffix(CERTIFICATE))[0])
    private = PrivateKeys(new_tls_key(), Keys.generate() if identity else before.keys)
    _write_keys_and_request(new, private, new_request(name, private, replaces=before.keys), as_json)
    state, place = default_state(old), new.with_name(f"{name}.state")
    if state.exists() and state.resolve() != place.resolve():
        print(f"when the new keys are approved, move the client's state: mv {state} {place}", file=sys.stderr)


COMMANDS = {
    "ca": create_authority,
    "request": request_certificate,
    "approve": approve_requests,
    "issue": issue_certificates,
    "list": list_parties,
    "revoke": revoke_member,
    "rotate": rotate_keys,
}


def _now() -> datetime:
    return datetime.now(UTC)


def _write_keys_and_request(key: Path, private: "PrivateKeys", request: bytes, as_json: bool) -> None:
    """Write a key file and the request beside it, and print the fingerprint."""
    from dordis.durable_files import write_atomically
    from dordis.identity.authority import read_request
    from dordis.identity.keys import REQUEST, save_keys

    save_keys(key, private)
    write_atomically(key.with_suffix(REQUEST), request)
    mark = read_request(request).fingerprint
    print_result(
        as_json,
        {"key": str(key), "request": str(key.with_suffix(REQUEST)), "fingerprint": mark},
        f"{key}: the secret keys, which never leave this machine",
        f"{key.with_suffix(REQUEST)}: the request, for the authority; its fingerprint is {mark}",
    )


def _read_request_file(path: Path) -> "CertificateRequest":
    from dordis.identity.authority import LIMIT, read_request

    with explain_os_errors(f"read the request {path}"), path.open("rb") as file:
        data = file.read(LIMIT + 1)
    try:
        return read_request(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _print_approved(
    authority: "Authority", approved: "Sequence[tuple[Path, IssuedCertificate, str]]", as_json: bool
) -> None:
    """Print holder and path of each new certificate, and the fingerprint of the request if one was approved."""
    from dordis.identity.certificates import alternative_names

    fields, lines = [], []
    for path, made, mark in approved:
        until = f"{made.certificate.not_valid_after_utc:%Y-%m-%d}"
        hosts = [str(name.value) for name in alternative_names(made.certificate)] if made.client is None else []
        holder = f"client {made.client}" if hosts == [] else f"a server: {', '.join(hosts)}"
        fields.append({"name": made.name, "client": made.client, "hosts": hosts, "until": until, "path": str(path)})
        lines += [f"{made.name} is {holder}" + (f"; the fingerprint of the request is {mark}" if mark else "")]
        lines += [f" {path}: the certificate, valid until {until}; send it to {made.name}"]
    version = authority.registry.version
    print_result(as_json, {"version": version, "approved": fields}, *lines, f"the registry has the version {version}")


def _describe_identity(path: Path, now: datetime) -> dict[str, str]:
    """Return name, id, certificate and authority of the owner of a key file."""
    from dordis.identity.certificates import certified_client, fingerprint, subject_name, to_der
    from dordis.identity.keys import load_client_credentials, load_keys, load_server_credentials

    own = load_client_credentials(path, now) if load_keys(path).keys is not None else load_server_credentials(path, now)
    bound = certified_client(own.certificate)
    return {
        "name": own.name,
        "id": "server" if bound is None else str(bound.client),
        "certificate until": f"{own.certificate.not_valid_after_utc:%Y-%m-%d}",
        "authority": subject_name(own.authority),
        "fingerprint of the authority": fingerprint(to_der(own.authority)),
    }


def _party_rows(authority: "Authority") -> Iterator[tuple[str, ...]]:
    """Yield a row of text for every party: members by id, then servers, then revoked members."""
    from dordis.identity import certificates

    membership, names = authority.registry.membership, authority.names()
    until = {name: f"{authority.newest_certificate(name).not_valid_after_utc:%Y-%m-%d}" for name in names}
    for client, member in sorted(membership.members.items()):
        yield member.name, str(client), "member", until.get(member.name, "-"), member.signing[:16]
    for name in names:
        if certificates.certified_client(authority.newest_certificate(name)) is None:
            yield name, "-", "server", until[name], "-"
    for gone in membership.revoked:
        why = f"revoked {gone.when[:10]}" + (f": {gone.why}" if gone.why else "")
        yield gone.keys.name, str(gone.client), why, "-", gone.keys.signing[:16]
