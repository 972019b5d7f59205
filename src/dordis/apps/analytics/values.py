"""What clients hold, as a table with one row for each: checked, and refused without telling any of it."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId

LEAST_CLIENTS = 3
"""With fewer, the server and one more client know what the others hold."""


def column_names(values: object) -> tuple[str, ...]:
    """Return the names of columns that know theirs, as those of a DataFrame do; else none."""
    return tuple(map(str, getattr(values, "columns", ())))


def table(values: npt.ArrayLike) -> tuple[Floats, bool]:
    """Return finite values as (clients, columns), and whether they came as a single column, (clients,).

    >>> table([1, 2, 3])[0].shape
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
    """Return numbers as float64, or name the first place where there is none."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(_ragged(values)) from None
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    objects = np.asarray(values, dtype=object)  # before anything became a text
    numbers = np.array([_number(item) for item in objects.flat]).reshape(objects.shape)
    astray = np.argwhere(np.isnan(numbers))
    if astray.size:
        raise InputError(f"the value in {_place(astray[0].tolist(), values)} is not a number")
    return numbers


def _place(place: Sequence[int], values: object) -> str:
    """Say where a value is: by the name of its column, if that has one."""
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
    return f"all rows have the same number of values, and row {row} (counted from 0) differs"


def _number(item: object) -> float:
    """Return an object as a number; NaN if it is none, as texts are not."""
    if isinstance(item, str | bytes):
        return math.nan
    try:
        return float(item)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
