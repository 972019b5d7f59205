"""A permutation that everyone can compute again: Fisher and Yates, fed by a keystream, without bias."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

from dordis.crypto import prg

Item = TypeVar("Item")

WORD_BITS = 64
_BATCH = 8 * 512


def shuffled(items: Sequence[Item], stream: prg.Stream) -> list[Item]:
    """Return the items in the order that the stream gives: each order as likely as any other."""
    order, drawn = list(items), words(stream)
    for last in range(len(order) - 1, 0, -1):
        other = below(last + 1, drawn)
        order[last], order[other] = order[other], order[last]
    return order


def below(bound: int, drawn: Iterator[int]) -> int:
    """Return the first word modulo `bound`, skipping those in the last, incomplete run of residues.

    >>> below(3, iter([2**64 - 1, 5]))
    2
    """
    complete = 2**WORD_BITS - 2**WORD_BITS % bound
    return next(word for word in drawn if word < complete) % bound


def words(stream: prg.Stream) -> Iterator[int]:
    """Read a stream as little-endian words of eight bytes."""
    for at in count(0, _BATCH):
        yield from prg.keystream(stream, at, _BATCH).view("<u8").tolist()
