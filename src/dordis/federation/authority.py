"""The authority of a federation: it approves requests, issues certificates and signs the registry, in one directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dordis.errors import InputError
from dordis.federation import certificates
from dordis.federation.certificates import Names, TlsKey, tls_hash, tls_key_of, to_pem
from dordis.federation.durable import PRIVATE, FileLines, create, replace
from dordis.federation.identity import CERTIFICATE, PrivateKeys, load_keys, read_certificates
from dordis.federation.membership import Member, Membership, RevokedKeys, SignedRegistry
from dordis.federation.registry import Identity
from dordis.federation.requests import Requested
from dordis.protocol import ClientId

KEY_FILE, CERTIFICATE_FILE, REGISTRY_FILE, ISSUED = "ca.key", "ca.pem", "registry.json", "certificates"
"""In the directory of an authority: its key, which is secret, its certificate, the registry, and what it issued."""


@dataclass(frozen=True)
class Approved:
    """What came of a request: the certificates to hand back, and the id of a client."""

    name: str
    client: ClientId | None
    certificate: x509.Certificate
    pem: bytes


@dataclass(frozen=True)
class Authority:
    """The directory of an authority, and its clock."""

    path: Path
    now: datetime

    @classmethod
    def create(cls, path: Path, name: str, now: datetime) -> "Authority":
        """Begin a federation without members."""
        certificates.check_name(name)
        key = certificates.new_tls_key()
        try:
            path.mkdir(parents=True, exist_ok=True)
            create(path / KEY_FILE, PrivateKeys(key, None).to_pem())
        except FileExistsError:
            raise InputError(f"there is an authority already at {path}: give another directory") from None
        except OSError as error:
            raise InputError(f"cannot make an authority at {path}: {error.strerror}") from None
        replace(path / CERTIFICATE_FILE, to_pem(certificates.new_authority(key, name, now)))
        (path / ISSUED).mkdir()
        SignedRegistry.sign(Membership(1, _written(now), {}), key).save(path / REGISTRY_FILE)
        return cls(path, now)

    @property
    def certificate(self) -> x509.Certificate:
        """Return the authority's own certificate."""
        return certificates.load_certificate(self.path / CERTIFICATE_FILE)

    @property
    def registry(self) -> SignedRegistry:
        """Return the registry as it was signed last."""
        return SignedRegistry.load(self.path / REGISTRY_FILE, self.certificate)

    def approve(self, asked: Requested, days: int = certificates.DAYS) -> Approved:
        """Make whoever asks a member, or replace a member's keys, or approve a server; issue the certificate.

        The same request again gets a certificate again.
        """
        with self._locked() as key:
            if asked.identity is None:
                check_server_name(asked.name, self.registry.membership)
                return self._issue(key, asked.name, None, asked.tls, asked.hosts, days)
            membership, before = self.registry.membership, self._before(asked.name)
            client, following = admitted(asked, asked.identity, membership, before, _written(self.now))
            if following != membership:
                self._sign(key, following)
            names = certificates.client_names(client, asked.identity)
            return self._issue(key, asked.name, client, asked.tls, names, days)

    def issue(self, name: str, days: int = certificates.DAYS) -> Approved:
        """Issue a certificate again, for the same keys, from now on."""
        with self._locked() as key:
            old = self.issued(name)
            bound, members = certificates.bound_in(old), self.registry.membership.members
            if bound is not None and members.get(bound.client) != Member.of(name, bound.identity):
                raise InputError(f"'{name}' is no member with these keys: for revoked keys nothing is issued")
            client, names = None if bound is None else bound.client, list(certificates.alternative_names(old))
            return self._issue(key, name, client, tls_key_of(old), names, days)

    def revoke(self, who: str, why: str) -> ClientId:
        """Revoke the keys of a member, by its name or id; its id is never given again."""
        with self._locked() as key:
            membership = self.registry.membership
            client = _found(membership, who)
            gone = RevokedKeys(client, membership.members[client], _written(self.now), why)
            left = {u: member for u, member in membership.members.items() if u != client}
            self._sign(key, msgspec.structs.replace(membership, members=left, revoked=(*membership.revoked, gone)))
            return client

    def issued(self, name: str) -> x509.Certificate:
        """Return the certificate that a party has now."""
        certificates.check_name(name)
        path = self.path / ISSUED / f"{name}{CERTIFICATE}"
        if not path.exists():
            raise InputError(f"there is no certificate of '{name}' in {self.path}: dordis keys list shows all")
        return read_certificates(path)[0]

    def names(self) -> list[str]:
        """Return the names of all parties that ever had a certificate."""
        return sorted(path.name.removesuffix(CERTIFICATE) for path in (self.path / ISSUED).glob(f"*{CERTIFICATE}"))

    @contextmanager
    def _locked(self) -> Iterator[TlsKey]:
        """Give the authority's key to one process at a time."""
        private = load_keys(self.path / KEY_FILE)
        with FileLines(self.path / ".lock", PRIVATE).locked():
            yield private.tls

    def _before(self, name: str) -> str | None:
        """Return the hash of the TLS key that a client has a certificate for now."""
        if name not in self.names():
            return None
        old = self.issued(name)
        if certificates.bound_in(old) is None:
            raise InputError(f"there is a server '{name}' already: take another name for the client")
        return tls_hash(tls_key_of(old))

    def _issue(
        self,
        key: TlsKey,
        name: str,
        client: ClientId | None,
        public: ec.EllipticCurvePublicKey,
        names: Names,
        days: int,
    ) -> Approved:
        if days < 1:
            raise InputError("a certificate is valid for one day at least")
        own = self.certificate
        made = certificates.new_certificate(own, key, public, name, names, self.now, days, server=client is None)
        pem = to_pem(made, own)
        replace(self.path / ISSUED / f"{name}{CERTIFICATE}", pem)
        return Approved(name, client, made, pem)

    def _sign(self, key: TlsKey, membership: Membership) -> None:
        """Sign a membership under the next version."""
        following = msgspec.structs.replace(membership, version=membership.version + 1, signed=_written(self.now))
        SignedRegistry.sign(following, key).save(self.path / REGISTRY_FILE)


def admitted(
    asked: Requested, identity: Identity, membership: Membership, before: str | None, now: str
) -> tuple[ClientId, Membership]:
    """Return the id of whoever asks, and the membership with it; `before` is the hash of the TLS key it had, if any."""
    wanted, asked_tls = Member.of(asked.name, identity), tls_hash(asked.tls)
    present = next((ClientId(u) for u, member in membership.members.items() if member == wanted), None)
    if present is not None and (before in (None, asked_tls) or before in membership.retired):
        return present, membership  # the same request again
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
    """Nobody has, or ever had, this name."""
    if name in _client_names(membership):
        raise InputError(f"there is a client '{name}' already: take another name, or replace its keys by keys rotate")


def check_server_name(name: str, membership: Membership) -> None:
    """A server has not the name of a client; it may ask again under its own."""
    if name in _client_names(membership):
        raise InputError(f"there is a client '{name}' already: take another name for the server")


def check_new_keys(identity: Identity, membership: Membership) -> None:
    """Neither key belongs, or ever belonged, to anybody, or serves two purposes: doubled identities are refused."""
    if identity.signing == identity.vrf:
        raise InputError("one key must not serve two purposes: draw others, with keys request")
    taken = {key: f"client {u} ('{member.name}')" for u, member in membership.members.items() for key in _keys(member)}
    taken |= {key: f"client {gone.client}, revoked" for gone in membership.revoked for key in _keys(gone.keys)}
    for key in (identity.signing.hex(), identity.vrf.hex()):
        if key in taken:
            raise InputError(f"these keys are those of {taken[key]}: every client draws its own, with keys request")


def check_replaceable(asked: Requested, membership: Membership) -> tuple[ClientId, Member]:
    """The keys to be replaced are those of a member, who keeps its name."""
    replaced = (asked.replaces or b"").hex()
    for u, member in membership.members.items():
        if member.signing == replaced:
            if member.name != asked.name:
                raise InputError(f"the request is by '{member.name}', and keeps that name, not '{asked.name}'")
            return ClientId(u), member
    raise InputError("the request replaces keys of nobody who is a member now: make new ones with keys request")


def _found(membership: Membership, who: str) -> ClientId:
    for u, member in membership.members.items():
        if who in (member.name, str(u)):
            return ClientId(u)
    raise InputError(f"there is no member '{who}': dordis keys list shows all")


def _client_names(membership: Membership) -> set[str]:
    return {one.name for one in (*membership.members.values(), *(gone.keys for gone in membership.revoked))}


def _keys(member: Member) -> tuple[str, str]:
    return member.signing, member.vrf


def _written(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
