"""Requests: whoever asks has every key that is to be certified, and nothing of a request can be altered."""

import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from dordis.errors import InputError
from dordis.federation.certificates import new_tls_key
from dordis.federation.identity import PrivateKeys
from dordis.federation.registry import Keys
from dordis.federation.requests import LIMIT, new_request, read_request
from tests.federation.parties import drawn


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
