"""Derivations of SecAgg: pairwise masks cancel, channels carry one message one way, commitments bind their use."""

import numpy as np
import pytest

from dordis.crypto import agreement
from dordis.crypto.suite import DEFAULT
from dordis.errors import DecryptionFailed, MalformedMessage
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.secagg import masking
from dordis.protocols.secagg.masking import Secrets
from dordis.protocols.secagg.unmasking import remove_masks
from tests.protocols.secagg.deviants import IDS, P

CHUNK = 1
SIZE = 6


def make_secrets(u):
    return Secrets(agreement.generate(), bytes([u]) * 32, b"", IssuedSecrets((), ()))


SECRETS = {u: make_secrets(u) for u in IDS}
PUBLIC = {u: agreement.public_key(own.masking) for u, own in SECRETS.items()}


def masked(u, peers):
    y = np.zeros(SIZE, np.uint32)
    masking.add_masks(DEFAULT, y, P, CHUNK, u, SECRETS[u], {v: PUBLIC[v] for v in peers if v != u})
    return y


def reduced(vector):
    return vector & np.uint32(2**P.bits - 1)


def test_masks_of_all_clients_are_removed_by_their_seeds():
    total = sum((masked(u, IDS) for u in IDS), np.zeros(SIZE, np.uint32))
    assert reduced(total).any()
    seeds = {u: own.self_mask for u, own in SECRETS.items()}
    remove_masks(DEFAULT, total, P, CHUNK, {}, seeds, PUBLIC)
    assert not reduced(total).any()


def test_masks_with_a_lost_client_are_removed_by_its_key():
    lost, *there = IDS
    total = sum((masked(u, IDS) for u in there), np.zeros(SIZE, np.uint32))
    seeds = {u: SECRETS[u].self_mask for u in there}
    remove_masks(DEFAULT, total, P, CHUNK, {lost: SECRETS[lost].masking}, seeds, {u: PUBLIC[u] for u in there})
    assert not reduced(total).any()


def test_a_channel_opens_in_its_direction_and_under_its_keys_only():
    keys, shared = [b"a" * 32, b"b" * 32], b"s" * 32
    sealed = masking.Channel(DEFAULT, P, 3, 5, keys, shared).encrypt(b"shares")
    assert masking.Channel(DEFAULT, P, 3, 5, keys, shared).decrypt(sealed) == b"shares"
    for sender, receiver, bound in ((5, 3, keys), (3, 8, keys), (3, 5, keys[::-1])):
        with pytest.raises(DecryptionFailed):
            masking.Channel(DEFAULT, P, sender, receiver, bound, shared).decrypt(sealed)


def test_commitments_differ_by_chunk_client_and_place_and_hide_nothing_twice():
    secret = b"s" * 32
    made = [masking.commitments(P, chunk, u, secret, [secret, secret]) for chunk in (0, 1) for u in (3, 5)]
    made += [(masking.token_hash(P, chunk, u, secret),) for chunk in (0, 1) for u in (3, 5)]
    flat = [value for values in made for value in values]
    assert len({*flat}) == len(flat) == 16


@pytest.mark.parametrize("size", [63, 65, 0])
def test_a_concatenation_of_another_length_is_refused(size):
    with pytest.raises(MalformedMessage, match="2 items of 32 bytes"):
        masking.split(bytes(size), 32, 2)
    assert masking.split(b"a" * 32 + b"b" * 32, 32, 2) == (b"a" * 32, b"b" * 32)
