"""The application of measured rounds: updates of a given length and no model, so that rounds are mostly aggregation."""

from typing import Any

import numpy as np

from dordis.rounds.app import AppClient, AppServer, RoundInfo


class FixedServer(AppServer):
    """Sum updates of `dim` coordinates and drop the sum."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return self._dim

    def use_output(self, round: RoundInfo, aggregate: Any) -> None:
        """Drop the sum."""


class FixedClient(AppClient):
    """Return the same update of norm 1 in every round."""

    def __init__(self, place: int, dim: int) -> None:
        self._update = np.full(dim, dim**-0.5, np.float32)

    def prepare_data(self, round: RoundInfo, model: Any) -> Any:
        """Return the update."""
        return self._update
