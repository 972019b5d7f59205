"""The membership of a federation: all members with their public keys, and all keys that were revoked, signed.

The authority signs it again, under the next version, whenever somebody joins, leaves or changes keys.  A run is fixed
to the members that it began with, by the root of their registry; revocations count at once, in every run.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dordis.durable_files import write_atomically
from dordis.errors import InputError, LoginRefused
from dordis.identity.certificates import CertifiedClient, TlsKey, fingerprint, subject_name, to_der
from dordis.identity.registry import LIMIT, Identity, Registry
from dordis.protocol import ClientId

_LABEL = b"dordis/v1/membership"


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member: its name, and its public keys in hex."""

    name: str
    signing: str
    vrf: str

    @classmethod
    def from_identity(cls, name: str, identity: Identity) -> "Member":
        """Write down a member."""
        return cls(name, identity.signing.hex(), identity.vrf.hex())

    @property
    def identity(self) -> Identity:
        """Return the public keys."""
        return Identity(bytes.fromhex(self.signing), bytes.fromhex(self.vrf))


class RevokedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revoked keys of a client: which, when and why."""

    client: int
    keys: Member
    when: str
    why: str


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The statement that the authority signs; `retired` are hashes of replaced TLS keys."""

    version: int
    signed: str
    members: dict[int, Member]
    revoked: tuple[RevokedKeys, ...] = ()
    retired: tuple[str, ...] = ()
    format: Literal["dordis membership 1"] = "dordis membership 1"

    @property
    def next_id(self) -> ClientId:
        """Return the next unused id, 1 or more; ids of removed members are never used again."""
        return ClientId(max([0, *self.members, *(gone.client for gone in self.revoked)]) + 1)


class MembersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: what is signed, and the signature in hex."""

    membership: Membership
    signature: str


@dataclass(frozen=True)
class SignedRegistry:
    """A membership whose signature is good; make one with `sign`, or read one with `from_bytes` or `load`."""

    membership: Membership
    data: bytes
    """The file as it is passed on."""

    @classmethod
    def sign(cls, membership: Membership, key: TlsKey) -> "SignedRegistry":
        """Sign a membership as the authority."""
        signed = key.sign(_statement(membership), ec.ECDSA(hashes.SHA256())).hex()
        return cls(membership, _to_bytes(MembersFile(membership, signed)))

    @classmethod
    def from_bytes(cls, data: bytes, authority: x509.Certificate) -> "SignedRegistry":
        """Read a membership that this authority signed."""
        if len(data) > LIMIT:
            raise InputError(f"a registry has at most {LIMIT} bytes")
        try:
            file = msgspec.json.decode(data, type=MembersFile)
            signed = bytes.fromhex(file.signature)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(f"this is not a signed registry: {error}") from None
        if _to_bytes(file) != data:  # above all: a client listed twice
            raise InputError("this signed registry is not in the form that the authority writes")
        check_signature(file.membership, signed, authority)
        return cls(file.membership, data)

    @classmethod
    def load(cls, path: Path, authority: x509.Certificate) -> "SignedRegistry":
        """Read a membership from a file."""
        try:
            with path.open("rb") as file:
                return cls.from_bytes(file.read(LIMIT + 1), authority)
        except OSError as error:
            raise InputError(f"cannot read the registry {path}: {error.strerror}") from None

    def save(self, path: Path) -> None:
        """Write the file, whole at any moment."""
        write_atomically(path, self.data)

    @property
    def version(self) -> int:
        """Return the version, which grows with every signature."""
        return self.membership.version

    @cached_property
    def registry(self) -> Registry:
        """Return the public keys of all members, which a run begins with."""
        try:
            return Registry({ClientId(u): member.identity for u, member in self.membership.members.items()})
        except ValueError as error:
            raise InputError(f"the signed registry cannot be used: {error}") from None

    def root(self) -> bytes:
        """Return the root of the members' registry."""
        return self.registry.root()

    @cached_property
    def revoked(self) -> Mapping[str, RevokedKeys]:
        """Return the revoked keys by signing key."""
        return {gone.keys.signing: gone for gone in self.membership.revoked}

    @cached_property
    def retired(self) -> frozenset[str]:
        """Return the hashes of TLS keys that were replaced."""
        return frozenset(self.membership.retired)

    def name_of(self, client: ClientId) -> str:
        """Return the name of a member, now or once; its id if there is none."""
        named = {gone.client: gone.keys.name for gone in self.membership.revoked}
        named |= {u: member.name for u, member in self.membership.members.items()}
        return named.get(client, f"client {client}")


def with_helpers(signed: SignedRegistry, helpers: Collection[int]) -> Registry:
    """Return the members, some of them in the role of helpers; raise InputError if one was never registered.

    A helper that was revoked counts with its last keys: the root of runs that began before has them.
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
    """The clients that may take part in a run: its initial members without those revoked since."""

    registry: Registry
    current: SignedRegistry

    def admit(self, bound: CertifiedClient) -> ClientId:
        """Return the id of a client that is admitted."""
        check_not_revoked(bound, self.current)
        check_registered(bound, self.registry)
        return bound.client


def check_not_revoked(bound: CertifiedClient, current: SignedRegistry) -> None:
    """Neither the client's keys nor its TLS key were revoked."""
    gone = current.revoked.get(bound.identity.signing.hex())
    if gone is not None:
        raise LoginRefused(f"the keys of client {bound.client} ('{gone.keys.name}') were revoked on {gone.when[:10]}")
    if bound.tls in current.retired:
        raise LoginRefused(f"the TLS key of client {bound.client} was replaced: use the certificate of the new one")


def check_registered(bound: CertifiedClient, registry: Registry) -> None:
    """The client is in the registry of the run, with the keys that it shows."""
    known = registry.get(bound.client)
    if known is None:
        raise LoginRefused(
            f"client {bound.client} is unknown to this run: who was approved later joins a successor run"
        )
    if known != bound.identity:
        raise LoginRefused(f"client {bound.client} has other keys in the registry of this run than it shows")


def check_signature(membership: Membership, signed: bytes, authority: x509.Certificate) -> None:
    """The authority signed this membership."""
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
    """An older registry does not bring back a client that a newer one, seen before, has revoked."""
    back = [member.name for member in given.membership.members.values() if member.signing in seen.revoked]
    if given.version < seen.version and back:
        raise InputError(
            f"this registry has the version {given.version}, and {seen.version} was seen before, in which "
            f"'{back[0]}' is revoked: get the newest one"
        )


def members_before(members: Registry, revoked: Sequence[RevokedKeys], listed: Mapping[int, str]) -> Registry:
    """Return the members of a run that began before some revocations; members that the registry never had are left out.

    `listed` are the fingerprints of the run's members.  Ids are given in ascending order, so members with larger ids
    than all listed ones came later.  All revocations from the first listed key on came later too, and are undone.
    """
    last = max(listed, default=0)
    began = {u: keys for u, keys in members.items() if u <= last}
    first = next((i for i, gone in enumerate(revoked) if listed.get(gone.client) == _fingerprint(gone)), len(revoked))
    for gone in reversed(revoked[first:]):
        if gone.client <= last and gone.client not in members.helpers:
            began[ClientId(gone.client)] = gone.keys.identity
    return Registry(began or members, members.helpers)


def _fingerprint(gone: RevokedKeys) -> str:
    return gone.keys.identity.fingerprint(ClientId(gone.client))


def _statement(membership: Membership) -> bytes:
    return _LABEL + msgspec.json.encode(membership)


def _to_bytes(file: MembersFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
