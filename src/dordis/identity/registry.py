"""The registry: every client's public keys, fixed before a run's first beacon is known and pinned by every client."""

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
"""Bytes of the largest registry that is read: some 300 000 clients."""
FINGERPRINT_BYTES = 16
"""Of a member's id and keys; the root of the registry, which is of all keys, is what binds them."""


class Identity(msgspec.Struct, frozen=True):
    """A client's public keys: Ed25519 for its signatures, ECVRF for its selection."""

    signing: bytes
    vrf: bytes

    def fingerprint(self, client: ClientId) -> str:
        """Return the fingerprint of a client's keys, in hex."""
        entry = client.to_bytes(8, "big") + self.signing + self.vrf
        return hashlib.sha256(b"dordis/v1/member" + entry).digest()[:FINGERPRINT_BYTES].hex()


class Registry(Mapping[ClientId, Identity]):
    """An immutable map from client ids to public keys, in ascending order, checked when it is made.

    `helpers` are the public keys of parties in the role of helpers; an id may be in both maps.
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
        """Return the SHA-256 of all entries in ascending order; they have one length and cannot run together."""
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
        """Return the fingerprint of all members and their keys, in hex."""
        return {int(u): keys.fingerprint(u) for u, keys in self.items()}

    def restrict(self, clients: Collection[int]) -> "Registry":
        """Return the registry of some of the clients; of all of them it is this one."""
        kept = {u: keys for u, keys in self.items() if u in clients}
        return self if len(kept) == len(self) else Registry(kept, self.helpers)

    def signing_keys(self) -> SigningKeys:
        """Return the public signature keys for the round protocol: those of clients and, apart, those of helpers."""
        clients, helpers = ({u: keys.signing for u, keys in role.items()} for role in (self, self.helpers))
        return SigningKeys(clients, helpers)

    def without(self, revoked: Collection[str]) -> SigningKeys:
        """Return the public keys of all signatures but those in hex."""
        kept = (
            {u: keys.signing for u, keys in role.items() if keys.signing.hex() not in revoked}
            for role in (self, self.helpers)
        )
        return SigningKeys(*kept)

    def to_bytes(self) -> bytes:
        """Return the one encoding of this registry: JSON with ids in ascending order and keys in hex."""
        clients, helpers = (
            {int(u): _Entry(keys.signing.hex(), keys.vrf.hex()) for u, keys in role.items()}
            for role in (self, self.helpers)
        )
        return (
            msgspec.json.format(msgspec.json.encode(RegistryFile(clients, helpers=helpers or UNSET)), indent=2) + b"\n"
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Registry":
        """Read a registry that is written in its one encoding."""
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
        if registry.to_bytes() != data:  # above all: a client listed twice
            raise InputError("this registry is not as `save` writes it: a client is listed twice, or out of order")
        return registry

    def save(self, path: Path) -> None:
        """Write the registry so that the file is whole at any moment, also if the machine stops."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Registry":
        """Read a registry that `save` wrote."""
        with path.open("rb") as file:
            return cls.from_bytes(file.read(LIMIT + 1))


def check_ids(registry: Registry) -> None:
    """There is a client, and ids are what the protocol can write."""
    if not registry:
        raise InputError("a registry has at least one client")
    if not all(0 <= u <= LARGEST_ID for u in (*registry, *registry.helpers)):
        raise InputError("a client's id lies in 0..2^63 - 1")


def check_keys(registry: Registry) -> None:
    """Every key is a point of the prime-order group: of others, owners could prove more than one output."""
    for u, keys in (*registry.items(), *registry.helpers.items()):
        try:
            signature.validate(keys.signing)
            vrf.validate_key(keys.vrf)
        except InvalidKey as error:
            raise InvalidKey(f"client {u}: {error}") from None


def check_keys_distinct(registry: Registry) -> None:
    """No key belongs to two parties, or serves two purposes or roles."""
    owners: dict[bytes, ClientId] = {}
    for u, keys in (*registry.items(), *registry.helpers.items()):
        for key in (keys.signing, keys.vrf):
            if key in owners:
                raise InputError(f"clients {owners[key]} and {u} use one key twice: each needs two of its own")
            owners[key] = u


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity as it stands in the file."""

    signing: str
    vrf: str

    def identity(self) -> Identity:
        try:
            return Identity(bytes.fromhex(self.signing), bytes.fromhex(self.vrf))
        except ValueError:
            raise InputError("this is not a registry: a key is not in hex") from None


class RegistryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file; another format has another name."""

    clients: dict[int, _Entry]
    format: Literal["dordis registry 1"] = "dordis registry 1"
    helpers: dict[int, _Entry] | UnsetType = UNSET
    """Left out where no party is a helper."""
