"""The spending of every client of a run, added up from the charges of all rounds.

Owners *count* the cost of a round before the upload.  The ledger *reserves* a charge before the disclosure, at the
least noise that may be left: after the known number of dropouts of a chunk, or else after up to T.  A *completed* round
is charged at the noise left.  With records as the unit, epsilon is that of one record over all planned events.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from dordis.errors import BudgetExceeded, DataBudgetExceeded, InputError
from dordis.ledger.entries import (
    ChargedRounds,
    ChunkOutcome,
    LedgerRound,
    RunCharge,
    check_known_dropouts,
    check_outcome,
)
from dordis.ledger.round_charge import Charge, OwnerCharge, check_charge, check_clients, theta_squared
from dordis.privacy import accounting, record_accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.record_accounting import SampledEvents
from dordis.selection.beacon import check_index

_CLOSE = 1 + 1e-9  # the same costs, added in another order, differ by rounding errors
_EVERYBODY = -1  # in the paper's accounting all rounds are charged to this id, in place of clients


@dataclass(frozen=True)
class Budget:
    """The largest (epsilon, delta) that a run may spend on each client; with epsilon None no spending stops the run."""

    epsilon: float | None
    delta: float
    records: SampledEvents | None = None
    """The planned events of one record, if records are the unit of privacy; the stated epsilon covers all of them."""
    paper: bool = False
    """Whether the paper's accounting is used: every client pays for every round, and Renyi divergences are added up."""

    def __post_init__(self) -> None:
        accounting.check_delta(self.delta)
        if self.epsilon is not None:
            accounting.check_epsilon(self.epsilon)


PaidCosts = frozenset[tuple[ReleaseCost, int]]
"""The costs of releases that a client has paid for, each with the number of times that the client has paid it."""


def _compose(paid: PaidCosts) -> float:
    return accounting.compose_costs((theta_squared(cost.event), times) for cost, times in paid)


class SpendingCourse:
    """For every completed round, the costs that the client with the largest spending had paid, and the delta left.

    The delta left is the budget's delta minus the chance that any round so far was insecure (`Account.failure`).
    """

    def __init__(self) -> None:
        self._places: dict[ReleaseCost, int] = {}
        self._after: dict[int, tuple[array[int], float]] = {}
        """By round index: an array of pairs (number of a cost in `_places`, times it was paid), and the delta left."""

    def add(self, index: int, paid: PaidCosts, delta: float) -> None:
        """Store, for a completed round, the costs paid by the client with the largest spending, and the delta left."""
        places = self._places
        pairs = ((places.setdefault(cost, len(places)), times) for cost, times in paid)
        self._after[index] = array("L", (number for pair in pairs for number in pair)), delta

    def after(self, index: int) -> tuple[PaidCosts, float]:
        """Return the costs that the client with the largest spending had paid after a round, and the delta left."""
        (numbers, delta), costs = self._after[index], list(self._places)
        return frozenset((costs[place], times) for place, times in zip(numbers[::2], numbers[1::2], strict=True)), delta

    def __contains__(self, index: int) -> bool:
        return index in self._after


class Account:
    """The spending of every client of a run; an invalid ledger entry raises InputError, and changes nothing."""

    def __init__(self, run: bytes, budget: Budget) -> None:
        self.run, self.budget = run, budget
        self.rounds = ChargedRounds()
        self._counted: dict[int, tuple[OwnerCharge, set[int]]] = {}
        """By round index: the cost that owners may have counted, and their clients; if assisted, some come later."""
        self._completed_charges: dict[int, bytes] = {}
        """By round index: the `OwnerCharge` of a completed round, encoded to save memory."""
        self.runs: dict[bytes, RunCharge] = {}
        """Other runs over the same data, charged as a whole to every client."""
        self.predecessor: Account | None = None
        self.refused: Charge | None = None
        """The round that the budget refused; None unless this refusal is the last line of the ledger."""
        self.course = SpendingCourse()
        self._leader: int | None = None
        self._changed: set[int] = set()
        self._charged: set[int] = set()
        """All clients that were ever charged, in this run or a predecessor."""
        self._indices, self._likeliest = 0, Fraction(0)
        self._spent: dict[int, Counter[ReleaseCost]] = defaultdict(Counter)

    def start_successor(self, run: bytes, budget: Budget) -> "Account":
        """Return the account of a successor run, in which the spending so far counts; this account does not change."""
        if run in (earlier.run for earlier in self.lineage()):
            raise InputError("a run does not succeed itself")
        if self.budget.paper or budget.paper:
            raise InputError("a run with privacy.accounting = 'paper' has no successor: start a new run")
        following = copy(self)
        following.run, following.budget, following.predecessor = run, budget, self
        following.rounds, following._counted, following.refused = ChargedRounds(), {}, None
        following._completed_charges = {}
        following.runs, following._charged = dict(self.runs), set(self._charged)
        following.course, following._changed = SpendingCourse(), set(self._changed)
        following._indices, following._likeliest = 0, Fraction(0)
        following._spent = defaultdict(Counter, {u: Counter(costs) for u, costs in self._spent.items()})
        return following

    def lineage(self) -> "Iterator[Account]":
        """Yield this account, then the accounts of the runs that this run continues, from the latest to the first."""
        account: Account | None = self
        while account is not None:
            yield account
            account = account.predecessor

    def owner_charges(self) -> "dict[tuple[bytes, int], OwnerCharge]":
        """Return the costs that owners may have counted in this run and its predecessors, by run id and round index."""
        charges = {}
        for account in self.lineage():
            for index in account.used_indices:
                charges[account.run, index] = account._owner_charge(index)
        return charges

    @property
    def used_indices(self) -> list[int]:
        """Return the indices of this run's rounds that owners may have counted or the ledger charged, ascending."""
        return sorted({*self._counted, *self.rounds})

    def _owner_charge(self, index: int) -> OwnerCharge:
        """Return the largest cost that owners may have counted for a round in the ledger."""
        if index in self._counted:
            charge, clients = self._counted[index]
            return replace(charge, clients=tuple(sorted(clients)))
        if index in self._completed_charges:
            return msgspec.msgpack.decode(self._completed_charges[index], type=OwnerCharge)
        return self.rounds[index].charge.owner_charge

    def check_countable(self, index: int, charge: OwnerCharge) -> None:
        """Raise InputError if `charge`, a cost that owners will count, is invalid, or if the round is charged already.

        A round that was counted, but not charged, may get further clients at the same cost.
        """
        check_index(index)
        known, clients = self._counted.get(index, (charge, set[int]()))
        joins = (known.cost, known.distance) == (charge.cost, charge.distance) and clients.isdisjoint(charge.clients)
        if index in self.rounds or not joins:
            raise InputError(f"round {index} is in the ledger already: a retry takes the next index")
        check_clients(charge.clients)
        if not (0 <= charge.distance < 1 and (charge.cost is None or 0 < charge.cost < math.inf)):
            raise InputError("the cost of a round is a number above 0")

    def count(self, index: int, charge: OwnerCharge) -> None:
        """Store the cost that the owners of `charge.clients` may count for a round; the ledger's charge comes later."""
        self.check_countable(index, charge)
        self._counted.setdefault(index, (charge, set()))[1].update(charge.clients)
        self.refused = None

    def check_reservable(self, charge: Charge) -> None:
        """Raise InputError if a charge is invalid, or its round is charged already or no planned event (`check_event`).

        Raise it too if the charge leaves out a client whose owner may have counted the round (`count`).
        """
        check_charge(charge)
        _, counted = self._counted.get(charge.index, (None, set[int]()))
        if not counted <= set(charge.clients):
            raise InputError(f"round {charge.index} is charged to other clients than those that were asked for uploads")
        if charge.index in self.rounds:
            raise InputError(f"round {charge.index} is in the ledger already: a retry takes the next index")
        self.check_event(charge)

    def check_event(self, charge: Charge) -> None:
        """Raise InputError if records are protected and a round is not a planned event, or costs more than an event."""
        planned = self.budget.records
        if planned is None:
            return
        if charge.index >= planned.events:
            raise InputError(f"round {charge.index} is beyond the {planned.events} events that the run was planned for")
        cost = accounting.compose_costs((theta_squared(cost.event), 1) for cost in charge.reserved_costs)
        if not cost <= planned.theta_squared * _CLOSE:
            raise InputError(f"round {charge.index} costs {cost:.6g}, and a planned event {planned.theta_squared:.6g}")

    def reserve(self, charge: Charge) -> None:
        """Charge all clients of a round at the least noise with which the round can end."""
        self.check_reservable(charge)
        self.rounds[charge.index], self.refused = LedgerRound(charge), None
        self._indices, self._likeliest = self._indices_with(charge)
        self._charged.update(charge.clients)
        self._add(charge.clients, charge.costs(), 1)

    def check_refusable(self, charge: Charge) -> None:
        """Raise InputError unless a refusal of `charge` is right: it is valid (`check_reservable`) and over budget."""
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
        """Record that a round would exceed the budget."""
        self.check_refusable(charge)
        self.refused = charge

    def check_completable(self, index: int, outcomes: Sequence[ChunkOutcome]) -> None:
        """Raise InputError unless a round is reserved and not completed, and its noise plan permits the outcomes."""
        charge = self.check_open(index).charge
        if len(outcomes) != len(charge.variances):
            raise InputError(f"round {index} has {len(charge.variances)} chunks, not {len(outcomes)}")
        for chunk, outcome in enumerate(outcomes):
            check_outcome(charge, self.run, chunk, outcome)
            check_known_dropouts(charge, chunk, outcome)
        charge.costs([outcome.charged for outcome in outcomes])  # raises if no bound is known

    def complete(self, index: int, outcomes: Sequence[ChunkOutcome]) -> None:
        """Replace a reservation: charge only clients whose input was summed, at the noise actually left."""
        self.check_completable(index, outcomes)
        charge = self.rounds[index].charge
        self.rounds[index], self.refused = LedgerRound(charge, tuple(outcomes)), None
        self._complete_owner_charge(index, charge.owner_charge)
        self._add(charge.clients, charge.costs(), -1)
        self._add(self.rounds[index].payers, charge.costs([outcome.charged for outcome in outcomes]), 1)
        self._leader = self.worst_client({*self._changed, *(() if self._leader is None else (self._leader,))})
        self._changed.clear()
        if self._leader is not None:
            self.course.add(index, self._paid(self._leader), self.budget.delta - float(self.failure()))

    def _complete_owner_charge(self, index: int, charge: OwnerCharge) -> None:
        """Store `charge` as the cost that owners counted for a completed round, unless `count` stored another cost."""
        if index in self._counted and self._owner_charge(index) != charge:
            return
        self._counted.pop(index, None)
        self._completed_charges[index] = msgspec.msgpack.encode(charge)

    def check_run_chargeable(self, run: bytes, charge: RunCharge) -> None:
        """Raise InputError if the charge of a whole run is invalid, or larger than the earlier charge of this run.

        Raise DataBudgetExceeded if the run has no earlier charge and takes a client beyond the budget.
        """
        if not 0 < charge.theta_squared < math.inf or not 0 <= charge.failure < 1:
            raise InputError("a run is charged at a theta^2 above 0, and a chance of failure in [0, 1)")
        earlier = self.runs.get(run)
        if earlier is None:
            epsilon = self.epsilon_with_run(charge)
            if self.budget.epsilon is not None and epsilon > self.budget.epsilon:
                raise DataBudgetExceeded(epsilon, self.budget.epsilon)
        elif charge.theta_squared > earlier.theta_squared or charge.failure > earlier.failure:
            raise InputError(f"run {run.hex()[:16]} is in the ledger already, at a smaller cost")

    def charge_run(self, run: bytes, charge: RunCharge) -> None:
        """Charge another run to every client, instead of its earlier charge if any; raise as `check_run_chargeable`."""
        self.check_run_chargeable(run, charge)
        self.runs[run], self.refused = charge, None

    def compose(self, paid: PaidCosts, delta: float) -> float:
        """Return the epsilon of paid costs at `delta`, by the accounting of this run; infinity if `delta` <= 0."""
        orders = accounting.PAPER_ORDERS if self.budget.paper else None
        return accounting.epsilon_spent(paid, delta, orders) if delta > 0 else math.inf

    def epsilon_with_run(self, more: RunCharge | None = None) -> float:
        """Return the largest epsilon spent by a client, including the cost of the whole run `more` if that is given."""
        if self.budget.records is not None:
            return self.epsilon_of_records() if self.clients() else 0.0
        left = self.budget.delta - float(self.failure() + (more.failure if more else 0))
        own = {self._own_costs(u) for u in self.clients() or (_EVERYBODY,)}
        paid = {self._with_runs(one, [] if more is None else [more.cost]) for one in own}
        return max((self.compose(one, left) if one else 0.0) for one in paid)

    @property
    def completed(self) -> int:
        """Return the number of completed rounds of this run."""
        return self.rounds.completed

    def epsilon_after(self, index: int) -> float | None:
        """Return the largest epsilon spent by a client after a completed round; None if the round is not completed."""
        if index not in self.course:
            return None
        if self.budget.records is not None:
            return self.epsilon_of_records()
        return self.compose(*self.course.after(index))

    def check_open(self, index: int) -> LedgerRound:
        """Return the reserved round with this index; raise InputError if it is completed or not in the ledger."""
        known = self.rounds.get(index)
        if known is None or known.state != "reserved":
            raise InputError(f"round {index} is {known.state if known else 'not'} in the ledger, and so not open")
        return known

    def epsilon(self, client: int, more: Charge | None = None) -> float:
        """Return the epsilon spent by a client, including the round `more` if given; infinity if no delta is left."""
        if self.budget.records is not None:
            return self.epsilon_of_records()
        return self.compose(self._paid(client, more), self.budget.delta - float(self.failure(more)))

    def epsilon_of_records(self) -> float:
        """Return the epsilon of one record over all planned events, whether or not they took place."""
        planned = self.budget.records
        if planned is None:
            raise InputError("the unit of privacy of this run is the client")
        left = self.budget.delta - float(planned.events * self._likeliest)
        return record_accounting.epsilon(planned, left) if left > 0 else math.inf

    def failure(self, more: Charge | None = None) -> Fraction:
        """Return a bound on the chance that any round so far, or `more`, has an insecure graph or too many colluders.

        Skipped round indices count too, because the server could choose which indices to use.
        """
        indices, likeliest = self._indices_with(more)
        earlier = (account._indices * account._likeliest for account in self.lineage() if account is not self)
        runs = sum((charge.failure for charge in self.runs.values()), Fraction(0))
        return indices * likeliest + sum(earlier, Fraction(0)) + runs

    def _indices_with(self, more: Charge | None) -> tuple[int, Fraction]:
        """Return 1 plus the largest round index, and the largest `Charge.failure` of a round, with `more` included."""
        if more is None:
            return self._indices, self._likeliest
        return max(self._indices, more.index + 1), max(self._likeliest, more.failure)

    def costs(self, client: int, more: Charge | None = None) -> Counter[ReleaseCost]:
        """Return the costs that a client has paid, including those of the round `more` if given."""
        return Counter(dict(self._paid(client, more)))

    def _paid(self, client: int, more: Charge | None = None) -> PaidCosts:
        """Return `costs(client, more)` as a hashable set of pairs, so that equal costs of clients are composed once."""
        return self._with_runs(self._own_costs(client), more.reserved_costs if more else ())

    def _own_costs(self, client: int) -> PaidCosts:
        """Return a client's costs of rounds of this run and its predecessors, without other runs over the same data."""
        payer = _EVERYBODY if self.budget.paper else client
        return frozenset(item for item in self._spent.get(payer, {}).items() if item[1])

    def _with_runs(self, own: PaidCosts, more: Iterable[ReleaseCost]) -> PaidCosts:
        """Return a client's `own` costs, plus `more` and the costs of all runs charged to this ledger as a whole."""
        added = Counter([*more, *(charge.cost for charge in self.runs.values())])
        return frozenset((Counter(dict(own)) + added).items()) if added else own

    def worst_client(self, clients: Iterable[int], more: Charge | None = None) -> int | None:
        """Return which of `clients` has spent most, the round `more` included if given; None if `clients` is empty."""
        own = {u: self._own_costs(u) for u in clients}
        added = more.reserved_costs if more else ()
        totals = {one: _compose(self._with_runs(one, added)) for one in set(own.values())}
        costs = {u: totals[own[u]] for u in own}
        if math.inf in costs.values():
            costs = {u: self.epsilon(u, more) for u in costs}
        return max(costs, key=lambda u: costs[u], default=None)

    @property
    def is_gaussian(self) -> bool:
        """Tell whether costs are composed by adding theta^2 (theta-GDP, Gaussian DP), not by Renyi divergences."""
        return not self.budget.paper and all(_compose(one) < math.inf for one in set(map(self._paid, self._spent)))

    def clients(self) -> list[int]:
        """Return all clients that were ever charged, ascending."""
        return sorted(self._charged)

    def check_budget(self, charge: Charge) -> None:
        """Raise BudgetExceeded if a round, at its reserved cost, would take one of its clients beyond the budget."""
        if self.budget.epsilon is None:
            return
        worst = self.worst_client(charge.clients, charge)
        if worst is not None and (epsilon := self.epsilon(worst, charge)) > self.budget.epsilon:
            raise BudgetExceeded(worst, epsilon, self.budget.epsilon)

    def is_beyond_budget(self, charge: Charge) -> bool:
        """Tell whether a round exceeds the budget even if delta is not reduced by its `failure`; False for records."""
        if self.budget.records is not None:
            return False
        left = self.budget.delta - float(self.failure())
        worst = self.worst_client(charge.clients, charge)
        if self.budget.epsilon is None or worst is None or left <= 0:
            return False
        return self.compose(self._paid(worst, charge), left) > self.budget.epsilon

    def _add(self, clients: Iterable[int], costs: Iterable[ReleaseCost], times: int) -> None:
        self._changed.update(clients)
        payers = (_EVERYBODY,) if self.budget.paper else clients
        for cost in costs:
            for u in payers:
                self._spent[u][cost] += times
