"""How often a client has taken part and what that cost: over all its runs and servers, before anything leaves.

The count is what the owner's cap and budget rest on, so it trusts nobody else: not the server's run ids, not its
ledger.  Nothing is taken back, whatever becomes of the round: what was uploaded may be opened by others.  A copy of the
file from an earlier day forgets what came since; keep it out of backups that are restored.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import NamedTuple, Protocol

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


@dataclass(frozen=True)
class Risks:
    """For every run the number of indices up to the last one counted, and how likely a round of it fails."""

    runs: Mapping[bytes, tuple[int, float]] = field(default_factory=dict)

    def with_rounds(self, costs: Costs) -> "Risks":
        """Return the same with rounds more."""
        runs = dict(self.runs)
        for (run, index), cost in costs.items():
            indices, likeliest = runs.get(run, (0, 0.0))
            runs[run] = max(indices, index + 1), max(likeliest, cost.failure)
        return Risks(runs)

    @property
    def failure(self) -> float:
        """Return the chance, at most, that the graph or the lots failed under one of the indices."""
        return math.fsum(indices * likeliest for indices, likeliest in self.runs.values())


class Limits(NamedTuple):
    """How often a client may take part, and what that may cost in all; None where there is no such limit."""

    cap: int | None = None
    budget: OwnerBudget | None = None


NO_LIMITS = Limits()


class Participation(Protocol):
    """A client's own count; one round counts once, however often it is reserved."""

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        ...

    def spent(self, more: Costs = NOTHING) -> RoundCost:
        """Return what all of them cost, with some `more` that may be counted already.

        Of every run the chance of a failure is that of all indices up to the last: the server chose among them.
        """
        ...

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
        second time and count once.
        """
        ...


class MemoryParticipation:
    """A count that lasts as long as the process: for simulations and tests.

    >>> mine = MemoryParticipation(cap=2)
    >>> mine.reserve(bytes(32), 0)
    >>> mine.count()
    1
    """

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap
        self._rounds: Rounds = {}
        self._spent, self._risks = FREE, Risks()

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        return len(self._rounds)

    def spent(self, more: Costs = NOTHING) -> RoundCost:
        """Return what all of them cost, with some `more` that may be counted already."""
        fresh = {attendance: cost for attendance, cost in more.items() if attendance not in self._rounds}
        total = reduce(RoundCost.plus, fresh.values(), self._spent)
        return total._replace(failure=self._risks.with_rounds(fresh).failure)

    def reserve(
        self,
        run: bytes,
        index: int,
        machine: bytes = ANY_MACHINE,
        cost: RoundCost = FREE,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Count a round; beyond a limit, or for a second machine, raise."""
        _check_round(run, index, machine)
        if (run, index) not in self._rounds:
            _check_limits(len(self._rounds), self.spent({(run, index): cost}), Limits(self._cap), limits)
            self._count((run, index), Attended(machine, cost))
        check_machine(self._rounds[run, index].machine, machine)

    def _count(self, attendance: Attendance, attended: Attended) -> None:
        self._rounds[attendance] = attended
        self._spent = self._spent.plus(attended.cost)
        self._risks = self._risks.with_rounds({attendance: attended.cost})


class FileParticipation:
    """A count in a file that is only ever appended to, one line a round; processes and threads may share it.

    Every line ends with a hash of itself and of all lines before, so that one which was altered, moved or cut shows;
    then nothing is counted or allowed any more until the owner has put the file right.  A last line without its end
    was being written when the process was stopped: nothing was uploaded on it, and it does not count.
    """

    def __init__(self, path: Path, cap: int | None = None) -> None:
        self._lines, self._cap = FileLines(path, PRIVATE), cap

    def count(self) -> int:
        """Return the number of rounds taken part in."""
        return len(self._read()[0])

    def spent(self, more: Costs = NOTHING) -> RoundCost:
        """Return what all of them cost, with some `more` that may be counted already."""
        return _sum(self._read()[0], more)

    def reserve(
        self,
        run: bytes,
        index: int,
        machine: bytes = ANY_MACHINE,
        cost: RoundCost = FREE,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Count a round, durably when this returns; beyond a limit, or for a second machine, raise.

        If the process stops anywhere in between, the round is counted or nothing was returned.
        """
        _check_round(run, index, machine)
        with self._lines.locked() as file:
            data = file.read()
            lines = _whole(data)
            rounds, last = check_lines(lines)
            if (run, index) in rounds:
                check_machine(rounds[run, index].machine, machine)
                file.sync()
            else:
                _check_limits(len(rounds), _sum(rounds, {(run, index): cost}), Limits(self._cap), limits)
                if not data.endswith(b"\n"):
                    file.cut(sum(map(len, lines)))
                file.append(_line(run, index, machine, cost, last))

    def _read(self) -> tuple[Rounds, bytes]:
        with self._lines.locked() as file:
            return check_lines(_whole(file.read()))


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
        if written is None or _line(*written[0], written[1].machine, written[1].cost, last) != line:
            raise InputError(f"line {number} of the participations was altered or cut: put the file right first")
        rounds[written[0]] = written[1]
        last = bytes.fromhex(line[-65:-1].decode())
    return rounds, last


def _whole(data: bytes) -> list[bytes]:
    """Return the lines that have their end."""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def check_costs_counted(line: bytes) -> None:
    """The file says what every round cost: those that early versions of dordis wrote do not."""
    if _FIRST.fullmatch(line):
        raise InputError(
            "this file of participations is of an early version of dordis, which did not count what rounds cost: keep "
            "it, and begin a new file with a budget that is smaller by what the rounds in it have spent"
        )


def _read_line(match: re.Match[bytes]) -> tuple[Attendance, Attended] | None:
    run, index, machine, *numbers = (text.decode() for text in match.groups()[:6] if text is not None)
    try:
        counted = Attended(bytes.fromhex(machine), RoundCost(*map(float, numbers)))
    except ValueError:
        return None
    return (bytes.fromhex(run), int(index)), counted


def _sum(rounds: Rounds, more: Costs = NOTHING) -> RoundCost:
    costs = {**more, **{attendance: counted.cost for attendance, counted in rounds.items()}}
    return reduce(RoundCost.plus, costs.values(), FREE)._replace(failure=Risks().with_rounds(costs).failure)


def _line(run: bytes, index: int, machine: bytes, cost: RoundCost, last: bytes) -> bytes:
    failure = (repr(cost.failure),) if cost.failure else ()
    said = (run.hex(), str(index), machine.hex(), repr(cost.theta_squared), repr(cost.distance), *failure)
    text = " ".join(said).encode()
    return b"%b %b\n" % (text, hashlib.sha256(last + text).hexdigest().encode())


def _check_round(run: bytes, index: int, machine: bytes) -> None:
    check_run_id(run)
    check_index(index)
    if len(machine) != len(ANY_MACHINE):
        raise InputError(f"a machine is named by {len(ANY_MACHINE)} bytes, not {len(machine)}")
