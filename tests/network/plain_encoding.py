"""Frames of docs/wire.md in plain Python: the byte 5 and one MessagePack map, every number in its shortest form."""

import struct
from typing import Any

PREFIX = b"\x05"
Fields = dict[str, Any]
"""A message: its `type`, then its fields in the order of the page."""


def encode_frame(message: Fields) -> bytes:
    """Return the frame of a message."""
    return PREFIX + pack(message)


def decode_frame(frame: bytes) -> Fields:
    """Return the message in a frame; raise ValueError if it is not in its one encoding."""
    if frame[:1] != PREFIX:
        raise ValueError("a frame of another version")
    message, end = unpack(frame, 1)
    if end != len(frame) or pack(message) != frame[1:]:
        raise ValueError("a frame that is not in its one encoding")
    return message


def pack(value: Any) -> bytes:
    """Return the MessagePack of a value."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return _pack_int(value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case bytes() | bytearray():
            return _head(len(value), None, (0xC4, 0xC5, 0xC6)) + bytes(value)
        case str():
            data = value.encode()
            return _head(len(data), (0xA0, 32), (0xD9, 0xDA, 0xDB)) + data
        case list():
            return _head(len(value), (0x90, 16), (None, 0xDC, 0xDD)) + b"".join(map(pack, value))
        case dict():
            entries = b"".join(pack(key) + pack(entry) for key, entry in value.items())
            return _head(len(value), (0x80, 16), (None, 0xDE, 0xDF)) + entries
    raise TypeError(type(value))


def _pack_int(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack(">b", value) if value < 0 else bytes([value])
    forms = [(0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q")]
    if value < 0:
        forms = [(0xD0, ">b"), (0xD1, ">h"), (0xD2, ">i"), (0xD3, ">q")]
    for code, form in forms:
        try:
            return bytes([code]) + struct.pack(form, value)
        except struct.error:
            continue
    raise ValueError(value)


def _head(length: int, short: tuple[int, int] | None, codes: tuple[int | None, ...]) -> bytes:
    """Return the shortest head of a value of a length."""
    if short is not None and length < short[1]:
        return bytes([short[0] + length])
    sizes = zip(codes, (">B", ">H", ">I"), (8, 16, 32), strict=True)
    code, form = next((code, form) for code, form, bits in sizes if code is not None and length < 2**bits)
    return bytes([code]) + struct.pack(form, length)


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value at a place, and the place after it."""
    code, at = data[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return code if code < 0x80 else code - 256, at
    if code < 0x90:
        return _unpack_map(data, at, code - 0x80)
    if code < 0xA0:
        return _unpack_list(data, at, code - 0x90)
    if code < 0xC0:
        return data[at : at + code - 0xA0].decode(), at + code - 0xA0
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    form, kind = _FORMS[code]
    (number,), at = struct.unpack_from(form, data, at), at + struct.calcsize(form)
    match kind:
        case "number":
            return number, at
        case "bin":
            return data[at : at + number], at + number
        case "str":
            return data[at : at + number].decode(), at + number
        case "list":
            return _unpack_list(data, at, number)
    return _unpack_map(data, at, number)


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_FORMS = {
    **{0xC4 + i: (form, "bin") for i, form in enumerate((">B", ">H", ">I"))},
    **{0xD9 + i: (form, "str") for i, form in enumerate((">B", ">H", ">I"))},
    **{0xCC + i: (form, "number") for i, form in enumerate((">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"))},
    **{0xDC + i: (form, "list") for i, form in enumerate((">H", ">I"))},
    **{0xDE + i: (form, "map") for i, form in enumerate((">H", ">I"))},
    0xCB: (">d", "number"),
}


def _unpack_list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(count):
        value, at = unpack(data, at)
        values.append(value)
    return values, at


def _unpack_map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    entries = {}
    for _ in range(count):
        key, at = unpack(data, at)
        entries[key], at = unpack(data, at)
    return entries, at
