"""A helper: it erases keys, opens boxes, agrees on one U3 for each index, and reveals nothing before that."""

import hashlib

import msgspec
import pytest

from dordis.crypto import signature
from dordis.errors import InvalidSignature, ParametersRefused, ProtocolError, UnexpectedRequest
from dordis.protocol import ENCODER, ClientId
from dordis.protocols.assisted import AssistedHelper
from dordis.protocols.assisted.helper import KEYS_AHEAD, LIFETIME, HelperPolicy, MemoryStore
from dordis.protocols.assisted.messages import Entry, Introduce, OpenBoxes, header_statement
from dordis.protocols.parameters import SEMI_HONEST, unpack_words
from tests.protocols.assisted.parties import NOW, ROUND, RUN, Round, Served, secret


def test_the_keys_of_coming_rounds_are_the_same_whenever_asked_and_erased_when_a_later_round_begins():
    helper = Round().helpers[1]
    again = helper.handle(Introduce(ROUND))
    assert again == helper.handle(Introduce(ROUND))
    assert list(again.keys) == list(range(3, 3 + KEYS_AHEAD))
    later = helper.handle(Introduce(RUN + (5).to_bytes(8, "big")))
    assert later.keys[5] == again.keys[5]
    assert list(helper.handle(Introduce(ROUND)).keys) == [5, 6]


def test_a_helper_without_the_private_key_says_that_it_is_unable():
    served = Served()
    served.helpers[1].handle(Introduce(RUN + (4).to_bytes(8, "big")))
    assert served.open(1).unable
    expired = Served()
    expired.helpers[1]._clock = lambda: NOW + LIFETIME + 1
    assert expired.open(1).unable
    fresh = AssistedHelper(ClientId(1), secret=secret(b"helper", 1), registry=served.round.registry)
    assert fresh.handle(OpenBoxes(served.parameters, served.entries())).unable


def test_a_restarted_helper_opens_again_and_answers_for_the_same_u3_only():
    served = Served()
    store = MemoryStore()
    helper = served.helpers[1]
    store._values = helper._store._values
    served.open_all()
    signed = served.agree(1)
    restarted = AssistedHelper(
        ClientId(1), secret=secret(b"helper", 1), registry=served.round.registry, store=store, clock=lambda: NOW
    )
    served.helpers[1] = restarted
    with pytest.raises(UnexpectedRequest, match="send them first"):
        served.agree(1)
    served.open(1)
    with pytest.raises(UnexpectedRequest, match="another U3"):
        served.agree(1, [1, 2, 3, 4, 5])
    assert served.agree(1) == signed


def test_boxes_and_seeds_that_are_wrong_name_their_clients():
    served = Served()
    box = served.entries(1)[2].box
    bad = bytes([box[0] ^ 1]) + box[1:]
    header = msgspec.msgpack.decode(served.sent[2].header)
    with pytest.raises(ProtocolError, match="not the one in the header"):
        served.open(1, {2: msgspec.structs.replace(served.entries(1)[2], box=bad)})
    client = served.round.clients[2]
    header[5] = hashlib.sha256(bad).digest() + header[5][32:]
    encoded = ENCODER.encode(header)
    signed = signature.sign(client._signing, header_statement(encoded))
    reply = served.open(1, served.entries(1, [1]) | {2: Entry(encoded, signed, bad)})
    assert unpack_words(reply.named) == (2,)
    assert unpack_words(served.open(1, {2: Entry(encoded, signed, bad)}).named) == (2,)
    with pytest.raises(UnexpectedRequest, match="another header"):
        served.open(1, served.entries(1, [2]))


def test_a_u3_is_sorted_within_bounds_and_opened_here():
    served = Served(came=9)
    for h in (1, 2, 3, 4):
        served.open(h, served.entries(h, [1, 2, 3, 4, 5, 6, 7, 8]))
    for u3 in ([2, 1, 3, 4, 5], [1, 1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 9], list(range(1, 11))):
        with pytest.raises(ProtocolError):
            served.agree(1, u3)
    assert served.agree(1, [1, 2, 3, 4, 5]) == served.agree(1, [1, 2, 3, 4, 5])  # refusals used nothing up
    with pytest.raises(UnexpectedRequest):
        served.agree(1, [1, 2, 3, 4, 5, 6])


def test_nothing_is_revealed_before_u3_is_agreed_on_or_without_a_quorum():
    served = Served().open_all()
    with pytest.raises(UnexpectedRequest, match="before this helper agreed"):
        served.reveal(1, signatures={}, sets={0: False})
    signatures = {int(h): served.agree(h) for h in (1, 2, 3)}
    served.reveal(1, signatures=signatures)
    with pytest.raises(ProtocolError, match="no quorum"):
        served.reveal(1, signatures={1: signatures[1], 2: signatures[2]})
    with pytest.raises(InvalidSignature):
        served.reveal(1, signatures=signatures | {3: signatures[2]})
    with pytest.raises(ProtocolError, match="no quorum"):
        served.reveal(1, signatures={1: signatures[1], 2: signatures[2], 9: signatures[3]})
    foreign = next(rank for rank in range(4) if rank not in served.parameters.ranks[1])
    with pytest.raises(ProtocolError, match="not in"):
        served.reveal(1, signatures=signatures, sets={foreign: False})


def test_in_the_semi_honest_mode_the_first_u3_shown_is_the_only_one():
    served = Served(m=3, mode=SEMI_HONEST).open_all()
    first = served.reveal(1, signatures={})
    assert first == served.reveal(1, signatures={})
    with pytest.raises(UnexpectedRequest, match="another U3"):
        served.reveal(1, u3=[1, 2, 3, 4, 5], signatures={})


@pytest.mark.parametrize(
    "line",
    [
        {"runs": frozenset({"00"})}, {"clients": 6}, {"colluders": 2}, {"faulty": 2}, {"helpers": frozenset({1, 2, 3})},
        {"most_clients": 8}, {"most_coordinates": 200},
    ],
)  # fmt: skip
def test_a_helper_serves_only_in_rounds_that_its_policy_allows(line):
    served = Served()
    served.helpers[1]._policy = HelperPolicy(**line)
    with pytest.raises(ParametersRefused, match=f"line '{next(iter(line))}'"):
        served.open(1)
    served.helpers[1]._policy = HelperPolicy(runs=frozenset({RUN.hex()}), helpers=frozenset(range(1, 9)))
    assert not served.open(1).named


def test_other_parameters_under_the_same_index_are_refused():
    served = Served().open_all()
    with pytest.raises(UnexpectedRequest, match="other parameters"):
        served.helpers[1].handle(OpenBoxes(served.round.agree(n_min=6), {}))


def test_a_later_round_of_one_run_leaves_the_open_round_of_another_alone():
    served = Served().open_all()
    helper = served.helpers[1]
    helper.handle(Introduce(bytes([1]) * 32 + (9).to_bytes(8, "big")))  # greater, as bytes, than every round of RUN
    assert served.agree(1)
    helper.handle(Introduce(RUN + (4).to_bytes(8, "big")))
    with pytest.raises(UnexpectedRequest, match="send them first"):
        served.agree(1)


def test_all_private_halves_before_the_index_are_erased_however_far_it_is():
    helper = Round().helpers[1]
    helper.handle(Introduce(RUN + (100).to_bytes(8, "big")))
    assert helper._store.keys("epoch/") == [f"epoch/{RUN.hex()}/{epoch}" for epoch in range(100, 100 + KEYS_AHEAD)]


def test_any_request_erases_private_halves_and_seeds_past_not_after():
    served = Served().open_all()
    helper = served.helpers[1]
    assert len(helper._store.keys(f"epoch/{RUN.hex()}/")) == KEYS_AHEAD
    helper._clock = lambda: NOW + LIFETIME
    helper.handle(Introduce(bytes([1]) * 32 + (9).to_bytes(8, "big")))
    assert not helper._store.keys(f"epoch/{RUN.hex()}/")
    with pytest.raises(UnexpectedRequest, match="send them first"):
        served.agree(1)
    assert not helper.handle(Introduce(ROUND)).keys  # and a key is never signed twice for an epoch
