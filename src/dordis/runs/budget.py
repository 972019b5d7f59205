"""The budget of a run: the cost that each client can afford for a round, and the charges of a round to the ledger.

With a public schedule, what is left of an owner's budget is divided by the number of rounds for which the client is
still scheduled; this is the cost that the client can afford for each of these rounds.  This cost is at most the planned
cost of a round, so what a client saves by missing rounds is a reserve for failed rounds.  An owner counts the cost of a
failed round too, and the cost stays counted.  After a failed round the remaining rounds therefore cost less, and get
more noise.  A client that cannot afford even a round with noise of twice the planned standard deviation takes no
further part.  Without a public schedule, or if owners cannot bound the cost of a round, a client can afford the planned
cost or nothing: a failed round then uses up one of its participations.  The run ends when too few clients can afford a
round.  A cost is the theta^2 of Gaussian DP (docs/accounting.md).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from dordis.errors import BudgetExceeded, BudgetUsedUp, EventsUsedUp
from dordis.ledger.ledger import Ledger
from dordis.ledger.round_charge import Charge, OwnerCharge
from dordis.owner.participation import Attendance
from dordis.protocol import ClientId
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import Parameters
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.runs.plan import RoundPlan
from dordis.selection.selection import ScheduledSelection, Selection

LEAST = 0.25
"""Least fraction of the planned cost at which a round is still run: noise of twice the planned standard deviation."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class Allowances:
    """The largest cost that each client can afford for the next round, computed from what the owners counted so far.

    `planned` is the planned cost of a round, a theta^2; an owner's budget covers `cap` rounds of this cost.  `counted`
    has, for each round, its cost and the clients whose owners may have counted the round.  `by_cost` tells whether
    owners can bound the cost of a round.  If not, owners count rounds: `planned` is 1, and each round costs 1.
    """

    planned: float
    cap: int
    by_cost: bool
    counted: Mapping[Attendance, OwnerCharge]

    def spent(self) -> dict[int, float]:
        """Return for each client the largest cost that its owner may have counted so far, divided by `planned`."""
        spent: Counter[int] = Counter()
        for count in self.counted.values():
            cost = count.cost / self.planned if self.by_cost and count.cost is not None else 1.0
            for u in count.clients:
                spent[u] += cost  # type: ignore[assignment]
        return dict(spent)

    def affordable_costs(
        self, clients: Iterable[ClientId], selection: Selection, index: int, rounds: int
    ) -> dict[ClientId, float]:
        """Return for each client the largest cost that it can afford for round `index`: at most `planned`, at least 0.

        `rounds` is the number of rounds left, from this round on.  With a public schedule a client divides its budget
        over those of these rounds for which it is scheduled.  Otherwise the cost is `planned` or 0.
        """
        spent, schedule = self.spent(), selection if isinstance(selection, ScheduledSelection) else None
        turns = {u: schedule.times_scheduled(u, index, rounds) if schedule else None for u in clients}
        return {u: self.planned * self._part(spent.get(u, 0.0), count) for u, count in turns.items()}

    def _part(self, spent: float, turns: int | None) -> float:
        """Return the largest part of a round's planned cost that a client can afford for the next round, from 0 to 1.

        With a schedule the rest of the client's budget is divided evenly over its `turns` remaining rounds, or over
        fewer rounds if each part would be below `LEAST`.  The part is 1 or 0 without a schedule (`turns` is None), and
        if owners count rounds (`by_cost` is False).
        `spent` is the cost that the client has spent, divided by a round's planned cost.
        """
        left = self.cap - spent
        if not self.by_cost or turns is None:  # no schedule: the whole planned cost, as long as the budget covers it
            return 1.0 if left >= 1 - _CLOSE else 0.0
        affordable = math.floor((1 + _CLOSE) * left / LEAST)
        if affordable < 1:
            return 0.0
        part = left / max(1, min(turns, affordable))
        return 1.0 if part >= 1 - _CLOSE / self.cap else part


def check_able(available: int, able: int, least: int) -> None:
    """Raise BudgetUsedUp if at least `least` clients are `available`, but fewer (`able`) can afford a round."""
    if able < least <= available:
        raise BudgetUsedUp(able, least)


def check_events(index: int, design: RoundPlan) -> None:
    """Raise EventsUsedUp if a run with sampled records has used all events that it was planned for."""
    if design.sampled is not None and index >= design.sampled.events:
        raise EventsUsedUp(design.sampled.events)


@dataclass(frozen=True)
class RunBudget:
    """The budget of one run, and the ledger to which its rounds are charged (None if the run has no epsilon).

    `counts_owners` tells whether owners count participations; for queries over a table they do not.
    """

    run: bytes
    ledger: Ledger | None
    counts_owners: bool = True

    def affordable_costs(
        self, design: RoundPlan, clients: Collection[ClientId], selection: Selection, index: int, rounds: int
    ) -> dict[ClientId, float]:
        """Return for each client the largest cost that it can afford for round `index`; omit clients that afford none.

        `rounds` is the number of rounds left, from this round on.  Raise BudgetUsedUp if too few clients can afford a
        round.
        """
        if self.ledger is None or not self.counts_owners or design.sampled is not None:
            return dict.fromkeys(clients, design.allowed)
        planned = design.allowed if design.counts else 1.0
        allowances = Allowances(planned, design.cap, design.counts, self.ledger.owner_charges())
        costs = allowances.affordable_costs(clients, selection, index, rounds)
        able = {u: cost for u, cost in costs.items() if cost}
        check_able(len(clients), len(able), design.least)
        return able

    def check_round(self, design: RoundPlan, parameters: Parameters) -> None:
        """Raise BudgetExceeded, and record the refusal, if a round would exceed the budget even without dropout."""
        charge = None if self.ledger is None else design.charge(parameters)
        if self.ledger is not None and charge is not None:
            self._keep_to_budget(self.ledger.check_budget, charge.without_dropout)

    def gate(self, design: RoundPlan, parameters: Parameters, resumed: bool) -> PrivacyGate:
        """Return the privacy gate of a round; if `resumed`, it does not record again what the ledger already has."""
        ledger, index = self.ledger, parameters.index
        arrived: set[ClientId] = set()
        before = ledger.owner_charges().get((self.run, index)) if ledger is not None and resumed else None
        known = None if before is None else frozenset(before.clients)

        def count(asked: Collection[ClientId]) -> None:
            """Record the cost that the owners of `asked` count: before the uploads; in assisted rounds on arrival."""
            arrived.update(asked)
            if ledger is None or not design.proves or not self.counts_owners:
                return
            fresh = [int(u) for u in asked if known is None or int(u) not in known]
            if fresh and (known is None or not parameters.clients):
                cost = parameters.once(("cost", design.kind), lambda: round_cost(parameters, design.kind))
                ledger.record_owner_charges(index, fresh, cost)

        def charge_round(dropped: Mapping[int, int]) -> None:
            """Charge the round to the ledger before any disclosure; `dropped` has the number of dropouts by chunk."""
            charge = None if ledger is None else design.charge(parameters, arrived)
            if ledger is not None and charge is not None and not (resumed and ledger.round(index) is not None):
                self._keep_to_budget(ledger.reserve, charge.after_dropouts(dropped))

        return PrivacyGate(count, charge_round)

    def _keep_to_budget(self, check: Callable[[Charge], None], charge: Charge) -> None:
        """Call `check` with a round's charge; if it raises BudgetExceeded, record the refusal and raise it again.

        The refusal of a query is not recorded, because a later query may fit the budget.
        """
        try:
            check(charge)
        except BudgetExceeded:
            if self.ledger is not None and self.counts_owners:
                self.ledger.refuse(charge)
            raise
