"""AES-128-CTR keystream, any slice of it, and masks: vectors of keystream over Z_{2^b}.

A stream's block m is AES-128(key, nonce || BE32(2 + m)).  A mask's coordinates are little-endian lanes of
ceil(b/8) bytes of the stream, cut to b bits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from dordis.errors import InputError
from dordis.kernels import ring
from dordis.kernels.arrays import check_array, check_bits

KEY_BYTES, NONCE_BYTES = 16, 12
STREAM_BYTES = KEY_BYTES + NONCE_BYTES
BLOCK = 16
FIRST_COUNTER = 2
LONGEST = (2**32 - FIRST_COUNTER) * BLOCK
CALL = 1 << 18
"""Bytes of keystream in flight: large enough to hide the calls, small enough for the second-level cache."""
ROWS = 4
"""Streams added together in one pass over the vector."""
GROUP = 16
"""Lanes after which lanes of any width and cipher blocks start together again."""

_ZEROS = np.zeros(CALL, np.uint8)


@dataclass(frozen=True, slots=True, repr=False)
class Stream:
    """Name one keystream: a key used with one nonce, for one purpose, once."""

    key: bytes
    nonce: bytes

    @classmethod
    def of(cls, derived: bytes) -> "Stream":
        """Take the key and the nonce out of 28 derived bytes."""
        if len(derived) != STREAM_BYTES:
            raise InputError(f"a stream is made from {STREAM_BYTES} derived bytes, not {len(derived)}")
        return cls(derived[:KEY_BYTES], derived[KEY_BYTES:])

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES or len(self.nonce) != NONCE_BYTES:
            raise InputError(f"a stream has a key of {KEY_BYTES} bytes and a nonce of {NONCE_BYTES}")


def start(stream: Stream, block: int = 0) -> CipherContext:
    """Open a stream at one of its 16-byte blocks; `generate` reads on from there."""
    counter = (FIRST_COUNTER + block).to_bytes(4, "big")
    return Cipher(algorithms.AES128(stream.key), modes.CTR(stream.nonce + counter)).encryptor()


def generate(context: CipherContext, out: npt.NDArray[np.uint8]) -> None:
    """Fill `out`, whose size is a multiple of 16 up to 256 KiB, with the next bytes of the stream."""
    context.update_into(_ZEROS[: out.size].data, out.data)


def keystream(stream: Stream, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `count` bytes of a stream from byte `first` on."""
    if first < 0 or count < 0 or first + count > LONGEST:
        raise InputError(f"a stream has bytes 0 to {LONGEST - 1}; {count} from {first} on are not among them")
    if not count:
        return np.empty(0, np.uint8)  # `first` may be one past the last block
    skip = first % BLOCK
    context = start(stream, first // BLOCK)
    out = np.empty(_whole_blocks(skip + count), np.uint8)
    for at in range(0, out.size, CALL):
        generate(context, out[at : at + CALL])
    return out[skip : skip + count]


def mask(stream: Stream, count: int, bits: int, first: int = 0) -> ring.Vector:
    """Return coordinates first .. first + count - 1 of a stream's mask over Z_{2^bits}."""
    if count < 0:
        raise InputError(f"a mask has 0 or more coordinates, not {count}")
    acc = np.zeros(count, np.uint32)
    add_masks(acc, [stream], [], bits, first=first)
    return acc


def add_masks(
    acc: ring.Vector,
    added: Sequence[Stream],
    subtracted: Sequence[Stream],
    bits: int,
    first: int = 0,
    threads: int = 1,
) -> None:
    """Add and subtract masks, modulo 2^bits, in place; `acc` holds the coordinates from `first` on."""
    check_ring(acc, bits)
    if first < 0 or (first + acc.size) * _width(bits) > LONGEST:
        raise InputError(f"a mask of {bits} bits has coordinates 0 to {LONGEST // _width(bits) - 1}")
    signed = [(stream, np.uint32(0)) for stream in added] + [(stream, np.uint32(2**32 - 1)) for stream in subtracted]
    head = min(-first % GROUP, acc.size)
    if head:  # the slice starts inside a group: make the whole group and keep the slice's part
        group, at = np.zeros(GROUP, np.uint32), first % GROUP
        group[at : at + head] = acc[:head]
        _add(group, signed, bits, first - at)
        acc[:head] = group[at : at + head]
    in_threads(lambda at, end: _add(acc[at:end], signed, bits, first + at), head, acc.size, threads)


def check_ring(acc: npt.NDArray[Any], bits: int) -> None:
    """Refuse what is not a vector over Z_{2^bits}."""
    check_bits(bits)
    check_array("acc", acc, np.uint32, written=True)


def _add(acc: ring.Vector, signed: Sequence[tuple[Stream, np.uint32]], bits: int, first: int) -> None:
    """Walk the vector once, a row of keystream at a time; every stream adds to each row's run of coordinates."""
    width = _width(bits)
    add, lane = (ring.add_three_byte_lanes, "u4") if width == 3 else (ring.add_lanes, f"u{width}")
    contexts = [start(stream, first * width // BLOCK) for stream, _ in signed]
    flips = np.array([flip for _, flip in signed], np.uint32)
    fours = [(contexts[k : k + ROWS], flips[k : k + ROWS]) for k in range(0, len(contexts), ROWS)]
    lanes = CALL // width // GROUP * GROUP
    buffer = np.empty(ROWS * lanes * width, np.uint8)
    for at in range(0, acc.size, lanes):
        target = acc[at : at + lanes]
        used = -(-target.size // GROUP) * GROUP * width
        rows = buffer[: ROWS * used].reshape(ROWS, used)  # contiguous: one layout, one compilation
        words, outs, zeros = rows.view(lane), [row.data for row in rows], _ZEROS[:used].data
        for together, flip in fours:
            for context, out in zip(together, outs, strict=False):
                context.update_into(zeros, out)
            add(target, words[: len(together)], flip)
        if bits < 32:
            ring.cut(target, np.uint32(2**bits - 1))


def in_threads(work: Callable[[int, int], None], first: int, end: int, threads: int) -> None:
    """Share the coordinates first .. end - 1 out in whole groups; the cuts do not show in the result."""
    step = -(-(end - first) // max(1, threads) // GROUP) * GROUP
    parts = [(at, min(at + step, end)) for at in range(first, end, max(1, step))]
    if len(parts) <= 1:
        for part in parts:
            work(*part)
        return
    with ThreadPoolExecutor(len(parts) - 1) as pool:
        others = [pool.submit(work, *part) for part in parts[1:]]
        work(*parts[0])  # here: a thread less to start
        for other in others:
            other.result()


def _width(bits: int) -> int:
    """Return the bytes of a lane."""
    return (bits + 7) // 8


def _whole_blocks(count: int) -> int:
    return -(-count // BLOCK) * BLOCK
