"""Bytes to messages and back: a version, a size limit, one encoding for each message, nothing left over."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from dordis.errors import MalformedMessage
from dordis.protocol import Message

VERSION = 1
"""Protocol version: the first byte of everything on the wire."""
LIMIT = 256 << 20
"""Bytes of the longest message taken from a peer, unless the receiver says less."""

Kind = TypeVar("Kind", bound=Message)

_PREFIX = bytes([VERSION])


def encode(message: Message) -> bytes:
    """Return the one encoding of a message."""
    return _PREFIX + msgspec.msgpack.encode(message)


def decode(data: bytes, kind: type[Kind], limit: int = LIMIT) -> Kind:
    """Return the message that the bytes encode, of the kind expected here (a message class or a union of them)."""
    if len(data) > limit:
        raise MalformedMessage(f"a message of {len(data)} bytes exceeds the limit of {limit}")
    if data[:1] != _PREFIX:
        raise MalformedMessage(f"this is not a message of protocol version {VERSION}")
    try:
        message: Kind = _decoder(kind).decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("these bytes are not a message that is expected here") from None
    if encode(message) != data:  # a map with a key twice, a number in too many bytes
        raise MalformedMessage("this message is not in its one encoding")
    return message


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
