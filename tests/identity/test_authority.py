"""The authority: who becomes a member, whose keys are replaced or revoked, and what the registry says of it."""

import errno
import json
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dordis.errors import InputError
from dordis.identity import authority as module
from dordis.identity.authority import LIMIT, Authority, new_request, read_request
from dordis.identity.certificates import BACKDATED, certified_client, new_tls_key, tls_hash, tls_public_key
from dordis.identity.keys import Keys, PrivateKeys, load_client_credentials
from dordis.identity.registry import Admission, SignedRegistry, check_not_older, members_before
from tests.runs.parties import LATER, NOW, approved, authority_at, drawn, joined


def test_a_request_says_what_it_is_for():
    keys = drawn()
    asked = read_request(new_request("alice", keys))
    assert (asked.name, asked.identity, asked.hosts, asked.replaces) == ("alice", keys.keys.identity(), [], None)
    assert asked.tls == keys.tls.public_key()


def test_a_server_asks_for_its_hosts():
    asked = read_request(new_request("server", PrivateKeys(new_tls_key(), None), ("localhost", "::1")))
    assert asked.identity is None
    assert [str(name.value) for name in asked.hosts] == ["localhost", "::1"]


def test_a_request_holds_nothing_private():
    keys = drawn()
    text = new_request("alice", keys)
    assert keys.keys.signing.hex().encode() not in text
    assert keys.keys.vrf.hex().encode() not in text
    assert b"PRIVATE" not in text


def test_keys_that_replace_others_are_asked_for_by_those():
    old, new = drawn(), drawn()
    asked = read_request(new_request("alice", new, replaces=old.keys))
    assert asked.replaces == old.keys.identity().signing


def mixed(field, donor):
    """Return a request by alice with one field of a request by somebody else."""
    return lambda mine, others: json.dumps({**json.loads(mine), field: json.loads(others)[donor]}).encode()


ALTERED = {
    "the X.509 request of another": mixed("request", "request"),
    "the signature of another": mixed("signing", "signing"),
    "the proof of another": mixed("vrf", "vrf"),
    "replaces the keys of another": mixed("replaces", "replaces"),
    "a signature by other keys": mixed("replaced", "replaced"),
    "no signature": lambda mine, others: json.dumps({**json.loads(mine), "signing": ""}).encode(),
    "no hex": lambda mine, others: json.dumps({**json.loads(mine), "vrf": "zz"}).encode(),
    "an unknown field": lambda mine, others: json.dumps({**json.loads(mine), "more": 1}).encode(),
    "cut": lambda mine, others: mine[:-9],
    "nothing": lambda mine, others: b"",
    "too long": lambda mine, others: mine + b" " * LIMIT,
    "deep": lambda mine, others: b"[" * 60000,
}


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED.keys())
def test_an_altered_request_is_refused(alter):
    mine, others = (new_request(name, drawn(), replaces=Keys.generate()) for name in ("alice", "bob"))
    read_request(mine)
    with pytest.raises(InputError):
        read_request(alter(mine, others))


def handmade(key, names, name="alice"):
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False) if names else builder
    made = builder.sign(key, hashes.SHA256())
    return json.dumps(
        {"request": made.public_bytes(serialization.Encoding.PEM).decode(), "format": "dordis request 1"}
    ).encode()


HOST = [x509.DNSName("localhost")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: handmade(rsa.generate_private_key(65537, 2048), HOST), "P-256"),
        (lambda: handmade(ec.generate_private_key(ec.SECP384R1()), HOST), "P-256"),
        (lambda: handmade(new_tls_key(), []), "a client with its keys, or for a server"),
        (lambda: handmade(new_tls_key(), HOST, "../x"), "name"),
        (lambda: handmade(new_tls_key(), HOST, "a b\n"), "name"),
    ],
    ids=["rsa", "another curve", "for nobody", "a path", "spaces"],
)
def test_other_keys_and_names_than_dordis_makes_are_refused(data, reason):
    with pytest.raises(InputError, match=reason):
        read_request(data())


def test_a_name_is_plain():
    for name in ("", "..", "a/b", "-a", "x" * 64, "ä"):
        with pytest.raises(InputError, match="name"):
            new_request(name, drawn())


@pytest.fixture
def authority(tmp_path):
    return authority_at(tmp_path / "federation")


def asked(name, keys, **options):
    return read_request(new_request(name, keys, **options))


def test_members_get_ids_from_1_on_and_the_registry_has_their_keys(authority, tmp_path):
    keys = [drawn() for _ in range(3)]
    for name, own in zip("abc", keys, strict=True):
        joined(authority, tmp_path / f"{name}.key", own)
    registry = authority.registry
    assert {u: registry.registry[u] for u in registry.registry} == {
        u: own.keys.identity() for u, own in enumerate(keys, 1)
    }
    assert registry.version == 4
    assert [registry.name_of(u) for u in (1, 2, 3, 4)] == ["a", "b", "c", "client 4"]


def test_a_certificate_is_for_one_purpose_and_backdated(authority):
    made = authority.approve(asked("alice", drawn())).certificate
    served = authority.approve(asked("server", PrivateKeys(new_tls_key(), None), hosts=("localhost",))).certificate
    usages = [list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) for one in (made, served)]
    assert usages == [[ExtendedKeyUsageOID.CLIENT_AUTH], [ExtendedKeyUsageOID.SERVER_AUTH]]
    assert made.not_valid_before_utc == NOW - BACKDATED
    for one in (made, served):
        one.verify_directly_issued_by(authority.certificate)
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_same_request_again_changes_nothing_but_the_certificate(authority):
    request = asked("alice", drawn())
    first, version = authority.approve(request), authority.registry.version
    again = authority.approve(request)
    assert (again.client, authority.registry.version) == (first.client, version)
    assert again.certificate != first.certificate


def test_doubled_identities_are_refused(authority):
    own = drawn()
    authority.approve(asked("alice", own))
    for name, doubled in {
        "same keys, another name": ("bob", own),
        "same signing key": ("bob", PrivateKeys(new_tls_key(), Keys(own.keys.signing, Keys.generate().vrf))),
        "same VRF key": ("bob", PrivateKeys(new_tls_key(), Keys(Keys.generate().signing, own.keys.vrf))),
        "keys the other way round": ("bob", PrivateKeys(new_tls_key(), Keys(own.keys.vrf, own.keys.signing))),
        "same keys, another TLS key": ("alice", PrivateKeys(new_tls_key(), own.keys)),
    }.values():
        with pytest.raises(InputError, match=r"belong to client 1 \('alice'\)"):
            authority.approve(asked(name, doubled))
    with pytest.raises(InputError, match="there is a client 'alice' already"):
        authority.approve(asked("alice", drawn()))
    assert list(authority.registry.registry) == [1]


def test_one_key_for_two_purposes_is_refused(authority):
    class Same(Keys):
        def __post_init__(self):
            pass

    key = Keys.generate().signing
    with pytest.raises(InputError, match="must differ"):
        authority.approve(asked("alice", PrivateKeys(new_tls_key(), Same(key, key))))


def test_clients_and_servers_do_not_share_names(authority):
    server = PrivateKeys(new_tls_key(), None)
    authority.approve(asked("server", server, hosts=("localhost",)))
    authority.approve(asked("server", PrivateKeys(new_tls_key(), None), hosts=("localhost",)))
    with pytest.raises(InputError, match="there is a server 'server' already"):
        authority.approve(asked("server", drawn()))
    authority.approve(asked("alice", drawn()))
    with pytest.raises(InputError, match="there is a client 'alice' already"):
        authority.approve(asked("alice", server, hosts=("localhost",)))


def test_a_revoked_member_leaves_and_its_id_and_keys_are_never_used_again(authority):
    own = drawn()
    authority.approve(asked("alice", own))
    authority.approve(asked("bob", drawn()))
    root = authority.registry.registry.root()
    assert authority.revoke("alice", "left") == 1
    registry = authority.registry
    assert list(registry.registry) == [2]
    assert registry.registry.root() != root
    gone = registry.revoked[own.keys.identity().signing.hex()]
    assert (gone.client, gone.why, gone.when) == (1, "left", "2030-05-01T12:00:00Z")
    with pytest.raises(InputError, match="client 1, revoked"):
        authority.approve(asked("alice", own))
    with pytest.raises(InputError, match="for revoked keys"):
        authority.issue("alice")
    assert authority.approve(asked("carol", drawn())).client == 3
    with pytest.raises(InputError, match="no member 'alice'"):
        authority.revoke("alice", "")
    assert authority.revoke("3", "by its id") == 3


def test_a_new_tls_key_leaves_the_root_and_retires_the_old_one(authority):
    own, new = drawn(), new_tls_key()
    old = authority.approve(asked("alice", own)).certificate
    root = authority.registry.registry.root()
    request = asked("alice", PrivateKeys(new, own.keys), replaces=own.keys)
    made = authority.approve(request)
    assert (made.client, authority.registry.registry.root()) == (1, root)
    assert authority.registry.retired == {tls_hash(tls_public_key(old))}
    authority.approve(request)
    assert authority.registry.retired == {tls_hash(tls_public_key(old))}


def test_new_keys_of_the_protocol_keep_the_id_and_revoke_the_old_ones(authority):
    own, new = drawn(), drawn()
    authority.approve(asked("alice", own))
    root = authority.registry.registry.root()
    request = asked("alice", new, replaces=own.keys)
    assert authority.approve(request).client == 1
    registry = authority.registry
    assert registry.registry.root() != root
    assert registry.registry[1] == new.keys.identity()
    assert set(registry.revoked) == {own.keys.identity().signing.hex()}
    assert authority.approve(request).client == 1
    assert authority.registry.version == registry.version


def test_the_newest_registry_tells_the_members_of_every_earlier_one(authority):
    keys = {name: drawn() for name in "abcdefg"}

    def replace_keys(name):
        old, keys[name] = keys[name].keys, PrivateKeys(new_tls_key(), Keys.generate())
        authority.approve(asked(name, keys[name], replaces=old))

    events = [*((lambda name=name: authority.approve(asked(name, keys[name]))) for name in "abcd")]
    events += [lambda: authority.revoke("b", "left"), lambda: replace_keys("a"), lambda: replace_keys("c")]
    events += [lambda: authority.approve(asked("e", keys["e"])), lambda: replace_keys("a")]
    events += [lambda: authority.revoke("e", "left"), lambda: authority.approve(asked("f", keys["f"]))]
    events += [lambda: authority.revoke("a", "left"), lambda: authority.approve(asked("g", keys["g"]))]
    versions = []
    for event in events:
        event()
        versions.append(authority.registry.registry)
    newest = authority.registry
    for before in versions:
        members = members_before(newest.registry, newest.membership.revoked, before.fingerprints())
        assert members.root() == before.root()


def test_nobody_replaces_the_keys_of_others(authority):
    own, other = drawn(), drawn()
    authority.approve(asked("alice", own))
    authority.approve(asked("bob", other))
    with pytest.raises(InputError, match="no present member"):
        authority.approve(asked("alice", drawn(), replaces=drawn().keys))
    with pytest.raises(InputError, match="keeps that name"):
        authority.approve(asked("alice", drawn(), replaces=other.keys))
    authority.revoke("alice", "")
    with pytest.raises(InputError, match="no present member"):
        authority.approve(asked("alice", drawn(), replaces=own.keys))


def test_a_certificate_is_issued_again_for_the_same_keys(authority, tmp_path):
    path = joined(authority, tmp_path / "alice.key")
    before = load_client_credentials(path, NOW).certificate
    later = Authority(authority.path, LATER)
    path.with_suffix(".cert").write_bytes(later.issue("alice", days=30).pem)
    after = load_client_credentials(path, LATER).certificate
    assert certified_client(after) == certified_client(before)
    assert (after.not_valid_after_utc - LATER).days == 30
    with pytest.raises(InputError, match="no certificate of 'bob'"):
        later.issue("bob")
    with pytest.raises(InputError, match="one day"):
        later.issue("alice", days=0)


def test_a_stop_between_the_registry_and_the_certificate_is_made_good_by_approving_again(authority, monkeypatch):
    own, new = drawn(), drawn()
    replaced = asked("alice", new, replaces=own.keys)

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    for request in (asked("alice", own), asked("alice", PrivateKeys(new_tls_key(), own.keys), replaces=own.keys)):
        with monkeypatch.context() as patch:
            patch.setattr(Authority, "_issue", stop)
            with pytest.raises(KeyboardInterrupt):
                authority.approve(request)
        made = authority.approve(request).certificate
        assert Admission(authority.registry.registry, authority.registry).admit(certified_client(made)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(Authority, "_issue", stop)
        with pytest.raises(KeyboardInterrupt):
            authority.approve(replaced)
    made = authority.approve(replaced).certificate
    assert Admission(authority.registry.registry, authority.registry).admit(certified_client(made)) == 1


def test_a_failed_signature_leaves_the_registry_as_it_was(authority, monkeypatch):
    authority.approve(asked("alice", drawn()))
    before = (authority.path / module.REGISTRY_FILE).read_bytes()

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="gone"):
        authority.approve(asked("bob", drawn()))
    assert (authority.path / module.REGISTRY_FILE).read_bytes() == before


def test_an_authority_is_made_once_and_its_key_is_for_its_owner(authority, tmp_path):
    key = authority.path / module.KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="already"):
        Authority.create(authority.path, "again", NOW)
    key.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        authority.approve(asked("alice", drawn()))
    with pytest.raises(InputError, match="cannot read the certificate"):
        Authority(tmp_path / "nowhere", NOW).registry.registry.root()


def test_a_registry_of_another_authority_or_altered_or_older_is_refused(authority, tmp_path):
    own = approved(authority, tmp_path / "alice.key", new_request("alice", drawn()))
    data = authority.registry.data
    assert SignedRegistry.from_bytes(data, authority.certificate).registry.root() == authority.registry.registry.root()
    other = authority_at(tmp_path / "other")
    with pytest.raises(InputError, match="not signed by the authority 'other'"):
        SignedRegistry.from_bytes(data, other.certificate)
    signing = certified_client(own.certificate).identity.signing.hex().encode()
    altered = {
        "a key": data.replace(signing, drawn().keys.identity().signing.hex().encode()),
        "a version": data.replace(b'"version": 2', b'"version": 3'),
        "spaces": data.replace(b'"version": 2', b'"version":  2'),
        "cut": data[:-4],
        "twice": data.replace(b'"members": {', b'"members": {"1": {"name": "x", "signing": "", "vrf": ""}, '),
        "unknown field": data.replace(b'"version": 2', b'"version": 2, "more": 1'),
        "no signature": data.replace(b'"signature": "', b'"signature": "zz'),
        "nothing": b"",
    }
    for change in altered.values():
        assert change != data
        with pytest.raises(InputError):
            SignedRegistry.from_bytes(change, authority.certificate)
    seen = authority.registry
    authority.revoke("alice", "")
    check_not_older(authority.registry, seen)
    with pytest.raises(InputError, match="version 2, but in version 3"):
        check_not_older(seen, authority.registry)
