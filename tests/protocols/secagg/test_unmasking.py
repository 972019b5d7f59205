"""Wrong shares are ignored and their holders named; dealers of secrets that cannot be rebuilt are named."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from dordis.crypto import sharing
from dordis.crypto.suite import DEFAULT
from dordis.errors import (
    TooFewClients,
    Unrecoverable,
)
from dordis.protocol import MemoryJournal
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.secagg import SecAggClient
from dordis.protocols.secagg.masking import split_hashes
from dordis.protocols.secagg.messages import (
    AdvertiseKeys,
    RemoveNoise,
    ShareKeys,
    Unmask,
)
from tests.crypto.suites import like
from tests.protocols.rounds import Round, random_inputs
from tests.protocols.secagg.deviants import (
    DUE,
    IDS,
    LAST,
    LIAR,
    OTHER,
    OWING,
    STAGE_5,
    THIRD,
    Deviant,
    P,
    change,
    check_sum,
    flipped,
    keys_of,
    lying,
    wrong_shares,
)


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
