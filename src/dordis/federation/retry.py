"""Try a failed round again: under the next index, a bounded number of times, without those who are to blame."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from dordis.errors import InputError, RoundFailed, Unrecoverable
from dordis.protocol import ClientId

TRIES = 5
"""How often a round that fails is tried, each time under the next index and so with other clients."""

Output = TypeVar("Output")
Pair = tuple[int, int]


@dataclass(frozen=True)
class Failure:
    """A round that failed: its index, why, and the pairs (dealer, holder) of whom one is at fault."""

    index: int
    error: RoundFailed
    blame: frozenset[Pair]


@dataclass(frozen=True)
class Attempted(Generic[Output]):
    """The output of the first round that went well, its index, and the rounds that failed before it."""

    output: Output
    index: int
    failures: tuple[Failure, ...]


def attempt(run: Callable[[int, frozenset[Pair]], Output], index: int, limit: int) -> Attempted[Output]:
    """Run the round with this index, and with the next ones while it fails, `limit` times at most.

    An index is never used twice: a client that answered in a failed round would refuse, and must.  `run` is given
    the index and all pairs blamed so far; `leave_out` makes a cohort of that.  The last failure is raised.
    """
    if limit < 1:
        raise InputError(f"a round is tried at least once, not {limit} times")
    failures: list[Failure] = []
    blamed: frozenset[Pair] = frozenset()
    while True:
        try:
            return Attempted(run(index, blamed), index, tuple(failures))
        except RoundFailed as error:
            blame: frozenset[Pair] = error.blame if isinstance(error, Unrecoverable) else frozenset()
            failures.append(Failure(index, error, blame))
            blamed |= blame
            if len(failures) == limit:
                raise
        index += 1


def leave_out(clients: Collection[ClientId], blamed: Collection[Pair], least: int) -> frozenset[ClientId]:
    """Return the clients without those who are to blame, as far as at least `least` remain.

    A client blamed in several pairs goes first, alone, since it explains all of them; of a pair that nothing else
    explains both go, since nobody knows who of the two it was.
    """
    left = set(clients)
    pairs = {pair for pair in blamed if left.issuperset(pair)}
    while pairs:
        (most, count), *_ = sorted(
            Counter(u for pair in pairs for u in pair).items(), key=lambda item: (-item[1], item[0])
        )
        going = {most} if count > 1 else set(min(pairs))
        if len(left) - len(going) < least:
            break
        left -= going
        pairs = {pair for pair in pairs if going.isdisjoint(pair)}
    return frozenset(left)
