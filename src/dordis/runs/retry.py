"""Retries: a failed round is tried again a few times, under the next index and without clients evicted for lying."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from dordis.errors import ImpossibleSum, InputError, RoundFailed
from dordis.ledger.ledger import Ledger
from dordis.protocol import ClientId
from dordis.records.run_records import Evictions, FailedAttempt, RoundRecord
from dordis.rounds.engine import AgreedRound, RoundResult, RoundRunner
from dordis.rounds.watch import Watch

TRIES = 5
"""Number of failures without a new suspect (`suspects_of`) after which a round is given up.

Each retry has the next index, and with it a new selection.
"""

Output = TypeVar("Output")


@dataclass(frozen=True)
class Failure:
    """A failed round: its index, and the error."""

    index: int
    error: RoundFailed

    def record(self, evictions: Evictions) -> FailedAttempt:
        """Return the failed attempt for the records of the run, with the clients that were evicted because of it."""
        spoilt = tuple(map(int, self.error.survivors)) if isinstance(self.error, ImpossibleSum) else ()
        return FailedAttempt(self.index, str(self.error), evictions.after(self.index), spoilt)


@dataclass(frozen=True)
class AttemptedRounds(Generic[Output]):
    """The output of the first successful attempt at a round, its index, and the failed attempts before it."""

    output: Output
    index: int
    failures: tuple[Failure, ...]


def attempt(
    run: Callable[[int], Output],
    index: int,
    limit: int,
    on_failure: Callable[[Failure], None] = lambda failure: None,
) -> AttemptedRounds[Output]:
    """Call `run` with `index` and, as long as it raises RoundFailed, with the next index; return the first output.

    Raise the last failure after `limit` failures that name no new suspect.  Failures that name a new suspect do not
    count: each leads to an eviction, so there are few.  An index is never used twice, because a client that answered in
    a round refuses another round with the same index.
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
    """Return all clients that an error names: proven liars, and both sides of each accusation."""
    return {ClientId(u) for u in (*error.named, *(u for pair in error.accusations for u in pair))}


def is_liar(partners: int, liars: int) -> bool:
    """Tell whether a client certainly lies: it is in conflict with `partners` others, at most `liars` of which lie.

    If there are more partners than liars, at least one partner is honest.  Of two clients in conflict at least one
    lies, so in the conflict with the honest partner the client lies.
    """
    return partners > liars


def to_evict(error: RoundFailed, colluders: int, around: int) -> frozenset[ClientId]:
    """Return the clients to evict after a failed round: never more honest clients than liars.

    If the error names or accuses anybody, at least one liar is evicted.  At most `colluders` clients of the round lie;
    this bound is T_C.  At most `around` of the liars share secrets with any one honest client; this bound is T_C too,
    or c_k on the graphs of SecAgg+ (docs/secagg_plus.md).  A client that the error names as a liar is evicted.  A
    client that is in conflict (as accuser or accused) with more clients than can lie is evicted too.  Of each remaining
    pair of accuser and accused both are evicted, unless one of the two is evicted already.  docs/proofs/blame.md has
    the proof.
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


def sum_and_evict(rounds: RoundRunner, agreed: AgreedRound, evictions: Evictions, watch: Watch) -> RoundResult:
    """Sum a round and return the result, or raise RoundFailed; in both cases evict the clients that lied."""
    parameters = agreed.parameters
    try:
        result = rounds.sum(agreed, watch)
    except RoundFailed as failure:
        going = to_evict(failure, parameters.colluders, parameters.colluders_around)
        evictions.add(parameters.index, going, str(failure))
        raise
    named = frozenset(u for output in result.outputs for u in output.named)
    evictions.add(parameters.index, named, "it sent wrong values, and the round succeeded without them")
    return result


def next_index(ledger: Ledger | None, last: RoundRecord | None, failures: Collection[FailedAttempt] = ()) -> int:
    """Return 1 plus the largest index of a finished round, charge or failed attempt of the run; 0 if there is none."""
    recorded = -1 if last is None else last.index
    charged = -1 if ledger is None else ledger.last_index()
    return max(recorded, charged, *(failed.index for failed in failures)) + 1
