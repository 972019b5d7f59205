"""Retry a failed round under the next index, without the evicted clients, a bounded number of times."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dordis.errors import InputError, RoundFailed
from dordis.protocol import ClientId

TRIES = 5
"""How often a round may fail without a lie; each retry has the next index, and so other clients."""

Output = TypeVar("Output")


@dataclass(frozen=True)
class Failure:
    """A failed round: its index, and the error."""

    index: int
    error: RoundFailed


@dataclass(frozen=True)
class AttemptedRounds(Generic[Output]):
    """The output of the first successful round, its index, and the failed rounds before it."""

    output: Output
    index: int
    failures: tuple[Failure, ...]


def attempt(
    run: Callable[[int], Output],
    index: int,
    limit: int,
    on_failure: Callable[[Failure], None] = lambda failure: None,
) -> AttemptedRounds[Output]:
    """Run the round with this index, and with the next ones while it fails; `on_failure` is told of each failure.

    It may fail `limit` times without a lie.  Rounds that a lie ended do not count: each of them evicts somebody, so
    there are few.  An index is never used twice: a client that answered in a failed round refuses it.  The last failure
    is raised.
    """
    if limit < 1:
        raise InputError(f"a round is tried at least once, not {limit} times")
    failures: list[Failure] = []
    suspected: set[ClientId] = set()
    unlucky = 0
    while True:
        try:
            return AttemptedRounds(run(index), index, tuple(failures))
        except RoundFailed as error:
            failures.append(Failure(index, error))
            on_failure(failures[-1])
            suspects = suspects_of(error)
            unlucky += suspects <= suspected
            suspected |= suspects
            if unlucky == limit:
                raise
        index += 1


def suspects_of(error: RoundFailed) -> set[ClientId]:
    """Return all clients that were named, were accused, or accuse others."""
    return {ClientId(u) for u in (*error.named, *(u for pair in error.accusations for u in pair))}


def is_liar(partners: int, liars: int) -> bool:
    """Tell whether a client conflicts with more clients than there are liars: one of them is honest, so it lies."""
    return partners > liars


def to_evict(error: RoundFailed, colluders: int, around: int) -> frozenset[ClientId]:
    """Return the clients to evict after a failed round: at least one liar if there was a lie, never more honest ones.

    There are at most `colluders` liars in the round, T_C, and at most `around` of them share secrets with an honest
    client: T_C again, on SecAgg+ c_k.  A named client is evicted alone, and so is one in conflict (accusing or accused)
    with more clients than there can be liars around it.  Of each remaining pair both are evicted, unless one already
    is.  docs/security.md has the proof.
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
