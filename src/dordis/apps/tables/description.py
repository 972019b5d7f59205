"""The public description of a table: label and client columns, ranges, categories, and how to treat empty cells.

Nothing in a description is computed from private rows.  If there is a public sample of the table, `Table.from_public`
computes a description from the sample.  `write_template` returns a configuration to fill in, made from the column names
only.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dordis.apps.tables.cell_texts import normalise
from dordis.apps.tables.columns import Columns, as_columns
from dordis.errors import InputError

Range = tuple[float, float]
Category = str | int | float | bool
Gap = float | str
"""Treatment of an empty cell: "refuse" (an error), "skip" the row, "indicator" (a new column), or a public value."""

REFUSE, SKIP, INDICATOR = "refuse", "skip", "indicator"


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Public description of a table.

    `label` is the column to predict, or several columns for a regression with several outputs.  `client` is the column
    that names the client of a row; without a client column each row is one client.  `features` are by default all other
    columns except the columns in `exclude`, such as ids and dates.  `ranges` gives a public pair (low, high) for each
    numeric column, or one pair for all numeric columns; values are clipped to the range, and scaled to -1..1.
    `categories` gives the public values of each text column; the column is encoded one-hot, with one more indicator for
    all other values.  The task is a classification if the label has categories, and a regression if it has a range.
    `gaps` says how to treat an empty cell, for all columns or by column: "refuse" (raise InputError), "skip" the row,
    "indicator" (mark the cell in a new column), or a public value to insert.  In a feature with categories, "refuse"
    and "indicator" encode an empty cell like a value that is not listed.  In a label column, every treatment but
    "refuse" skips the row.

    >>> Table(label="ill", ranges={"age": (0, 120)}, categories={"ill": ("no", "yes")}).target
    'classification'
    """

    label: str | tuple[str, ...]
    client: str | None = None
    features: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ranges: dict[str, Range] | Range = {}
    categories: dict[str, tuple[Category, ...]] = {}
    gaps: Gap | dict[str, Gap] = REFUSE

    def __post_init__(self) -> None:
        for item in msgspec.structs.fields(Table):
            msgspec.structs.force_setattr(self, item.name, _read_field(item, getattr(self, item.name)))
        if not self.labels or not all(self.labels):
            raise InputError("a table needs a label, the column to predict")
        _check_roles(self)
        pairs = self.ranges.items() if isinstance(self.ranges, dict) else [("all columns", self.ranges)]
        for name, pair in pairs:
            if not isinstance(name, str):
                raise InputError(f"ranges of a table are given by the names of columns, not by {name!r}")
            if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_finite, pair)) or pair[0] >= pair[1]:
                raise InputError(f"the range of '{name}' must be two finite numbers, the lower one first")
        for name, gap in (self.gaps if isinstance(self.gaps, dict) else {"all columns": self.gaps}).items():
            if not isinstance(gap, str) and not _is_finite(gap):
                raise InputError(f"the gaps of '{name}' must be filled with a finite number, not with {gap}")
        for name, values in self.categories.items():
            texts = [normalise(value) for value in values]
            if not texts or len(set(texts)) != len(texts):
                raise InputError(f"the categories of '{name}' must be one or more different values")
        if isinstance(self.ranges, dict) and (both := self.ranges.keys() & self.categories.keys()):
            raise InputError(f"{_quote(both)}: give a column a range or categories, not both")

    @classmethod
    def from_public(cls, sample: object, *, label: str | Sequence[str], client: str | None = None) -> "Table":
        """Return a description with the ranges and categories of a *public* sample of the table.

        Never pass private rows: their smallest and largest values would be published.
        """
        columns = as_columns(sample, "the public sample")
        labels = (label,) if isinstance(label, str) else tuple(_plain(label))
        for name in (*labels, *filter(None, [client])):
            if name not in columns.names:
                raise InputError(f"{columns.where} has no column '{name}': its columns are {', '.join(columns.names)}")
        names = [name for name in columns.names if name != client]
        kinds = {name: columns.numbers_or_texts(name) for name in names}
        ranges: dict[str, Range] = {}
        categories: dict[str, tuple[Category, ...]] = {}
        for name, (numbers, texts) in kinds.items():
            present = {text for text in texts if text is not None}
            if not present:
                raise InputError(f"all cells of the column '{name}' of {columns.where} are empty: leave the column out")
            classes = name in labels and len(labels) == 1 and len(present) <= _MOST_CLASSES
            if numbers is None or classes:
                ordered: list[str] = sorted(present, key=_sort_key)
                categories[name] = tuple(ordered)
            else:
                low, high = (float(end) for end in (min(numbers), max(numbers)))
                ranges[name] = (low, high if high > low else low + 1.0)
        return cls(label=labels[0] if len(labels) == 1 else labels, client=client, ranges=ranges, categories=categories)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the columns to predict."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def target(self) -> Literal["classification", "regression"]:
        """Return "classification" if the label has categories, else "regression"."""
        return "classification" if self.labels[0] in self.categories else "regression"

    def range(self, name: str) -> Range | None:
        """Return the public range of a column, or None if the description gives none."""
        if isinstance(self.ranges, dict):
            return self.ranges.get(name)
        return None if name in self.categories else self.ranges

    def classes(self) -> tuple[str, ...]:
        """Return the classes of the label as texts (`normalise`), beginning with class 0; empty for a regression."""
        return self.listed(self.labels[0])

    def listed(self, name: str) -> tuple[str, ...]:
        """Return the public categories of the column `name` as texts (`normalise`); empty if it has no categories."""
        return tuple(normalise(value) for value in self.categories.get(name, ()))

    def gap(self, name: str) -> Gap:
        """Return how an empty cell of the column `name` is treated; by default it is refused."""
        return self.gaps.get(name, REFUSE) if isinstance(self.gaps, dict) else self.gaps

    def feature_names(self, names: Sequence[str], where: str) -> tuple[str, ...]:
        """Return the names of the feature columns of a table that has the columns `names`.

        Raise InputError if a feature is missing or there is none; `where` names the table in the error.
        """
        roles = {*self.labels, self.client, *self.exclude}
        chosen = self.features or tuple(name for name in names if name not in roles)
        if missing := [name for name in chosen if name not in names]:
            raise InputError(f"{where} has no column {_quote(missing)}: its columns are {', '.join(names)}")
        if not chosen:
            raise InputError(f"{where} has no feature columns: all columns are labels, the client or excluded")
        return chosen


def _read_field(item: msgspec.structs.FieldInfo, value: object) -> object:
    """Return the value of a field of `Table`; numbers, texts and arrays of numpy are converted to types of Python.

    Raise InputError if the value has a wrong type, except for ranges: `Table` checks them, with errors that name the
    column.
    """
    plain = _plain(value)
    try:
        if item.name != "ranges":
            msgspec.convert(plain, item.type)
    except msgspec.ValidationError as error:
        example = ', such as ("id", "date")' if isinstance(plain, str) else ""
        raise InputError(f"{item.name} of a table cannot be {plain!r}: {error}{example}") from None
    return plain


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):  # its order differs from process to process, and that of classes counts
        raise InputError("the description of a table holds a set, which has no order: pass a list instead")
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_finite(end: object) -> bool:
    return isinstance(end, int | float) and -math.inf < end < math.inf


_MOST_CLASSES = 20
"""Largest number of distinct values with which `from_public` treats a numeric label as classes."""


def _check_roles(table: Table) -> None:
    """Raise InputError if a column has two roles, if a label or feature is excluded, or if one of several labels has
    categories.
    """
    roles = [*table.labels, *filter(None, [table.client]), *table.features]
    if doubled := {name for name in roles if roles.count(name) > 1}:
        raise InputError(f"{_quote(doubled)} has two roles: a column is a label, the client or a feature")
    if lost := {*table.labels, *table.features} & {*table.exclude}:
        raise InputError(f"{_quote(lost)} is excluded: leave it out of exclude, or of label and features")
    if len(table.labels) > 1 and any(name in table.categories for name in table.labels):
        raise InputError("several labels must all be numbers with ranges: train one model for each label with classes")


def check_described(table: Table, columns: Columns) -> None:
    """Raise InputError if the columns of a table do not match the description `table`.

    One error names all columns that lack a range or categories (boolean features need none), with a template to paste.
    """
    for name in (*table.labels, *filter(None, [table.client]), *_described(table)):
        if name not in columns.names:
            raise InputError(f"{columns.where} has no column '{name}': its columns are {', '.join(columns.names)}")
    wanted = [*table.feature_names(columns.names, columns.where), *table.labels]
    open_ = [name for name in wanted if table.range(name) is None and name not in table.categories]
    open_ = [name for name in open_ if not columns.is_bool(name) or name in table.labels]
    if open_:
        shown = ", ".join(name or "'' (the column without a name)" for name in open_)
        raise InputError(
            f"{len(open_)} column{'s' if len(open_) > 1 else ''} of {columns.where} must have a public range or public "
            f"categories: {shown}. They are never read from private rows. Paste and fill in public "
            f"knowledge, or add a column to exclude:\n{template(table, open_, columns.has_numbers)}"
        )
    texts = [name for name in wanted if table.range(name) is not None and not columns.has_numbers(name)]
    if texts:
        comma = "" if columns.decimal_comma else " (decimal commas are read only from CSV files with the delimiter ;)"
        raise InputError(
            f"{columns.where}: the columns {_quote(texts)} have a range, but also cells that are not finite numbers: "
            f"correct the cells{comma}, give categories instead, or exclude the column"
        )


def _described(table: Table) -> list[str]:
    ranges = table.ranges if isinstance(table.ranges, dict) else {}
    gaps = table.gaps if isinstance(table.gaps, dict) else {}
    return [*ranges, *table.categories, *gaps]


def template(table: Table, open_: Sequence[str], is_number: Callable[[str], bool] = lambda name: True) -> str:
    """Return a description as TOML, with blanks to fill in for the columns `open_`, which have no range or categories.

    A label gets blank categories.  Any other column gets a blank range if `is_number` returns True for it, and blank
    categories otherwise.
    """
    known = table.ranges if isinstance(table.ranges, dict) else {}
    ranges = [f"{toml_key(name)} = [{low:g}, {high:g}]" for name, (low, high) in known.items()]
    classes = [f"{toml_key(name)} = {toml_list(values)}" for name, values in table.categories.items()]
    for name in open_:
        if name in table.labels and not known.get(name):
            classes.append(f'{toml_key(name)} = ["...", "..."]  # classes; or give the label a range')
        elif is_number(name):
            ranges.append(f"{toml_key(name)} = [LOW, HIGH]")
        else:
            classes.append(f'{toml_key(name)} = ["...", "..."]')
    label = toml_value(table.label) if isinstance(table.label, str) else toml_list(table.labels)
    lines = ["[app.options.table]", f"label = {label}"]
    lines += [f"client = {toml_value(table.client)}"] if table.client else []
    lines += [f"features = {toml_list(table.features)}"] if table.features else []
    lines += [f"exclude = {toml_list(table.exclude)}"] if table.exclude else []
    if isinstance(table.gaps, dict):
        filled = ", ".join(f"{toml_key(name)} = {toml_value(gap)}" for name, gap in table.gaps.items())
        lines += [f"gaps = {{ {filled} }}"] if filled else []
    elif table.gaps != REFUSE:
        lines.append(f"gaps = {toml_value(table.gaps)}")
    lines += ["[app.options.table.ranges]", *ranges] if ranges else []
    lines += ["[app.options.table.categories]", *classes] if classes else []
    return "\n".join(lines)


def toml_key(name: str) -> str:
    """Return a column name as a key of TOML, quoted if TOML requires it."""
    return name if name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name) else toml_value(name)


def toml_value(value: Category) -> str:
    """Return a value in TOML."""
    return msgspec.json.encode(value).decode()


def toml_list(values: Sequence[Category]) -> str:
    """Return values as a list of TOML."""
    return msgspec.json.encode(list(values)).decode()


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _sort_key(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


_IDS = re.compile(r"(^|[_ .-])(id|uuid|name|date|time|timestamp|datetime|birthday|dob|index|unnamed)([_ .:-]|$)", re.I)
_CLIENTS = re.compile(
    r"(^|[_ .-])(client|patient|person|user|hospital|clinic|site|customer|subject|device)([_ .-]|$)", re.I
)


def write_template(data: Path, columns: Sequence[str]) -> str:
    """Return a commented configuration for the table in the file `data`, which has these columns and is not read."""
    plain = [name for name in columns if name and not _IDS.search(name) and not _CLIENTS.search(name)]
    label = (plain or columns)[-1]
    client = next((name for name in columns if _CLIENTS.search(name) and name != label), None)
    excluded = [name for name in columns if (not name or _IDS.search(name)) and name not in (label, client)]
    features = [name for name in columns if name not in {label, client, *excluded}]
    ranges = "\n".join(f"# {toml_key(name)} = [LOW, HIGH]" for name in features)
    named = f"client = {toml_value(client)}" if client else '# client = "person"'
    return f"""\
# Private learning from {data.name}. Fill in LABEL, ranges and categories from public knowledge, never from the rows: a
# smallest or largest value that is read from private rows is published with the model. Then:
#   dordis run THIS_FILE --dry-run     checks everything and spends nothing
#   dordis rehearse THIS_FILE          the same job on synthetic rows
#   dordis run THIS_FILE
name = {toml_value(re.sub(r"[^A-Za-z0-9_-]+", "-", data.stem).strip("-") or "table")}

[app.options]
data = {toml_value(data.name)}
# test = "public.csv"              # public rows with the same columns; metrics on them have no noise

[app.options.table]
label = {toml_value(label)}  # the column to predict: is it this one?
{named}  # the column that names the client of a row; without it each row is one client
exclude = {toml_list(excluded)}  # ids, dates and other columns that are no features
gaps = "refuse"                    # an empty cell: "refuse", "skip" the row, "indicator", or a value; or by column

[app.options.table.ranges]         # numbers: clipped to the range and scaled; remove the # of each numeric column
{ranges}

[app.options.table.categories]     # texts: one-hot; values that are not listed count as "other"
# {toml_key(label)} = ["no", "yes"]  # classes of the label; give it a range above instead to predict a number

[federation]
clients = 100                      # number of persons, hospitals .. or rows; a wrong number is refused
per_round = 100
rounds = 20

[privacy]
epsilon = 6.0

[simulation]
fidelity = "ideal"
"""
