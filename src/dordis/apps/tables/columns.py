"""Columns of a table from any source: a CSV or Parquet file, a DataFrame, a mapping of arrays."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.tables.csv_file import read_cells
from dordis.errors import InputError

Texts = npt.NDArray[Any]
"""Cells of a column as texts; None where a cell is empty."""
Numbers = npt.NDArray[np.float64]

GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"})
"""Texts, in lower case, that stand for an empty cell."""
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table by name, each as texts; `bools` are the columns whose type is boolean."""

    where: str
    """Name of the table in error messages: the path of its file, or the name of an argument."""
    names: tuple[str, ...]
    cells: Mapping[str, Texts] = field(repr=False)
    bools: frozenset[str] = frozenset()
    decimal_comma: bool = False

    def __post_init__(self) -> None:
        if doubled := [name for name, count in Counter(self.names).items() if count > 1]:
            raise InputError(
                f"{self.where} has several columns called {', '.join(map(repr, doubled))}: rename all but one"
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.cells[self.names[0]]) if self.names else 0

    def texts(self, name: str) -> Texts:
        """Return the cells of a column as texts, None where empty."""
        return self.cells[name]

    def is_bool(self, name: str) -> bool:
        """Tell whether the type of a column is boolean."""
        return name in self.bools

    def numbers(self, name: str) -> Numbers:
        """Return the cells of a column as numbers, NaN where empty; raise InputError if a cell is no finite number."""
        found = self._parse(name)
        if found is None:
            raise InputError(f"{self.where}: the column '{name}' holds text where numbers are expected")
        return found

    def has_numbers(self, name: str) -> bool:
        """Tell whether all cells of a column are numbers or empty."""
        return self._parse(name) is not None

    def numbers_or_texts(self, name: str) -> tuple[list[float] | None, list[str | None]]:
        """Return the numbers of a column without empty cells, None if it has texts or no numbers; and all its texts."""
        numbers = self._parse(name)
        listed = None if numbers is None else [float(x) for x in numbers if not math.isnan(x)]
        return listed or None, list(self.cells[name])

    def _parse(self, name: str) -> Numbers | None:
        try:
            return np.array([self._number(text) for text in self.cells[name]], np.float64)
        except ValueError:
            return None

    def _number(self, text: str | None) -> float:
        if text is None:
            return math.nan
        if text in ("True", "False"):
            return float(text == "True")
        value = float(text.replace(",", ".") if self.decimal_comma else text)
        if not math.isfinite(value):
            raise ValueError("not finite")
        return value


def as_columns(source: Any, where: str) -> Columns:
    """Return the columns of a path, a DataFrame, a numpy record array or a mapping of arrays by column name."""
    if isinstance(source, Columns):
        return source
    if isinstance(source, str | Path):
        return read_file(Path(source))
    if hasattr(source, "to_pandas"):  # polars, pyarrow
        source = source.to_pandas()
    if hasattr(source, "columns") and hasattr(source, "groupby"):
        return _from_frame(source, where)
    if isinstance(source, np.ndarray) and source.dtype.names:
        source = {name: source[name] for name in source.dtype.names}
    if isinstance(source, Mapping):
        return _from_mapping(source, where)
    raise InputError(
        f"{where} must be a DataFrame, a mapping of column names to arrays, or the path of a CSV or Parquet file, "
        f"not {type(source).__name__}"
    )


def read_file(path: Path) -> Columns:
    """Read a CSV file of any delimiter and encoding, or a Parquet file."""
    if path.suffix.lower() == ".parquet":
        return _from_frame(_read_parquet(path), str(path))
    cells = read_cells(path)
    columns = list(zip(*(row for _, row in cells.lines), strict=True))
    values = {name: as_texts(column) for name, column in zip(cells.names, columns, strict=True)}
    return Columns(str(path), cells.names, values, decimal_comma=cells.delimiter == ";")


def as_texts(values: Sequence[Any]) -> Texts:
    """Return cells as normalised texts, None where empty."""
    texts = np.empty(len(values), object)
    for i, value in enumerate(values):
        text = normalise(value)
        texts[i] = None if text.lower() in GAPS else text
    return texts


def normalise(value: Any) -> str:
    """Return a value as the text by which categories and clients are compared: stripped, whole numbers without a point.

    >>> normalise(3.0), normalise(" yes "), normalise(None), normalise("3.0")
    ('3', 'yes', '', '3')
    """
    if value is None:
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = text.rstrip("0").removesuffix(".") if "." in text else text  # 3.0 in a file is the category 3
    return whole if whole.lstrip("-").isdecimal() else text


def _from_frame(frame: Any, where: str) -> Columns:
    """Return the columns of a DataFrame; cells of every column type become texts by the same rules."""
    names = tuple(map(str, frame.columns))
    cells, bools = {}, set()
    for place, name in enumerate(names):
        column = frame.iloc[:, place]
        cells[name] = as_texts(
            [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
        )
        if str(column.dtype) in ("bool", "boolean"):
            bools.add(name)
    return Columns(where, names, cells, frozenset(bools))


def _from_mapping(columns: Mapping[Any, Any], where: str) -> Columns:
    arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise InputError(f"{where}: all columns must be one-dimensional and equally long")
    bools = frozenset(name for name, array in arrays.items() if array.dtype.kind == "b")
    return Columns(where, tuple(arrays), {name: as_texts(array.tolist()) for name, array in arrays.items()}, bools)


def _read_parquet(path: Path) -> Any:
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise InputError(
            f"{path}: Parquet needs pandas with pyarrow: pip install pandas pyarrow, or pass a CSV"
        ) from None
    try:
        return pandas.read_parquet(path)
    except ImportError:
        raise InputError(f"{path}: pandas needs pyarrow to read Parquet: pip install pyarrow") from None
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
