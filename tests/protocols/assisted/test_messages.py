"""The messages of an assisted round: roles, uploads and disclosures; derived values compared with their definitions.

No two kinds of statement have the same bytes.
"""

import hashlib
import hmac

import msgspec
import pytest

from dordis import wire
from dordis.crypto.suite import DEFAULT
from dordis.errors import MalformedMessage
from dordis.kernels.ring import unpack
from dordis.protocol import ClientId, Role
from dordis.protocols.assisted import ASSISTED, messages
from dordis.protocols.assisted.messages import (
    AgreeOnSurvivors,
    Introduce,
    OpenBoxes,
    Reveal,
    Revealed,
    SendContribution,
)
from dordis.protocols.assisted.parameters import EpochKey
from tests.protocols.assisted.parties import ROUND, RUN, Round
from tests.references import masks


def test_clients_are_asked_once_and_helpers_open_the_sum():
    assert ASSISTED.requests == (Introduce, SendContribution, OpenBoxes, AgreeOnSurvivors, Reveal)
    assert ASSISTED.stages == ("SendContribution",)
    assert [request.role for request in ASSISTED.requests] == [Role.HELPER, Role.CLIENT, *[Role.HELPER] * 3]
    assert [request for request in ASSISTED.requests if request.uploads] == [SendContribution]
    assert [request for request in ASSISTED.requests if request.discloses] == [Reveal]
    assert not ASSISTED.has_cohort


def test_messages_have_one_encoding():
    round = Round()
    for message in (
        Introduce(ROUND),
        SendContribution(round.parameters),
        round.clients[1].handle(SendContribution(round.parameters)),
        Reveal(ROUND, bytes(8), {1: bytes(64)}, {0: True, 2: False}),
        Revealed({2: bytes(32)}, {0: b""}, b"masks"),
    ):
        assert wire.carry(message, type(message)) == message
    with pytest.raises(MalformedMessage):
        wire.decode(wire.encode(Introduce(ROUND)) + b"\x00", Introduce)


SEED = bytes(range(32))


def hkdf(seed, info, length):
    """RFC 5869 with SHA-256 and no salt."""
    key, blocks = hmac.digest(bytes(32), seed, "sha256"), [b""]
    while len(b"".join(blocks)) < length:
        blocks.append(hmac.digest(key, blocks[-1] + info + bytes([len(blocks)]), "sha256"))
    return b"".join(blocks)[:length]


def test_masks_and_pieces_follow_from_the_seed_by_hkdf():
    parameters = Round().parameters
    hashed, name = parameters.digest, ROUND.hex().encode()
    stream = messages.mask_stream(DEFAULT, parameters, ClientId(5), 2, SEED)
    assert stream.key + stream.nonce == hkdf(SEED, b"dordis/v1/assisted-mask/%b/0/5/2" % name + hashed, 28)
    piece = messages.piece(parameters, 1, ClientId(5), 2, 3, SEED)
    assert piece == hkdf(SEED, b"dordis/v1/assisted-piece/%b/1/5/2/3" % name + hashed, 32)


def test_the_sum_of_masks_is_that_of_single_masks():
    parameters = Round().parameters
    seeds = {ClientId(u): hashlib.sha256(bytes([u])).digest() for u in range(1, 8)}
    streams = [messages.mask_stream(DEFAULT, parameters, u, 1, seed) for u, seed in seeds.items()]
    expected = masks.add_masks([0] * 30, [(stream.key, stream.nonce) for stream in streams], [], 20, 0)
    for threads in (1, 2):
        packed = messages.sum_masks(DEFAULT, parameters, 1, seeds, threads)
        assert unpack(packed, 20, 30).tolist() == expected


def test_every_part_of_a_value_is_in_its_digest():
    parameters, other = Round().parameters, Round(n_min=6).parameters
    digests = {
        messages.digest_value(which, rank, masks, pieces)
        for which, rank, masks, pieces in (
            (parameters, 0, b"ab", b"c"),
            (parameters, 0, b"a", b"bc"),
            (parameters, 1, b"ab", b"c"),
            (other, 0, b"ab", b"c"),
        )
    }
    assert len(digests) == 4


def test_due_pieces_are_those_of_the_noise_plan_in_order():
    round = Round(came=8)
    due = messages.due_pieces(round.parameters, tuple(round.inputs))
    assert list(due) == sorted(due)
    assert [chunk for chunk, _, _ in due] == [0] * 6 + [1] * 6
    assert due[:6] == [(0, u, k) for _, u, k in due[6:]]


def test_statements_differ_in_everything_that_they_state():
    round = Round()
    parameters, key = round.parameters, EpochKey(3, 3, 3, 10, bytes(32), b"")
    changed = [msgspec.structs.replace(key, **{name: 4}) for name in ("epoch", "first", "last", "not_after")]
    changed.append(msgspec.structs.replace(key, key=bytes([1]) * 32))
    other = [parameters, round.agree(n_min=6), round.agree(index=4), round.agree(run=bytes([1]) * 32)]
    said = [
        messages.header_statement(b"header"),
        messages.header_statement(b"another"),
        *(messages.epoch_key_statement(RUN, one) for one in (key, *changed)),
        messages.epoch_key_statement(bytes([1]) * 32, key),
        *(messages.survivors_statement(which, [bytes(32)]) for which in other),
        messages.survivors_statement(parameters, [bytes(32), bytes(32)]),
    ]
    assert len(set(said)) == len(said)
    assert all(one.startswith((34).to_bytes(8, "big") + b"dordis/v1/statement/assisted-") for one in said[2:9])
