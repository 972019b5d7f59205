"""Checks of clients' values, which are rows of a table; errors never contain a value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.tables.columns import as_texts
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.protocol import ClientId

LEAST_CLIENTS = 3
"""With two clients, one client and the server together would know the value of the other."""


def column_names(values: object) -> tuple[str, ...]:
    """Return the column names of a DataFrame; empty for other values."""
    return tuple(map(str, getattr(values, "columns", ())))


def check_values(values: npt.ArrayLike) -> tuple[Floats, bool]:
    """Return values as an array (clients, columns), and whether they were given as (clients,).

    Raise InputError if there are too few clients, or if a value is not a finite number.

    >>> check_values([1, 2, 3])[0].shape
    (3, 1)
    """
    array = _array(values)
    if array.ndim not in (1, 2):
        raise InputError(f"values are (clients,) or (clients, columns), not {array.ndim}-dimensional")
    single = array.ndim == 1
    rows = array.reshape(len(array), -1) if array.size else array
    if len(array) < LEAST_CLIENTS:
        raise InputError(f"{len(array)} rows are too few to hide a client among: give {LEAST_CLIENTS} or more")
    if not array.size:
        raise InputError("the rows are empty: give a value or more for each client")
    astray = np.argwhere(~np.isfinite(rows))
    if astray.size:
        raise InputError(f"the value in {_place(astray[0].tolist(), values)} is NaN or infinite")
    return rows, single


def client_ids(clients: Sequence[int] | None, rows: int) -> tuple[ClientId, ...] | None:
    """Return the client ids of the rows, or None if not given; raise unless they are distinct and at least 1."""
    if clients is None:
        return None
    ids = tuple(ClientId(int(u)) for u in clients)
    if len(ids) != rows or len(set(ids)) != rows or min(ids, default=1) < 1:
        raise InputError(
            f"clients must be {rows} different numbers from 1 on, one for each row: got {len(set(ids))} of them"
        )
    return ids


def _array(values: npt.ArrayLike) -> Floats:
    """Return numbers as float64; raise with the position of the first value that is not a number."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(_ragged(values)) from None
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    objects = np.asarray(values, dtype=object)  # np.asarray(values) turns numbers beside a text into texts
    numbers = np.array([_number(item) for item in objects.flat]).reshape(objects.shape)
    astray = np.argwhere(np.isnan(numbers))
    if astray.size:
        raise InputError(f"the value in {_place(astray[0].tolist(), values)} is not a number")
    return numbers


def _place(place: Sequence[int], values: object) -> str:
    """Return the position of a value, with the name of its column if it has one."""
    row, column = (*place, 0)[:2]
    names = column_names(values)
    return (
        f"row {row} (counted from 0), column '{names[column]}'"
        if names
        else (f"row {row}, column {column} (counted from 0)")
    )


def _ragged(values: npt.ArrayLike) -> str:
    rows = values if isinstance(values, Sequence | np.ndarray) else ()
    lengths = [len(row) if isinstance(row, Sequence | np.ndarray) else 1 for row in rows]
    row = next((i + 1 for i, (one, other) in enumerate(pairwise(lengths)) if one != other), 0)
    return f"all rows must have the same number of values, but row {row} (counted from 0) differs"


def _number(item: object) -> float:
    """Return an object as a number; NaN if it is a text or cannot be converted."""
    if isinstance(item, str | bytes):
        return math.nan
    try:
        return float(item)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Rows of clients, one or several each: `values` (rows, columns), and `owner`, the index of each row's client."""

    values: Floats
    owner: npt.NDArray[np.int64]
    clients: int
    single: bool
    names: tuple[str, ...]
    ids: tuple[ClientId, ...] | None = None

    def means(self) -> Floats:
        """Return the mean row of each client, so that every client counts once."""
        return self.average(self.values)

    def average(self, rows: Floats) -> Floats:
        """Return, for each client, the mean of its rows among `rows`, which are in the order of `values`."""
        if self.clients == len(rows):
            return rows[np.argsort(self.owner)]
        totals = np.zeros((self.clients, rows.shape[1]))
        np.add.at(totals, self.owner, rows)
        averages: Floats = totals / np.bincount(self.owner, minlength=self.clients)[:, None]
        return averages


def group_rows(values: Any, client: Any, ids: Sequence[int] | None) -> ClientRows:
    """Return the rows with their clients; raise InputError if they do not fit.

    `client` is the name of a column, or has one name for each row.  Without it each row is a client, and `ids` are the
    client ids of the rows, if they are given.
    """
    if client is None:
        rows, single = check_values(values)
        count = len(rows)
        return ClientRows(rows, np.arange(count), count, single, column_names(values), client_ids(ids, count))
    if ids is not None:
        raise InputError("give either client, the client of each row, or clients, the ids of clients with one row each")
    if isinstance(client, str):
        if client not in column_names(values):
            raise InputError(
                f"there is no column '{client}': the columns are {', '.join(column_names(values)) or 'unnamed'}"
            )
        client, values = values[client], values.drop(columns=client)
    named = as_texts(np.asarray(client, object).tolist())
    if any(name is None for name in named):
        raise InputError("some rows have no client: remove them, or name their client")
    rows, single = check_values(values)
    if len(named) != len(rows):
        raise InputError(f"client must name one client for each of the {len(rows)} rows, not {len(named)}")
    found, owner = np.unique(named.astype(str), return_inverse=True)
    if len(found) < LEAST_CLIENTS:
        raise InputError(f"{len(found)} clients are too few to hide one among them: give {LEAST_CLIENTS} or more")
    numbers = [int(name) for name in found] if all(name.isdecimal() and int(name) > 0 for name in found) else None
    chosen = None if numbers is None else tuple(ClientId(u) for u in numbers)
    return ClientRows(rows, owner.reshape(-1), len(found), single, column_names(values), chosen)
