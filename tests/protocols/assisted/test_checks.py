"""Checks of headers by server and helpers; checks of U3 and of quorums are in test_helper."""

import msgspec
import pytest

from dordis.errors import DordisError, InvalidSignature, MalformedMessage, ProtocolError
from dordis.protocol import ENCODER, ClientId
from dordis.protocols.assisted import checks
from dordis.protocols.assisted.messages import Header, SendContribution
from tests.protocols.assisted.parties import Round


@pytest.fixture
def sent():
    round = Round()
    return round, round.clients[1].handle(SendContribution(round.parameters))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"round": bytes(40)}, {"parameters": bytes(32)}, {"client": 2}, {"key": bytes(31)},
        {"boxes": bytes(96)}, {"seeds": bytes(32)}, {"vector": b""}, {"length": 74}, {"proof": bytes(200)},
    ],
)  # fmt: skip
def test_a_header_for_something_else_is_refused(sent, change):
    round, reply = sent
    header = checks.read_header(round.parameters, ClientId(1), reply.header)
    with pytest.raises(ProtocolError):
        checks.read_header(round.parameters, ClientId(1), ENCODER.encode(msgspec.structs.replace(header, **change)))


def test_a_header_has_one_encoding(sent):
    round, reply = sent
    for encoded in (b"", reply.header[:-1], reply.header + b"\x00", b"\xdc\x00\x0a" + reply.header[1:]):
        with pytest.raises(MalformedMessage):
            checks.read_header(round.parameters, ClientId(1), encoded)


def test_contributions_that_are_altered_are_refused(sent):
    round, reply = sent
    setup = round.server().setup
    setup.check(ClientId(1), reply)
    for change in (
        {"vector": reply.vector[:-1]},
        {"vector": bytes(len(reply.vector))},
        {"boxes": reply.boxes[:-1]},
        {"boxes": reply.boxes[112:] + reply.boxes[:112]},
        {"signature": bytes(64)},
        {"header": reply.header[:-1]},
    ):
        with pytest.raises(DordisError):
            setup.check(ClientId(1), msgspec.structs.replace(reply, **change))
    with pytest.raises(ProtocolError):
        setup.check(ClientId(2), reply)
    with pytest.raises(ProtocolError, match="not in the registry"):
        checks.check_header_signed({}, ClientId(1), reply.header, reply.signature, setup.suite)
    with pytest.raises(InvalidSignature):
        checks.check_header_signed(round.registry, ClientId(2), reply.header, reply.signature, setup.suite)
    assert isinstance(msgspec.msgpack.decode(reply.header, type=Header), Header)
