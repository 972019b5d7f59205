"""Key files and certificates: what belongs together is read, everything else is refused in one clear line."""

import os
import stat
from datetime import timedelta

import pytest

from dordis.crypto import signature, vrf
from dordis.errors import InputError, LoginRefused
from dordis.identity import certificates
from dordis.identity.certificates import certified_client
from dordis.identity.keys import load_client_credentials, load_keys, load_server_credentials, save_keys
from tests.runs.parties import LATER, NOW, authority_at, drawn, joined


@pytest.fixture
def authority(tmp_path):
    return authority_at(tmp_path / "federation")


@pytest.fixture
def alice(tmp_path, authority):
    return joined(authority, tmp_path / "alice.key")


def refused(path, match, now=NOW, load=load_client_credentials):
    with pytest.raises((InputError, LoginRefused), match=match) as refusal:
        load(path, now)
    assert "\n" not in str(refusal.value)


def test_keys_are_read_as_they_were_written_and_hide_themselves(tmp_path):
    keys = drawn()
    save_keys(tmp_path / "a.key", keys)
    again = load_keys(tmp_path / "a.key")
    assert (again.keys.signing, again.keys.vrf) == (keys.keys.signing, keys.keys.vrf)
    assert again.tls.private_numbers() == keys.tls.private_numbers()
    assert repr(again) == "<PrivateKeys>"


def test_a_key_file_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        save_keys(tmp_path / "a.key", drawn())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_a_key_file_is_never_replaced(tmp_path):
    save_keys(tmp_path / "a.key", drawn())
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(InputError, match="already"):
        save_keys(tmp_path / "a.key", drawn())
    assert (tmp_path / "a.key").read_bytes() == before


def test_a_client_is_its_id_and_its_keys_bound_in_its_certificate(alice):
    own = load_client_credentials(alice, NOW)
    bound = certified_client(own.certificate)
    assert (own.client, own.name, bound.client) == (1, "alice", 1)
    assert bound.identity.signing == signature.public_key(own.keys.signing)
    assert bound.identity.vrf == vrf.public_key(own.keys.vrf)
    assert "keys" not in repr(own).replace("alice.key", "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_key_file_that_others_can_read_or_write_is_refused(alice, mode):
    alice.chmod(mode)
    refused(alice, "chmod 600")


def test_files_that_do_not_belong_together_are_refused(tmp_path, authority, alice):
    bob = joined(authority, tmp_path / "bob.key")
    mine, his = alice.with_suffix(".cert"), bob.with_suffix(".cert")
    pem = mine.read_bytes()
    mine.write_bytes(his.read_bytes())
    refused(alice, "is not for the key in")
    other = authority_at(tmp_path / "other").certificate
    mine.write_bytes(pem.split(b"-----END CERTIFICATE-----\n")[0] + b"-----END CERTIFICATE-----\n")
    refused(alice, "not what dordis keys approve writes")
    mine.write_bytes(mine.read_bytes() + certificates.to_pem(other))
    refused(alice, "another federation")
    mine.unlink()
    refused(alice, "alice.request approved")


def test_protocol_keys_other_than_the_certificate_binds_are_refused(tmp_path, alice):
    own = load_keys(alice)
    alice.unlink()
    save_keys(alice, type(own)(own.tls, drawn().keys))
    refused(alice, "other signing or VRF keys")


def test_a_certificate_is_valid_from_a_day_before_until_its_end(alice):
    assert load_client_credentials(alice, NOW - timedelta(hours=23)).client == 1
    assert load_client_credentials(alice, NOW + timedelta(days=364)).client == 1
    refused(alice, "not valid before 2030-04-30", NOW - timedelta(hours=25))
    refused(alice, "expired on 2031-05-01", LATER)


def test_a_client_is_no_server_and_a_server_no_client(tmp_path, authority, alice):
    server = joined(authority, tmp_path / "server.key", hosts=("localhost", "127.0.0.1"))
    assert load_server_credentials(server, NOW).name == "server"
    refused(server, "not one of a client")
    refused(alice, "not one of a server", load=load_server_credentials)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data.replace(b"VRF", b"FRV"),
        lambda data: data.replace(b"-----BEGIN PRIVATE KEY-----\n", b"-----BEGIN PRIVATE KEY-----\nA"),
        lambda data: data[:-60],
        lambda data: b"\xff" + data[90:],
    ],
)
def test_a_damaged_key_file_is_refused_without_a_word_of_its_content(alice, damage):
    secrets = [line for line in alice.read_text().splitlines() if not line.startswith("-")]
    alice.write_bytes(damage(alice.read_bytes()))
    with pytest.raises(InputError, match="not a key file of dordis") as refusal:
        load_keys(alice)
    assert not any(secret in str(refusal.value) for secret in secrets)
    assert refusal.value.__suppress_context__


def test_a_missing_key_file_and_a_directory_are_refused(tmp_path):
    refused(tmp_path / "nobody.key", "cannot read the key file")
    (tmp_path / "folder.key").mkdir(0o700)
    refused(tmp_path / "folder.key", "is not a file")
    with pytest.raises(InputError, match=r"ends with \.key"):
        save_keys(tmp_path / "alice", drawn())
