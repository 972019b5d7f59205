"""A CSV file as a table of numbers, one row for each client; an error tells the line and the column, never the cell."""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats

Lines = list[tuple[int, list[str]]]
"""Rows with the number of the line each ends on; blank ones are left out."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The names of some columns, and the values of all clients, (clients, columns)."""

    names: tuple[str, ...]
    values: Floats = field(repr=False)
    rows: tuple[int, ...] = field(repr=False)
    """The row number of each client in the file, from 1; skipped rows are counted too."""
    skipped: int = 0
    """Rows that were left out because a value was missing, or was no finite number."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a file, with the names of their columns."""

    path: Path
    names: tuple[str, ...]
    lines: Lines = field(repr=False)

    def numbers(self, names: Sequence[str]) -> Floats:
        """Return the values of columns, (rows, columns)."""
        return self.at(_places(self.path, self.names, names))

    def at(self, places: Sequence[int]) -> Floats:
        """Return the values of the columns at these places."""
        return np.array([[_cell(self.path, line, self.names[i], row[i]) for i in places] for line, row in self.lines])

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as they are."""
        (place,) = _places(self.path, self.names, [name])
        return [row[place].strip() for _, row in self.lines]


def read_cells(path: Path) -> Cells:
    """Read a file; a first line that is not all numbers has the names.

    Without such a line columns are named by their number, from 1 on.
    """
    lines = _lines(path)
    first = lines[0][1]
    headed = any(_number(cell) is None for cell in first)
    names = [cell.strip() for cell in first] if headed else [str(i) for i in range(1, len(first) + 1)]
    lines = lines[1:] if headed else lines
    if not lines:
        raise InputError(f"{path} has a line of names and no rows: each row is one client")
    _check_lengths(path, lines, len(names))
    return Cells(path, tuple(names), lines)


def read_columns(path: Path, wanted: Sequence[str] | None = None, *, skip_invalid: bool = False) -> Columns:
    """Read columns of numbers by name, or all of them; rows without a number in one of them are refused, or skipped."""
    cells = read_cells(path)
    places = _places(path, cells.names, wanted)
    numbered = list(enumerate(cells.lines, start=1))
    if skip_invalid:
        numbered = [(row, line) for row, line in numbered if all(_is_finite(line[1][i]) for i in places)]
        if not numbered:
            raise InputError(f"no row of {path} has finite numbers in all columns that are asked for")
    kept = replace(cells, lines=[line for _, line in numbered])
    names, rows = tuple(cells.names[i] for i in places), tuple(row for row, _ in numbered)
    return Columns(names, kept.at(places), rows, len(cells.lines) - len(rows))


def _lines(path: Path) -> Lines:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path} is no CSV file in UTF-8: save it as one") from None
    if not lines:
        raise InputError(f"{path} has no rows: each row is one client")
    return lines


def _check_lengths(path: Path, lines: Lines, width: int) -> None:
    for line, row in lines:
        if len(row) != width:
            raise InputError(f"line {line} of {path} has {len(row)} cells, the first line has {width}")


def _places(path: Path, names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Return where the wanted columns are."""
    if wanted is None:
        return list(range(len(names)))
    held = Counter(names)
    for name in wanted:
        if held[name] != 1:
            many = "no column" if not held[name] else "several columns"
            raise InputError(f"{path} has {many} '{name}': its columns are {', '.join(names)}")
    return [names.index(name) for name in wanted]


def _cell(path: Path, line: int, name: str, text: str) -> float:
    number = _number(text)
    if number is None or not math.isfinite(number):
        several = any(mark in name for mark in ";\t|")  # the name looks like those of several columns
        otherwise = "mend it, choose other columns, or skip such rows (--skip-invalid)"
        advice = "put commas between the columns" if several else otherwise
        raise InputError(f"line {line}, column '{name}' of {path} is not a finite number: {advice}")
    return number


def _is_finite(text: str) -> bool:
    number = _number(text)
    return number is not None and math.isfinite(number)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
