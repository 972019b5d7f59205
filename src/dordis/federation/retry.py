"""Try a failed round again: under the next index, without those who have to go, a bounded number of times."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dordis.errors import InputError, ReceiverLost, RoundFailed
from dordis.protocol import ClientId

TRIES = 5
"""How often a round may fail for no lie, each time under the next index and so with other clients."""

Output = TypeVar("Output")


@dataclass(frozen=True)
class Failure:
    """A round that failed: its index, and why."""

    index: int
    error: RoundFailed


@dataclass(frozen=True)
class Attempted(Generic[Output]):
    """The output of the first round that went well, its index, and the rounds that failed before it."""

    output: Output
    index: int
    failures: tuple[Failure, ...]


def attempt(
    run: Callable[[int], Output],
    index: int,
    limit: int,
    on_failure: Callable[[Failure], None] = lambda failure: None,
) -> Attempted[Output]:
    """Run the round with this index, and with the next ones while it fails; `on_failure` is told of each failure.

    It may fail `limit` times for no lie; a round that a lie ended costs somebody its place, so that there are not many.
    A lost receive process is the server's own fault and does not count as a try; its restarts are bounded elsewhere.
    An index is never used twice: a client that answered in a failed round would refuse, and must.  The last failure is
    raised.
    """
    if limit < 1:
        raise InputError(f"a round is tried at least once, not {limit} times")
    failures: list[Failure] = []
    suspected: set[ClientId] = set()
    unlucky = 0
    while True:
        try:
            return Attempted(run(index), index, tuple(failures))
        except RoundFailed as error:
            failures.append(Failure(index, error))
            on_failure(failures[-1])
            suspects = suspects_of(error)
            unlucky += suspects <= suspected and not isinstance(error, ReceiverLost)
            suspected |= suspects
            if unlucky == limit:
                raise
        index += 1


def suspects_of(error: RoundFailed) -> set[ClientId]:
    """Return everyone who was named, accused or accuses."""
    return {ClientId(u) for u in (*error.named, *(u for pair in error.accusations for u in pair))}


def is_liar(partners: int, liars: int) -> bool:
    """Tell whether a client has more partners than there can be liars: one of them is honest, so the client is not."""
    return partners > liars


def to_evict(error: RoundFailed, colluders: int, around: int) -> frozenset[ClientId]:
    """Return who has to go after a round that failed: at least one liar if there was a lie, and no more honest clients.

    There are at most `colluders` liars in the round, T_C, and at most `around` of them share secrets with an honest
    client: T_C again, on SecAgg+ c_k.  Whoever was named goes alone.  So does whoever has more partners, accusing or
    accused, than there can be liars around it.  Of each pair that is left both go, unless one has gone with another.
    docs/security.md has the proof.
    """
    going = {ClientId(u) for u in error.named}
    edges = {(ClientId(min(pair)), ClientId(max(pair))) for pair in error.accusations}
    while edges := {edge for edge in edges if going.isdisjoint(edge)}:
        partners = Counter(u for edge in edges for u in edge)
        most = max(sorted(partners), key=partners.__getitem__)
        if not is_liar(partners[most], min(colluders - len(going), around)):
            break
        going.add(most)
    for edge in sorted(edges):
        if going.isdisjoint(edge):
            going.update(edge)
    return frozenset(going)
