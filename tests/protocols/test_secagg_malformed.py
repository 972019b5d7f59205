"""Whoever deviates is a dropout and is named, or is refused; nobody crashes, and honest sums stay right."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from dordis import drive, wire
from dordis.crypto import agreement, sharing
from dordis.crypto.sharing import SHARE_BYTES
from dordis.crypto.suite import DEFAULT
from dordis.errors import (
    Aborted,
    InvalidKey,
    MalformedMessage,
    ProtocolError,
    TooFewClients,
    TooManyDropouts,
    UnexpectedRequest,
    Unrecoverable,
)
from dordis.privacy.xnoise import Scheme
from dordis.protocol import MemoryJournal
from dordis.protocols.distributed_noise import NoisyInput
from dordis.protocols.parameters import agree_on
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.masking import Channel
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    CollectInput,
    DeliverShares,
    RemoveNoise,
    ShareKeys,
    SharesDelivered,
    Unmask,
)
from dordis.protocols.secagg.share_hashes import split_hashes
from tests.crypto.suites import like
from tests.protocols.rounds import Round, random_inputs

IDS = (3, 5, 8, 13, 21, 34, 55)
LIAR, OTHER, THIRD, LAST = 13, 5, 34, 55
P = agree_on(
    run=bytes(32), index=9, clients=IDS, threshold=3, tolerance=3, bits=13, ends=[5, 11],
    scheme=Scheme.SINGLE, variances=[50, 70],
)  # fmt: skip
DUE = [u for u, ks in P.due(0, IDS).items() if ks]
OWING = next(u for u in DUE if u not in (LIAR, OTHER, THIRD))
"""A client whose seed is due in chunk 0 if all upload: lost at Unmask, it makes stage 5 take place."""
STAGE_5 = ((OWING, "Unmask", 0),)
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
]
"""Public keys with which every agreement is zero: 0, 1, p - 1, and a point of order 8."""


class Deviant:
    """A client that answers honestly, except that `lie` alters its replies to one kind of request."""

    def __init__(self, client, kind, lie):
        self.client = client
        self._kind, self._lie = kind, lie

    @property
    def state(self):
        return self.client.state

    def handle(self, request):
        reply = self.client.handle(request)
        return self._lie(reply) if type(request) is self._kind else reply


def change(**fields):
    """Return a lie that replaces fields by functions of the honest ones; maps stay in the order of their keys."""

    def lie(message):
        altered = {name: alter(getattr(message, name)) for name, alter in fields.items()}
        return msgspec.structs.replace(message, **{name: in_order(value) for name, value in altered.items()})

    return lie


def in_order(value):
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def lying(kind, lie, liars=(LIAR,), losses=()):
    inputs = random_inputs(P, 5)
    deviants = {u: Deviant(SecAggClient(u, NoisyInput(inputs[u])), kind, lie) for u in liars}
    return Round(P, inputs, losses, clients=deviants)


def check_sum(session, outputs):
    for output, expected in zip(outputs, session.expected(outputs), strict=True):
        assert np.array_equal(output.total, expected)


def check_dropout(session, kind):
    """The liar is counted as lost at that stage and is named, nobody else is, and the sums are right."""
    outputs = session.run()
    check_sum(session, outputs)
    first = outputs[0]
    assert first.named == {LIAR}
    assert not first.stayed
    if kind in (AdvertiseKeys, ShareKeys, DeliverShares):
        assert all(LIAR not in output.survivors for output in outputs)
    else:
        assert (LIAR in first.survivors) == (kind is not CollectInput)
    assert {*IDS} - {LIAR} <= {*first.survivors}
    if kind is Unmask:
        assert LIAR not in session.server.chunks[0].summing.u5


def flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


def longer(data):
    return data + bytes(1)


def shorter(data):
    return data[:-1]


def out_of_range(shares):
    return b"\xff\xff\xff\x7f" + shares[4:]


def another_chunk(chunk):
    return chunk + 1


def without_first(mapping):
    return dict(list(mapping.items())[1:])


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


def losses_for(kind):
    return STAGE_5 if kind is RemoveNoise else ()


@pytest.mark.parametrize(("kind", "lie"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reply_counts_as_a_dropout_and_names_its_sender(kind, lie):
    check_dropout(lying(kind, lie, losses=losses_for(kind)), kind)


KINDS = [AdvertiseKeys, ShareKeys, DeliverShares, CollectInput, Unmask, RemoveNoise]
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


def wrong_shares(*places):
    """Return a function that makes the shares at these places wrong, but well-formed."""

    def alter(shares):
        data = bytearray(shares)
        for place in places:
            data[SHARE_BYTES * place] ^= 1
        return bytes(data)

    return alter


@pytest.mark.parametrize("liars", [(LIAR,), (LIAR, OTHER), (LIAR, OTHER, THIRD, LAST)])
def test_wrong_shares_are_left_out_and_their_holders_named(liars):
    """Seven answers, t = 3: four wrong shares of each secret are survived."""
    session = lying(Unmask, change(mask_shares=wrong_shares(0, 4)), liars)
    outputs = session.run()
    check_sum(session, outputs)
    assert all(output.named == {*liars} for output in outputs)


def test_every_holder_may_lie_about_another_dealer():
    """What else a liar shows fits, and is used."""
    inputs = random_inputs(P, 5)
    deviants = {
        u: Deviant(SecAggClient(u, NoisyInput(inputs[u])), Unmask, change(mask_shares=wrong_shares(place)))
        for place, u in enumerate(IDS)
    }
    session = Round(P, inputs, clients=deviants)
    outputs = session.run()
    check_sum(session, outputs)
    assert outputs[0].named == {*IDS}


def test_wrong_shares_of_a_lost_key_are_left_out_and_their_holder_named():
    losses = [(OTHER, "CollectInput", 0), (THIRD, "CollectInput", 0)]
    session = lying(Unmask, change(key_shares=lambda s: wrong_shares(1)(s) if s else s), losses=losses)
    outputs = session.run()
    check_sum(session, outputs)
    assert outputs[0].named == {LIAR}


@pytest.mark.parametrize("liars", [(LIAR, OTHER, THIRD, LAST, IDS[0]), IDS])
def test_more_wrong_shares_end_the_round_and_name_their_holders(liars):
    session = lying(Unmask, change(mask_shares=wrong_shares(2)), liars)
    with pytest.raises(TooFewClients) as failure:
        session.run()
    assert failure.value.named == {*liars}
    assert not failure.value.accusations


def test_one_wrong_share_among_the_fewest_answers_ends_the_round_and_names_its_holder():
    """With just t answers one liar ends the round; the dealer of the share is not to blame for that."""
    losses = [(u, "Unmask", 0) for u in IDS if u not in (LIAR, OTHER, THIRD)]
    session = lying(Unmask, change(mask_shares=wrong_shares(0)), losses=losses)
    with pytest.raises(TooFewClients) as failure:
        session.run()
    assert failure.value.named == {LIAR}
    assert failure.value.answered == 2


class TwoFacedDealer(Deviant):
    """A dealer that shares its secrets twice and gives some holders the shares of the second sharing, with hashes."""

    def __init__(self, client, fooled, hashed=True):
        super().__init__(client, ShareKeys, lambda reply: reply)
        self.fooled, self.hashed = fooled, hashed

    def handle(self, request):
        if not isinstance(request, ShareKeys):
            return self.client.handle(request)
        double = SecAggClient(
            self.client.me, self.client.input, journal=MemoryJournal(), state=deepcopy(self.client.state)
        )
        reply, other = self.client.handle(request), double.handle(request)
        mixed = {v: (other if v in self.fooled else reply).ciphertexts[v] for v in reply.ciphertexts}
        if not self.hashed:
            mixed = {v: split_hashes(P, mixed[v])[0] + split_hashes(P, reply.ciphertexts[v])[1] for v in mixed}
        return msgspec.structs.replace(reply, ciphertexts=mixed)


FOOLED = [(OTHER,), (OTHER, THIRD), (THIRD, LAST), (3, 5, 8, 21)]


@pytest.mark.parametrize("fooled", FOOLED)
@pytest.mark.parametrize("lost", [False, True], ids=["survives", "is lost"])
def test_a_dealer_that_shares_inconsistently_is_named_alone_if_that_ends_the_round(fooled, lost):
    """The first three that answer rebuild the secret: 3, 5 and 8, if they have shares of one sharing."""
    inputs = random_inputs(P, 6)
    dealer = TwoFacedDealer(SecAggClient(LIAR, NoisyInput(inputs[LIAR])), fooled)
    losses = [(LIAR, "CollectInput", chunk) for chunk in (0, 1)] if lost else []
    session = Round(P, inputs, losses, clients={LIAR: dealer})
    outcome = session.outcome()
    if len({3, 5, 8}.intersection(fooled)) in (0, 3):
        check_sum(session, outcome)
        assert not outcome[0].named
    else:
        assert isinstance(outcome, Unrecoverable)
        assert outcome.named == {LIAR}
        assert not outcome.accusations


@pytest.mark.parametrize("fooled", FOOLED)
def test_a_dealer_whose_shares_do_not_fit_its_hashes_is_accused_by_everyone_it_fooled(fooled):
    inputs = random_inputs(P, 6)
    dealer = TwoFacedDealer(SecAggClient(LIAR, NoisyInput(inputs[LIAR])), fooled, hashed=False)
    outcome = Round(P, inputs, clients={LIAR: dealer}).outcome()
    assert isinstance(outcome, Unrecoverable)
    assert outcome.accusations == {(LIAR, holder) for holder in fooled}
    assert not outcome.named


@pytest.mark.parametrize("limbs", [0, 8])
def test_a_dealer_whose_fitting_shares_give_no_secret_at_all_is_named(limbs):
    """A polynomial whose constant term is no limb: nobody sees that in a share."""
    inputs = random_inputs(P, 6)
    suite = replace(DEFAULT, sharing=like(sharing, split=partial(out_of_range_secret, limbs)))
    outcome = Round(P, inputs, clients={LIAR: SecAggClient(LIAR, NoisyInput(inputs[LIAR]), suite=suite)}).outcome()
    assert isinstance(outcome, Unrecoverable)
    assert outcome.named == {LIAR}


def out_of_range_secret(limb, secrets, points, threshold, entropy):
    """Share a constant term that is larger than a limb can be, at all limbs from one on."""
    shares = sharing.split(secrets, points, threshold, entropy)
    shares[:, :, limb] = sharing.PRIME - 1  # a constant polynomial
    return shares


def test_a_dealer_that_commits_to_another_self_mask_ends_the_round_and_is_blamed():
    session = lying(ShareKeys, change(commitments=flipped))
    with pytest.raises(Unrecoverable) as failure:
        session.run()
    assert failure.value.named == {LIAR}


def test_a_dealer_that_commits_to_another_noise_seed_keeps_its_noise_in_the_sum():
    """Its seed cannot be checked, so it stays, is recorded and blamed; the privacy charged is the same."""
    liar = DUE[0]
    session = lying(ShareKeys, change(commitments=lambda c: c[:32] + flipped(c[32:])), liars=[liar])
    outputs = session.run()
    check_sum(session, outputs)
    assert outputs[0].stayed == {liar: (0,)}
    assert outputs[0].left > outputs[0].charged >= P.plans[0].variance
    assert outputs[0].named == {liar}


class TwoKeyed(Deviant):
    """A client that advertises a masking key whose private half is not the one it shares."""

    def __init__(self, client, other):
        super().__init__(client, AdvertiseKeys, lambda reply: reply)
        self.other = other

    def handle(self, request):
        if isinstance(request, AdvertiseKeys):
            self.honest = self.client.handle(request)
            return msgspec.structs.replace(self.honest, masking=self.other)
        if isinstance(request, ShareKeys):
            request = keys_of(self.client.me, masking=self.honest.masking)(request)
        return self.client.handle(request)


def test_a_lost_client_whose_shared_key_is_not_the_advertised_one_ends_the_round_and_is_blamed():
    inputs = random_inputs(P, 6)
    donor = SecAggClient(LIAR, NoisyInput(inputs[LIAR]))
    other = donor.handle(AdvertiseKeys(P)).masking
    session = Round(
        P,
        inputs,
        [(LIAR, "CollectInput", 0)],
        clients={LIAR: TwoKeyed(SecAggClient(LIAR, NoisyInput(inputs[LIAR])), other)},
    )
    with pytest.raises(Unrecoverable) as failure:
        session.run()
    assert failure.value.named == {LIAR}


@pytest.mark.parametrize("liars", [(LIAR,), (LIAR, OTHER, THIRD)])
def test_wrong_noise_shares_are_left_out_and_their_holders_named(liars):
    """Six answers, t = 3: three wrong shares are survived."""
    session = lying(RemoveNoise, change(shares=wrong_shares(0)), liars, STAGE_5)
    outputs = session.run()
    check_sum(session, outputs)
    assert outputs[0].named == {*liars}
    assert not outputs[0].stayed


def test_noise_stays_when_too_many_lie_about_its_shares():
    liars = [u for u in IDS if u != OWING][:4]
    session = lying(RemoveNoise, change(shares=wrong_shares(0)), liars, STAGE_5)
    outputs = session.run()
    check_sum(session, outputs)
    assert outputs[0].stayed == {OWING: (0,)}
    assert outputs[0].named == {*liars}
    assert outputs[0].left - P.plans[0].removable[0] >= P.plans[0].kappa * P.plans[0].variance


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


class Intercepted(Deviant):
    """An honest client whose shares are altered on the way to it."""

    def handle(self, request):
        return self.client.handle(self._lie(request) if type(request) is self._kind else request)


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


# What an honest client refuses: a server that deviates.  One client is lost before U1, one before U2, one at Unmask.

ME = 8
NOT_IN_U1, NOT_IN_U2 = 55, 3
UPLOADED = tuple(u for u in IDS if u not in (NOT_IN_U1, NOT_IN_U2))
STILL_DUE = [u for u, ks in P.due(0, UPLOADED).items() if ks]
SILENT = next(u for u in STILL_DUE if u != ME)
LOSSES = [(NOT_IN_U1, "AdvertiseKeys", -1), (NOT_IN_U2, "ShareKeys", -1), (SILENT, "Unmask", 0)]


def stop_before(kind):
    """Run a round up to the first request of a kind to ME; return that client and the request."""
    session = Round(P, random_inputs(P, 8), LOSSES)
    caught = []

    def exchange(requests):
        if isinstance(requests[ME], kind):
            caught.append(requests[ME])
            raise StopIteration
        return session.exchange(requests)

    with pytest.raises(StopIteration):
        drive.run(session.server, exchange)
    return session.clients[ME], caught[0]


def without(*ids):
    return change(advertisements=lambda a: {u: keys for u, keys in a.items() if u not in ids})


def keys_of(u, **fields):
    def alter(request):
        keys = msgspec.structs.replace(request.advertisements[u], **fields)
        return ShareKeys({**request.advertisements, u: keys})  # in the same order

    return alter


def copied(name, source, target):
    """Give one client's key another client's place."""

    def alter(request):
        return keys_of(target, **{name: getattr(request.advertisements[source], name)})(request)

    return alter


def among(ids):
    return change(
        members=lambda _: P.pack({ME, *ids}),
        ciphertexts=lambda c: {u: text for u, text in c.items() if u in ids},
    )


def removed(bitmap, u):
    return P.pack({*P.unpack(bitmap)} - {u})


def added(bitmap, u):
    return P.pack({*P.unpack(bitmap), u})


def survivors(*ids):
    return change(survivors=lambda _: P.pack(ids))


def owing(*ids):
    return change(owing=lambda _: P.pack(ids))


NOT_DUE = next(u for u in UPLOADED if u not in STILL_DUE)
FROM_THE_SERVER = {
    "U1 without me": (ShareKeys, without(ME), ProtocolError, "leaves me out"),
    "U1 with a stranger": (
        ShareKeys,
        change(advertisements=lambda a: a | {99: a[ME]}),
        ProtocolError,
        "cannot be there",
    ),
    "U1 too small": (ShareKeys, without(*(u for u in IDS if u not in (ME, OTHER))), ProtocolError, "quorum|threshold"),
    "nobody in U1": (ShareKeys, without(*IDS), ProtocolError, "leaves me out"),
    "my channel key altered": (ShareKeys, keys_of(ME, channel=b"\1" * 32), ProtocolError, "my own keys"),
    "my masking keys altered": (ShareKeys, keys_of(ME, masking=b"\1" * 64), ProtocolError, "my own keys"),
    "my tokens altered": (ShareKeys, keys_of(ME, tokens=b"\1" * 64), ProtocolError, "my own keys"),
    "a peer has my channel key": (ShareKeys, copied("channel", ME, OTHER), ProtocolError, "twice"),
    "two peers have one channel key": (ShareKeys, copied("channel", THIRD, OTHER), ProtocolError, "twice"),
    "two peers have the same masking keys": (ShareKeys, copied("masking", THIRD, OTHER), ProtocolError, "twice"),
    "a peer has one key in both chunks": (ShareKeys, keys_of(OTHER, masking=b"\7" * 64), ProtocolError, "twice"),
    "a peer's channel key is short": (ShareKeys, keys_of(OTHER, channel=bytes(31)), MalformedMessage, "wrong"),
    "a peer's masking key is missing": (ShareKeys, keys_of(OTHER, masking=bytes(32)), MalformedMessage, "wrong"),
    "a peer's tokens are missing": (ShareKeys, keys_of(OTHER, tokens=b""), MalformedMessage, "wrong"),
    "a peer's channel key is zero": (ShareKeys, keys_of(OTHER, channel=bytes(32)), InvalidKey, "low order"),
    "U2 without me": (DeliverShares, change(members=lambda m: removed(m, ME)), ProtocolError, "U2 leaves me out"),
    "U2 with one outside U1": (
        DeliverShares,
        change(members=lambda m: added(m, NOT_IN_U1), ciphertexts=lambda c: c | {NOT_IN_U1: c[OTHER]}),
        ProtocolError,
        "U2 names",
    ),
    "U2 with padding": (DeliverShares, change(members=lambda m: bytes([m[0] | 0x80])), MalformedMessage, "bitmap"),
    "the shares of a stranger": (DeliverShares, change(ciphertexts=lambda c: c | {99: b"x"}), ProtocolError, "U2"),
    "the shares of myself": (DeliverShares, change(ciphertexts=lambda c: c | {ME: b"x"}), ProtocolError, "U2"),
    "shares of U2 withheld": (DeliverShares, change(ciphertexts=without_first), ProtocolError, "U2"),
    "U2 with more than T missing": (DeliverShares, among((OTHER, THIRD)), TooManyDropouts, "tolerates 3"),
    "U2 smaller than t": (DeliverShares, among((OTHER,)), ProtocolError, "quorum|threshold"),
    "U2 with nobody else": (DeliverShares, among(()), ProtocolError, "quorum|threshold"),
    "no such chunk": (CollectInput, change(chunk=lambda _: 2), UnexpectedRequest, "no place"),
    "a negative chunk": (CollectInput, change(chunk=lambda _: -1), UnexpectedRequest, "no place"),
    "unmasking before the upload": (CollectInput, lambda _: Unmask(0, P.pack(UPLOADED)), UnexpectedRequest, "turn"),
    "U3 with one outside U1": (Unmask, survivors(*UPLOADED, NOT_IN_U1), ProtocolError, "U3 names"),
    "U3 with one outside U2": (Unmask, survivors(*UPLOADED, NOT_IN_U2), ProtocolError, "U3 names"),
    "U3 without me": (Unmask, survivors(*(u for u in UPLOADED if u != ME)), ProtocolError, "leaves me out"),
    "U3 smaller than t": (Unmask, survivors(ME, OTHER), ProtocolError, "quorum|threshold"),
    "U3 of myself": (Unmask, survivors(ME), ProtocolError, "quorum|threshold"),
    "U3 with more than T dropped": (Unmask, survivors(ME, OTHER, THIRD), TooManyDropouts, "4 clients dropped"),
    "U3 too long": (Unmask, change(survivors=longer), MalformedMessage, "bitmap"),
    "U3 too short": (Unmask, change(survivors=shorter), MalformedMessage, "bitmap"),
    "U3 with padding": (Unmask, change(survivors=lambda b: bytes([b[0] | 0x80])), MalformedMessage, "bitmap"),
    "unmasking of the other chunk": (Unmask, change(chunk=another_chunk), UnexpectedRequest, "turn"),
    "noise removal before unmasking": (Unmask, lambda _: RemoveNoise(0, P.pack([SILENT])), UnexpectedRequest, "turn"),
    "seeds of nobody": (RemoveNoise, owing(), ProtocolError, "names nobody"),
    "a seed not due": (RemoveNoise, owing(NOT_DUE), ProtocolError, "cannot be there"),
    "a seed not due among due ones": (RemoveNoise, owing(SILENT, NOT_DUE), ProtocolError, "cannot be there"),
    "the seed of a dropped client": (RemoveNoise, owing(NOT_IN_U2), ProtocolError, "cannot be there"),
    "the seeds of everyone": (RemoveNoise, owing(*IDS), ProtocolError, "cannot be there"),
    "a set too long": (RemoveNoise, change(owing=longer), MalformedMessage, "bitmap"),
    "another U3 after the first": (
        RemoveNoise,
        lambda _: Unmask(0, P.pack({ME, *UPLOADED[:-1]})),
        UnexpectedRequest,
        "another",
    ),
}


@pytest.mark.parametrize(("kind", "alter", "error", "reason"), FROM_THE_SERVER.values(), ids=FROM_THE_SERVER)
def test_a_client_refuses_a_deviating_server_and_leaves_for_good(kind, alter, error, reason):
    client, request = stop_before(kind)
    altered = alter(request)
    with pytest.raises(error, match=reason):
        client.handle(wire.carry(altered, type(altered)))
    for again in (request, altered):
        with pytest.raises(Aborted):
            client.handle(again)
    assert not client.state.secrets
    assert not client.state.shares


@pytest.mark.parametrize("source", [ME, THIRD])
def test_a_copied_key_is_refused_however_it_is_written(source):
    client, request = stop_before(ShareKeys)
    key = request.advertisements[source].channel
    altered = keys_of(OTHER, channel=key[:-1] + bytes([key[-1] | 0x80]))(request)
    with pytest.raises(InvalidKey, match="canonical"):
        client.handle(altered)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_requests_unaltered_are_answered(kind):
    client, request = stop_before(kind)
    assert isinstance(client.handle(request), kind.reply)
