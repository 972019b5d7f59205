"""AES-256-GCM: a published vector, every alteration refused, wrong lengths."""

import pytest

from dordis.crypto import cipher
from dordis.errors import DecryptionFailed, InputError

KEY, NONCE, PLAINTEXT, ASSOCIATED = bytes(range(32)), bytes(range(12)), b"share of a seed", b"round 1, 2 to 3"


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_encryption_meets_test_case_16_of_the_gcm_specification():
    sealed = cipher.encrypt(
        bytes.fromhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"),
        bytes.fromhex("cafebabefacedbaddecaf888"),
        bytes.fromhex(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        ),
        bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
    )
    assert sealed.hex() == (
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )


@pytest.mark.parametrize("plaintext", [b"", PLAINTEXT, bytes(5000)])
def test_decryption_undoes_encryption(plaintext):
    sealed = cipher.encrypt(KEY, NONCE, plaintext, ASSOCIATED)
    assert len(sealed) == len(plaintext) + cipher.TAG_BYTES
    assert cipher.decrypt(KEY, NONCE, sealed, ASSOCIATED) == plaintext


def test_an_altered_byte_anywhere_is_refused():
    arguments = [KEY, NONCE, cipher.encrypt(KEY, NONCE, PLAINTEXT, ASSOCIATED), ASSOCIATED]
    for which, argument in enumerate(arguments):
        for place in range(len(argument)):
            altered = arguments.copy()
            altered[which] = flipped(argument, place)
            with pytest.raises(DecryptionFailed):
                cipher.decrypt(*altered)


def test_a_cut_or_longer_ciphertext_is_refused():
    sealed = cipher.encrypt(KEY, NONCE, PLAINTEXT, ASSOCIATED)
    for wrong in (b"", sealed[:15], sealed[:-1], sealed[1:], sealed + b"\x00"):
        with pytest.raises(DecryptionFailed):
            cipher.decrypt(KEY, NONCE, wrong, ASSOCIATED)


@pytest.mark.parametrize(("key", "nonce"), [(0, 12), (16, 12), (31, 12), (33, 12), (32, 0), (32, 11), (32, 16)])
def test_wrong_lengths_are_refused(key, nonce):
    for function in (cipher.encrypt, cipher.decrypt):
        with pytest.raises(InputError):
            function(bytes(key), bytes(nonce), bytes(32), b"")
