"""A mean over all rounds: sums are added up, and so are the clients that are in them."""

import numpy as np

from dordis.privacy.skellam import Floats
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppServer, RoundInfo, State


class PooledServer(AppServer):
    """Add up the rounds; every further round takes noise out of the pooled mean."""

    def __init__(self, dim: int) -> None:
        self._total, self._count = np.zeros(dim), np.zeros(dim)

    @property
    def dim(self) -> int:
        """Return the length of a client's vector."""
        return self._total.size

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Add the sum of a round, and how many clients are in each coordinate."""
        self._total += aggregate.total
        self._count += aggregate.counts

    @property
    def pooled(self) -> Floats:
        """Return the mean over everyone who was in a round, as often as they were; zeros before the first."""
        mean: Floats = self._total / np.maximum(self._count, 1)
        return mean

    def state(self) -> State:
        """Return the sums so far."""
        return {"total": self._total.copy(), "count": self._count.copy()}

    def restore(self, state: State) -> None:
        """Go on from such sums."""
        self._total, self._count = state["total"].copy(), state["count"].copy()
