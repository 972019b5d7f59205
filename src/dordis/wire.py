"""Bytes to messages and back: a version, a size limit, one encoding for each message, nothing left over.

A message is a frame, in MessagePack.  Its one large field, the bulk, if it has one, travels unencoded beside the frame,
where an empty value stands for it, so that it is never copied.
"""

from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec

from dordis.errors import MalformedMessage
from dordis.protocol import ENCODER, Message

VERSION = 5
"""Protocol version: the first byte of everything on the wire."""
LIMIT = 64 << 20
"""Bytes of the longest frame taken from a peer, unless the receiver says less."""

Bulk = bytes | bytearray | memoryview
"""The bytes beside a frame.  A receiver may get them in memory that is reused for the next message."""

Kind = TypeVar("Kind", bound=Message)

_PREFIX = bytes([VERSION])
_LONG_MAP = b"\xde"
"""The first byte of a map of more than 15 entries; it says in two more how many."""


def encode(message: Message) -> bytes:
    """Return the one encoding of a message, its frame, without its bulk."""
    bare = msgspec.structs.replace(message, **{message.bulk: b""}) if bulk_of(message) else message
    return _PREFIX + ENCODER.encode(bare)


def bulk_of(message: Message) -> Bulk:
    """Return the bulk of a message, which travels beside its frame; empty for most messages."""
    name = getattr(message, "bulk", "")
    return getattr(message, name) if name else b""


def size(message: Message) -> int:
    """Return the bytes that a message takes on the wire, frame and bulk."""
    return len(encode(message)) + len(bulk_of(message))


def decode(data: bytes, kind: type[Kind], limit: int = LIMIT, bulk: Bulk = b"") -> Kind:
    """Return the message that a frame and its bulk encode, of the kind expected: a class of messages or a union."""
    check_size(data, limit)
    check_version(data)
    expected = kind_of(data, kind)
    check_size(data, expected.longest or limit)
    try:
        message: Kind = _decoder(expected).decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("these bytes are not a message that is expected here") from None
    check_canonical(message, data)
    if not len(bulk):
        return message
    if not message.bulk:
        raise MalformedMessage(f"{type(message).__name__} comes with nothing beside its frame")
    return msgspec.structs.replace(message, **{message.bulk: bulk})


def kind_of(data: bytes, kind: type[Kind]) -> type[Kind]:
    """Return which of the expected kinds a frame is, from its first bytes; nothing else of it is read."""
    start = len(_PREFIX) + (3 if data[1:2] == _LONG_MAP else 1)
    for head, choice in _heads(kind):
        if data.startswith(head, start):
            return cast(type[Kind], choice)
    raise MalformedMessage("these bytes are not a message that is expected here")


def carry(message: Message, kind: type[Kind]) -> Kind:
    """Return a message as its receiver decodes it."""
    return decode(encode(message), kind, bulk=bulk_of(message))


def check_size(data: bytes, limit: int) -> None:
    """A message is not longer than the limit; nothing of a longer one is read."""
    if len(data) > limit:
        raise MalformedMessage(f"a message of {len(data)} bytes exceeds the limit of {limit}")


def check_version(data: bytes) -> None:
    """A message is of this protocol version."""
    if data[:1] != _PREFIX:
        raise MalformedMessage(f"this is not a message of protocol version {VERSION}")


def check_canonical(message: Message, data: bytes) -> None:
    """A frame is in its one encoding: no key of a map twice, no number in more bytes than it needs, no bulk inside."""
    if encode(message) != data:
        raise MalformedMessage("this message is not in its one encoding")


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


@cache
def _heads(kind: Any) -> tuple[tuple[bytes, Any], ...]:
    """Return the kinds of a union, each with the bytes that follow the head of its map: its name."""
    choices = get_args(kind) or (kind,)
    return tuple((ENCODER.encode("type") + ENCODER.encode(choice.__struct_config__.tag), choice) for choice in choices)
