"""The registry: what may be in it, its root, and the one way to write it down."""

import errno
import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import signature, vrf
from dordis.errors import InputError, InvalidKey
from dordis.identity import registry as module
from dordis.identity.certificates import Identity
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from tests.references import ecvrf as curve
from tests.runs.cohorts import identity_of, keys_of, registry_of

ROOT = "a7cc7e364be543d974a7895d2bafb4b2c8fa0a4fc7895eb8ee03bc45061051f9"
LOW_ORDER = curve.low_order_encodings()
NOT_PRIME_ORDER = curve.encode(curve.add(curve.decode(identity_of(1).vrf), curve.torsion()[1]))
MALFORMED = [*LOW_ORDER, NOT_PRIME_ORDER, b"", bytes(31), identity_of(1).vrf + b"\0", b"\xff" * 32]


def test_a_registry_maps_ids_in_ascending_order_to_public_keys():
    registry = registry_of(9, 2, 5)
    assert list(registry) == [2, 5, 9]
    assert registry[5] == identity_of(5)
    assert registry.signing_keys() == {u: signature.public_key(keys_of(u).signing) for u in (2, 5, 9)}
    assert registry[2].vrf == vrf.public_key(keys_of(2).vrf)


def test_it_does_not_change_with_the_mapping_it_was_made_from():
    identities = {1: identity_of(1)}
    registry = Registry(identities)
    identities[2] = identity_of(2)
    assert list(registry) == [1]
    with pytest.raises(TypeError):
        registry[2] = identity_of(2)


@pytest.mark.parametrize("key", MALFORMED, ids=lambda key: key.hex()[:8] or "empty")
@pytest.mark.parametrize("purpose", ["signing", "vrf"])
def test_a_key_of_low_order_or_malformed_is_refused(purpose, key):
    keys = {"signing": identity_of(1).signing, "vrf": identity_of(1).vrf, purpose: key}
    with pytest.raises(InvalidKey, match="client 1:"):
        Registry({1: Identity(**keys), 2: identity_of(2)})


@pytest.mark.parametrize(
    "second",
    [
        Identity(identity_of(1).signing, identity_of(2).vrf),
        Identity(identity_of(2).signing, identity_of(1).vrf),
        Identity(identity_of(1).vrf, identity_of(2).vrf),
        Identity(identity_of(2).signing, identity_of(1).signing),
        Identity(identity_of(2).signing, identity_of(2).signing),
    ],
    ids=["same signing", "same vrf", "signs with a vrf key", "draws with a signing key", "one key for both"],
)
def test_no_key_belongs_to_two_clients_or_purposes(second):
    with pytest.raises(InputError, match="have the same key"):
        Registry({1: identity_of(1), 2: second})


@pytest.mark.parametrize("clients", [[], [-1], [2**63]])
def test_ids_are_what_a_round_can_write(clients):
    with pytest.raises(InputError):
        Registry({u: identity_of(1) for u in clients})


def test_the_root_is_a_hash_over_all_entries_in_ascending_order():
    entries = b"".join(u.to_bytes(8, "big") + identity_of(u).signing + identity_of(u).vrf for u in (2, 5, 9))
    assert registry_of(9, 2, 5).root() == hashlib.sha256(b"dordis/v1/registry" + entries).digest()
    assert registry_of(9, 2, 5).root().hex() == ROOT


@given(st.sets(st.integers(1, 40), min_size=1, max_size=8), st.sets(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_two_registries_have_one_root_only_if_they_are_the_same(some, others):
    assert (registry_of(*sorted(some)).root() == registry_of(*sorted(others)).root()) == (some == others)


def test_the_root_changes_with_every_part_of_an_entry():
    first, second = identity_of(1), identity_of(2)
    variants = [
        {3: first},
        {4: first},
        {3: Identity(second.signing, first.vrf)},
        {3: Identity(first.signing, second.vrf)},
    ]
    assert len({Registry(variant).root() for variant in variants}) == len(variants)


def test_a_registry_is_read_as_it_was_written(tmp_path):
    registry = registry_of(*range(1, 20))
    registry.save(tmp_path / "registry.json")
    assert Registry.load(tmp_path / "registry.json") == registry
    assert Registry.load(tmp_path / "registry.json").root() == registry.root()
    assert identity_of(7).vrf.hex() in (tmp_path / "registry.json").read_text()
    assert os.listdir(tmp_path) == ["registry.json"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "registry.json"
    registry_of(1).save(path)

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="gone"):
        registry_of(1, 2).save(path)
    assert Registry.load(path) == registry_of(1)
    assert os.listdir(tmp_path) == ["registry.json"]


def twice(data: bytes) -> bytes:
    """List the first client again with other keys: a lenient reader would take the last."""
    other = f'"1": {{"signing": "{identity_of(3).signing.hex()}", "vrf": "{identity_of(3).vrf.hex()}"}}, '
    return data.replace(b'"clients": {', b'"clients": {' + other.encode())


DAMAGED = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-3],
    "trailing": lambda data: data + b"{}",
    "twice": twice,
    "upper case": lambda data: data.replace(
        identity_of(1).vrf.hex().encode(), identity_of(1).vrf.hex().upper().encode()
    ),
    "no hex": lambda data: data.replace(identity_of(1).vrf.hex().encode(), b"zz"),
    "short key": lambda data: data.replace(identity_of(1).vrf.hex().encode(), b"00"),
    "unknown field": lambda data: data.replace(b'"vrf"', b'"extra": 1, "vrf"', 1),
    "missing field": lambda data: data.replace(b'"vrf"', b'"vfr"', 1),
    "other format": lambda data: data.replace(b"registry 1", b"registry 2"),
    "id with a zero": lambda data: data.replace(b'"1":', b'"01":'),
    "no utf-8": lambda data: data.replace(b"registry 1", b"registry \xff"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_anything_but_the_one_encoding_is_refused(damage):
    data = registry_of(1, 2).to_bytes()
    assert Registry.from_bytes(data) == registry_of(1, 2)
    assert damage(data) != data
    with pytest.raises((InputError, InvalidKey)):
        Registry.from_bytes(damage(data))


def test_a_registry_beyond_the_limit_is_not_even_parsed(monkeypatch):
    data = registry_of(1, 2).to_bytes()
    monkeypatch.setattr(module, "LIMIT", len(data) - 1)
    with pytest.raises(InputError, match="at most"):
        Registry.from_bytes(data)


def test_keys_hide_themselves_and_serve_one_purpose_each():
    keys = Keys.generate()
    assert repr(keys) == str(keys) == "<Keys>"
    assert keys.signing != keys.vrf
    Registry({1: keys.identity()})
    with pytest.raises(InputError, match="two purposes"):
        Keys.generate(bytes)


def test_helpers_are_parties_of_their_own_role_and_are_in_root_and_file():
    clients = {1: identity_of(1), 2: identity_of(2)}
    helpers = {2: identity_of(12), 7: identity_of(17)}  # 2 is a client and a helper, with keys of its own for each
    registry = Registry(clients, helpers)
    assert list(registry) == [1, 2]
    assert list(registry.helpers) == [2, 7]
    assert Registry.from_bytes(registry.to_bytes()).helpers == registry.helpers
    assert registry.restrict([1]).helpers == registry.helpers
    roots = {Registry(clients).root(), registry.root(), Registry(clients, {7: identity_of(17)}).root()}
    roots |= {Registry({**clients, **{7: identity_of(17)}}).root()}
    assert len(roots) == 4
    with pytest.raises(InputError, match="have the same key"):
        Registry(clients, {2: identity_of(2)})
    with pytest.raises(InvalidKey):
        Registry(clients, {7: Identity(identity_of(17).signing, b"")})
