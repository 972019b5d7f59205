"""A client whose reply is malformed counts as a dropout and is named; the sums of the others stay right.

The table of summing protocols: short names, names of third parties, and refused names.
"""

import msgspec
import pytest

from dordis.crypto.sharing import SHARE_BYTES
from dordis.errors import InputError
from dordis.pipeline import executor as drive
from dordis.protocols import SUMMING, summing_protocol
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    CollectInput,
    DeliverShares,
    RemoveNoise,
    ShareKeys,
    SharesDelivered,
    Unmask,
)
from tests.protocols.secagg.deviants import (
    DUE,
    IDS,
    KINDS,
    LIAR,
    OTHER,
    STAGE_5,
    P,
    another_chunk,
    change,
    check_dropout,
    check_sum,
    flipped,
    longer,
    losses_for,
    lying,
    out_of_range,
    shorter,
    without_first,
)

MALFORMED = {
    "channel key short": (AdvertiseKeys, change(channel=shorter)),
    "channel key long": (AdvertiseKeys, change(channel=longer)),
    "no channel key": (AdvertiseKeys, change(channel=lambda _: b"")),
    "masking keys short": (AdvertiseKeys, change(masking=shorter)),
    "masking key of one chunk missing": (AdvertiseKeys, change(masking=lambda keys: keys[:32])),
    "masking keys of three chunks": (AdvertiseKeys, change(masking=lambda keys: keys + bytes(32))),
    "token hashes long": (AdvertiseKeys, change(tokens=longer)),
    "a ciphertext missing": (ShareKeys, change(ciphertexts=without_first)),
    "a ciphertext for myself": (ShareKeys, change(ciphertexts=lambda c: c | {LIAR: b"x"})),
    "a ciphertext for a stranger": (ShareKeys, change(ciphertexts=lambda c: c | {99: b"x"})),
    "a ciphertext for a stranger instead": (ShareKeys, change(ciphertexts=lambda c: without_first(c) | {99: b"x"})),
    "no ciphertexts": (ShareKeys, change(ciphertexts=lambda _: {})),
    "a ciphertext short": (ShareKeys, change(ciphertexts=lambda c: c | {OTHER: shorter(c[OTHER])})),
    "a ciphertext empty": (ShareKeys, change(ciphertexts=lambda c: c | {OTHER: b""})),
    "hashes short": (ShareKeys, change(hashes=shorter)),
    "hashes long": (ShareKeys, change(hashes=lambda h: h + bytes(16))),
    "no hashes": (ShareKeys, change(hashes=lambda _: b"")),
    "commitments short": (ShareKeys, change(commitments=shorter)),
    "commitments long": (ShareKeys, change(commitments=lambda c: c + bytes(32))),
    "no commitments": (ShareKeys, change(commitments=lambda _: b"")),
    "accusation too long": (DeliverShares, change(accused=longer)),
    "accusation outside the clients": (DeliverShares, change(accused=lambda _: b"\x80")),
    "upload for another chunk": (CollectInput, change(chunk=another_chunk)),
    "upload for a negative chunk": (CollectInput, change(chunk=lambda _: -1)),
    "vector short": (CollectInput, change(vector=shorter)),
    "vector long": (CollectInput, change(vector=longer)),
    "vector empty": (CollectInput, change(vector=lambda _: b"")),
    "padding bits set": (CollectInput, change(vector=lambda v: v[:-1] + bytes([v[-1] | 0x80]))),
    "token wrong": (CollectInput, change(token=flipped)),
    "token long": (CollectInput, change(token=longer)),
    "token empty": (CollectInput, change(token=lambda _: b"")),
    "unmasking for another chunk": (Unmask, change(chunk=another_chunk)),
    "mask shares short": (Unmask, change(mask_shares=shorter)),
    "a mask share missing": (Unmask, change(mask_shares=lambda s: s[SHARE_BYTES:])),
    "a mask share too many": (Unmask, change(mask_shares=lambda s: s + bytes(SHARE_BYTES))),
    "mask share limb out of range": (Unmask, change(mask_shares=out_of_range)),
    "key shares of nobody": (Unmask, change(key_shares=lambda _: bytes(SHARE_BYTES))),
    "seed of no component": (Unmask, change(seeds=lambda s: s | {1: bytes(32)})),
    "seed of a negative component": (Unmask, change(seeds=lambda s: s | {-1: bytes(32)})),
    "noise shares for another chunk": (RemoveNoise, change(chunk=another_chunk)),
    "noise shares short": (RemoveNoise, change(shares=shorter)),
    "no noise shares": (RemoveNoise, change(shares=lambda _: b"")),
    "a noise share too many": (RemoveNoise, change(shares=lambda s: s + bytes(SHARE_BYTES))),
    "noise share limb out of range": (RemoveNoise, change(shares=out_of_range)),
}


@pytest.mark.parametrize(("kind", "lie"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reply_counts_as_a_dropout_and_names_its_sender(kind, lie):
    check_dropout(lying(kind, lie, losses=losses_for(kind)), kind)


GARBAGE = [b"", b"\xc1", b"\xff" * 20, b"\xdf\xff\xff\xff\xff", b"\x81\xa4type\xa7Nothing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("garbage", GARBAGE, ids=bytes.hex)
def test_bytes_that_are_no_message_count_as_a_dropout(kind, garbage):
    session = lying(kind, lambda _: msgspec.Raw(garbage), losses=losses_for(kind))
    check_dropout(session, kind)
    assert {u for u, _ in session.exchange.errors} == {LIAR}


def meddled(session, meddle):
    """Let `meddle` replace each reply by what it yields, after the codec: the server must take anything."""

    def exchange(requests):
        for u, reply in session.exchange(requests):
            yield from meddle(u, reply)

    return drive.run(session.server, exchange)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_of_another_kind_counts_as_a_dropout(kind):
    session = lying(kind, lambda reply: reply, losses=losses_for(kind))
    other = AdvertiseKeys(P)
    outputs = meddled(session, lambda u, r: [(u, other if u == LIAR and type(r) is kind.reply else r)])
    check_sum(session, outputs)
    assert (LIAR in outputs[0].survivors) == (kind in (Unmask, RemoveNoise))
    assert outputs[0].named == {LIAR}
    assert {*IDS} - {LIAR} <= {*outputs[0].survivors}


def test_an_unknown_client_and_a_second_reply_change_nothing():
    session = lying(Unmask, lambda reply: reply, losses=STAGE_5)

    def meddle(u, reply):
        yield 4, reply  # never asked
        yield -1, reply
        yield 10**30, reply
        yield u, reply
        yield u, reply
        yield u, SharesDelivered(b"")

    outputs = meddled(session, meddle)
    check_sum(session, outputs)
    assert all(output.survivors == IDS and not output.named and not output.stayed for output in outputs)


def test_replies_may_come_in_any_order():
    session = lying(Unmask, lambda reply: reply, losses=STAGE_5)
    outputs = drive.run(session.server, lambda requests: list(session.exchange(requests))[::-1])
    check_sum(session, outputs)
    assert outputs[0].survivors == IDS


def test_the_second_of_two_different_uploads_is_not_added():
    session = lying(Unmask, lambda reply: reply)

    def meddle(u, reply):
        yield u, reply
        if hasattr(reply, "vector"):
            yield u, msgspec.structs.replace(reply, vector=bytes(len(reply.vector)))

    check_sum(session, meddled(session, meddle))


def test_a_client_that_was_not_asked_at_this_stage_is_not_heard():
    """One that was lost at the upload answers Unmask nevertheless."""
    session = lying(Unmask, lambda reply: reply, losses=[(OTHER, "CollectInput", 0)])

    def meddle(u, reply):
        yield u, reply
        if u == LIAR and hasattr(reply, "mask_shares"):
            yield OTHER, reply

    outputs = meddled(session, meddle)
    check_sum(session, outputs)
    assert OTHER not in session.server.chunks[0].summing.u5


def test_a_seed_that_is_not_due_counts_as_a_dropout():
    for u in IDS:
        session = lying(Unmask, change(seeds=lambda s: s or {0: bytes(32)}), liars=[u])
        outputs = session.run()
        check_sum(session, outputs)
        assert (u in session.server.chunks[0].summing.u5) == (u in DUE)
        assert (u in outputs[1].named) == (not all(P.due(chunk, IDS)[u] for chunk in (0, 1)))


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_due_seed_of_the_wrong_length_counts_as_a_dropout_and_is_fetched(seed):
    liar = DUE[0]
    session = lying(Unmask, change(seeds=lambda s: dict.fromkeys(s, seed)), liars=[liar])
    outputs = session.run()
    check_sum(session, outputs)
    assert liar not in session.server.chunks[0].summing.u5
    assert outputs[0].named == {liar}
    assert not outputs[0].stayed


@pytest.mark.parametrize("alter", [lambda s: dict.fromkeys(s, bytes(32)), lambda _: {}], ids=["other seed", "no seed"])
def test_a_seed_that_does_not_match_its_commitment_is_fetched_from_the_peers(alter):
    asked = []
    session = lying(Unmask, change(seeds=alter), liars=DUE[:2])
    session.exchange._lost_request = lambda u, request: asked.append(type(request)) and False
    outputs = session.run()
    check_sum(session, outputs)
    assert RemoveNoise in asked
    assert all(not output.stayed for output in outputs)
    assert outputs[0].named == {*DUE[:2]}


@pytest.mark.parametrize("name", SUMMING)
def test_every_short_name_is_the_protocols_own(name):
    assert summing_protocol(name).name == name


def test_a_third_party_names_its_protocol_by_module():
    assert summing_protocol("dordis.protocols.secagg:SECAGG") is summing_protocol("secagg")


@pytest.mark.parametrize("name", ["secag", "dordis.protocols.secagg:NOTHING", "dordis.errors:InputError"])
def test_any_other_name_is_refused(name):
    with pytest.raises(InputError, match=r"protocol\.use"):
        summing_protocol(name)
