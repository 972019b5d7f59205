"""The authority of a federation: it approves certificate requests, issues certificates and signs the registry.

A request is an X.509 request with the public keys of a client, or with the host names of a server.  The request proves
that the requester has every private key: the TLS key and the signing key sign the request, and the VRF key makes a VRF
proof for it.  If a client replaces its keys, the old signing key signs the request too.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dordis.crypto import signature, vrf
from dordis.durable_files import PRIVATE, AppendOnlyFile, write_atomically, write_new
from dordis.errors import CryptoError, InputError
from dordis.identity import certificates
from dordis.identity.certificates import (
    AlternativeNames,
    Identity,
    TlsKey,
    alternative_names,
    fingerprint,
    subject_name,
    tls_hash,
    tls_public_key,
    to_pem,
)
from dordis.identity.keys import CERTIFICATE, Keys, PrivateKeys, load_keys, read_certificates
from dordis.identity.registry import Member, Membership, RevokedKeys, SignedRegistry
from dordis.protocol import ClientId

LIMIT = 64 << 10
"""Largest size of a request file in bytes."""
_URN = re.compile(r"urn:dordis:identity:([0-9a-f]{64}):([0-9a-f]{64})")
_SIGNED, _PROVED, _REPLACED = (b"dordis/v1/request/" + use for use in (b"signing", b"vrf", b"replaced"))


@dataclass(frozen=True)
class CertificateRequest:
    """The verified content of a certificate request.

    `identity` has the public keys of a client, None in the request of a server; `hosts` are the server's names.  If a
    client replaces its keys, `replaces` is its old public signing key.  `fingerprint` is a short hash of the request.
    """

    name: str
    tls: ec.EllipticCurvePublicKey
    identity: Identity | None
    hosts: AlternativeNames
    replaces: bytes | None
    fingerprint: str


class RequestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate request as stored in a file: the X.509 request in PEM; keys, signatures and VRF proof in hex.

    `signing` is the signature with the signing key, and `vrf` the proof with the VRF key.  If keys are replaced,
    `replaces` is the old public signing key, and `replaced` the signature with the old signing key.
    """

    request: str
    signing: str = ""
    vrf: str = ""
    replaces: str = ""
    replaced: str = ""
    format: Literal["dordis request 1"] = "dordis request 1"


def new_request(name: str, private: PrivateKeys, hosts: Sequence[str] = (), replaces: Keys | None = None) -> bytes:
    """Return the content of a file with a certificate request for the keys `private`.

    It is the request of a server with the host names `hosts` if `private` has only a TLS key, otherwise of a client.
    `replaces` are the former keys of a client that replaces its keys.
    """
    certificates.check_name(name)
    keys = private.keys
    names = [_identity_name(keys.identity())] if keys else [certificates.server_name(host) for host in hosts]
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(private.tls, hashes.SHA256())
    )
    data = _der(asked)
    file = RequestFile(
        asked.public_bytes(serialization.Encoding.PEM).decode(),
        "" if keys is None else signature.sign(keys.signing, _SIGNED + data).hex(),
        "" if keys is None else vrf.prove(keys.vrf, _PROVED + data).hex(),
        "" if replaces is None else signature.public_key(replaces.signing).hex(),
        "" if replaces is None else signature.sign(replaces.signing, _REPLACED + data).hex(),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def read_request(data: bytes) -> CertificateRequest:
    """Return the content of a request file; raise InputError if it is malformed or the proof of a key fails."""
    if len(data) > LIMIT:
        raise InputError(f"a request has at most {LIMIT} bytes")
    try:
        file = msgspec.json.decode(data, type=RequestFile)
        asked = x509.load_pem_x509_csr(file.request.encode())
        names = alternative_names(asked)
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError, x509.DuplicateExtension):
        raise InputError("this is not a request: dordis keys request writes one") from None
    tls = check_tls_key(asked)
    certificates.check_name(subject_name(asked))
    identity = _identity_in(names)
    hosts: AlternativeNames = [name for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    if (identity is None) == (not hosts):
        raise InputError("a request is for a client with its keys, or for a server with its hosts")
    if identity is not None:
        check_possession(identity, file, _der(asked))
    replaces = _from_hex(file.replaces) or None
    if replaces is not None:
        check_replaced(replaces, file, _der(asked))
    return CertificateRequest(subject_name(asked), tls, identity, hosts, replaces, fingerprint(_der(asked)))


def check_tls_key(asked: x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """Return the TLS key of a request; raise InputError if it is not on P-256 or did not sign the request."""
    key = asked.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("the TLS key of a request is on the curve P-256")
    if not asked.is_signature_valid:
        raise InputError("this request was altered: its TLS key did not sign it")
    return key


def check_possession(identity: Identity, file: RequestFile, data: bytes) -> None:
    """Raise InputError unless a request proves, by a signature and a VRF proof, possession of the keys of `identity`.

    `data` is the X.509 request in DER; signature and proof cover these bytes.
    """
    try:
        signature.validate(identity.signing)
        signature.verify(identity.signing, _SIGNED + data, _from_hex(file.signing))
        vrf.verify(identity.vrf, _PROVED + data, _from_hex(file.vrf))
    except CryptoError:
        raise InputError("this request was altered, or asks for keys that its maker does not have") from None


def check_replaced(replaces: bytes, file: RequestFile, data: bytes) -> None:
    """Raise InputError unless `file` has a signature of the request `data` (DER) by `replaces`, the old signing key."""
    try:
        signature.verify(replaces, _REPLACED + data, _from_hex(file.replaced))
    except CryptoError:
        raise InputError("this request replaces keys that its maker does not have") from None


def _identity_name(identity: Identity) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(f"urn:dordis:identity:{identity.signing.hex()}:{identity.vrf.hex()}")


def _identity_in(names: x509.SubjectAlternativeName) -> Identity | None:
    for name in names.get_values_for_type(x509.UniformResourceIdentifier):
        if match := _URN.fullmatch(name):
            return Identity(bytes.fromhex(match[1]), bytes.fromhex(match[2]))
    return None


def _der(asked: x509.CertificateSigningRequest) -> bytes:
    return asked.public_bytes(serialization.Encoding.DER)


def _from_hex(text: str) -> bytes:
    with suppress(ValueError):
        return bytes.fromhex(text)
    return b""


KEY_FILE, CERTIFICATE_FILE, REGISTRY_FILE, ISSUED = "ca.key", "ca.pem", "registry.json", "certificates"
"""Files of an authority: its secret key, its certificate, the registry, and the issued certificates."""


@dataclass(frozen=True)
class IssuedCertificate:
    """An issued certificate of the party `name`; `client` is the id of the client, or None for a server.

    `pem` has this certificate and that of the authority.
    """

    name: str
    client: ClientId | None
    certificate: x509.Certificate
    pem: bytes


@dataclass(frozen=True)
class Authority:
    """An authority, with its files in a directory; new certificates and signatures state the time `now`."""

    path: Path
    now: datetime

    @classmethod
    def create(cls, path: Path, name: str, now: datetime) -> "Authority":
        """Create an authority without members; raise InputError if the directory has an authority already."""
        certificates.check_name(name)
        key = certificates.new_tls_key()
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_new(path / KEY_FILE, PrivateKeys(key, None).to_pem())
        except FileExistsError:
            raise InputError(f"there is an authority or a file at {path} already: give another directory") from None
        except OSError as error:
            raise InputError(f"cannot make an authority at {path}: {error.strerror}") from None
        write_atomically(path / CERTIFICATE_FILE, to_pem(certificates.new_authority(key, name, now)))
        (path / ISSUED).mkdir()
        SignedRegistry.sign(Membership(1, _format_time(now), {}), key).save(path / REGISTRY_FILE)
        return cls(path, now)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the authority's own certificate."""
        return certificates.load_certificate(self.path / CERTIFICATE_FILE)

    @property
    def registry(self) -> SignedRegistry:
        """Return the newest signed registry."""
        return SignedRegistry.load(self.path / REGISTRY_FILE, self.certificate)

    def approve(self, asked: CertificateRequest, days: int = certificates.DAYS) -> IssuedCertificate:
        """Approve a request and return a new certificate; a client becomes a member, or its keys are replaced.

        If the same request is approved again, a new certificate is issued.  Raise InputError if a name or key is taken.
        """
        with self._lock() as key:
            if asked.identity is None:
                check_server_name(asked.name, self.registry.membership)
                return self._issue(key, asked.name, None, asked.tls, asked.hosts, days)
            membership, before = self.registry.membership, self._certified_tls_hash(asked.name)
            client, following = admit_request(asked, asked.identity, membership, before, _format_time(self.now))
            if following != membership:
                self._sign(key, following)
            names = certificates.client_names(client, asked.identity)
            return self._issue(key, asked.name, client, asked.tls, names, days)

    def issue(self, name: str, days: int = certificates.DAYS) -> IssuedCertificate:
        """Return a new certificate for the present keys of the party `name`; raise InputError if these were revoked."""
        with self._lock() as key:
            old = self.newest_certificate(name)
            bound, members = certificates.certified_client(old), self.registry.membership.members
            if bound is not None and members.get(bound.client) != Member.from_identity(name, bound.identity):
                raise InputError(f"'{name}' is not a member with these keys: no certificate is issued for revoked keys")
            client, names = None if bound is None else bound.client, list(certificates.alternative_names(old))
            return self._issue(key, name, client, tls_public_key(old), names, days)

    def revoke(self, who: str, why: str) -> ClientId:
        """Revoke the keys of the member with the name or id `who`; return the member's id, which is not used again."""
        with self._lock() as key:
            membership = self.registry.membership
            client = _find_client(membership, who)
            gone = RevokedKeys(client, membership.members[client], _format_time(self.now), why)
            left = {u: member for u, member in membership.members.items() if u != client}
            self._sign(key, msgspec.structs.replace(membership, members=left, revoked=(*membership.revoked, gone)))
            return client

    def newest_certificate(self, name: str) -> x509.Certificate:
        """Return the newest certificate of the party `name`; raise InputError if this party has none."""
        certificates.check_name(name)
        path = self.path / ISSUED / f"{name}{CERTIFICATE}"
        if not path.exists():
            raise InputError(f"there is no certificate of '{name}' in {self.path}: dordis keys list shows all")
        return read_certificates(path)[0]

    def names(self) -> list[str]:
        """Return the names of all parties that ever had a certificate."""
        return sorted(path.name.removesuffix(CERTIFICATE) for path in (self.path / ISSUED).glob(f"*{CERTIFICATE}"))

    @contextmanager
    def _lock(self) -> Iterator[TlsKey]:
        """Lock the directory; yield the authority's private key."""
        private = load_keys(self.path / KEY_FILE)
        with AppendOnlyFile(self.path / ".lock", PRIVATE).locked():
            yield private.tls

    def _certified_tls_hash(self, name: str) -> str | None:
        """Return the hash of the TLS key in a client's newest certificate; None if the client has no certificate.

        Raise InputError if the name belongs to a server.
        """
        if name not in self.names():
            return None
        old = self.newest_certificate(name)
        if certificates.certified_client(old) is None:
            raise InputError(f"there is a server '{name}' already: take another name for the client")
        return tls_hash(tls_public_key(old))

    def _issue(
        self,
        key: TlsKey,
        name: str,
        client: ClientId | None,
        public: ec.EllipticCurvePublicKey,
        names: AlternativeNames,
        days: int,
    ) -> IssuedCertificate:
        if days < 1:
            raise InputError("a certificate is valid for one day at least")
        own = self.certificate
        made = certificates.new_certificate(own, key, public, name, names, self.now, days, server=client is None)
        pem = to_pem(made, own)
        write_atomically(self.path / ISSUED / f"{name}{CERTIFICATE}", pem)
        return IssuedCertificate(name, client, made, pem)

    def _sign(self, key: TlsKey, membership: Membership) -> None:
        """Sign `membership` with the next version number and the present time, and write it to the registry file."""
        following = msgspec.structs.replace(membership, version=membership.version + 1, signed=_format_time(self.now))
        SignedRegistry.sign(following, key).save(self.path / REGISTRY_FILE)


def admit_request(
    asked: CertificateRequest, identity: Identity, membership: Membership, before: str | None, now: str
) -> tuple[ClientId, Membership]:
    """Return the id of a requesting client, and the membership after admitting it or replacing its keys.

    `before` is the hash of the TLS key in the client's latest certificate, None if there is none yet; `now` is the
    present time.  Raise InputError if the name or a key is taken.
    """
    wanted, asked_tls = Member.from_identity(asked.name, identity), tls_hash(asked.tls)
    present = next((ClientId(u) for u, member in membership.members.items() if member == wanted), None)
    if present is not None and (before in (None, asked_tls) or before in membership.retired):
        return present, membership  # the same request once more
    if asked.replaces is None:
        check_new_keys(identity, membership)
        check_new_name(asked.name, membership)
        client = membership.next_id
        return client, msgspec.structs.replace(membership, members={**membership.members, client: wanted})
    client, old = check_replaceable(asked, membership)
    revoked, retired = membership.revoked, membership.retired if before is None else (*membership.retired, before)
    if identity != old.identity:
        check_new_keys(identity, membership)
        revoked = (*revoked, RevokedKeys(client, old, now, "replaced"))
    members = {**membership.members, client: wanted}
    return client, msgspec.structs.replace(membership, members=members, revoked=revoked, retired=retired)


def check_new_name(name: str, membership: Membership) -> None:
    """Raise InputError if `name`, for a new client, is that of a present member or of a member with revoked keys."""
    if name in _client_names(membership):
        raise InputError(f"there is a client '{name}' already: take another name, or replace its keys by keys rotate")


def check_server_name(name: str, membership: Membership) -> None:
    """Raise InputError if `name`, for a server, is that of a present or former member; servers may share a name."""
    if name in _client_names(membership):
        raise InputError(f"there is a client '{name}' already: take another name for the server")


def check_new_keys(identity: Identity, membership: Membership) -> None:
    """Raise InputError if signing key and VRF key of `identity` are equal, or a client has or had one of them."""
    if identity.signing == identity.vrf:
        raise InputError("signing key and VRF key must differ: draw new keys with dordis keys request")
    taken = {key: f"client {u} ('{member.name}')" for u, member in membership.members.items() for key in _keys(member)}
    taken |= {key: f"client {gone.client}, revoked" for gone in membership.revoked for key in _keys(gone.keys)}
    for key in (identity.signing.hex(), identity.vrf.hex()):
        if key in taken:
            raise InputError(f"these keys belong to {taken[key]}: draw new ones with dordis keys request")


def check_replaceable(asked: CertificateRequest, membership: Membership) -> tuple[ClientId, Member]:
    """Return the id and the entry of the member whose keys a request replaces.

    Raise InputError if no member has the signing key to be replaced, or the request has another name than that member.
    """
    replaced = (asked.replaces or b"").hex()
    for u, member in membership.members.items():
        if member.signing == replaced:
            if member.name != asked.name:
                raise InputError(f"the request is by '{member.name}', and keeps that name, not '{asked.name}'")
            return ClientId(u), member
    raise InputError("the request replaces keys that no present member has: make new ones with dordis keys request")


def _find_client(membership: Membership, who: str) -> ClientId:
    for u, member in membership.members.items():
        if who in (member.name, str(u)):
            return ClientId(u)
    raise InputError(f"there is no member '{who}': dordis keys list shows all")


def _client_names(membership: Membership) -> set[str]:
    return {one.name for one in (*membership.members.values(), *(gone.keys for gone in membership.revoked))}


def _keys(member: Member) -> tuple[str, str]:
    return member.signing, member.vrf


def _format_time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
