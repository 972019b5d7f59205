"""The messages of an assisted round: roles, uploads and disclosures."""

import pytest

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.protocol import Role
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.messages import (
    AgreeOnSurvivors,
    Introduce,
    OpenBoxes,
    Reveal,
    Revealed,
    SendContribution,
)
from tests.protocols.assisted.parties import ROUND, Round


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
