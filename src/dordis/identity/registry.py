"""The registry: the public keys of all clients and helpers, fixed before the first beacon line of a run is published.

The signed registry of a federation has the members with their public keys, and all revoked keys.  When somebody joins,
leaves or changes keys, the authority signs a new version of it.  A run keeps the members with which it began: the
manifest of the run has the root of their registry.  Revocations take effect at once, in every run.  If a client
replaces its keys for signatures and VRF, the old ones count as revoked; a replaced TLS key is *retired*.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dordis.crypto import signature, vrf
from dordis.durable_files import write_atomically
from dordis.errors import InputError, InvalidKey, LoginRefused, explain_os_errors
from dordis.identity.certificates import CertifiedClient, Identity, TlsKey, fingerprint, subject_name, to_der
from dordis.protocol import ClientId
from dordis.protocols.parameters import LARGEST_ID
from dordis.protocols.summing import SigningKeys

LIMIT = 64 << 20
"""Largest size of a registry file in bytes, enough for some 300,000 clients."""


class Registry(Mapping[ClientId, Identity]):
    """An immutable map from client ids, in ascending order, to public keys; raises InputError if a key is used twice.

    `helpers` has the public keys of the helpers, by id.  A party may be client and helper, with different keys.
    """

    def __init__(
        self, identities: Mapping[ClientId, Identity], helpers: Mapping[ClientId, Identity] | None = None
    ) -> None:
        self._identities = dict(sorted(identities.items()))
        self.helpers: Mapping[ClientId, Identity] = dict(sorted((helpers or {}).items()))
        check_ids(self)
        check_keys(self)
        check_keys_distinct(self)

    def __getitem__(self, client: ClientId) -> Identity:
        return self._identities[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._identities)

    def __len__(self) -> int:
        return len(self._identities)

    def __repr__(self) -> str:
        return f"<Registry of {len(self)} clients, root {self.root().hex()[:16]}>"

    def root(self) -> bytes:
        """Return the root of the registry: the SHA-256 of all ids and keys in ascending order."""
        return self._root

    @cached_property
    def _root(self) -> bytes:
        clients, helpers = (
            b"".join(u.to_bytes(8, "big") + keys.signing + keys.vrf for u, keys in role.items())
            for role in (self, self.helpers)
        )
        roles = b"dordis/v1/registry-of-roles" + len(self).to_bytes(8, "big") + clients + helpers
        return hashlib.sha256(roles if helpers else b"dordis/v1/registry" + clients).digest()

    def fingerprints(self) -> dict[int, str]:
        """Return the fingerprint of every client's id and keys, in hex, by id."""
        return {int(u): keys.fingerprint(u) for u, keys in self.items()}

    def restrict(self, clients: Collection[int]) -> "Registry":
        """Return the registry with only those of its clients that are in `clients`, and with all helpers."""
        kept = {u: keys for u, keys in self.items() if u in clients}
        return self if len(kept) == len(self) else Registry(kept, self.helpers)

    def signing_keys(self, revoked: Collection[str] = ()) -> SigningKeys:
        """Return the public signing keys of clients and helpers, except the keys that `revoked` lists in hex."""
        kept = (
            {u: keys.signing for u, keys in role.items() if keys.signing.hex() not in revoked}
            for role in (self, self.helpers)
        )
        return SigningKeys(*kept)

    def to_bytes(self) -> bytes:
        """Return the canonical encoding of this registry: JSON with ids in ascending order and keys in hex."""
        clients, helpers = (
            {int(u): _Entry(keys.signing.hex(), keys.vrf.hex()) for u, keys in role.items()}
            for role in (self, self.helpers)
        )
        return _to_bytes(RegistryFile(clients, helpers=helpers or msgspec.UNSET))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Registry":
        """Return the registry in a canonical encoding; raise InputError for any other bytes."""
        if len(data) > LIMIT:
            raise InputError(f"a registry has at most {LIMIT} bytes")
        try:
            file = msgspec.json.decode(data, type=RegistryFile)
            clients, helpers = (
                {ClientId(u): entry.identity() for u, entry in role.items()}
                for role in (file.clients, file.helpers or {})
            )
            registry = cls(clients, helpers)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"this is not a registry: {error}") from None
        if registry.to_bytes() != data:  # mainly to refuse a file that lists a client twice
            raise InputError("this registry is not as `save` writes it: a client is listed twice, or out of order")
        return registry

    def save(self, path: Path) -> None:
        """Write the registry to a file in one step: after a crash the file has the old or the new content."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Registry":
        """Return the registry in a file that `save` wrote; raise InputError if it is malformed."""
        with path.open("rb") as file:
            return cls.from_bytes(file.read(LIMIT + 1))


def check_ids(registry: Registry) -> None:
    """Raise InputError for a registry without clients, or with an id outside 0..2^63 - 1."""
    if not registry:
        raise InputError("a registry has at least one client")
    if not all(0 <= u <= LARGEST_ID for u in (*registry, *registry.helpers)):
        raise InputError("a client's id lies in 0..2^63 - 1")


def check_keys(registry: Registry) -> None:
    """Raise InvalidKey if a key is outside the prime-order group: one input could then have two valid VRF outputs."""
    for u, keys in (*registry.items(), *registry.helpers.items()):
        try:
            signature.validate(keys.signing)
            vrf.validate_key(keys.vrf)
        except InvalidKey as error:
            raise InvalidKey(f"client {u}: {error}") from None


def check_keys_distinct(registry: Registry) -> None:
    """Raise InputError if a key occurs twice: for two parties, as client and as helper, or for signatures and VRF."""
    owners: dict[bytes, ClientId] = {}
    for u, keys in (*registry.items(), *registry.helpers.items()):
        for key in (keys.signing, keys.vrf):
            if key in owners:
                raise InputError(f"clients {owners[key]} and {u} have the same key: every party draws its own keys")
            owners[key] = u


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public keys of one party in a registry file, in hex."""

    signing: str
    vrf: str

    def identity(self) -> Identity:
        try:
            return Identity(bytes.fromhex(self.signing), bytes.fromhex(self.vrf))
        except ValueError:
            raise InputError("this is not a registry: a key is not in hex") from None


class RegistryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a registry file; `format` names its version."""

    clients: dict[int, _Entry]
    format: Literal["dordis registry 1"] = "dordis registry 1"
    helpers: dict[int, _Entry] | msgspec.UnsetType = msgspec.UNSET
    """Left out of the file if the federation has no helpers."""


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's name, and its public keys in hex."""

    name: str
    signing: str
    vrf: str

    @classmethod
    def from_identity(cls, name: str, identity: Identity) -> "Member":
        """Return the member with this name and these public keys."""
        return cls(name, identity.signing.hex(), identity.vrf.hex())

    @property
    def identity(self) -> Identity:
        """Return the member's public keys."""
        return Identity(bytes.fromhex(self.signing), bytes.fromhex(self.vrf))


class RevokedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revoked or replaced keys of a client, with the time and the reason."""

    client: int
    keys: Member
    when: str
    why: str

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the client's id and revoked keys, in hex."""
        return self.keys.identity.fingerprint(ClientId(self.client))


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Members and revoked keys, signed by the authority at time `signed`; `retired`: hashes of replaced TLS keys."""

    version: int
    signed: str
    members: dict[int, Member]
    revoked: tuple[RevokedKeys, ...] = ()
    retired: tuple[str, ...] = ()
    format: Literal["dordis membership 1"] = "dordis membership 1"

    @property
    def next_id(self) -> ClientId:
        """Return the id of the next new member, at least 1; ids of former members are not used again."""
        return ClientId(max([0, *self.members, *(gone.client for gone in self.revoked)]) + 1)


class MembersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file of a signed registry: the membership, and its signature in hex."""

    membership: Membership
    signature: str


@dataclass(frozen=True)
class SignedRegistry:
    """A membership with the authority's valid signature, made by `sign`, or verified by `from_bytes` or `load`."""

    membership: Membership
    data: bytes
    """The bytes of the file, signature included."""

    @classmethod
    def sign(cls, membership: Membership, key: TlsKey) -> "SignedRegistry":
        """Return a membership signed with the authority's key."""
        signed = key.sign(_statement(membership), ec.ECDSA(hashes.SHA256())).hex()
        return cls(membership, _to_bytes(MembersFile(membership, signed)))

    @classmethod
    def from_bytes(cls, data: bytes, authority: x509.Certificate) -> "SignedRegistry":
        """Return the signed registry in the bytes of a file; raise InputError unless `authority` signed it."""
        if len(data) > LIMIT:
            raise InputError(f"a registry has at most {LIMIT} bytes")
        try:
            file = msgspec.json.decode(data, type=MembersFile)
            signed = bytes.fromhex(file.signature)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(f"this is not a signed registry: {error}") from None
        if _to_bytes(file) != data:  # mainly to refuse a file that lists a client twice
            raise InputError("this signed registry is not in the form that the authority writes")
        check_signature(file.membership, signed, authority)
        return cls(file.membership, data)

    @classmethod
    def load(cls, path: Path, authority: x509.Certificate) -> "SignedRegistry":
        """Return the signed registry in a file; raise InputError if it is unreadable or not signed by `authority`."""
        with explain_os_errors(f"read the registry {path}"), path.open("rb") as file:
            return cls.from_bytes(file.read(LIMIT + 1), authority)

    def save(self, path: Path) -> None:
        """Write the signed registry to a file in one step: after a crash the file has the old or the new content."""
        write_atomically(path, self.data)

    @property
    def version(self) -> int:
        """Return the version, which increases with every signature."""
        return self.membership.version

    @cached_property
    def registry(self) -> Registry:
        """Return the registry of all present members, with which a new run begins."""
        try:
            return Registry({ClientId(u): member.identity for u, member in self.membership.members.items()})
        except ValueError as error:
            raise InputError(f"the signed registry cannot be used: {error}") from None

    @cached_property
    def revoked(self) -> Mapping[str, RevokedKeys]:
        """Return the revocations by revoked signing key, in hex."""
        return {gone.keys.signing: gone for gone in self.membership.revoked}

    @cached_property
    def retired(self) -> frozenset[str]:
        """Return the hashes of all replaced TLS keys."""
        return frozenset(self.membership.retired)

    def name_of(self, client: ClientId) -> str:
        """Return the name of a present or former member; 'client ID', with the id, if there was none with this id."""
        named = {gone.client: gone.keys.name for gone in self.membership.revoked}
        named |= {u: member.name for u, member in self.membership.members.items()}
        return named.get(client, f"client {client}")


def registry_with_helpers(signed: SignedRegistry, helpers: Collection[int]) -> Registry:
    """Return the registry of the members, in which `helpers` are listed as helpers and not as clients.

    Raise InputError if a helper was never registered.  A revoked helper is listed with its last keys, because the roots
    of runs that began before the revocation commit to these keys.
    """
    if not helpers:
        return signed.registry
    gone = {revoked.client: revoked.keys.identity for revoked in signed.membership.revoked}
    known = {ClientId(h): signed.registry.get(ClientId(h)) or gone.get(h) for h in helpers}
    named = {h: identity for h, identity in known.items() if identity is not None}
    if missing := sorted(known.keys() - named.keys()):
        raise InputError(f"helper {missing[0]} is not in the registry: name registered ids in protocol.options.helpers")
    return Registry({u: keys for u, keys in signed.registry.items() if u not in named}, named)


@dataclass(frozen=True)
class Admission:
    """The clients that may log in: initial members whose signing and VRF keys have not been revoked or replaced."""

    registry: Registry
    current: SignedRegistry

    def admit(self, bound: CertifiedClient) -> ClientId:
        """Return the id of a certificate's client; raise LoginRefused if its keys are revoked or not in the run."""
        check_not_revoked(bound, self.current)
        check_registered(bound, self.registry)
        return bound.client


def check_not_revoked(bound: CertifiedClient, current: SignedRegistry) -> None:
    """Raise LoginRefused if one of the client's keys in `bound` was revoked or replaced."""
    gone = current.revoked.get(bound.identity.signing.hex())
    if gone is not None:
        raise LoginRefused(f"the keys of client {bound.client} ('{gone.keys.name}') were revoked on {gone.when[:10]}")
    if bound.tls in current.retired:
        raise LoginRefused(f"the TLS key of client {bound.client} was replaced: use the certificate of the new one")


def check_registered(bound: CertifiedClient, registry: Registry) -> None:
    """Raise LoginRefused unless the run's registry has the client, with the keys of its certificate."""
    known = registry.get(bound.client)
    if known is None:
        raise LoginRefused(
            f"client {bound.client} is unknown to this run: a client approved after its start can join a successor run"
        )
    if known != bound.identity:
        raise LoginRefused(f"client {bound.client} has other keys in the registry of this run than it shows")


def check_signature(membership: Membership, signed: bytes, authority: x509.Certificate) -> None:
    """Raise InputError unless `signed` is the authority's signature of this membership."""
    key = authority.public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signed, _statement(membership), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise InputError(
            f"the registry was not signed by the authority '{subject_name(authority)}' "
            f"({fingerprint(to_der(authority))}): it was altered, or is of another federation"
        ) from None


def check_not_older(given: SignedRegistry, seen: SignedRegistry) -> None:
    """Raise InputError if `given` is older than the registry `seen` before, and lists keys that are revoked there."""
    back = [member.name for member in given.membership.members.values() if member.signing in seen.revoked]
    if given.version < seen.version and back:
        raise InputError(
            f"this registry has version {given.version}, but in version {seen.version}, which was seen before, "
            f"'{back[0]}' is revoked: get the newest one"
        )


def members_before(members: Registry, revoked: Sequence[RevokedKeys], listed: Mapping[int, str]) -> Registry:
    """Return the registry with which a run began, from the present `members` and all `revoked` keys, oldest first.

    `listed` has the fingerprints of the run's members by id.  Ids are assigned in ascending order, so clients whose id
    exceeds all ids in `listed` joined later, and are removed.  The first revocation of keys in `listed` came after the
    run began; it and all later revocations are undone.  Listed members with unknown keys are left out.
    """
    last = max(listed, default=0)
    began = {u: keys for u, keys in members.items() if u <= last}
    first = next((i for i, gone in enumerate(revoked) if listed.get(gone.client) == gone.fingerprint), len(revoked))
    for gone in reversed(revoked[first:]):
        if gone.client <= last and gone.client not in members.helpers:
            began[ClientId(gone.client)] = gone.keys.identity
    return Registry(began or members, members.helpers)


def _statement(membership: Membership) -> bytes:
    return b"dordis/v1/membership" + msgspec.json.encode(membership)


def _to_bytes(file: RegistryFile | MembersFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
