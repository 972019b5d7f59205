"""The codec accepts only the canonical encoding of a message, of the expected kind and within the limit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis import wire
from dordis.errors import MalformedMessage
from dordis.protocol import ENCODER
from dordis.protocols.secagg import SECAGG
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput, MaskedInput, ShareKeys, Unmasking
from tests.rounds.parties import agreed

VERSION = bytes([wire.VERSION])
UPLOAD = MaskedInput(chunk=3, vector=b"abc", token=bytes(32))
REQUEST = AdvertiseKeys(agreed())


def test_a_message_survives_the_wire():
    assert wire.decode(wire.encode(REQUEST), AdvertiseKeys) == REQUEST


def test_what_is_bulk_travels_beside_the_frame_and_is_not_copied():
    frame, bulk = wire.encode(UPLOAD), wire.bulk_of(UPLOAD)
    assert bulk is UPLOAD.vector
    assert frame == wire.encode(msgspec.structs.replace(UPLOAD, vector=b"other"))
    assert wire.size(UPLOAD) == len(frame) + len(bulk)
    received = memoryview(bytearray(bulk))
    message = wire.decode(frame, MaskedInput, bulk=received)
    assert message == UPLOAD == wire.carry(UPLOAD, MaskedInput)
    assert message.vector is received


def test_bulk_inside_a_frame_is_refused():
    with pytest.raises(MalformedMessage, match="canonical encoding"):
        wire.decode(VERSION + ENCODER.encode(UPLOAD), MaskedInput)


def test_bulk_beside_a_message_that_has_no_place_for_it_is_refused():
    with pytest.raises(MalformedMessage, match="beside its frame"):
        wire.decode(wire.encode(CollectInput(0)), CollectInput, bulk=b"abc")


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_truncated_bytes_are_refused(cut):
    with pytest.raises(MalformedMessage):
        wire.decode(wire.encode(UPLOAD)[:-cut], MaskedInput)


def test_leftover_bytes_are_refused():
    with pytest.raises(MalformedMessage):
        wire.decode(wire.encode(UPLOAD) + b"\0", MaskedInput)


def test_another_version_is_refused():
    with pytest.raises(MalformedMessage, match="version"):
        wire.decode(bytes([wire.VERSION - 1]) + wire.encode(UPLOAD)[1:], MaskedInput)


def test_another_kind_is_refused():
    with pytest.raises(MalformedMessage):
        wire.decode(wire.encode(CollectInput(0)), MaskedInput)


def test_a_long_message_is_refused_before_it_is_read():
    with pytest.raises(MalformedMessage, match="limit"):
        wire.decode(VERSION + b"\xff" * 100, MaskedInput, limit=50)


def test_unknown_fields_are_refused():
    raw = VERSION + msgspec.msgpack.encode({"type": "CollectInput", "chunk": 0, "more": 1})
    with pytest.raises(MalformedMessage):
        wire.decode(raw, CollectInput)


def test_a_key_that_comes_twice_is_refused():
    once = wire.encode(Unmasking(chunk=0, key_shares=b"", mask_shares=b"", seeds={1: b"x"}))
    pair = b"\x01\xc4\x01x"
    assert once.endswith(b"\x81" + pair)
    with pytest.raises(MalformedMessage, match="canonical encoding"):
        wire.decode(once[: -len(pair) - 1] + b"\x82" + pair + pair, Unmasking)


def test_a_number_in_too_many_bytes_is_refused():
    short = wire.encode(CollectInput(5))
    assert short.endswith(b"\x05")
    with pytest.raises(MalformedMessage, match="canonical encoding"):
        wire.decode(short[:-1] + b"\xcd\x00\x05", CollectInput)


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_an_announced_length_allocates_nothing(claim):
    """Lists, maps and bytes of four thousand million entries are announced in five bytes."""
    head = wire.encode(ShareKeys({}))
    assert head.endswith(b"\x80")
    with pytest.raises(MalformedMessage):
        wire.decode(head[:-1] + claim, ShareKeys)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    for kind in (*SECAGG.requests, *(request.reply for request in SECAGG.requests)):
        for raw in (data, VERSION + data):
            try:
                message = wire.decode(raw, kind)
            except MalformedMessage:
                continue
            assert wire.encode(message) == raw


def test_the_kind_of_a_frame_is_read_from_its_first_bytes_and_its_length_bounded_before_the_rest():
    kinds = AdvertiseKeys | ShareKeys | CollectInput
    opening = wire.encode(AdvertiseKeys(agreed()))
    assert wire.kind_of(opening, kinds) is AdvertiseKeys
    assert wire.kind_of(wire.encode(CollectInput(0))[:20], kinds) is CollectInput
    assert wire.decode(opening, kinds) == AdvertiseKeys(agreed())
    for data in (b"", wire.encode(CollectInput(0))[:9], wire.encode(MaskedInput(0, b"", b"")), b"\x02" * 40):
        with pytest.raises(MalformedMessage):
            wire.kind_of(data, kinds)
    with pytest.raises(MalformedMessage, match="exceeds the limit"):
        wire.decode(opening + bytes(AdvertiseKeys.longest), kinds)
