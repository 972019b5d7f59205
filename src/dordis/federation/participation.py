"""How often a client has taken part and what that cost: over all its runs and servers, before anything leaves.

The count is what the owner's cap and budget rest on, so it trusts nobody else: not the server's run ids, not its
ledger.  Nothing is taken back, whatever becomes of the round: what was uploaded may be opened by others.  A copy of the
file from an earlier day forgets what came since; keep it out of backups that are restored.
"""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, reduce
from pathlib import Path
from typing import NamedTuple

import msgspec

from dordis.errors import BudgetRefused, InputError, ParametersRefused, ParticipationRefused
from dordis.federation.beacon import check_index, check_run_id
from dordis.federation.durable import PRIVATE, FileLines
from dordis.privacy import accounting, gdp
from dordis.protocols.costs import FREE, RoundCost

Attendance = tuple[bytes, int]
"""A run id and the index of a round."""
ANY_MACHINE = bytes(32)
NOTHING: "Costs" = {}

_FIRST = re.compile(rb"[0-9a-f]{64} (0|[1-9][0-9]{0,19}) [0-9a-f]{64} [0-9a-f]{64}\n")
_NUMBER = rb"[0-9.e+-]{1,32}|inf"
_LINE = re.compile(
    rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,19}) ([0-9a-f]{64}) (%b) (%b)(?: (%b))? ([0-9a-f]{64})\n" % ((_NUMBER,) * 3)
)
_START = hashlib.sha256(b"dordis/v2/participations").digest()


class Attended(NamedTuple):
    """A round taken part in: the machine that did, 32 bytes that no other machine has, and what the round cost."""

    machine: bytes
    cost: RoundCost


Rounds = dict[Attendance, Attended]
NewRound = tuple[Attendance, Attended]
Keep = Callable[[NewRound | None], None]
"""Make a round durable that was just counted; or, for None, one that was counted before, maybe by somebody else."""
Costs = Mapping[Attendance, RoundCost]


class OwnerBudget(msgspec.Struct, frozen=True):
    """What all rounds of a client may cost together: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        accounting.check_epsilon(self.epsilon)
        accounting.check_delta(self.delta)

    def covers(self, spent: RoundCost) -> bool:
        """Tell whether costs are within the budget."""
        exponent = math.ceil(math.log2(spent.distance)) if spent.distance else None
        left = self.delta - spent.failure
        return left > 0 and spent.theta_squared <= _largest(self.epsilon, left, exponent)

    def epsilon_of(self, spent: RoundCost) -> float:
        """Return the epsilon of costs at this delta."""
        left = self.delta - spent.failure
        if math.isinf(spent.theta_squared) or left <= 0:
            return math.inf
        return gdp.epsilon(spent.theta_squared, left, spent.distance)


@lru_cache(maxsize=1 << 10)
def _largest(epsilon: float, delta: float, exponent: int | None) -> float:
    """Return the largest theta^2 within a budget, for noise that is 2^exponent away from its law at most."""
    distance = 0.0 if exponent is None else 2.0**exponent
    provable = math.log(delta / (4 * distance)) if distance else math.inf  # as the planner has it
    if provable <= 0:
        return 0.0
    return gdp.theta_budget(min(epsilon, provable), delta, distance)


class Limits(NamedTuple):
    """How often a client may take part, and what that may cost in all; None where there is no such limit."""

    cap: int | None = None
    budget: OwnerBudget | None = None


NO_LIMITS = Limits()


class Tally:
    """The rounds of a client, and what they cost together."""

    def __init__(self, rounds: Rounds | None = None) -> None:
        self.rounds: Rounds = {}
        self._spent = FREE
        self._indices: dict[bytes, tuple[int, float]] = {}
        for attendance, attended in (rounds or {}).items():
            self.add(attendance, attended)

    def add(self, attendance: Attendance, attended: Attended) -> None:
        """Count a round."""
        self.rounds[attendance] = attended
        self._spent = self._spent.plus(attended.cost)
        self._indices = self._indices_with({attendance: attended.cost})

    def spent(self, more: Costs) -> RoundCost:
        """Return what all of them cost, with some `more` that may be counted already."""
        fresh = {attendance: cost for attendance, cost in more.items() if attendance not in self.rounds}
        failure = math.fsum(indices * likeliest for indices, likeliest in self._indices_with(fresh).values())
        return reduce(RoundCost.plus, fresh.values(), self._spent)._replace(failure=failure)

    def _indices_with(self, costs: Costs) -> dict[bytes, tuple[int, float]]:
        """Return for every run the number of indices up to the last one, and how likely a round of it fails."""
        runs = dict(self._indices)
        for (run, index), cost in costs.items():
            indices, likeliest = runs.get(run, (0, 0.0))
            runs[run] = max(indices, index + 1), max(likeliest, cost.failure)
        return runs


class Participation(ABC):
    """A client's own count; one round counts once, however often it is reserved."""

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap

    @abstractmethod
    def _opened(self) -> AbstractContextManager[tuple[Tally, Keep]]:
        """Give access to what was counted, to nobody else at the same time, and to what keeps a round more."""

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        with self._opened() as (counted, _):
            return len(counted.rounds)

    def spent(self, more: Costs = NOTHING) -> RoundCost:
        """Return what all of them cost, with some `more` that may be counted already.

        Of every run the chance of a failure is that of all indices up to the last: the server chose among them.
        """
        with self._opened() as (counted, _):
            return counted.spent(more)

    def reserve(
        self,
        run: bytes,
        index: int,
        machine: bytes = ANY_MACHINE,
        cost: RoundCost = FREE,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Count a round before its first upload leaves; beyond a limit raise `ParticipationRefused`, `BudgetRefused`.

        A round is for one machine: another one that asks for the same round is refused too, since it would upload a
        second time and count once.  If the process stops anywhere in between, the round is counted or nothing was
        returned.
        """
        _check_round(run, index, machine)
        with self._opened() as (counted, keep):
            known = counted.rounds.get((run, index))
            if known is None:
                spent = counted.spent({(run, index): cost})
                _check_limits(len(counted.rounds), spent, Limits(self._cap), limits)
                counted.add((run, index), Attended(machine, cost))
            else:
                check_machine(known.machine, machine)
            keep(None if known else ((run, index), counted.rounds[run, index]))


class MemoryParticipation(Participation):
    """A count that lasts as long as the process: for simulations and tests.

    >>> mine = MemoryParticipation(cap=2)
    >>> mine.reserve(bytes(32), 0)
    >>> mine.count()
    1
    """

    def __init__(self, cap: int | None = None) -> None:
        super().__init__(cap)
        self._counted = Tally()

    @contextmanager
    def _opened(self) -> Iterator[tuple[Tally, Keep]]:
        yield self._counted, self._keep

    def _keep(self, new: NewRound | None) -> None:
        """Keep nothing anywhere else."""


class FileParticipation(Participation):
    """A count in a file that is only ever appended to, one line a round; processes and threads may share it.

    Every line ends with a hash of itself and of all lines before, so that one which was altered, moved or cut shows;
    then nothing is counted or allowed any more until the owner has put the file right.  A last line without its end
    was being written when the process was stopped: nothing was uploaded on it, and it does not count.
    """

    def __init__(self, path: Path, cap: int | None = None) -> None:
        super().__init__(cap)
        self._lines = FileLines(path, PRIVATE)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Tally, Keep]]:
        with self._lines.locked() as file:
            data = file.read()
            lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
            rounds, last = check_lines(lines)

            def keep(new: NewRound | None) -> None:
                if new is None:
                    file.sync()
                    return
                if not data.endswith(b"\n"):
                    file.cut(sum(map(len, lines)))
                file.append(_line(*new, last))

            yield Tally(rounds), keep


def check_cap(count: int, cap: int | None) -> None:
    """There is a participation left."""
    if cap is not None and count >= cap:
        raise ParticipationRefused(count, cap)


def check_budget(spent: RoundCost, budget: OwnerBudget | None) -> None:
    """What the rounds cost, with the one that is asked for, is within the budget."""
    if budget is not None and not budget.covers(spent):
        raise BudgetRefused(budget.epsilon_of(spent), budget.epsilon, budget.delta, spent.failure)


def _check_limits(count: int, spent: RoundCost, *all_limits: Limits) -> None:
    """There is a participation left under every cap, and what it costs under every budget."""
    for limits in all_limits:
        check_cap(count, limits.cap)
        check_budget(spent, limits.budget)


def check_machine(counted: bytes, machine: bytes) -> None:
    """A round was counted for the machine that asks: a client that lost its state does not rejoin."""
    if counted != machine:
        raise ParametersRefused("this round was counted for another machine of the same client: take the next index")


def check_lines(lines: list[bytes]) -> tuple[Rounds, bytes]:
    """Return the rounds and the last hash of a file whose every line is as it was written."""
    rounds: Rounds = {}
    last = _START
    for number, line in enumerate(lines, 1):
        check_costs_counted(line)
        match = _LINE.fullmatch(line)
        written = _read_line(match) if match else None
        if written is None or _line(*written, last) != line:
            raise InputError(f"line {number} of the participations was altered or cut: put the file right first")
        rounds[written[0]] = written[1]
        last = bytes.fromhex(line[-65:-1].decode())
    return rounds, last


def check_costs_counted(line: bytes) -> None:
    """The file says what every round cost: those that early versions of dordis wrote do not."""
    if _FIRST.fullmatch(line):
        raise InputError(
            "this file of participations is of an early version of dordis, which did not count what rounds cost: keep "
            "it, and begin a new file with a budget that is smaller by what the rounds in it have spent"
        )


def _read_line(match: re.Match[bytes]) -> NewRound | None:
    run, index, machine, *numbers = (text.decode() for text in match.groups()[:6] if text is not None)
    try:
        counted = Attended(bytes.fromhex(machine), RoundCost(*map(float, numbers)))
    except ValueError:
        return None
    return (bytes.fromhex(run), int(index)), counted


def _line(attendance: Attendance, attended: Attended, last: bytes) -> bytes:
    (run, index), (machine, cost) = attendance, attended
    failure = (repr(cost.failure),) if cost.failure else ()
    said = (run.hex(), str(index), machine.hex(), repr(cost.theta_squared), repr(cost.distance), *failure)
    text = " ".join(said).encode()
    return b"%b %b\n" % (text, hashlib.sha256(last + text).hexdigest().encode())


def _check_round(run: bytes, index: int, machine: bytes) -> None:
    check_run_id(run)
    check_index(index)
    if len(machine) != len(ANY_MACHINE):
        raise InputError(f"a machine is named by {len(ANY_MACHINE)} bytes, not {len(machine)}")
