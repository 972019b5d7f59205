"""Wrong keys and shares: their senders count as dropouts, or their receivers accuse them."""

import msgspec
import pytest

from dordis.crypto import agreement
from dordis.crypto.sharing import SHARE_BYTES
from dordis.crypto.suite import DEFAULT
from dordis.errors import (
    Aborted,
    ProtocolError,
    Unrecoverable,
)
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.masking import Channel, split_hashes
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    CollectInput,
    DeliverShares,
    ShareKeys,
)
from tests.protocols.rounds import Round, random_inputs
from tests.protocols.secagg.deviants import (
    LAST,
    LIAR,
    OTHER,
    THIRD,
    Deviant,
    Intercepted,
    P,
    change,
    check_dropout,
    flipped,
    longer,
    lying,
    out_of_range,
    shorter,
)

LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
]
"""Public keys with which every agreement is zero: 0, 1, p - 1, and a point of order 8."""


def keys_at(place, key):
    """Return a lie that puts a key in the place of the channel key, or of a chunk's masking key."""
    if place == "channel":
        return change(channel=lambda _: key)
    return change(masking=lambda keys: keys[: 32 * place] + key + keys[32 * (place + 1) :])


@pytest.mark.parametrize("key", LOW_ORDER, ids=["0", "1", "p-1", "order 8"])
@pytest.mark.parametrize("place", ["channel", 0, 1])
def test_a_low_order_key_counts_as_a_dropout(place, key):
    check_dropout(lying(AdvertiseKeys, keys_at(place, key)), AdvertiseKeys)


def one_key_twice(reply):
    return msgspec.structs.replace(reply, channel=reply.masking[:32])


def test_one_key_in_two_places_counts_as_a_dropout():
    check_dropout(lying(AdvertiseKeys, one_key_twice), AdvertiseKeys)


def test_a_copied_key_does_not_end_the_round():
    inputs = random_inputs(P, 5)
    shown = {}
    owner = Deviant(
        SecAggClient(OTHER, NoisyInput(inputs[OTHER])), AdvertiseKeys, lambda reply: shown.setdefault(OTHER, reply)
    )
    copycat = lying(AdvertiseKeys, change(channel=lambda _: shown[OTHER].channel)).clients[LIAR]
    Round(P, inputs, clients={OTHER: owner, LIAR: copycat}).run()


@pytest.mark.parametrize(
    "alter",
    [flipped, longer, shorter, lambda _: b"", lambda c: c[:16]],
    ids=["flipped", "longer", "shorter", "empty", "cut"],
)
def test_a_ciphertext_altered_in_transit_is_accused_and_the_accuser_does_not_upload(alter):
    inputs = random_inputs(P, 5)
    meddle = change(ciphertexts=lambda c: c | {LIAR: alter(c[LIAR])})
    victim = Intercepted(SecAggClient(OTHER, NoisyInput(inputs[OTHER])), DeliverShares, meddle)
    session = Round(P, inputs, clients={OTHER: victim})
    with pytest.raises(Unrecoverable) as failure:
        session.run()
    assert failure.value.accusations == {(LIAR, OTHER)}
    with pytest.raises(ProtocolError, match="accusation"):
        victim.handle(CollectInput(0))
    with pytest.raises(Aborted):
        victim.handle(CollectInput(1))
    assert not victim.state.secrets


@pytest.mark.parametrize("alter", [lambda s: s[SHARE_BYTES:], lambda s: s + bytes(SHARE_BYTES), out_of_range, shorter])
def test_shares_of_the_wrong_number_or_range_are_accused_though_they_open(alter):
    """The dealer encrypts well, but not what it should."""
    inputs = random_inputs(P, 5)
    dealer = SecAggClient(LIAR, NoisyInput(inputs[LIAR]))

    def meddle(request):
        keys = [dealer.state.advertisements[u].channel for u in (LIAR, OTHER)]
        channel = Channel(DEFAULT, P, LIAR, OTHER, keys, agreement.agree(dealer.state.channel, keys[1]))
        sealed, hashes = split_hashes(P, request.ciphertexts[LIAR])
        altered = channel.encrypt(alter(channel.decrypt(sealed))) + hashes
        return change(ciphertexts=lambda c: c | {LIAR: altered})(request)

    victim = Intercepted(SecAggClient(OTHER, NoisyInput(inputs[OTHER])), DeliverShares, meddle)
    with pytest.raises(Unrecoverable) as failure:
        Round(P, inputs, clients={OTHER: victim, LIAR: dealer}).run()
    assert failure.value.accusations == {(LIAR, OTHER)}


def test_a_ciphertext_that_its_sender_spoils_is_accused():
    session = lying(ShareKeys, change(ciphertexts=lambda c: c | {OTHER: flipped(c[OTHER])}))
    with pytest.raises(Unrecoverable) as failure:
        session.run()
    assert failure.value.accusations == {(LIAR, OTHER)}


def test_ciphertexts_exchanged_between_receivers_are_accused_by_both():
    session = lying(ShareKeys, change(ciphertexts=lambda c: c | {OTHER: c[THIRD], THIRD: c[OTHER]}))
    with pytest.raises(Unrecoverable) as failure:
        session.run()
    assert failure.value.accusations == {(LIAR, OTHER), (LIAR, THIRD)}


@pytest.mark.parametrize("accused", [LIAR, LAST], ids=["itself", "one outside U2"])
def test_an_accusation_that_cannot_be_true_names_the_accuser(accused):
    losses = [(LAST, "ShareKeys", -1)]
    session = lying(DeliverShares, change(accused=lambda _: P.pack([accused])), losses=losses)
    outputs = session.run()
    assert LIAR not in outputs[0].survivors
    assert outputs[0].named == {LIAR}
