"""A private histogram: each client has a value, and the server estimates the share of clients in each bin."""

import math
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np

from dordis.apps import ClientTable, build_once, read_rows
from dordis.apps.mean import PooledServer
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.rounds.app import FixedClient, Task


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a private histogram.

    `data` is the path of a .npy file with one value for each client; if it is empty, standard normal values are drawn.
    k `edges` make k + 1 bins; the first and the last bin are unbounded, and a value on an edge is in the bin above the
    edge.  The update of a client has norm 1: set privacy.clip to 1.  With `nonnegative`, the estimated shares of the
    bins are projected to the simplex, so that none is negative and their sum is 1.
    """

    data: str = ""
    edges: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    nonnegative: bool = True

    def __post_init__(self) -> None:
        if not self.edges or not all(map(math.isfinite, self.edges)):
            raise InputError("a histogram needs at least one edge, and all edges must be finite")
        if any(high <= low for low, high in pairwise(self.edges)):
            raise InputError("the edges of a histogram must ascend")


class Server(PooledServer):
    """A server that estimates the share of clients in each bin from the sums of all rounds."""

    def __init__(self, bins: int, nonnegative: bool = True) -> None:
        super().__init__(bins)
        self._nonnegative = nonnegative

    @classmethod
    def from_task(cls, task: Task) -> Self:
        settings = _table(task).settings
        return cls(len(settings.edges) + 1, settings.nonnegative)

    def result(self) -> Floats:
        """Return the estimated share of clients in each bin; zeros before the first round."""
        return project_to_simplex(self.pooled) if self._nonnegative and self.pooled.any() else self.pooled

    def evaluate(self) -> dict[str, float]:
        """Return the estimated share of clients in each bin as the metrics `bin 0`, `bin 1`, .. ."""
        return {f"bin {i}": float(share) for i, share in enumerate(self.result())}


class Client(FixedClient):
    """A client whose update in every round is 1 in the bin of the client's value, and 0 in all other bins."""

    def __init__(self, value: float, edges: tuple[float, ...]) -> None:
        if math.isnan(value):
            raise InputError("a client's value is NaN, which is in no bin")
        super().__init__(np.zeros(len(edges) + 1))
        self.update[np.searchsorted(edges, value, side="right")] = 1.0

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        table = _table(task)
        return cls(float(table.row(place)[0]), table.settings.edges)


def project_to_simplex(shares: Floats) -> Floats:
    """Return the Euclidean projection of shares onto the simplex: no share is negative, and they add up to 1.

    The projection is the maximum-likelihood histogram if all bins have Gaussian noise of the same standard deviation.

    >>> project_to_simplex(np.array([0.75, 0.5, -0.25])).tolist()
    [0.625, 0.375, 0.0]
    """
    descending = np.sort(shares)[::-1]
    lowered = (np.cumsum(descending) - 1) / np.arange(1, shares.size + 1)
    last = np.flatnonzero(descending > lowered)[-1]
    cut: Floats = np.maximum(shares - lowered[last], 0.0)
    return cut


def read_table(settings: Settings, task: Task) -> ClientTable[Settings]:
    """Read the values of all clients; without a file, draw standard normal values."""
    if not settings.data:
        return ClientTable(settings, np.random.default_rng(task.seed).normal(size=(task.population, 1)))
    values = read_rows(task.folder / settings.data, task.population)
    if values.shape[1] != 1:
        raise InputError(f"{settings.data} has {values.shape[1]} columns: a histogram needs one value for each client")
    return ClientTable(settings, values)


_table = build_once(Settings, read_table)
