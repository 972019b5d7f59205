"""Columns of a table from any source: a CSV or Parquet file, a DataFrame, a mapping of arrays.

The delimiter and the encoding of a CSV file are detected.  Errors name lines and columns, never the content of a cell.
"""

import codecs
import csv
import io
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.tables.cell_texts import GAPS, Texts, split_gaps
from dordis.errors import InputError
from dordis.privacy.scaling import Floats

Numbers = npt.NDArray[np.float64]

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table by name, with all cells as texts; `bools` are the columns whose type is boolean."""

    where: str
    """Name of the table in error messages: the path of its file, or the name of an argument."""
    names: tuple[str, ...]
    cells: Mapping[str, Texts] = field(repr=False)
    bools: frozenset[str] = frozenset()
    decimal_comma: bool = False
    gap_words: Mapping[str, Texts] = field(default_factory=dict, repr=False)
    """By column, the texts of cells that count as empty in spite of a text, such as "none"; None for other cells."""

    def __post_init__(self) -> None:
        if doubled := [name for name, count in Counter(self.names).items() if count > 1]:
            raise InputError(
                f"{self.where} has several columns called {', '.join(map(repr, doubled))}: rename all but one"
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.cells[self.names[0]]) if self.names else 0

    def texts(self, name: str, listed: Collection[str] = ()) -> Texts:
        """Return a column's cells as texts, None if empty; a word such as "none" is not empty if it is in `listed`."""
        cells, words = self.cells[name], self.gap_words.get(name)
        if words is None or not GAPS.intersection(text.lower() for text in listed):
            return cells
        return np.where([word in listed for word in words], words, cells)

    def select(self, rows: npt.NDArray[np.bool_]) -> "Columns":
        """Return the columns with only the rows for which `rows`, one boolean for each row, is True."""
        cells, words = ({name: texts[rows] for name, texts in kept.items()} for kept in (self.cells, self.gap_words))
        return replace(self, cells=cells, gap_words=words)

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
        """Return the numbers in the nonempty cells of a column, and the texts of all cells of the column.

        The numbers are None if a nonempty cell is not a finite number, or if all cells are empty.
        """
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
        if (truth := text.lower()) in ("true", "false"):  # R and spreadsheets write TRUE
            return float(truth == "true")
        value = float(text.replace(",", ".") if self.decimal_comma else text)
        if not math.isfinite(value):
            raise ValueError("not finite")
        return value


def as_columns(source: Any, where: str) -> Columns:
    """Return the columns of a table: a file path, a DataFrame, a numpy record array, or a mapping from names to arrays.

    `where` names the table in errors.  Raise InputError for any other source.
    """
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
    """Return the columns of a Parquet file, or of a CSV file, whose delimiter and encoding are detected."""
    if path.suffix.lower() == ".parquet":
        return _from_frame(_read_parquet(path), str(path))
    cells = read_cells(path)
    columns = list(zip(*(row for _, row in cells.lines), strict=True))
    return _from_cells(str(path), cells.names, columns, decimal_comma=cells.delimiter == ";")


def _from_cells(
    where: str,
    names: tuple[str, ...],
    columns: Iterable[Sequence[Any]],
    bools: frozenset[str] = frozenset(),
    decimal_comma: bool = False,
) -> Columns:
    parts = [(name, *split_gaps(column)) for name, column in zip(names, columns, strict=True)]
    words = {name: found for name, _, found in parts if found is not None}
    return Columns(where, names, {name: texts for name, texts, _ in parts}, bools, decimal_comma, words)


def _from_frame(frame: Any, where: str) -> Columns:
    """Return the columns of a DataFrame; cells become texts by rules that do not depend on the type of the column."""
    names = tuple(map(str, frame.columns))
    columns = [frame.iloc[:, place] for place in range(len(names))]
    bools = [name for name, column in zip(names, columns, strict=True) if str(column.dtype) in ("bool", "boolean")]
    cells = (
        [None if missing else value for value, missing in zip(column, column.isna(), strict=True)] for column in columns
    )
    return _from_cells(where, names, cells, frozenset(bools))


def _from_mapping(columns: Mapping[Any, Any], where: str) -> Columns:
    try:
        arrays = {str(name): np.asarray(values) for name, values in columns.items()}
    except ValueError:  # a column of lists of different lengths
        arrays = {}
    lengths = {array.shape for array in arrays.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise InputError(f"{where}: all columns must be lists or arrays of the same length, such as [25] for one row")
    bools = frozenset(name for name, array in arrays.items() if array.dtype.kind == "b")
    return _from_cells(where, tuple(arrays), (array.tolist() for array in arrays.values()), bools)


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


Lines = list[tuple[int, list[str]]]
"""The rows of a file, except blank rows: for each row, the number of its last line in the file, and its cells."""
_DELIMITERS = (",", ";", "\t", "|")
_HEADER_BYTES = 1 << 16


@dataclass(frozen=True, eq=False)
class CsvColumns:
    """Columns of numbers from a file in which each row is one client.

    `names` are the columns' names; `values` has the shape (clients, columns).
    """

    names: tuple[str, ...]
    values: Floats = field(repr=False)
    rows: tuple[int, ...] = field(repr=False)
    """The number of each client's row in the file: the first row is 1, and the header and blank rows do not count."""
    skipped: int = 0
    """Number of rows that were left out because a value was missing, or was no finite number."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a CSV file, with the names of the columns."""

    path: Path
    names: tuple[str, ...]
    lines: Lines = field(repr=False)
    delimiter: str = ","

    def at(self, places: Sequence[int]) -> Floats:
        """Return the columns with these indices as an array of numbers, of the shape (rows, columns).

        Raise InputError if a cell is not a finite number.
        """
        return np.array([[self._cell(line, self.names[i], row[i]) for i in places] for line, row in self.lines])

    def is_finite(self, text: str) -> bool:
        """Tell whether a text is a finite number; in a file with the delimiter ";" it may have a decimal comma."""
        number = _number(text, self.delimiter)
        return number is not None and math.isfinite(number)

    def _cell(self, line: int, name: str, text: str) -> float:
        number = _number(text, self.delimiter)
        if number is None or not math.isfinite(number):
            advice = "correct it, choose other columns, or skip such rows (--skip-invalid)"
            raise InputError(f"line {line}, column '{name}' of {self.path} is not a finite number: {advice}")
        return number


def read_cells(path: Path) -> Cells:
    """Return the cells of a CSV file.  Its first line is the header, unless all cells of this line are numbers.

    Without a header, the columns have the names 1, 2, .. .
    """
    delimiter, lines = _read_lines(path)
    first = lines[0][1]
    headed = not _are_numbers(first)
    names = [cell.strip() for cell in first] if headed else [str(i) for i in range(1, len(first) + 1)]
    lines = lines[1:] if headed else lines
    if not lines:
        raise InputError(f"{path} has a header and no rows")
    _check_lengths(path, lines, len(names))
    return Cells(path, tuple(names), lines, delimiter)


def read_columns(path: Path, wanted: Sequence[str] | None = None, *, skip_invalid: bool = False) -> CsvColumns:
    """Return the `wanted` columns of a CSV file as numbers; all columns if `wanted` is None.

    If a cell in one of these columns is no finite number, raise InputError; with `skip_invalid`, leave out its row
    instead.
    """
    cells = read_cells(path)
    places = _places(path, cells.names, wanted)
    numbered = list(enumerate(cells.lines, start=1))
    if skip_invalid:
        numbered = [(row, line) for row, line in numbered if all(cells.is_finite(line[1][i]) for i in places)]
        if not numbered:
            raise InputError(f"no row of {path} has finite numbers in all chosen columns")
    kept = replace(cells, lines=[line for _, line in numbered])
    names, rows = tuple(cells.names[i] for i in places), tuple(row for row, _ in numbered)
    return CsvColumns(names, kept.at(places), rows, len(cells.lines) - len(rows))


def read_header(path: Path) -> tuple[str, ...]:
    """Return the column names in the header of a CSV or Parquet file, without reading its rows.

    Raise InputError if there is no header.
    """
    if path.suffix.lower() == ".parquet":
        return _parquet_header(path)
    first = _read_first_line(path)
    delimiter = find_delimiter(first)
    try:
        names = next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error:
        raise InputError(f"{path} is not a CSV file: its first line has a cell of more than 131072 letters") from None
    if not names:
        raise InputError(f"{path} is empty: its first line must have the names of the columns")
    if _are_numbers(names):
        raise InputError(f"the first line of {path} holds numbers: put a line with the names of the columns before it")
    return tuple(name.strip() for name in names)


def _read_first_line(path: Path) -> str:
    """Return the first non-blank line of a file, without reading much more than this line."""
    size = _HEADER_BYTES
    while True:
        data = _read_bytes(path, size)
        is_whole = len(data) < size
        lines = [line for line in _decode(path, data, final=is_whole).splitlines() if line.strip()]
        if is_whole or len(lines) > 1:  # the last of several lines may be cut, the first is not
            return lines[0] if lines else ""
        size *= 2


def find_delimiter(header: str) -> str:
    """Return the delimiter that occurs most often in a header; return a comma if no delimiter occurs.

    Of several delimiters that occur equally often, the first of ";", ",", tab and "|" is taken.  If ";", tab or "|"
    divides the line into numbers, which may have decimal commas, it is taken instead.

    >>> find_delimiter("age;weight, in kg;height"), find_delimiter("age"), find_delimiter("1,5;2,5")
    (';', ',', ';')
    """
    for delimiter in (";", "\t", "|"):
        if delimiter in header and _are_numbers([cell.strip(' "') for cell in header.split(delimiter)]):
            return delimiter
    most = max(_DELIMITERS, key=header.count)
    return ";" if ";" in header and header.count(";") == header.count(most) else most


def _are_numbers(line: Iterable[str]) -> bool:
    """Tell whether all cells of a line are numbers, which may have decimal commas: then the line is no header."""
    return all(_number(cell, ";") is not None for cell in line)


def _read_lines(path: Path) -> tuple[str, Lines]:
    text = _decode(path, _read_bytes(path))
    delimiter = find_delimiter(next((line for line in text.splitlines() if line.strip()), ""))
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error:
        raise InputError(f"{path} is not a CSV file: a quotation mark is not closed, or a line is too long") from None
    if not lines:
        raise InputError(f"{path} has no rows")
    return delimiter, lines


def _read_bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _decode(path: Path, data: bytes, final: bool = True) -> str:
    """Return the text of bytes from a file: UTF-16 if they begin with its byte order mark, else UTF-8, or if they are
    not valid UTF-8, Windows-1252, which old spreadsheets write.

    Unless `final`, more bytes follow in the file, and a UTF-8 character whose last bytes are missing is left out.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        raise InputError(f"{path} is not a text file: export it as CSV")
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final)
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _parquet_header(path: Path) -> tuple[str, ...]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from None
    try:
        return tuple(parquet.read_schema(path).names)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _check_lengths(path: Path, lines: Lines, width: int) -> None:
    for line, row in lines:
        if len(row) != width:
            raise InputError(f"line {line} of {path} has {len(row)} cells, the first line has {width}")


def _places(path: Path, names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Return the indices of the columns `wanted` (None: all); raise InputError unless each names one column."""
    if wanted is None:
        return list(range(len(names)))
    held = Counter(names)
    for name in wanted:
        if held[name] != 1:
            many = "no column" if not held[name] else "several columns"
            raise InputError(f"{path} has {many} '{name}': its columns are {', '.join(names)}")
    return [names.index(name) for name in wanted]


def _number(text: str, delimiter: str) -> float | None:
    try:
        return float(text.replace(",", ".") if delimiter == ";" else text)
    except ValueError:
        return None
