"""AES-128-CTR keystream, any slice of it, masks over Z_{2^b}, and permutations that every party can recompute.

A stream's block m is AES-128(key, nonce || BE32(2 + m)).  A mask's coordinates are little-endian lanes of
ceil(b/8) bytes of the stream, cut to b bits.
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
"""Bytes of keystream in flight: large enough to hide the calls, small enough for the second-level cache."""
ROWS = 4
"""Streams added together in one pass over the vector."""
GROUP = 16
"""Lanes after which lanes of any width and cipher blocks start together again."""

_ZEROS = np.zeros(CALL, np.uint8)

_Four = tuple[list[tuple[Callable[..., int], memoryview]], ring.Rows, ring.Vector]
"""Up to four ciphers and where their keystreams go, these as rows of lanes, and the signs."""


@dataclass(frozen=True, slots=True, repr=False)
class Stream:
    """Name one keystream: a key used with one nonce, for one purpose, once."""

    key: bytes
    nonce: bytes

    @classmethod
    def from_bytes(cls, derived: bytes) -> "Stream":
        """Take the key and the nonce out of 28 derived bytes."""
        if len(derived) != STREAM_BYTES:
            raise InputError(f"a stream is made from {STREAM_BYTES} derived bytes, not {len(derived)}")
        return cls(derived[:KEY_BYTES], derived[KEY_BYTES:])

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES or len(self.nonce) != NONCE_BYTES:
            raise InputError(f"a stream has a key of {KEY_BYTES} bytes and a nonce of {NONCE_BYTES}")


def from_seed(seed: bytes, use: bytes) -> Stream:
    """Derive the keystream that a seed of 32 bytes gives for one use."""
    if len(seed) != SEED_BYTES:
        raise InputError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return Stream.from_bytes(kdf.expand(seed, use, STREAM_BYTES))


def open_stream(stream: Stream, block: int = 0) -> CipherContext:
    """Open a stream at one of its 16-byte blocks; `fill_keystream` reads on from there."""
    counter = (FIRST_COUNTER + block).to_bytes(4, "big")
    return Cipher(algorithms.AES128(stream.key), modes.CTR(stream.nonce + counter)).encryptor()


def fill_keystream(context: CipherContext, out: npt.NDArray[np.uint8]) -> None:
    """Fill `out`, whose size is a multiple of 16 up to 256 KiB, with the next bytes of the stream."""
    context.update_into(_ZEROS[: out.size].data, out.data)


def read_keystream(stream: Stream, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `count` bytes of a stream, starting at byte `first`."""
    if first < 0 or count < 0 or first + count > LONGEST:
        raise InputError(f"a stream has bytes 0 to {LONGEST - 1}; {count} from {first} on are not among them")
    if not count:
        return np.empty(0, np.uint8)  # `first` may be one past the last block
    skip = first % BLOCK
    context = open_stream(stream, first // BLOCK)
    out = np.empty(-(-(skip + count) // BLOCK) * BLOCK, np.uint8)
    for at in range(0, out.size, CALL):
        fill_keystream(context, out[at : at + CALL])
    return out[skip : skip + count]


def make_mask(stream: Stream, count: int, bits: int, first: int = 0) -> ring.Vector:
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
    """Add and subtract masks, modulo 2^bits, in place; `acc` begins at coordinate `first`."""
    check_ring(acc, bits)
    if first < 0 or (first + acc.size) * _lane_bytes(bits) > LONGEST:
        raise InputError(f"a mask of {bits} bits has coordinates 0 to {LONGEST // _lane_bytes(bits) - 1}")
    signed = [(stream, np.uint32(0)) for stream in added] + [(stream, np.uint32(2**32 - 1)) for stream in subtracted]
    head = min(-first % GROUP, acc.size)
    if head:  # the slice starts inside a group: make the whole group and keep the slice's part
        group, at = np.zeros(GROUP, np.uint32), first % GROUP
        group[at : at + head] = acc[:head]
        _prepare_addition(group, signed, bits, first - at)()
        acc[:head] = group[at : at + head]
    run_in_threads(lambda at, end: _prepare_addition(acc[at:end], signed, bits, first + at), head, acc.size, threads)


def check_ring(acc: npt.NDArray[Any], bits: int) -> None:
    """Refuse what is not a vector over Z_{2^bits}."""
    check_bits(bits)
    check_array("acc", acc, np.uint32, written=True)


def _prepare_addition(
    acc: ring.Vector, signed: Sequence[tuple[Stream, np.uint32]], bits: int, first: int
) -> Callable[[], None]:
    """Prepare to walk the vector once, a row of keystream at a time; every stream adds to each row's coordinates.

    What is returned does that with hardly a step between calls that release the GIL: a thread that has to wait for
    another's steps loses as much time as a call takes.
    """
    width = _lane_bytes(bits)
    add, lane = (ring.add_three_byte_lanes, "u4") if width == 3 else (ring.add_lanes, f"u{width}")
    ciphers = [open_stream(stream, first * width // BLOCK).update_into for stream, _ in signed]
    flips = np.array([flip for _, flip in signed], np.uint32)
    lanes = CALL // width // GROUP * GROUP
    buffer = np.empty(ROWS * lanes * width, np.uint8)

    def fours(count: int) -> tuple[memoryview, list[_Four]]:
        used = -(-count // GROUP) * GROUP * width
        rows = buffer[: ROWS * used].reshape(ROWS, used)  # contiguous: one layout, one compilation
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
    """Share the coordinates first .. end - 1 out in whole groups; the cuts do not show in the result.

    The work on each part is prepared here, one after the other, and then done side by side.
    """
    step = -(-(end - first) // max(1, threads) // GROUP) * GROUP
    works = [prepare(at, min(at + step, end)) for at in range(first, end, max(1, step))]
    others = [_get_workers(os.getpid()).submit(work) for work in works[1:]]
    try:
        for work in works[:1]:  # here: a thread less to wake
            work()
    finally:
        failures = [other.exception() for other in others]  # all of them end before anybody looks at the vector
    for failure in failures:
        if failure:
            raise failure


@cache
def _get_workers(process: int) -> ThreadPoolExecutor:
    """Keep threads at hand: to start one takes as long as three calls of the cipher.

    They belong to one process, because a process that is forked off has none of its parent's threads.
    """
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"dordis-{process}")


def _lane_bytes(bits: int) -> int:
    """Return the bytes of a lane."""
    return (bits + 7) // 8


Item = TypeVar("Item")

WORD_BITS = 64
_BATCH = 8 * 512


def shuffle(items: Sequence[Item], stream: Stream) -> list[Item]:
    """Return the items in the order that the stream gives: each order as likely as any other."""
    order, drawn = list(items), read_words(stream)
    for last in range(len(order) - 1, 0, -1):
        other = draw_below(last + 1, drawn)
        order[last], order[other] = order[other], order[last]
    return order


def draw_below(bound: int, drawn: Iterator[int]) -> int:
    """Return the first word modulo `bound`, skipping those in the last, incomplete run of residues.

    >>> draw_below(3, iter([2**64 - 1, 5]))
    2
    """
    complete = 2**WORD_BITS - 2**WORD_BITS % bound
    return next(word for word in drawn if word < complete) % bound


def read_words(stream: Stream) -> Iterator[int]:
    """Read a stream as little-endian words of eight bytes."""
    for at in count(0, _BATCH):
        yield from read_keystream(stream, at, _BATCH).view("<u8").tolist()
