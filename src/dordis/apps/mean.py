"""A private mean: each client has a vector, and the server learns the mean of them, pooled over the rounds."""

import math
from typing import Self

import msgspec
import numpy as np

from dordis.apps.options import ClientTable, rows, shared
from dordis.apps.pooled import PooledServer
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.rounds.app import FixedClient, Task


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Say whose mean: that of the rows of the .npy file `data`, or without one, of made-up vectors of length `dim`.

    `centre` is a public guess, the same for every coordinate; the closer it is to the mean, the smaller `bound` may be,
    to which vectors less the centre are clipped.  Give the run the same bound as its clip.
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


class Server(PooledServer):
    """Learn the mean; `result` is what is known of it so far."""

    def __init__(self, dim: int, centre: float = 0.0) -> None:
        super().__init__(dim)
        self._centre = centre

    @classmethod
    def of(cls, task: Task) -> Self:
        """Make it from `Settings`."""
        table = _table(task)
        return cls(table.values.shape[1], table.settings.centre)

    def result(self) -> Floats:
        """Return the mean, which is the centre before the first round."""
        return self._centre + self.pooled

    def evaluate(self) -> dict[str, float]:
        """Return the mean over the coordinates, too."""
        return {"mean": float(self.result().mean())}


class Client(FixedClient):
    """Give one's vector less the centre, clipped to the bound; the same in every round."""

    def __init__(self, vector: Floats, centre: float = 0.0, bound: float = 1.0) -> None:
        super().__init__(clipped(np.asarray(vector, np.float64) - centre, bound))

    @classmethod
    def of(cls, task: Task, place: int) -> Self:
        """Make it from `Settings`."""
        table = _table(task)
        return cls(table.row(place), table.settings.centre, table.settings.bound)


def clipped(vector: Floats, bound: float) -> Floats:
    """Scale a vector down to a norm of `bound` if it is longer.

    >>> clipped(np.array([6.0, 8.0]), bound=5.0).tolist()
    [3.0, 4.0]
    """
    norm = float(np.linalg.norm(vector))
    return vector if norm <= bound else vector * (bound / norm)


def fill(settings: Settings, task: Task) -> ClientTable[Settings]:
    """Read the vectors of all clients, or make them up: uniform, and within the bound."""
    if settings.data:
        return ClientTable(settings, rows(task.folder / settings.data, task.population))
    reach = settings.bound / math.sqrt(settings.dim)
    values = settings.centre + np.random.default_rng(task.seed).uniform(-reach, reach, (task.population, settings.dim))
    return ClientTable(settings, values)


_table = shared(Settings, fill)
