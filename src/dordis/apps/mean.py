"""A private mean: each client has a vector, and the server estimates the mean vector from the sums of all rounds."""

import math
from typing import Self

import msgspec
import numpy as np

from dordis.apps import ClientTable, build_once, read_rows
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import AppServer, FixedClient, RoundInfo, State, Task


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a private mean.

    `data` is the path of a .npy file with one vector for each client; if it is empty, random vectors with `dim`
    coordinates are drawn.  `centre` is a public guess of the mean, the same for every coordinate.  The guess is
    subtracted from each vector, and the difference is clipped to the norm `bound`: set privacy.clip to the same bound.
    """

    data: str = ""
    dim: int = 16
    centre: float = 0.0
    bound: float = 1.0

    def __post_init__(self) -> None:
        if self.dim < 1 or not math.isfinite(self.centre):
            raise InputError("a mean needs a dim of 1 or more and a finite centre")
        if not 0 < self.bound < math.inf:
            raise InputError(f"the bound on a vector's norm is positive and finite, not {self.bound}")


class PooledServer(AppServer):
    """A server that adds up the sums of all rounds, so that the noise on its estimate shrinks with every round."""

    def __init__(self, dim: int) -> None:
        self._total, self._count = np.zeros(dim), np.zeros(dim)

    @property
    def dim(self) -> int:
        return self._total.size

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Add a round's sum to the total, and for each coordinate the number of summed clients to the count."""
        self._total += aggregate.total
        self._count += aggregate.counts

    @property
    def pooled(self) -> Floats:
        """Return the summed updates of all rounds, divided by the number of updates; zeros before the first round."""
        mean: Floats = self._total / np.maximum(self._count, 1)
        return mean

    def state(self) -> State:
        return {"total": self._total.copy(), "count": self._count.copy()}

    def restore(self, state: State) -> None:
        self._total, self._count = state["total"].copy(), state["count"].copy()


class Server(PooledServer):
    """A server that estimates the mean vector from all rounds so far."""

    def __init__(self, dim: int, centre: float = 0.0) -> None:
        super().__init__(dim)
        self._centre = centre

    @classmethod
    def from_task(cls, task: Task) -> Self:
        table = _table(task)
        return cls(table.values.shape[1], table.settings.centre)

    def result(self) -> Floats:
        """Return the estimated mean vector; before the first round it is the centre."""
        return self._centre + self.pooled

    def evaluate(self) -> dict[str, float]:
        """Return the metric `mean`: the average of all coordinates of the estimated mean vector."""
        return {"mean": float(self.result().mean())}


class Client(FixedClient):
    """A client whose update in every round is its vector minus `centre`, clipped to the norm `bound`."""

    def __init__(self, vector: Floats, centre: float = 0.0, bound: float = 1.0) -> None:
        super().__init__(clip_to_norm(np.asarray(vector, np.float64) - centre, bound))

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        table = _table(task)
        return cls(table.row(place), table.settings.centre, table.settings.bound)


def clip_to_norm(vector: Floats, bound: float) -> Floats:
    """Return the vector, scaled down to the norm `bound` if its norm is larger.

    >>> clip_to_norm(np.array([6.0, 8.0]), bound=5.0).tolist()
    [3.0, 4.0]
    """
    norm = float(np.linalg.norm(vector))
    return vector if norm <= bound else vector * (bound / norm)


def read_table(settings: Settings, task: Task) -> ClientTable[Settings]:
    """Read the vectors of all clients; without a file, draw random vectors within the distance `bound` of the centre.

    Each coordinate is uniform within `bound` / sqrt(`dim`) of `centre`.
    """
    if settings.data:
        return ClientTable(settings, read_rows(task.folder / settings.data, task.population))
    reach = settings.bound / math.sqrt(settings.dim)
    values = settings.centre + np.random.default_rng(task.seed).uniform(-reach, reach, (task.population, settings.dim))
    return ClientTable(settings, values)


_table = build_once(Settings, read_table)
