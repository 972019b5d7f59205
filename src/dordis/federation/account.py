"""An account that adds the charges of a run up for every client."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dordis.errors import BudgetExceeded, InputError
from dordis.federation.beacon import check_index
from dordis.federation.charges import Charge, Fact, OwnersCount, check_charge, check_fact, check_known, theta_squared
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost


@dataclass(frozen=True)
class Budget:
    """What a run may cost each of its clients; without an epsilon it is counted and never stopped."""

    epsilon: float | None
    delta: float

    def __post_init__(self) -> None:
        accounting.check_delta(self.delta)
        if self.epsilon is not None:
            accounting.check_epsilon(self.epsilon)


@dataclass(frozen=True)
class Round:
    """A round in the account: reserved, and then completed with facts, unless it failed."""

    charge: Charge
    facts: tuple[Fact, ...] = ()

    @property
    def state(self) -> str:
        """Return the word for it."""
        return "completed" if self.facts else "reserved"

    @property
    def charged(self) -> tuple[int, ...]:
        """Return who pays for it: whoever may be in a sum that was opened."""
        absent = set(self.charge.clients).intersection(*(fact.dropped for fact in self.facts)) if self.facts else ()
        return tuple(u for u in self.charge.clients if u not in absent)


Paid = frozenset[tuple[ReleaseCost, int]]
"""What a client has paid for, and how often each."""


@lru_cache(maxsize=1 << 14)
def _composed(paid: Paid) -> float:
    return accounting.composed((theta_squared(cost.event), times) for cost, times in paid)


class Account:
    """Add up what every client has spent; a rule that is broken raises `InputError` and changes nothing.

    `renyi` states epsilon as ledgers of the first format did.
    """

    def __init__(self, run: bytes, budget: Budget, renyi: bool = False) -> None:
        self.run, self.budget, self._renyi = run, budget, renyi
        self.rounds: dict[int, Round] = {}
        self.counted: dict[int, OwnersCount] = {}
        self.predecessor: Account | None = None
        self.refused: Charge | None = None
        """The round that the budget refused, if it is the last entry."""
        self.course: dict[int, tuple[Paid, float]] = {}
        """By index of every completed round: the costs of the client that had spent most, and the delta for them."""
        self._leader: int | None = None
        self._changed: set[int] = set()
        self._indices, self._likeliest = 0, Fraction(0)
        self._spent: dict[int, Counter[ReleaseCost]] = defaultdict(Counter)

    def succeeded(self, run: bytes, budget: Budget) -> "Account":
        """Return the account of a successor run: what every client has spent goes on, this account stays as it is."""
        if run in (earlier.run for earlier in self.line()):
            raise InputError("a run does not succeed itself")
        following = copy(self)
        following.run, following.budget, following.predecessor = run, budget, self
        following.rounds, following.counted, following.refused = {}, {}, None
        following.course, following._changed = {}, set(self._changed)
        following._indices, following._likeliest = 0, Fraction(0)
        following._spent = defaultdict(Counter, {u: Counter(costs) for u, costs in self._spent.items()})
        return following

    def line(self) -> "Iterator[Account]":
        """Return this account and those of the runs before, the latest first."""
        account: Account | None = self
        while account is not None:
            yield account
            account = account.predecessor

    def owners_counts(self) -> "dict[tuple[bytes, int], OwnersCount]":
        """Return what owners may have counted in this run and in those before, by run and index."""
        counts = {}
        for account in self.line():
            for index in sorted({*account.counted, *account.rounds}):
                count = account.counted.get(index)
                counts[account.run, index] = account.rounds[index].charge.count if count is None else count
        return counts

    def check_countable(self, index: int, count: "OwnersCount") -> None:
        """The index was never used, and the count is one of clients."""
        check_index(index)
        if index in self.counted or index in self.rounds:
            raise InputError(f"round {index} is in the ledger already: a retry takes the next index")
        if not count.clients or list(count.clients) != sorted(set(count.clients)) or count.clients[0] < 0:
            raise InputError("the clients of a round are distinct ids in ascending order")
        if not (0 <= count.distance < 1 and (count.cost is None or 0 < count.cost < math.inf)):
            raise InputError("what a round costs is a number above 0")

    def count(self, index: int, count: "OwnersCount") -> None:
        """Remember what owners may have counted."""
        self.check_countable(index, count)
        self.counted[index] = count
        self.refused = None

    def check_reservable(self, charge: Charge) -> None:
        """The charge is what it says, and its index was never used: not by a round that failed either."""
        check_charge(charge)
        count = self.counted.get(charge.index)
        if count is not None and not set(count.clients) <= set(charge.clients):
            raise InputError(f"round {charge.index} is charged to others than were asked for uploads")
        if charge.index in self.rounds:
            raise InputError(f"round {charge.index} is in the ledger already: a retry takes the next index")

    def reserve(self, charge: Charge) -> None:
        """Charge all of U with the least noise that the round may have."""
        self.check_reservable(charge)
        self.rounds[charge.index], self.refused = Round(charge), None
        self._indices, self._likeliest = self._with(charge)
        self._count(charge.clients, charge.costs(), 1)

    def check_refusable(self, charge: Charge) -> None:
        """The charge is consistent, its round is not charged yet, and it exceeds the budget."""
        self.check_reservable(charge)
        try:
            self.check_budget(charge)
        except BudgetExceeded:
            return
        raise InputError(
            f"round index {charge.index} is recorded as refused by the budget, but is within the budget: restore the "
            "ledger from a backup"
        )

    def refuse(self, charge: Charge) -> None:
        """Record that the budget refused a round."""
        self.check_refusable(charge)
        self.refused = charge

    def check_completable(self, index: int, facts: Sequence[Fact]) -> None:
        """The round is open, and the facts are what its plan and U3 give."""
        charge = self.check_open(index).charge
        if len(facts) != len(charge.variances):
            raise InputError(f"round {index} has {len(charge.variances)} chunks, not {len(facts)}")
        for chunk, fact in enumerate(facts):
            check_fact(charge, self.run, chunk, fact)
            check_known(charge, chunk, fact)
        charge.costs([fact.charged for fact in facts])  # there is a bound for it

    def complete(self, index: int, facts: Sequence[Fact]) -> None:
        """Charge, instead, those whose input is in a sum, with the noise that was kept."""
        self.check_completable(index, facts)
        charge = self.rounds[index].charge
        self.rounds[index], self.refused = Round(charge, tuple(facts)), None
        self._count(charge.clients, charge.costs(), -1)
        self._count(self.rounds[index].charged, charge.costs([fact.charged for fact in facts]), 1)
        self._leader = self.worst({*self._changed, *(() if self._leader is None else (self._leader,))})
        self._changed.clear()
        if self._leader is not None:
            self.course[index] = self._paid(self._leader), self.budget.delta - float(self.failure())

    @property
    def completed(self) -> int:
        """Return the number of completed rounds of this run."""
        return sum(entry.state == "completed" for entry in self.rounds.values())

    @property
    def is_renyi(self) -> bool:
        """Tell whether epsilon is computed by Renyi accounting, as in ledgers of the first format."""
        return self._renyi

    def epsilon_after(self, index: int) -> float | None:
        """Return the largest epsilon spent by a client after a completed round; None if it is not completed."""
        if index not in self.course:
            return None
        paid, left = self.course[index]
        return accounting.spent(paid, left, self._renyi) if left > 0 else math.inf

    def check_open(self, index: int) -> Round:
        """The round is reserved, and not completed; return it."""
        known = self.rounds.get(index)
        if known is None or known.state != "reserved":
            raise InputError(f"round {index} is {known.state if known else 'not'} in the ledger, and so not open")
        return known

    def epsilon(self, client: int, more: Charge | None = None) -> float:
        """Return what a client has spent, and would have with a round more; infinity where failures take all delta."""
        left = self.budget.delta - float(self.failure(more))
        return accounting.spent(self._paid(client, more), left, self._renyi) if left > 0 else math.inf

    def failure(self, more: Charge | None = None) -> Fraction:
        """Return the chance that the graph or the lots failed under any index so far, that of a round more included.

        An index counts whether or not a round took place under it: the server chose under which ones they do.
        """
        indices, likeliest = self._with(more)
        earlier = (account._indices * account._likeliest for account in self.line() if account is not self)
        return indices * likeliest + sum(earlier, Fraction(0))

    def _with(self, more: Charge | None) -> tuple[int, Fraction]:
        """Return how many indices there were, and the largest chance of failure under one of them."""
        if more is None:
            return self._indices, self._likeliest
        return max(self._indices, more.index + 1), max(self._likeliest, more.failure)

    def costs(self, client: int, more: Charge | None = None) -> Counter[ReleaseCost]:
        """Return what a client has paid for, and would have with a round more."""
        return self._spent.get(client, Counter()) + Counter(more.reserved if more else ())

    def _paid(self, client: int, more: Charge | None = None) -> Paid:
        """Return the same as a value that can be looked up: most clients have paid for the same."""
        if more is not None:
            return frozenset(self.costs(client, more).items())
        return frozenset(item for item in self._spent.get(client, {}).items() if item[1])

    def worst(self, clients: Iterable[int], more: Charge | None = None) -> int | None:
        """Return who of some clients has spent most, or would have: the first of those who have."""
        costs = {u: self._theta_squared(u, more) for u in clients}
        if math.inf in costs.values():
            costs = {u: self.epsilon(u, more) for u in costs}
        return max(costs, key=lambda u: costs[u], default=None)

    @property
    def is_gaussian(self) -> bool:
        """Tell whether all that was charged has a theta^2."""
        return all(self._theta_squared(u) < math.inf for u in self._spent)

    def _theta_squared(self, client: int, more: Charge | None = None) -> float:
        return math.inf if self._renyi else _composed(self._paid(client, more))

    def clients(self) -> list[int]:
        """Return everyone who was ever in U."""
        rounds = (entry for account in self.line() for entry in account.rounds.values())
        return sorted({u for entry in rounds for u in entry.charge.clients})

    def check_budget(self, charge: Charge) -> None:
        """The round, at its reserved noise, takes none of its clients beyond the budget."""
        if self.budget.epsilon is None:
            return
        worst = self.worst(charge.clients, charge)
        if worst is not None and (epsilon := self.epsilon(worst, charge)) > self.budget.epsilon:
            raise BudgetExceeded(worst, epsilon, self.budget.epsilon)

    def is_beyond_budget(self, charge: Charge) -> bool:
        """Tell whether a round passes the budget by its cost alone, whatever its index takes away of delta."""
        left = self.budget.delta - float(self.failure())
        worst = self.worst(charge.clients, charge)
        if self.budget.epsilon is None or worst is None or left <= 0:
            return False
        return accounting.spent(self._paid(worst, charge), left, self._renyi) > self.budget.epsilon

    def _count(self, clients: Iterable[int], costs: Iterable[ReleaseCost], times: int) -> None:
        self._changed.update(clients)
        for cost in costs:
            for u in clients:
                self._spent[u][cost] += times
