"""Applications (federated learning, private means and histograms, language models), audits, and shared functions.

A configuration names the classes `Server` and `Client` of an application.  Both classes read the same options, which
the application's class `Settings` describes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np

from dordis.config.reading import explain_error
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.rounds.app import Task

Settings = TypeVar("Settings")
Shared = TypeVar("Shared")


def build_once(settings: type[Settings], make: Callable[[Settings, Task], Shared]) -> Callable[[Task], Shared]:
    """Return a function from a task to `make(options, task)`, where the task's options are decoded as `settings`.

    The returned function caches its last result, so that the server and all clients of a simulation share one result.
    It raises InputError if the options are invalid.

    >>> class Settings(msgspec.Struct, frozen=True):
    ...     height: int = 2
    >>> table = build_once(Settings, lambda settings, task: [[task.seed] * task.population] * settings.height)
    >>> table(Task({"height": 1}, population=3, seed=7))
    [[7, 7, 7]]
    """

    @lru_cache(maxsize=1)
    def build(options: bytes, population: int, seed: int, folder: Path, by_record: bool, record: str) -> Shared:
        try:
            return make(
                msgspec.json.decode(options, type=settings),
                Task(msgspec.json.decode(options), population, seed, folder, by_record, record),
            )
        except msgspec.ValidationError as error:
            raise InputError(explain_error(str(error), "app.options", settings)) from error

    def build_for(task: Task) -> Shared:
        options = msgspec.json.encode(task.options, order="sorted")
        return build(options, task.population, task.seed, task.folder, task.by_record, task.record)

    return build_for


@dataclass(frozen=True, eq=False)
class ClientTable(Generic[Settings]):
    """The settings of an application and one row of values for each client."""

    settings: Settings
    values: Floats = field(repr=False)

    def row(self, place: int) -> Floats:
        """Return the row of the client with this zero-based index; raise InputError if there is no such client."""
        check_place(place, len(self.values))
        row: Floats = self.values[place]
        return row


def read_rows(path: Path, population: int) -> Floats:
    """Return the first `population` rows of a .npy file, one row for each client.

    Raise InputError if the file has fewer rows, or if a value in these rows is not a finite number.
    """
    try:
        table = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: pass a .npy file of numbers, one row for each client") from error
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "fiub" or table.ndim not in (1, 2):
        raise InputError(f"{path} is not a table of numbers: pass a .npy file with one row for each client")
    if len(table) < population or not table.size:
        raise InputError(f"{path} has {len(table)} rows, the population is {population}: each client needs one")
    table = table[:population].astype(np.float64)
    if not np.isfinite(table).all():
        raise InputError(f"{path} holds values that are not finite")
    return table.reshape(population, -1)


def check_place(place: int, population: int) -> None:
    """Raise InputError unless `place` is the zero-based index of one of `population` clients."""
    if not 0 <= place < population:
        raise InputError(f"there is no client with the index {place}: indices go from 0 to {population - 1}")
