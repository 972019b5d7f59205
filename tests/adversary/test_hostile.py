"""Hostile messages are refused before anything is computed that takes long; `benchmarks refusals` measures it."""

import pytest

from dordis.crypto import signature, vrf
from dordis.errors import DordisError, UnexpectedRequest
from dordis.privacy import skellam_noise
from dordis.protocols.delivery import Dispatch
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, ShareKeys
from dordis.rounds.client import Client
from dordis.rounds.invitation import Invite, SendModel, Train
from tests.adversary.hostile import MEGABYTE, messages, parameters, refusal, victim

MESSAGES = list(messages())


def test_there_are_a_hundred_of_different_names_and_a_megabyte_at_the_most():
    assert len({message.name for message in MESSAGES}) == len(MESSAGES) >= 100
    assert all(len(message.data) < 1.2 * MEGABYTE for message in MESSAGES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_a_hostile_message_is_refused_before_tables_are_built_and_signatures_verified(message, monkeypatch):
    client = victim()
    for home, name in ((skellam_noise, "build_table"), (signature, "verify"), (vrf, "verify")):
        monkeypatch.setattr(home, name, lambda *_: pytest.fail("this takes long"))
    assert isinstance(refusal(client, message), DordisError)


def test_the_parameters_that_they_were_made_from_are_accepted():
    assert victim().handle(AdvertiseKeys(parameters())).channel


def test_what_has_no_place_yet_is_refused_before_it_is_read():
    invited = victim()
    fresh = Client(invited.me, invited.app, invited.owner, invited.protocol)
    for kind in (Train, AdvertiseKeys, ShareKeys, CollectInput, Dispatch):
        with pytest.raises(UnexpectedRequest, match="before the round began"):
            fresh.check_expected(kind)
    fresh.check_expected(Invite)
    for kind in (Invite, SendModel, Train, AdvertiseKeys):
        invited.check_expected(kind)
    for kind in (ShareKeys, CollectInput, Dispatch):
        with pytest.raises(UnexpectedRequest, match="before the round began"):
            invited.check_expected(kind)
    invited.handle(AdvertiseKeys(parameters()))
    for kind in (Invite, ShareKeys, CollectInput, Dispatch):
        invited.check_expected(kind)
