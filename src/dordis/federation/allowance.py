"""What the next round may cost its clients: from what their owners have counted, and the windows that are left to them.

Owners never take back what they counted, so that a failed round makes those that are left cheaper, that is noisier.
No round costs more than was planned: what a client saved by missing rounds is its reserve for rounds that fail.
Whoever cannot pay for a round with at most twice the planned noise takes part no more; when too few can, the run ends.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dordis.federation.charges import OwnersCount
from dordis.federation.design import Design
from dordis.federation.participation import Attendance
from dordis.federation.selection import Selection, Turns
from dordis.protocol import ClientId

LEAST = 0.25
"""The least part of its planned cost that a round is held for: its noise is then twice as large."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class Allowances:
    """What each client can pay for the next round, after what owners may have counted so far.

    `planned` is what a round was to cost, `cap` how many of them the budget covers.  Where owners cannot bound what a
    round costs (`by_cost` is false) rounds are counted, not costs.
    """

    planned: float
    cap: int
    by_cost: bool
    counted: Mapping[Attendance, OwnersCount]

    @classmethod
    def of(cls, design: Design, counted: Mapping[Attendance, OwnersCount]) -> "Allowances":
        """Begin with the budget of a design."""
        return cls(design.allowed if design.counts else 1.0, design.cap, design.counts, counted)

    def spent(self) -> dict[int, float]:
        """Return what every client may have counted, in units of `planned`."""
        spent: Counter[int] = Counter()
        for count in self.counted.values():
            cost = count.cost / self.planned if self.by_cost and count.cost is not None else 1.0
            for u in count.clients:
                spent[u] += cost  # type: ignore[assignment]
        return dict(spent)

    def each(self, clients: Iterable[ClientId], selection: Selection, index: int, rounds: int) -> dict[ClientId, float]:
        """Return what clients can pay for the round with this index, the first of so many that are left."""
        spent = self.spent()
        return {u: self.planned * self._part(spent.get(u, 0.0), _turns(selection, u, index, rounds)) for u in clients}

    def _part(self, spent: float, turns: int | None) -> float:
        """Return which part of its planned cost a client can pay, that is due so often; 0 if it is too little."""
        left = self.cap - spent
        if not self.by_cost or turns is None:  # nobody knows how often it is due: it takes part while it can
            return 1.0 if left >= 1 - _CLOSE else 0.0
        affordable = math.floor((1 + _CLOSE) * left / LEAST)
        if affordable < 1:
            return 0.0
        part = left / max(1, min(turns, affordable))
        return 1.0 if part >= 1 - _CLOSE / self.cap else part


def _turns(selection: Selection, client: ClientId, index: int, rounds: int) -> int | None:
    return selection.turns(client, index, rounds) if isinstance(selection, Turns) else None
