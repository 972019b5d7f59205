"""Ed25519: the vectors of RFC 8032, alterations, keys of low order with signatures forged for them."""

from hashlib import sha512

import pytest

from dordis.crypto import signature
from dordis.errors import InputError, InvalidKey, InvalidSignature
from tests.references import ecvrf as curve

PRIVATE, MESSAGE = bytes(range(32)), b"advertised keys"
PUBLIC = signature.public_key(PRIVATE)
LOW_ORDER = curve.low_order_encodings()

RFC8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("private", "public", "message", "expected"), [tuple(map(bytes.fromhex, case)) for case in RFC8032]
)
def test_signatures_meet_rfc8032_section_7_1(private, public, message, expected):
    assert signature.public_key(private) == public
    assert signature.sign(private, message) == expected
    signature.validate(public)
    signature.verify(public, message, expected)


def test_an_altered_message_or_signature_is_refused():
    good = signature.sign(PRIVATE, MESSAGE)
    for place in range(len(MESSAGE)):
        with pytest.raises(InvalidSignature):
            signature.verify(PUBLIC, flipped(MESSAGE, place), good)
    for place in range(len(good)):
        with pytest.raises(InvalidSignature):
            signature.verify(PUBLIC, MESSAGE, flipped(good, place))


def test_an_altered_key_is_refused():
    good = signature.sign(PRIVATE, MESSAGE)
    for place in range(len(PUBLIC)):
        with pytest.raises((InvalidSignature, InvalidKey)):
            signature.verify(flipped(PUBLIC, place), MESSAGE, good)


def test_the_other_s_of_the_same_signature_is_refused():
    good = signature.sign(PRIVATE, MESSAGE)
    other = (int.from_bytes(good[32:], "little") + curve.Q).to_bytes(32, "little")
    with pytest.raises(InvalidSignature):
        signature.verify(PUBLIC, MESSAGE, good[:32] + other)


def forged(key: bytes) -> bytes:
    """Make (R, S) = ([S]B, S) satisfy [S]B = R + [h]A without a private key: h = 0 mod 8 cancels A of low order."""
    for s in range(1, 1000):
        R = curve.encode(curve.multiply(s, curve.BASE))
        if curve.little(sha512(R + key + MESSAGE).digest()) % curve.Q % 8 == 0:
            return R + s.to_bytes(32, "little")
    raise AssertionError("no such S")


@pytest.mark.parametrize("key", LOW_ORDER, ids=bytes.hex)
def test_a_key_of_low_order_is_refused_even_where_the_equation_holds(key):
    with pytest.raises(InvalidKey):
        signature.verify(key, MESSAGE, forged(key))
    with pytest.raises(InvalidKey):
        signature.validate(key)


def test_validate_refuses_keys_with_a_component_of_low_order():
    point = curve.decode(PUBLIC)
    for extra in curve.torsion():
        with pytest.raises(InvalidKey):
            signature.validate(curve.encode(curve.add(point, extra)))


def test_validate_refuses_what_is_no_point():
    with pytest.raises(InvalidKey):
        signature.validate(b"\x02" + bytes(31))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_wrong_lengths_are_refused(size):
    good = signature.sign(PRIVATE, MESSAGE)
    for call in (
        lambda: signature.public_key(bytes(size)),
        lambda: signature.sign(bytes(size), MESSAGE),
        lambda: signature.generate(lambda _: bytes(size)),
    ):
        with pytest.raises(InputError):
            call()
    for call in (lambda: signature.validate(bytes(size)), lambda: signature.verify(bytes(size), MESSAGE, good)):
        with pytest.raises(InvalidKey):
            call()


def test_bytes_moved_between_signature_and_message_are_refused():
    good = signature.sign(PRIVATE, MESSAGE)
    for cut in (0, 63, 65):
        whole = good + MESSAGE
        with pytest.raises(InvalidSignature):
            signature.verify(PUBLIC, whole[cut:], whole[:cut])


def test_keys_come_from_the_given_entropy():
    assert signature.generate(lambda size: b"\x05" * size) == b"\x05" * 32
    assert signature.generate() != signature.generate()
