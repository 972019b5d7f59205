"""Vectors over Z_{2^32}: add keystreams to them, and pack their elements into b bits each.

A keystream is a row of bytes; a *lane* is the bytes of a row that belong to one coordinate.  Rows are added four at a
time, as long as there are four.  A row is added with flip = 0 and subtracted with flip = 2^32 - 1, because
(x ^ flip) - flip is x or -x, without a branch.  Callers reduce modulo 2^b once, at the end.

In packed form, element i occupies bits i*b to i*b + b - 1 of a little-endian bit stream.  Eight elements fill exactly b
bytes, so every group of eight elements starts at a byte.  Inside a group, unaligned 64-bit loads and stores move one
element at a time, or two if two fit.  Stores overlap: each store overwrites the excess bytes of the store before it.
The last elements, at which a 64-bit access would leave the array, are moved byte by byte.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from dordis.errors import InputError
from dordis.kernels.compiler import check_array, check_bits, inline_kernel, kernel

Vector = npt.NDArray[np.uint32]
Rows = npt.NDArray[Any]
Packed = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

_WIDEST_PAIR = 28  # two elements and up to 7 bits carried over must fit 64 bits


@inline_kernel
def _apply_sign(value: np.uint32, flip: np.uint32) -> np.uint32:
    return (np.uint32(value) ^ flip) - flip


@kernel
def add_lanes(acc: Vector, rows: Rows, flips: Vector) -> None:
    """Add rows of numbers of one, two or four bytes to `acc`; subtract the rows whose flip is 2^32 - 1 instead of 0."""
    fours = len(rows) // 4 * 4
    for r in range(0, fours, 4):
        f0, f1, f2, f3 = flips[r], flips[r + 1], flips[r + 2], flips[r + 3]
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        for i in range(acc.size):
            acc[i] += _apply_sign(r0[i], f0) + _apply_sign(r1[i], f1) + _apply_sign(r2[i], f2) + _apply_sign(r3[i], f3)
    for r in range(fours, len(rows)):
        f0, r0 = flips[r], rows[r]
        for i in range(acc.size):
            acc[i] += _apply_sign(r0[i], f0)


@kernel
def add_three_byte_lanes(acc: Vector, rows: Rows, flips: Vector) -> None:
    """Add rows of numbers (lanes) of three bytes to `acc`; subtract the rows whose flip is 2^32 - 1 instead of 0.

    Rows are words of 32 bits: three words have four lanes.  The upper 8 bits of each added word belong to the next
    lane; the caller's reduction modulo 2^b, b <= 24, removes them.
    """
    fours, groups = len(rows) // 4 * 4, acc.size // 4
    for r in range(0, fours, 4):
        f0, f1, f2, f3 = flips[r], flips[r + 1], flips[r + 2], flips[r + 3]
        r0, r1, r2, r3 = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        for g in range(groups):
            a0, a1, a2, a3 = _four_lanes(r0, g, f0)
            b0, b1, b2, b3 = _four_lanes(r1, g, f1)
            c0, c1, c2, c3 = _four_lanes(r2, g, f2)
            d0, d1, d2, d3 = _four_lanes(r3, g, f3)
            acc[4 * g] += a0 + b0 + c0 + d0
            acc[4 * g + 1] += a1 + b1 + c1 + d1
            acc[4 * g + 2] += a2 + b2 + c2 + d2
            acc[4 * g + 3] += a3 + b3 + c3 + d3
    for r in range(fours, len(rows)):
        f0, r0 = flips[r], rows[r]
        for g in range(groups):
            a0, a1, a2, a3 = _four_lanes(r0, g, f0)
            acc[4 * g] += a0
            acc[4 * g + 1] += a1
            acc[4 * g + 2] += a2
            acc[4 * g + 3] += a3
    if 4 * groups < acc.size:  # only then do the rows have words after the last whole group
        for r in range(len(rows)):
            lanes = _four_lanes(rows[r], groups, flips[r])
            for i in range(4 * groups, acc.size):
                acc[i] += lanes[i - 4 * groups]


@inline_kernel
def _four_lanes(words: Vector, group: int, flip: np.uint32) -> tuple[np.uint32, np.uint32, np.uint32, np.uint32]:
    w0, w1, w2 = words[3 * group], words[3 * group + 1], words[3 * group + 2]
    return (
        _apply_sign(w0, flip),
        _apply_sign((w0 >> np.uint32(24)) | (w1 << np.uint32(8)), flip),
        _apply_sign((w1 >> np.uint32(16)) | (w2 << np.uint32(16)), flip),
        _apply_sign(w2 >> np.uint32(8), flip),
    )


@kernel
def reduce_modulo(acc: Vector, mask: np.uint32) -> None:
    """Reduce every coordinate of `acc` modulo 2^b in place; `mask` is 2^b - 1."""
    for i in range(acc.size):
        acc[i] &= mask


def packed_size(count: int, bits: int) -> int:
    """Return the size in bytes of `count` packed elements of `bits` bits."""
    check_bits(bits)
    if type(count) is not int or count < 0:
        raise InputError(f"count must be an integer from 0: got {count!r}")
    return (count * bits + 7) // 8


def pack(values: npt.NDArray[np.uint32], bits: int, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
    """Return elements below 2^bits as packed bytes, written to `out` if it is given.

    If an element is too large, InputError is raised, and `out` is all zero.

    >>> pack(np.array([1, 2, 3], dtype=np.uint32), 4).tobytes().hex()
    '2103'
    """
    values = check_array("values", values, np.uint32)
    size = packed_size(values.size, bits)
    out = _output(out, size, np.uint8)
    groups = _whole_groups(values.size, bits)
    seen = (_pack_pairs if bits <= _WIDEST_PAIR else _pack_singles)(values, bits, out, groups)
    seen |= _pack_bytes(values[8 * groups :], bits, out[bits * groups :])
    if seen >> bits:
        out.fill(0)
        raise InputError(f"every value must be below 2^{bits}, so that it fits {bits} bits")
    return out


def unpack(
    data: Packed,
    bits: int,
    count: int,
    out: npt.NDArray[np.uint32] | None = None,
) -> npt.NDArray[np.uint32]:
    """Return `count` unpacked elements, in `out` if it is given; raise InputError for bytes that `pack` never writes.

    >>> unpack(bytes.fromhex("2103"), 4, 3).tolist()
    [1, 2, 3]
    """
    packed = _check_packed(data, bits, count)
    out = _output(out, count, np.uint32)
    groups = _whole_groups(count, bits)
    _unpack_groups(packed, bits, out, groups)
    _unpack_bytes(packed[bits * groups :], bits, out[8 * groups :])
    return out


def add_packed(total: npt.NDArray[np.uint32], data: Packed, bits: int) -> None:
    """Add packed elements to `total` modulo 2^32 in one pass; raise InputError for bytes that `pack` never writes.

    >>> total = np.array([10, 10, 10], dtype=np.uint32)
    >>> add_packed(total, bytes.fromhex("2103"), 4)
    >>> total.tolist()
    [11, 12, 13]
    """
    check_array("total", total, np.uint32, written=True)
    packed = _check_packed(data, bits, total.size)
    groups = _whole_groups(total.size, bits)
    (_add_pairs if bits <= _WIDEST_PAIR else _add_singles)(packed, bits, total, groups)
    rest = total[8 * groups :]
    elements = np.empty_like(rest)
    _unpack_bytes(packed[bits * groups :], bits, elements)
    rest += elements


def _check_packed(data: Packed, bits: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `data` as an array; raise InputError unless `pack` could have written it for `count` elements."""
    packed: npt.NDArray[np.uint8] = check_array("data", _as_array(data), np.uint8)
    size = packed_size(count, bits)
    if packed.size != size:
        raise InputError(f"{count} elements of {bits} bits take {size} bytes: got {packed.size}")
    padding = 8 * size - count * bits
    if padding and int(packed[-1]) >> (8 - padding):
        raise InputError(f"the last {padding} bits are padding and must be zero")
    return packed


def _as_array(data: Packed) -> npt.NDArray[np.uint8]:
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, memoryview) and not data.c_contiguous:
        raise InputError("data must be contiguous: pass bytes(...)")
    return np.frombuffer(data, dtype=np.uint8)


def _output(out: npt.NDArray[Any] | None, size: int, dtype: type[np.generic]) -> Any:
    if out is None:
        return np.empty(size, dtype=dtype)
    if check_array("out", out, dtype, written=True).size != size:
        raise InputError(f"out must have {size} elements: got {out.size}")
    return out


def _whole_groups(count: int, bits: int) -> int:
    """Return how many groups of eight elements can be moved by 64-bit accesses within the packed bytes.

    An access may reach up to 7 bytes past the last of these groups, so at least 7 packed bytes follow that group.
    """
    return min(count // 8, max(0, packed_size(count, bits) - 7) // bits)


def _build_load64(_: Any, data: Any, at: Any) -> Any:
    """Build the numba intrinsic that reads 64 bits at any byte of a uint8 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word_at(context, builder, signature, arguments), align=1)

    return types.uint64(data, at), generate


def _build_store64(_: Any, data: Any, at: Any, word: Any) -> Any:
    """Build the numba intrinsic that writes 64 bits at any byte of a uint8 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        builder.store(arguments[2], _word_at(context, builder, signature, arguments), align=1)

    return types.void(data, at, types.uint64), generate


def _word_at(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    word = context.get_value_type(types.uint64).as_pointer()
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), word)


_load64: Any = intrinsic(_build_load64)
_store64: Any = intrinsic(_build_store64)


@kernel
def _pack_pairs(values: npt.NDArray[np.uint32], bits: int, out: npt.NDArray[np.uint8], groups: int) -> int:
    """Pack groups of eight elements, moving two elements at a time; return the bitwise OR of all elements."""
    seen = np.uint32(0)
    for group in range(groups):
        first = np.uint64(8 * group)  # unsigned, because numba tests signed indices for negative values
        carry = np.uint64(0)
        for pair in range(4):
            start = 2 * pair * bits
            low = values[first + np.uint64(2 * pair)]
            high = values[first + np.uint64(2 * pair + 1)]
            seen |= low | high
            both = np.uint64(low) | (np.uint64(high) << np.uint64(bits))
            word = carry | (both << np.uint64(start & 7))
            _store64(out, group * bits + (start >> 3), word)
            carry = word >> np.uint64(((start & 7) + 2 * bits) & 56)
    return int(seen)


@kernel
def _pack_singles(values: npt.NDArray[np.uint32], bits: int, out: npt.NDArray[np.uint8], groups: int) -> int:
    """Pack groups of eight elements, moving one element at a time; return the bitwise OR of all elements."""
    seen = np.uint32(0)
    for group in range(groups):
        first = np.uint64(8 * group)
        carry = np.uint64(0)
        for place in range(8):
            start = place * bits
            value = values[first + np.uint64(place)]
            seen |= value
            word = carry | (np.uint64(value) << np.uint64(start & 7))
            _store64(out, group * bits + (start >> 3), word)
            carry = word >> np.uint64(((start & 7) + bits) & 56)
    return int(seen)


@kernel
def _pack_bytes(values: npt.NDArray[np.uint32], bits: int, out: npt.NDArray[np.uint8]) -> int:
    """Pack elements byte by byte, with zero bits as padding; return the bitwise OR of all elements.

    The caller sees from the OR whether an element has more than `bits` bits.
    """
    seen = np.uint32(0)
    carry = np.uint64(0)
    held = 0
    at = 0
    for value in values:
        seen |= value
        carry |= np.uint64(value) << np.uint64(held)
        held += bits
        while held >= 8:
            out[at] = np.uint8(carry & np.uint64(255))
            carry >>= np.uint64(8)
            held -= 8
            at += 1
    if held:
        out[at] = np.uint8(carry & np.uint64(255))
    return int(seen)


@kernel
def _unpack_groups(data: npt.NDArray[np.uint8], bits: int, out: npt.NDArray[np.uint32], groups: int) -> None:
    mask = np.uint64((1 << bits) - 1)
    for group in range(groups):
        first = np.uint64(8 * group)
        for place in range(8):
            start = place * bits
            word = _load64(data, group * bits + (start >> 3))
            out[first + np.uint64(place)] = np.uint32((word >> np.uint64(start & 7)) & mask)


@kernel
def _add_pairs(data: npt.NDArray[np.uint8], bits: int, total: npt.NDArray[np.uint32], groups: int) -> None:
    """Unpack groups of eight elements, two elements per 64-bit load, and add the elements to `total`."""
    mask = np.uint64((1 << bits) - 1)
    for group in range(groups):
        first = np.uint64(8 * group)
        for pair in range(4):
            start = 2 * pair * bits
            word = _load64(data, group * bits + (start >> 3)) >> np.uint64(start & 7)
            total[first + np.uint64(2 * pair)] += np.uint32(word & mask)
            total[first + np.uint64(2 * pair + 1)] += np.uint32((word >> np.uint64(bits)) & mask)


@kernel
def _add_singles(data: npt.NDArray[np.uint8], bits: int, total: npt.NDArray[np.uint32], groups: int) -> None:
    """Unpack groups of eight elements, one element per 64-bit load, and add the elements to `total`."""
    mask = np.uint64((1 << bits) - 1)
    for group in range(groups):
        first = np.uint64(8 * group)
        for place in range(8):
            start = place * bits
            word = _load64(data, group * bits + (start >> 3))
            total[first + np.uint64(place)] += np.uint32((word >> np.uint64(start & 7)) & mask)


@kernel
def _unpack_bytes(data: npt.NDArray[np.uint8], bits: int, out: npt.NDArray[np.uint32]) -> None:
    mask = np.uint64((1 << bits) - 1)
    carry = np.uint64(0)
    held = 0
    at = 0
    for index in range(out.size):
        while held < bits:
            carry |= np.uint64(data[at]) << np.uint64(held)
            held += 8
            at += 1
        out[index] = np.uint32(carry & mask)
        carry >>= np.uint64(bits)
        held -= bits
