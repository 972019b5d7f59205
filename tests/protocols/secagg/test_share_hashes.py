"""The hash of a share binds round, chunk, dealer, holder, place and every bit of the share."""

import pytest

from dordis.errors import MalformedMessage
from dordis.protocols.secagg.masking import (
    HASH_BYTES,
    encode_dealer,
    encode_holder,
    hashes_length,
    share_hash,
    share_hashes,
    shared_count,
    split_hashes,
)
from tests.protocols.secagg.deviants import P

SHARE = bytes(range(36))


def test_every_part_changes_the_hash():
    base = (encode_dealer(P, 0, 3), encode_holder(5, 0), SHARE)
    others = [
        (encode_dealer(P, 1, 3), encode_holder(5, 0), SHARE),
        (encode_dealer(P, 0, 8), encode_holder(5, 0), SHARE),
        (encode_dealer(P, 0, 3), encode_holder(8, 0), SHARE),
        (encode_dealer(P, 0, 3), encode_holder(5, 1), SHARE),
        (encode_dealer(P, 0, 3), encode_holder(5, 0), SHARE[:-1] + b"\0"),
    ]
    hashes = {share_hash(*parts) for parts in (base, *others)}
    assert len(hashes) == 6
    assert {len(value) for value in hashes} == {HASH_BYTES}


def test_hashes_follow_the_order_of_chunks_and_secrets():
    count, chunks = shared_count(P, 0), len(P.chunks)
    shares = [bytes([place]) * 36 for place in range(count * chunks)]
    hashes = share_hashes(P, 3, 5, b"".join(shares))
    assert len(hashes) == hashes_length(P)
    second = share_hash(encode_dealer(P, 1, 3), encode_holder(5, 0), shares[count])
    assert hashes[count * HASH_BYTES :][:HASH_BYTES] == second


def test_shares_of_unequal_length_are_refused():
    with pytest.raises(MalformedMessage, match="the same length"):
        share_hashes(P, 3, 5, bytes(shared_count(P, 0) * len(P.chunks) * 36 + 1))


@pytest.mark.parametrize("size", [0, 1, 100])
def test_hashes_are_the_end_of_what_a_dealer_sends(size):
    hashes = bytes(range(hashes_length(P)))
    assert split_hashes(P, b"c" * size + hashes) == (b"c" * size, hashes)


def test_what_is_shorter_than_the_hashes_has_no_ciphertext():
    assert split_hashes(P, b"short") == (b"", b"short")
