"""Retry a failed round under the next index, without the evicted clients, a bounded number of times."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dordis.errors import InputError, RoundFailed
from dordis.protocol import ClientId

TRIES = 5
"""How often a round may fail if no client lies; each retry has the next index, and so other clients."""

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
    """Call `run` with this round index and, while it fails, with the next ones; call `on_failure` with each failure.

    After `limit` failures the last one is raised.  A failure with a new suspect does not count towards `limit`: it
    evicts a client, so there are few of them.  An index is never used twice, because a client that answered in a round
    refuses a second one with the same index.
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
    """Return all clients that an error names as liars, as accused or as accusers."""
    return {ClientId(u) for u in (*error.named, *(u for pair in error.accusations for u in pair))}


def is_liar(partners: int, liars: int) -> bool:
    """Tell whether a client in conflict with `partners` others lies: if at most `liars` of these lie, one is honest."""
    return partners > liars


def to_evict(error: RoundFailed, colluders: int, around: int) -> frozenset[ClientId]:
    """Return the clients to evict after a failed round: never more honest clients than liars, and a liar if one lied.

    At most `colluders` clients of the round lie, T_C, and at most `around` of them share secrets with any one honest
    client: T_C too, or c_k on the graphs of SecAgg+ (docs/secagg_plus.md).  A client that the error names is evicted
    alone; so is a client in conflict (accusing or accused) with more others than can lie.  Of each remaining pair of
    accuser and accused both are evicted, unless one of them already is.  docs/proofs/blame.md has the proof.
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
