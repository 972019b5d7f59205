"""The registry: the public keys of all clients, fixed before a run's first beacon line, and pinned by every client."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from dordis.crypto import signature, vrf
from dordis.durable_files import write_atomically
from dordis.errors import InputError, InvalidKey
from dordis.protocol import ClientId
from dordis.protocols.parameters import LARGEST_ID
from dordis.protocols.summing import SigningKeys

LIMIT = 64 << 20
"""Largest size of a registry file in bytes, enough for some 300,000 clients."""
FINGERPRINT_BYTES = 16
"""Bytes of a member's fingerprint, which only tells members apart; the root of the registry commits to all keys."""


class Identity(msgspec.Struct, frozen=True):
    """A client's public keys: Ed25519 for signatures, ECVRF for selection."""

    signing: bytes
    vrf: bytes

    def fingerprint(self, client: ClientId) -> str:
        """Return the fingerprint of a client's id and keys, in hex."""
        entry = client.to_bytes(8, "big") + self.signing + self.vrf
        return hashlib.sha256(b"dordis/v1/member" + entry).digest()[:FINGERPRINT_BYTES].hex()


class Registry(Mapping[ClientId, Identity]):
    """An immutable map from client ids to public keys, in ascending order; raises InputError if a key is used twice.

    `helpers` are the public keys of the helpers, by id; a party may be both, with different keys.
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
        if not helpers:
            return hashlib.sha256(b"dordis/v1/registry" + clients).digest()
        return hashlib.sha256(
            b"dordis/v1/registry-of-roles" + len(self).to_bytes(8, "big") + clients + helpers
        ).digest()

    def fingerprints(self) -> dict[int, str]:
        """Return the fingerprint of every client's id and keys, in hex, by id."""
        return {int(u): keys.fingerprint(u) for u, keys in self.items()}

    def restrict(self, clients: Collection[int]) -> "Registry":
        """Return the registry with only these clients, and all helpers."""
        kept = {u: keys for u, keys in self.items() if u in clients}
        return self if len(kept) == len(self) else Registry(kept, self.helpers)

    def signing_keys(self) -> SigningKeys:
        """Return the public signing keys of the clients and of the helpers."""
        clients, helpers = ({u: keys.signing for u, keys in role.items()} for role in (self, self.helpers))
        return SigningKeys(clients, helpers)

    def signing_keys_without(self, revoked: Collection[str]) -> SigningKeys:
        """Return the public signing keys of clients and helpers except the revoked ones, which are given in hex."""
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
        return (
            msgspec.json.format(msgspec.json.encode(RegistryFile(clients, helpers=helpers or UNSET)), indent=2) + b"\n"
        )

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
        if registry.to_bytes() != data:  # mainly to refuse a client that is listed twice
            raise InputError("this registry is not as `save` writes it: a client is listed twice, or out of order")
        return registry

    def save(self, path: Path) -> None:
        """Write the registry to a file in one step: after a crash the file is the old or the new one."""
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
    """Raise InvalidKey for a key outside the prime-order group: its owner could prove several VRF outputs."""
    for u, keys in (*registry.items(), *registry.helpers.items()):
        try:
            signature.validate(keys.signing)
            vrf.validate_key(keys.vrf)
        except InvalidKey as error:
            raise InvalidKey(f"client {u}: {error}") from None


def check_keys_distinct(registry: Registry) -> None:
    """Raise InputError if two parties, roles or purposes have the same key."""
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
    helpers: dict[int, _Entry] | UnsetType = UNSET
    """Left out of the file if the federation has no helpers."""
