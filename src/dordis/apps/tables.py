"""The values of simulated clients: a table with one row for each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats

Settings = TypeVar("Settings")


@dataclass(frozen=True, eq=False)
class Table(Generic[Settings]):
    """The settings of an application, and what its clients hold."""

    settings: Settings
    values: Floats = field(repr=False)

    def row(self, place: int) -> Floats:
        """Return what the client at a place holds."""
        check_place(place, len(self.values))
        found: Floats = self.values[place]
        return found


def rows(path: str, population: int) -> Floats:
    """Read a .npy file of numbers: the first `population` rows, one client each, as (population, columns)."""
    try:
        table = np.load(Path(path), allow_pickle=False)
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
