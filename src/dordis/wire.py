"""Messages as bytes: a version, a size limit, and only one valid encoding for each message.

A message is sent as a frame in MessagePack.  The large field of a message, if it has one, is its bulk.  The bulk is
sent beside the frame, so that it is never copied; in the frame the field is empty.
"""

from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec

from dordis.errors import MalformedMessage
from dordis.protocol import ENCODER, Message

VERSION = 5
"""Protocol version: the first byte of every frame."""
LIMIT = 64 << 20
"""Largest frame in bytes that a receiver accepts, unless it sets a lower limit."""

Bulk = bytes | bytearray | memoryview
"""The bytes beside a frame.  A receiver may reuse their memory for the next message: copy what must last longer."""

Kind = TypeVar("Kind", bound=Message)

_PREFIX = bytes([VERSION])
_LONG_MAP = b"\xde"
"""The first byte of a MessagePack map with more than 15 entries; the next two bytes are the number of entries."""


def encode(message: Message) -> bytes:
    """Return the frame of a message, without its bulk."""
    bare = msgspec.structs.replace(message, **{message.bulk: b""}) if bulk_of(message) else message
    return _PREFIX + ENCODER.encode(bare)


def bulk_of(message: Message) -> Bulk:
    """Return the bulk, or large field, of a message; empty if the message has none."""
    name = getattr(message, "bulk", "")
    return getattr(message, name) if name else b""


def size(message: Message) -> int:
    """Return the size of a message on the wire in bytes, frame and bulk."""
    return len(encode(message)) + len(bulk_of(message))


def decode(data: bytes, kind: type[Kind], limit: int = LIMIT, bulk: Bulk = b"") -> Kind:
    """Return the message with this frame and bulk; `kind` is the expected class of messages, or a union of classes.

    Raise MalformedMessage if the frame is longer than `limit` bytes or than its class allows (`Message.longest`), not
    canonical, or of another kind or version, or if `bulk` is given for a message without bulk.
    """
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
        raise MalformedMessage(f"{type(message).__name__} has no bulk, but bytes came beside its frame")
    return msgspec.structs.replace(message, **{message.bulk: bulk})


def kind_of(data: bytes, kind: type[Kind]) -> type[Kind]:
    """Return the message class that the first bytes of a frame name.

    Raise MalformedMessage unless this class is `kind` or, if `kind` is a union, one of its classes.
    """
    start = len(_PREFIX) + (3 if data[1:2] == _LONG_MAP else 1)
    for head, choice in _heads(kind):
        if data.startswith(head, start):
            return cast("type[Kind]", choice)
    raise MalformedMessage("these bytes are not a message that is expected here")


def carry(message: Message, kind: type[Kind]) -> Kind:
    """Encode a message and return it decoded, as its receiver gets it."""
    return decode(encode(message), kind, bulk=bulk_of(message))


def check_size(data: bytes, limit: int) -> None:
    """Raise MalformedMessage if a frame is longer than the limit."""
    if len(data) > limit:
        raise MalformedMessage(f"a message of {len(data)} bytes exceeds the limit of {limit}")


def check_version(data: bytes) -> None:
    """Raise MalformedMessage unless a frame begins with `VERSION`."""
    if data[:1] != _PREFIX:
        raise MalformedMessage(f"this is not a message of protocol version {VERSION}")


def check_canonical(message: Message, data: bytes) -> None:
    """Raise MalformedMessage unless a frame is canonical, that is, equal to what `encode` returns for `message`.

    In a canonical frame each key occurs once, numbers are encoded as short as possible, and the bulk field is empty.
    """
    if encode(message) != data:
        raise MalformedMessage("this message is not in its canonical encoding")


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


@cache
def _heads(kind: Any) -> tuple[tuple[bytes, Any], ...]:
    """Return, for each class of a union, the encoded name that frames of this class begin with, and the class."""
    choices = get_args(kind) or (kind,)
    return tuple((ENCODER.encode("type") + ENCODER.encode(choice.__struct_config__.tag), choice) for choice in choices)
