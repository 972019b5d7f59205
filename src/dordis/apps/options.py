"""What configured applications have in common: their options as settings, and a table that all clients share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.rounds.app import Task
from dordis.simulation.reading import explained

Settings = TypeVar("Settings")
Shared = TypeVar("Shared")


def shared(settings: type[Settings], make: Callable[[Settings, Task], Shared]) -> Callable[[Task], Shared]:
    """Return what makes something of a task and its settings, and only once for tasks that are equal.

    >>> class Settings(msgspec.Struct, frozen=True):
    ...     height: int = 2
    >>> table = shared(Settings, lambda settings, task: [[task.seed] * task.population] * settings.height)
    >>> table(Task({"height": 1}, population=3, seed=7))
    [[7, 7, 7]]
    """

    @lru_cache(maxsize=1)
    def build(options: bytes, population: int, seed: int, folder: Path) -> Shared:
        try:
            return make(msgspec.json.decode(options, type=settings), Task({}, population, seed, folder))
        except msgspec.ValidationError as error:
            raise InputError(explained(str(error), "app.options", settings)) from error

    return lambda task: build(
        msgspec.json.encode(task.options, order="sorted"), task.population, task.seed, task.folder
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ClientTable(Generic[Settings]):
    """The settings of an application, and what its clients hold."""

    settings: Settings
    values: Floats = field(repr=False)

    def row(self, place: int) -> Floats:
        """Return what the client at a place holds."""
        check_place(place, len(self.values))
        row: Floats = self.values[place]
        return row


def rows(path: Path, population: int) -> Floats:
    """Read a .npy file of numbers: the first `population` rows, one client each, as (population, columns)."""
    try:
        table = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: pass a .npy file of numbers, one row for each client") from error
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "fiub" or table.ndim not in (1, 2):
        raise InputError(f"{path} is no table of numbers: pass a .npy file with one row for each client")
    if len(table) < population or not table.size:
        raise InputError(f"{path} has {len(table)} rows, the population is {population}: each client needs one")
    table = table[:population].astype(np.float64)
    if not np.isfinite(table).all():
        raise InputError(f"{path} holds values that are not finite")
    return table.reshape(population, -1)


def check_place(place: int, population: int) -> None:
    """Refuse a place that no client has."""
    if not 0 <= place < population:
        raise InputError(f"the clients have places 0 to {population - 1}, not {place}")
