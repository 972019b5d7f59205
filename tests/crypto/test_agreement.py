"""X25519: the vectors of RFC 7748, every point of low order, wrong lengths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import agreement
from dordis.errors import InputError, InvalidKey

PRIVATE = bytes(range(32))
PRIME = 2**255 - 19
ORDER_EIGHT = (
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
)
# All u-coordinates of low order below 2^255, the non-canonical p and p + 1 among them.
LOW_ORDER = [
    *(u.to_bytes(32, "little") for u in (0, 1, PRIME - 1, PRIME, PRIME + 1)),
    *map(bytes.fromhex, ORDER_EIGHT),
]


def with_top_bit(u: bytes) -> bytes:
    """Return an encoding that X25519 reads as the same number."""
    return u[:31] + bytes([u[31] | 0x80])


@pytest.mark.parametrize(
    ("scalar", "u", "product"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_products_meet_rfc7748_section_5_2(scalar, u, product):
    assert agreement.agree(bytes.fromhex(scalar), bytes.fromhex(u)).hex() == product


def test_a_thousand_iterations_meet_rfc7748_section_5_2():
    k = u = bytes([9]) + bytes(31)
    for _ in range(1000):
        k, u = agreement.agree(k, u), k
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_agreement_meets_rfc7748_section_6_1():
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    of_alice, of_bob = agreement.public_key(alice), agreement.public_key(bob)
    assert of_alice.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert of_bob.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert agreement.agree(alice, of_bob).hex() == agreement.agree(bob, of_alice).hex() == shared


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
@settings(max_examples=30, deadline=None)
def test_both_sides_agree(mine, theirs):
    assert agreement.agree(mine, agreement.public_key(theirs)) == agreement.agree(theirs, agreement.public_key(mine))


@pytest.mark.parametrize("u", LOW_ORDER + [with_top_bit(u) for u in LOW_ORDER], ids=bytes.hex)
def test_points_of_low_order_are_refused(u):
    with pytest.raises(InvalidKey):
        agreement.agree(PRIVATE, u)


@pytest.mark.parametrize("place", [0, 15, 30])
def test_an_altered_byte_changes_the_shared_secret(place):
    peer = bytearray(agreement.public_key(bytes([7]) * 32))
    before = agreement.agree(PRIVATE, bytes(peer))
    peer[place] ^= 1
    assert agreement.agree(PRIVATE, bytes(peer)) != before


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_wrong_lengths_are_refused(size):
    peer = agreement.public_key(PRIVATE)
    for call in (lambda: agreement.public_key(bytes(size)), lambda: agreement.agree(bytes(size), peer)):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError):
        agreement.generate(lambda _: bytes(size))
    with pytest.raises(InvalidKey):
        agreement.agree(PRIVATE, bytes([9]) * size)


def test_keys_come_from_the_given_entropy():
    assert agreement.generate(lambda size: b"\x05" * size) == b"\x05" * 32
    assert agreement.generate() != agreement.generate()


def test_validation_refuses_low_order_points_and_all_but_the_canonical_form():
    for point in LOW_ORDER:
        for top in (0, 0x80):
            with pytest.raises(InvalidKey):
                agreement.validate(point[:-1] + bytes([point[-1] | top]))
    public = agreement.public_key(PRIVATE)
    agreement.validate(public)
    for other in (public[:-1] + bytes([public[-1] | 0x80]), (PRIME + 9).to_bytes(32, "little")):
        with pytest.raises(InvalidKey, match="canonical"):
            agreement.validate(other)
