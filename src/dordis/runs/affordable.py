"""The cost that each client can afford for the next round, from its owner's count and its remaining scheduled rounds.

An owner counts the cost of a failed round too and never subtracts it.  After a failed round the remaining rounds must
therefore cost less, and get more noise.  No round costs more than planned: the cost that a client saved by missing
rounds is a reserve for failed ones.  A client that cannot afford even a round with twice the planned noise takes no
further part; the run ends when too few clients can afford a round.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dordis.ledger.round_charge import OwnerCharge
from dordis.owner.participation import Attendance
from dordis.protocol import ClientId
from dordis.runs.plan import RoundPlan
from dordis.selection.selection import ScheduledSelection, Selection

LEAST = 0.25
"""Least fraction of the planned cost at which a round is still run: a quarter of the cost is twice the noise."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class Allowances:
    """The cost that each client can afford for the next round, given the costs `counted` by owners so far.

    `planned` is the planned cost of a round, `cap` the number of rounds that the budget covers.  If owners cannot bound
    the cost of a round (`by_cost` is false), rounds are counted instead of costs.
    """

    planned: float
    cap: int
    by_cost: bool
    counted: Mapping[Attendance, OwnerCharge]

    @classmethod
    def from_design(cls, design: RoundPlan, counted: Mapping[Attendance, OwnerCharge]) -> "Allowances":
        """Return the allowances under the budget of a round plan, after the charges that owners may have counted."""
        return cls(design.allowed if design.counts else 1.0, design.cap, design.counts, counted)

    def spent(self) -> dict[int, float]:
        """Return the largest cost that the owner of each client may have counted, in units of `planned`."""
        spent: Counter[int] = Counter()
        for count in self.counted.values():
            cost = count.cost / self.planned if self.by_cost and count.cost is not None else 1.0
            for u in count.clients:
                spent[u] += cost  # type: ignore[assignment]
        return dict(spent)

    def affordable_costs(
        self, clients: Iterable[ClientId], selection: Selection, index: int, rounds: int
    ) -> dict[ClientId, float]:
        """Return the cost of round `index` that each client can afford; `rounds` is the number of rounds left."""
        spent = self.spent()
        return {u: self.planned * self._part(spent.get(u, 0.0), _turns(selection, u, index, rounds)) for u in clients}

    def _part(self, spent: float, turns: int | None) -> float:
        """Return the fraction of the planned cost that a client with `turns` scheduled rounds left can afford, or 0."""
        left = self.cap - spent
        if not self.by_cost or turns is None:  # no schedule: the planned cost until the budget is spent
            return 1.0 if left >= 1 - _CLOSE else 0.0
        affordable = math.floor((1 + _CLOSE) * left / LEAST)
        if affordable < 1:
            return 0.0
        part = left / max(1, min(turns, affordable))
        return 1.0 if part >= 1 - _CLOSE / self.cap else part


def _turns(selection: Selection, client: ClientId, index: int, rounds: int) -> int | None:
    return selection.times_scheduled(client, index, rounds) if isinstance(selection, ScheduledSelection) else None
