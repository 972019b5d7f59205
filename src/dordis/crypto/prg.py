"""AES-128-CTR keystreams, readable from any position; masks over Z_{2^b} and permutations made from keystreams.

Block m of a stream is AES-128(key, nonce || BE32(2 + m)), where BE32 is a big-endian number of 32 bits.  A coordinate
of a mask is made from the next ceil(b/8) bytes of the stream, its *lane*, read as a little-endian number modulo 2^b.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from dordis.crypto import kdf
from dordis.errors import InputError
from dordis.kernels import ring
from dordis.kernels.compiler import check_array, check_bits

KEY_BYTES, NONCE_BYTES = 16, 12
STREAM_BYTES = KEY_BYTES + NONCE_BYTES
SEED_BYTES = 32
BLOCK = 16
FIRST_COUNTER = 2
LONGEST = (2**32 - FIRST_COUNTER) * BLOCK
CALL = 1 << 18
"""Bytes of keystream made by one call of the cipher: enough to make the cost of a call negligible, and few enough for
the second-level cache."""
ROWS = 4
"""Number of keystreams that are added to a vector in one pass over it."""
GROUP = 16
"""Number of lanes that fill whole cipher blocks, whether a lane has one, two, three or four bytes."""

_ZEROS = np.zeros(CALL, np.uint8)

_Four = tuple[list[tuple[Callable[..., int], memoryview]], ring.Rows, ring.Vector]
"""Up to four ciphers, each with its output buffer; the same buffers as rows of lanes; the sign (flip) of each row."""


@dataclass(frozen=True, slots=True, repr=False)
class Stream:
    """Key and nonce of one keystream; a keystream is used for one purpose, once."""

    key: bytes
    nonce: bytes

    @classmethod
    def from_bytes(cls, derived: bytes) -> "Stream":
        """Return the stream whose key and nonce are the first 16 and the last 12 of 28 derived bytes."""
        if len(derived) != STREAM_BYTES:
            raise InputError(f"a stream is made from {STREAM_BYTES} derived bytes, not {len(derived)}")
        return cls(derived[:KEY_BYTES], derived[KEY_BYTES:])

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES or len(self.nonce) != NONCE_BYTES:
            raise InputError(f"a stream has a key of {KEY_BYTES} bytes and a nonce of {NONCE_BYTES}")


def from_seed(seed: bytes, use: bytes) -> Stream:
    """Return the keystream derived from a seed of 32 bytes for one use, which `use` names."""
    if len(seed) != SEED_BYTES:
        raise InputError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return Stream.from_bytes(kdf.expand(seed, use, STREAM_BYTES))


def open_stream(stream: Stream, block: int = 0) -> CipherContext:
    """Return a cipher positioned at one of the stream's 16-byte blocks, for `fill_keystream`."""
    counter = (FIRST_COUNTER + block).to_bytes(4, "big")
    return Cipher(algorithms.AES128(stream.key), modes.CTR(stream.nonce + counter)).encryptor()


def fill_keystream(context: CipherContext, out: npt.NDArray[np.uint8]) -> None:
    """Fill `out`, whose size is a multiple of 16 up to 256 KiB, with the next bytes of the stream."""
    context.update_into(_ZEROS[: out.size].data, out.data)


def read_keystream(stream: Stream, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `count` bytes of a stream, starting at byte `first`."""
    if first < 0 or count < 0 or first + count > LONGEST:
        raise InputError(f"a stream has bytes 0 to {LONGEST - 1}: got first {first} and count {count}")
    if not count:
        return np.empty(0, np.uint8)  # `first` may be one past the last block
    skip = first % BLOCK
    context = open_stream(stream, first // BLOCK)
    out = np.empty(-(-(skip + count) // BLOCK) * BLOCK, np.uint8)
    for at in range(0, out.size, CALL):
        fill_keystream(context, out[at : at + CALL])
    return out[skip : skip + count]


def add_masks(
    acc: ring.Vector,
    added: Sequence[Stream],
    subtracted: Sequence[Stream],
    bits: int,
    first: int = 0,
    threads: int = 1,
) -> None:
    """Add the masks of some keystreams to `acc` and subtract those of others, in place, modulo 2^bits.

    `acc[i]` gets coordinate `first` + i of every mask, so that `acc` may be a part of a longer vector.
    """
    check_ring(acc, bits)
    if first < 0 or (first + acc.size) * _lane_bytes(bits) > LONGEST:
        raise InputError(f"a mask of {bits} bits has coordinates 0 to {LONGEST // _lane_bytes(bits) - 1}")
    signed = [(stream, np.uint32(0)) for stream in added] + [(stream, np.uint32(2**32 - 1)) for stream in subtracted]
    head = min(-first % GROUP, acc.size)
    if head:  # the slice starts inside a group: compute the whole group and keep the coordinates of the slice
        group, at = np.zeros(GROUP, np.uint32), first % GROUP
        group[at : at + head] = acc[:head]
        _prepare_addition(group, signed, bits, first - at)()
        acc[:head] = group[at : at + head]
    run_in_threads(lambda at, end: _prepare_addition(acc[at:end], signed, bits, first + at), head, acc.size, threads)


def check_ring(acc: npt.NDArray[Any], bits: int) -> None:
    """Raise InputError unless `acc` is a writable vector of uint32 and `bits` is from 1 to 32."""
    check_bits(bits)
    check_array("acc", acc, np.uint32, written=True)


def _prepare_addition(
    acc: ring.Vector, signed: Sequence[tuple[Stream, np.uint32]], bits: int, first: int
) -> Callable[[], None]:
    """Return a function that adds the masks of all streams to `acc`, with their signs, in one pass over the vector.

    The function runs little Python between its calls of cipher and kernel, which release the GIL: while one thread runs
    Python, the others wait.
    """
    width = _lane_bytes(bits)
    add, lane = (ring.add_three_byte_lanes, "u4") if width == 3 else (ring.add_lanes, f"u{width}")
    ciphers = [open_stream(stream, first * width // BLOCK).update_into for stream, _ in signed]
    flips = np.array([flip for _, flip in signed], np.uint32)
    lanes = CALL // width // GROUP * GROUP
    buffer = np.empty(ROWS * lanes * width, np.uint8)

    def fours(count: int) -> tuple[memoryview, list[_Four]]:
        used = -(-count // GROUP) * GROUP * width
        rows = buffer[: ROWS * used].reshape(ROWS, used)  # contiguous, so that the kernel is compiled once only
        calls = list(zip(ciphers, [row.data for row in rows] * len(ciphers), strict=False))
        together = [slice(k, k + ROWS) for k in range(0, len(ciphers), ROWS)]
        return _ZEROS[:used].data, [(calls[k], rows.view(lane)[: len(calls[k])], flips[k]) for k in together]

    pieces = [acc[at : at + lanes] for at in range(0, acc.size, lanes)]
    stretches = [(alike, fours(alike[0].size)) for alike in (pieces[:-1], pieces[-1:]) if alike]

    def walk() -> None:
        for targets, (zeros, added) in stretches:
            for target in targets:
                for calls, rows, flip in added:
                    for update_into, out in calls:
                        update_into(zeros, out)
                    add(target, rows, flip)
                if bits < 32:
                    ring.reduce_modulo(target, np.uint32(2**bits - 1))

    return walk


def run_in_threads(prepare: Callable[[int, int], Callable[[], None]], first: int, end: int, threads: int) -> None:
    """Divide the work on coordinates first .. end - 1 among threads; the result does not depend on `threads`.

    `prepare(start, end)` returns a function that does the work on one part; all parts but the last have a multiple of
    `GROUP` coordinates.  All parts are prepared first and then run in parallel.
    """
    step = -(-(end - first) // max(1, threads) // GROUP) * GROUP
    works = [prepare(at, min(at + step, end)) for at in range(first, end, max(1, step))]
    others = [_get_workers(os.getpid()).submit(work) for work in works[1:]]
    try:
        for work in works[:1]:  # in this thread, which would only wait otherwise
            work()
    finally:
        failures = [other.exception() for other in others]  # waits until all threads have ended
    for failure in failures:
        if failure:
            raise failure


@cache
def _get_workers(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process; it is kept, since to start a thread takes as long as three cipher calls.

    `process` is the id of the process: a forked process has none of its parent's threads and needs a pool of its own.
    """
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"dordis-{process}")


def _lane_bytes(bits: int) -> int:
    """Return the number of bytes of a lane: one coordinate of `bits` bits in a keystream."""
    return (bits + 7) // 8


Item = TypeVar("Item")

WORD_BITS = 64
_BATCH = 8 * 512


def shuffle(items: Sequence[Item], stream: Stream) -> list[Item]:
    """Return the items in an order that the stream determines; with a random stream all orders are equally likely."""
    order, drawn = list(items), read_words(stream)
    for last in range(len(order) - 1, 0, -1):
        other = draw_below(last + 1, drawn)
        order[last], order[other] = order[other], order[last]
    return order


def draw_below(bound: int, drawn: Iterator[int]) -> int:
    """Return a uniform number below `bound` from uniform 64-bit words.

    A word is skipped unless it is below the largest multiple of `bound` that is at most 2^64.  The first word that is
    not skipped is reduced modulo `bound`.

    >>> draw_below(3, iter([2**64 - 1, 5]))
    2
    """
    complete = 2**WORD_BITS - 2**WORD_BITS % bound
    return next(word for word in drawn if word < complete) % bound


def read_words(stream: Stream) -> Iterator[int]:
    """Yield the little-endian eight-byte words of a stream as integers."""
    for at in count(0, _BATCH):
        yield from read_keystream(stream, at, _BATCH).view("<u8").tolist()
