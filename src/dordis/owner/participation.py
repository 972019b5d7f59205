"""A client's own count of the rounds that it took part in, with their costs, over all runs and servers.

A round is counted before its upload, and stays counted if it fails: the server may have learned a sum with the upload.
The owner's cap and budget are checked against this count, so no server's run ids or ledger need to be trusted.  Never
restore an older copy of the file: it lacks the latest rounds, so these would no longer count.  A cost has two parts:
theta^2 of Gaussian DP, and probabilities that are subtracted from delta (`RoundCost.failure` is one of them).
"""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, reduce
from pathlib import Path
from typing import NamedTuple

import msgspec

from dordis.durable_files import PRIVATE, AppendOnlyFile, write_atomically
from dordis.errors import BudgetRefused, InputError, ParametersRefused, ParticipationRefused
from dordis.privacy import accounting, gdp
from dordis.privacy.record_accounting import WORD, SampledEvents, default_order, epsilon, filtered_epsilon
from dordis.protocols.costs import FREE, RoundCost
from dordis.selection.beacon import check_index, check_run_id

Attendance = tuple[bytes, int]
"""A run id and the index of a round."""
Costs = Mapping[Attendance, RoundCost]
NO_COSTS: Costs = {}
ANY_MACHINE = bytes(32)

_NUMBER = rb"[0-9.e+-]{1,32}|inf"
_LINE = re.compile(
    rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,19}) ([0-9a-f]{64}) (%b) (%b)(?: (%b))?(?: of ([0-9]{1,10})/([0-9]{1,10}))?"
    rb" ([0-9a-f]{64})\n" % ((_NUMBER,) * 3)
)
_START = hashlib.sha256(b"dordis/v2/participations").digest()


class CountedRound(NamedTuple):
    """A counted round: its cost, and the random id in the round's journal, which another machine does not know."""

    machine: bytes
    cost: RoundCost


Rounds = dict[Attendance, CountedRound]
NewRound = tuple[Attendance, CountedRound]
Store = Callable[[NewRound | None], None]
"""A function that writes a newly counted round to disk; with None it only syncs the lines that are in the file."""


class OwnerBudget(msgspec.Struct, frozen=True):
    """The owner's budget: the largest (epsilon, delta) of all rounds of a client together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        accounting.check_epsilon(self.epsilon)
        accounting.check_delta(self.delta)

    def covers(self, spent: RoundCost, plans: Sequence[SampledEvents] = ()) -> bool:
        """Tell whether the budget covers rounds that cost `spent`, together with the planned events in `plans`."""
        if plans:
            return self.epsilon_spent(spent, plans) <= self.epsilon
        exponent = math.ceil(math.log2(spent.distance)) if spent.distance else None
        left = self.delta - spent.failure
        return left > 0 and spent.theta_squared <= _largest_theta_squared(self.epsilon, left, exponent)

    @property
    def order(self) -> float:
        """Return the Renyi order at which the planned events of several runs with sampled records are added up."""
        return default_order(self.epsilon, self.delta)

    def epsilon_spent(self, spent: RoundCost, plans: Sequence[SampledEvents] = ()) -> float:
        """Return the epsilon, at this delta, of rounds that cost `spent` together with the planned events in `plans`.

        `plans` has a plan for each run with sampled records.  If there are plans, the rounds in `spent` count as one
        further plan, without sampling.  A single plan is composed numerically.  The Renyi divergences of several plans
        are added at one order, which is valid even if a later plan depends on the results of earlier plans.
        """
        left = self.delta - spent.failure
        if math.isinf(spent.theta_squared) or left <= 0:
            return math.inf
        if plans and spent.theta_squared:
            plans = (*plans, SampledEvents(WORD, spent.theta_squared, 1, spent.distance))
        if plans:
            return epsilon(plans[0], left) if len(plans) == 1 else filtered_epsilon(plans, self.order, left)
        return gdp.epsilon(spent.theta_squared, left, spent.distance)


@lru_cache(maxsize=1 << 10)
def _largest_theta_squared(epsilon: float, delta: float, exponent: int | None) -> float:
    """Return a budget's largest theta^2; 2^`exponent`, or 0 for None, bounds the distance of the noise from its law."""
    distance = 0.0 if exponent is None else 2.0**exponent
    provable = math.log(delta / (4 * distance)) if distance else math.inf  # the planner uses the same bound
    if provable <= 0:
        return 0.0
    return gdp.theta_budget(min(epsilon, provable), delta, distance)


class Limits(NamedTuple):
    """The cap on all participations, the budget, and the cap on participations in one run; None for no limit."""

    cap: int | None = None
    budget: OwnerBudget | None = None
    run_cap: int | None = None


NO_LIMITS = Limits()


class ParticipationTally:
    """The counted rounds of a client, with their total cost."""

    def __init__(self, rounds: Rounds | None = None) -> None:
        self.rounds: Rounds = {}
        self.by_run: Counter[bytes] = Counter()
        self._spent = FREE
        self._indices: dict[bytes, tuple[int, float]] = {}
        self._plans: dict[bytes, SampledEvents] = {}
        for attendance, counted in (rounds or {}).items():
            self.add(attendance, counted)

    def add(self, attendance: Attendance, counted: CountedRound) -> None:
        self.by_run[attendance[0]] += attendance not in self.rounds
        self.rounds[attendance] = counted
        if counted.cost.sampled is None:
            self._spent = self._spent.plus(counted.cost)
        self._plans = self._plans_with({attendance: counted.cost})
        self._indices = self._indices_with({attendance: counted.cost})

    def spent(self, more: Costs) -> RoundCost:
        """Return the cost of all rounds, counted or in `more`; those with sampled records add only their `failure`."""
        fresh = {attendance: cost for attendance, cost in more.items() if attendance not in self.rounds}
        failure = math.fsum(indices * likeliest for indices, likeliest in self._indices_with(fresh).values())
        by_client = [cost for cost in fresh.values() if cost.sampled is None]
        return reduce(RoundCost.plus, by_client, self._spent)._replace(failure=failure)

    def plans(self, more: Costs) -> tuple[SampledEvents, ...]:
        """Return the planned events of each run that samples records, if a round of the run is counted or in `more`."""
        return tuple(self._plans_with(more).values())

    def _plans_with(self, costs: Costs) -> dict[bytes, SampledEvents]:
        plans = dict(self._plans)
        for (run, index), cost in costs.items():
            if cost.sampled is not None:
                plans[run] = check_planned(plans.get(run), index, cost)
        return plans

    def _indices_with(self, costs: Costs) -> dict[bytes, tuple[int, float]]:
        """Return two values by run, including `costs`: largest round index plus 1, and largest `RoundCost.failure`."""
        runs = dict(self._indices)  # the server could choose among all indices up to a run's last round
        for (run, index), cost in costs.items():
            indices, likeliest = runs.get(run, (0, 0.0))
            runs[run] = max(indices, index + 1), max(likeliest, cost.failure)
        return runs


class Participation(ABC):
    """A client's own participation count; a round that is reserved twice counts once."""

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap

    @abstractmethod
    def _locked(self) -> AbstractContextManager[tuple[ParticipationTally, Store]]:
        """Lock the count; yield the tally of counted rounds, and the function that writes one more round."""

    def count(self) -> int:
        """Return the number of counted rounds."""
        with self._locked() as (tally, _):
            return len(tally.rounds)

    def spent(self, more: Costs = NO_COSTS) -> RoundCost:
        """Return the cost of all rounds, counted or in `more` (`ParticipationTally.spent`)."""
        with self._locked() as (tally, _):
            return tally.spent(more)

    def plans(self, more: Costs = NO_COSTS) -> tuple[SampledEvents, ...]:
        """Return the planned events of each run that samples records, if a round of it is counted or in `more`."""
        with self._locked() as (tally, _):
            return tally.plans(more)

    def reserve(
        self,
        run: bytes,
        index: int,
        machine: bytes = ANY_MACHINE,
        cost: RoundCost = FREE,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Count a round before its first upload; beyond a limit raise `ParticipationRefused` or `BudgetRefused`.

        A repeated call counts once.  `machine` is the random id of the round's journal.  If the round was counted with
        another id, raise ParametersRefused: a second upload would not be counted.
        """
        check_run_id(run)
        check_index(index)
        if len(machine) != len(ANY_MACHINE):
            raise InputError(f"a machine is named by {len(ANY_MACHINE)} bytes, not {len(machine)}")
        with self._locked() as (tally, store):
            known = tally.rounds.get((run, index))
            if known is not None:
                check_machine(known.machine, machine)
                store(None)
                return
            spent, plans = tally.spent({(run, index): cost}), tally.plans({(run, index): cost})
            for cap in (self._cap, limits.cap):
                check_cap(len(tally.rounds), cap)
            check_run_cap(tally.by_run[run], limits.run_cap)
            check_budget(spent, limits.budget, plans)
            tally.add((run, index), CountedRound(machine, cost))
            store(((run, index), tally.rounds[run, index]))


class MemoryParticipation(Participation):
    """A participation count in memory, for simulations and tests.

    >>> mine = MemoryParticipation(cap=2)
    >>> mine.reserve(bytes(32), 0)
    >>> mine.count()
    1
    """

    def __init__(self, cap: int | None = None) -> None:
        super().__init__(cap)
        self._tally = ParticipationTally()

    @contextmanager
    def _locked(self) -> Iterator[tuple[ParticipationTally, Store]]:
        yield self._tally, self._store

    def _store(self, new: NewRound | None) -> None:
        """Do nothing, because the tally is in memory; a subclass may store the round."""


class FileParticipation(Participation):
    """A participation count in an append-only file with one line for each round; processes and threads may share it.

    Every line ends with a hash of the line and of all lines before it.  If the lines do not match their hashes, every
    use raises `InputError` until the newest copy of the file is restored.  An incomplete last line is ignored.
    """

    def __init__(self, path: Path, cap: int | None = None) -> None:
        super().__init__(cap)
        self._file = AppendOnlyFile(path, PRIVATE)

    @contextmanager
    def _locked(self) -> Iterator[tuple[ParticipationTally, Store]]:
        with self._file.locked() as file:
            data = file.read()
            lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
            rounds, last = check_lines(lines)

            def store(new: NewRound | None) -> None:
                if new is None:
                    file.sync()
                    return
                if not data.endswith(b"\n"):
                    file.truncate(sum(map(len, lines)))
                file.append(_encode_line(*new, last))

            yield ParticipationTally(rounds), store


def check_cap(count: int, cap: int | None) -> None:
    """Raise ParticipationRefused if the owner's cap on participations is reached."""
    if cap is not None and count >= cap:
        raise ParticipationRefused(count, cap)


def check_run_cap(count: int, cap: int | None) -> None:
    """Raise ParticipationRefused if the client has taken part in a run as often as the run's noise was planned for."""
    if cap is not None and count >= cap:
        raise ParticipationRefused(count, cap, "and the noise of this run is planned for")


def check_budget(spent: RoundCost, budget: OwnerBudget | None, plans: Sequence[SampledEvents] = ()) -> None:
    """Raise BudgetRefused if `spent` and planned events `plans`, with the requested round, exceed a budget, if any."""
    if budget is not None and not budget.covers(spent, plans):
        raise BudgetRefused(budget.epsilon_spent(spent, plans), budget.epsilon, budget.delta, spent.failure)


def check_planned(known: SampledEvents | None, index: int, cost: RoundCost) -> SampledEvents:
    """Return a run's planned events: `known` with a round added; raise if the round was not planned."""
    sampling, events = cost.sampled or (WORD, 1)
    if index >= events or (known is not None and (known.sampling, known.events) != (sampling, events)):
        raise ParametersRefused(
            f"this run was planned with {known.events if known else events} events of one sampling: a server cannot "
            "change it or go beyond it"
        )
    theta, distance = (known.theta_squared, known.distance) if known else (0.0, 0.0)
    return SampledEvents(sampling, max(theta, cost.theta_squared), events, max(distance, cost.distance))


def check_machine(counted: bytes, machine: bytes) -> None:
    """Raise ParametersRefused unless a round was `counted` with the id of the journal in use, `machine`."""
    if counted != machine:
        raise ParametersRefused("this round was counted for another machine of the same client: take the next index")


def check_lines(lines: list[bytes]) -> tuple[Rounds, bytes]:
    """Return the rounds in a participation file and its last hash; raise InputError if a line was altered."""
    rounds: Rounds = {}
    last = _START
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        written = _decode_line(match) if match else None
        if written is None or _encode_line(*written, last) != line:
            raise InputError(f"line {number} of the participations was altered or cut: restore its newest copy")
        rounds[written[0]] = written[1]
        last = bytes.fromhex(line[-65:-1].decode())
    return rounds, last


def _decode_line(match: re.Match[bytes]) -> NewRound | None:
    run, index, machine, *numbers = (text.decode() for text in match.groups()[:6] if text is not None)
    sampled = None if match[7] is None else (int(match[7]), int(match[8]))
    try:
        theta_squared, distance, *failure = map(float, numbers)
        cost = RoundCost(theta_squared, distance, failure[0] if failure else 0.0, sampled)
        counted = CountedRound(bytes.fromhex(machine), cost)
    except ValueError:
        return None
    return (bytes.fromhex(run), int(index)), counted


def _encode_line(attendance: Attendance, counted: CountedRound, last: bytes) -> bytes:
    (run, index), (machine, cost) = attendance, counted
    failure = (repr(cost.failure),) if cost.failure else ()
    sampled = (f"of {cost.sampled[0]}/{cost.sampled[1]}",) if cost.sampled else ()  # probability times 2^32, and events
    words = (run.hex(), str(index), machine.hex(), repr(cost.theta_squared), repr(cost.distance), *failure, *sampled)
    text = " ".join(words).encode()
    return b"%b %b\n" % (text, hashlib.sha256(last + text).hexdigest().encode())


class MemoryTrainings:
    """The number of trainings since the client's last counted participation, in memory.

    The owner limits it to `most` (None: no limit, and no count), so that no server makes the client train again and
    again without a counted participation.  No attack is known by which training alone reveals data to the server.

    >>> mine = MemoryTrainings()
    >>> mine.begin(participations=0, most=1)
    >>> mine.begin(participations=1, most=1)
    """

    def __init__(self) -> None:
        self._counted = (0, 0)

    def begin(self, participations: int, most: int | None) -> None:
        """Count a training after `participations` participations; raise ParametersRefused after `most` trainings."""
        if most is None:
            return
        since, count = self._read()
        count = count if since == participations else 0
        check_trainings(count, most)
        self._write(participations, count + 1)

    def _read(self) -> tuple[int, int]:
        """Return the participation count at the last training, and the number of trainings at that count."""
        return self._counted

    def _write(self, participations: int, count: int) -> None:
        self._counted = (participations, count)


class FileTrainings(MemoryTrainings):
    """The number of trainings since the last counted participation, in a file, which survives a restart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _read(self) -> tuple[int, int]:
        if not self._path.exists():
            return (0, 0)
        try:
            since, count = map(int, self._path.read_text(encoding="ascii").split())
        except ValueError:
            raise InputError(f"{self._path} does not hold two numbers: remove it to reset the training count") from None
        return since, count

    def _write(self, participations: int, count: int) -> None:
        write_atomically(self._path, b"%d %d\n" % (participations, count))


def check_trainings(count: int, most: int) -> None:
    """Raise ParametersRefused if a client has trained as often without a counted participation as its owner allows."""
    if count >= most:
        raise ParametersRefused(
            f"the owner's policy, line 'trainings', forbids this round: this client has trained {count} times since "
            "its last counted participation; if rounds failed by bad luck, raise deployment.trainings, or remove the "
            "file 'trainings' in the client's directory"
        )
