"""Bytes to messages and back: a version, a size limit, one encoding for each message, nothing left over."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from dordis.errors import MalformedMessage
from dordis.protocol import ENCODER, Message

VERSION = 1
"""Protocol version: the first byte of everything on the wire."""
LIMIT = 256 << 20
"""Bytes of the longest message taken from a peer, unless the receiver says less."""

Kind = TypeVar("Kind", bound=Message)

_PREFIX = bytes([VERSION])


def encode(message: Message) -> bytes:
    """Return the one encoding of a message."""
    return _PREFIX + ENCODER.encode(message)


def decode(data: bytes, kind: type[Kind], limit: int = LIMIT) -> Kind:
    """Return the message that the bytes encode, of the kind expected here (a message class or a union of them)."""
    check_size(data, limit)
    check_version(data)
    try:
        message: Kind = _decoder(kind).decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("these bytes are not a message that is expected here") from None
    check_canonical(message, data)
    return message


def check_size(data: bytes, limit: int) -> None:
    """A message is not longer than the limit; nothing of a longer one is read."""
    if len(data) > limit:
        raise MalformedMessage(f"a message of {len(data)} bytes exceeds the limit of {limit}")


def check_version(data: bytes) -> None:
    """A message is of this protocol version."""
    if data[:1] != _PREFIX:
        raise MalformedMessage(f"this is not a message of protocol version {VERSION}")


def check_canonical(message: Message, data: bytes) -> None:
    """A message is in its one encoding: no key of a map twice, no number in more bytes than it needs."""
    if encode(message) != data:
        raise MalformedMessage("this message is not in its one encoding")


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
