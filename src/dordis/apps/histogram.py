"""A private histogram: each client has one value and adds one to its bin, and the server learns the frequencies."""

import math
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np

from dordis.apps.options import ClientTable, rows, shared
from dordis.apps.pooled import PooledServer
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.rounds.app import FixedClient, Task


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Say whose histogram: that of the values in the .npy file `data`, or without one, of normal deviates.

    k `edges` make k + 1 bins, the first and the last without end; a value on an edge is in the bin above it.  One
    client changes the sum by 1: give the run a clip of 1.  `nonnegative` takes from the frequencies what only noise can
    have put there.
    """

    data: str = ""
    edges: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    nonnegative: bool = True

    def __post_init__(self) -> None:
        if not self.edges or not all(map(math.isfinite, self.edges)):
            raise InputError("a histogram needs an edge or more, all finite")
        if any(high <= low for low, high in pairwise(self.edges)):
            raise InputError("the edges of a histogram ascend")


class Server(PooledServer):
    """Learn the share of clients in each bin."""

    def __init__(self, bins: int, nonnegative: bool = True) -> None:
        super().__init__(bins)
        self._nonnegative = nonnegative

    @classmethod
    def of(cls, task: Task) -> Self:
        """Make it from `Settings`."""
        settings = _table(task).settings
        return cls(len(settings.edges) + 1, settings.nonnegative)

    def result(self) -> Floats:
        """Return the share of each bin; zeros before the first round."""
        return on_simplex(self.pooled) if self._nonnegative and self.pooled.any() else self.pooled

    def evaluate(self) -> dict[str, float]:
        """Return the frequencies by the number of the bin."""
        return {f"bin {i}": float(share) for i, share in enumerate(self.result())}


class Client(FixedClient):
    """Give 1 in the bin of one's value; the same in every round."""

    def __init__(self, value: float, edges: tuple[float, ...]) -> None:
        if math.isnan(value):
            raise InputError("a value that is not a number is in no bin")
        super().__init__(np.zeros(len(edges) + 1))
        self.update[np.searchsorted(edges, value, side="right")] = 1.0

    @classmethod
    def of(cls, task: Task, place: int) -> Self:
        """Make it from `Settings`."""
        table = _table(task)
        return cls(float(table.row(place)[0]), table.settings.edges)


def on_simplex(shares: Floats) -> Floats:
    """Return the nearest shares, in the Euclidean norm, that are not negative and add up to 1.

    All are lowered by the same amount, and cut at 0.  It is the likeliest histogram, given the same Gaussian noise on
    every bin.

    >>> on_simplex(np.array([0.75, 0.5, -0.25])).tolist()
    [0.625, 0.375, 0.0]
    """
    descending = np.sort(shares)[::-1]
    lowered = (np.cumsum(descending) - 1) / np.arange(1, shares.size + 1)
    last = np.flatnonzero(descending > lowered)[-1]
    cut: Floats = np.maximum(shares - lowered[last], 0.0)
    return cut


def fill(settings: Settings, task: Task) -> ClientTable[Settings]:
    """Read the values of all clients, or make them up: normal deviates."""
    if not settings.data:
        return ClientTable(settings, np.random.default_rng(task.seed).normal(size=(task.population, 1)))
    values = rows(task.folder / settings.data, task.population)
    if values.shape[1] != 1:
        raise InputError(f"{settings.data} has {values.shape[1]} columns: a histogram takes one value a client")
    return ClientTable(settings, values)


_table = shared(Settings, fill)
