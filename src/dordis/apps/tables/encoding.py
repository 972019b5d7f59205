"""Encoding of tables as arrays by a public description: scaled numbers, one-hot categories, and labels."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.tables.cell_texts import Texts, normalise
from dordis.apps.tables.columns import Columns, as_columns
from dordis.apps.tables.description import INDICATOR, REFUSE, SKIP, Table, check_described, toml_key
from dordis.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Encoded rows of a table: the features `x`, of the shape (rows, columns), and the labels `y`.

    `clients` has the name of each row's client, or is None if it was not read.  `records` has each row's record id, or
    is None if it was not read.  `skipped` is the number of rows that were left out because of empty cells.
    """

    x: Floats = field(repr=False)
    y: npt.NDArray[Any] = field(repr=False)
    clients: npt.NDArray[Any] | None = field(repr=False)
    skipped: int = 0
    records: npt.NDArray[Any] | None = field(default=None, repr=False)


class Encoder(msgspec.Struct, frozen=True):
    """A public description of a table with its feature columns, by which rows are encoded and predictions decoded.

    An encoder is stored with the trained model.
    """

    table: Table
    features: tuple[str, ...]
    bools: tuple[str, ...] = ()
    """Boolean features to which the description gives neither a range nor categories; their range is 0..1."""
    record: str = ""
    """Column of record ids, which is not a feature; empty if each row is a record."""

    @classmethod
    def from_columns(cls, table: Table, columns: Columns, record: str = "") -> "Encoder":
        """Return the encoder for a table with the description `table` and these columns.

        Raise InputError if the columns do not match the description.  The error names every feature and label for which
        the description lacks a range or categories; boolean features need neither.
        """
        table = without_record(table, record)
        if record and record not in columns.names:
            raise InputError(
                f"{columns.where} has no column '{record}', which names the records (privacy.record): "
                f"its columns are {', '.join(columns.names)}"
            )
        check_described(table, columns)
        features = table.feature_names(columns.names, columns.where)
        undescribed = [name for name in features if table.range(name) is None and name not in table.categories]
        return cls(table, features, tuple(undescribed), record)

    @classmethod
    def from_description(cls, table: Table, record: str = "") -> "Encoder":
        """Return the encoder for a table with the description `table`, without reading the table.

        The features are `table.features`, or else all columns that have a range or categories, and no other role.
        Raise InputError if there are no features, or if a feature or label has neither a range nor categories.
        """
        table = without_record(table, record)
        roles = {*table.labels, table.client, *table.exclude}
        ranges = table.ranges if isinstance(table.ranges, dict) else {}
        features = table.features or tuple(name for name in (*ranges, *table.categories) if name not in roles)
        if not features:
            raise InputError("a table without rows needs its feature columns: list them in app.options.table.features")
        described = [*features, *table.labels]
        if missing := [name for name in described if table.range(name) is None and name not in table.categories]:
            raise InputError(f"the columns {', '.join(missing)} need a public range or public categories")
        return cls(table, features, record=record)

    @property
    def width(self) -> int:
        """Return the number of encoded feature columns."""
        return sum(self._width(name) for name in self.features)

    @property
    def outputs(self) -> int:
        """Return the number of scores that a model gives a row: one for each class, or each label of a regression."""
        return len(self.table.classes()) or len(self.table.labels)

    def _width(self, name: str) -> int:
        if name in self.table.categories:
            return len(self.table.categories[name]) + 1
        return 2 if self.table.gap(name) == INDICATOR else 1

    def encode(
        self, source: Any, where: str, *, needs_client: bool = True, needs_record: bool = False, tests: bool = False
    ) -> EncodedRows:
        """Return the rows of a table as arrays; raise InputError if a column is missing or a cell cannot be encoded.

        A missing client column is an error only if `needs_client`.  Record ids are read only if `needs_record`.  Labels
        are clipped to their ranges, except for rows on which the model is tested (`tests`).
        """
        rows, skipped = self._keep_rows(as_columns(source, where))
        client = self.table.client
        if not needs_client and client not in rows.names:
            client = None
        clients = None if client is None else self._clients(rows, client)
        records = self._records(rows) if needs_record and self.record else None
        return EncodedRows(self._features(rows), self._labels(rows, clips=not tests), clients, skipped, records)

    def encode_features(self, source: Any, where: str) -> Floats:
        """Return the features of rows that need no labels, as for a prediction.

        Raise InputError if a column is missing, or if a numeric column has an empty cell for which `gaps` of the
        description says "refuse" or "skip".
        """
        columns = as_columns(source, where)
        if missing := [name for name in self.features if name not in columns.names]:
            raise InputError(f"{where} has no column {', '.join(map(repr, missing))}, which the model needs")
        return self._features(columns)

    def decode(self, scores: Floats) -> npt.NDArray[Any]:
        """Return the predictions for n rows from their scores: classes, or numbers in the units of the labels.

        Predicted numbers have the shape (n,), or (n, labels) for several labels.
        """
        if self.table.target == "classification":
            classes = self.table.categories[self.table.labels[0]]
            texts = any(isinstance(value, str) for value in classes)
            named = np.array([str(value) for value in classes] if texts else list(classes))
            return np.asarray(named[scores.argmax(axis=1)])
        lows, highs = self.label_ranges()
        numbers: Floats = lows + (scores.reshape(len(scores), len(self.table.labels)) + 1) / 2 * (highs - lows)
        return numbers[:, 0] if len(self.table.labels) == 1 else numbers

    def label_ranges(self) -> tuple[Floats, Floats]:
        """Return the lower ends and the upper ends of the labels' ranges, one for each label of a regression."""
        pairs = np.array([self.table.range(name) for name in self.table.labels], np.float64)
        return pairs[:, 0], pairs[:, 1]

    def check_informative(self, columns: Columns) -> None:
        """Raise InputError if all values of a feature or numeric label are below or above its range, or in no category.

        Such a column tells the model nothing.  A likely cause: the description has other units, or other upper and
        lower case, than the values.
        """
        labels = self.table.labels if self.table.target == "regression" else ()
        astray = [name for name in (*self.features, *labels) if self._misses_all(columns, name)]
        if astray:
            raise InputError(
                f"{columns.where}: no value of {', '.join(map(repr, astray))} is in the public range or among the "
                "public categories of its column, so the column tells the model nothing: compare units, and upper and "
                "lower case, or, for a feature, add the column to exclude"
            )

    def _misses_all(self, columns: Columns, name: str) -> bool:
        empty = self._empty(columns, name)
        if empty.all():
            return False
        if name in self.table.categories:
            known = frozenset(self.table.listed(name))
            return known.isdisjoint(columns.texts(name, known)[~empty])
        low, high = self.table.range(name) or (0.0, 1.0)
        values = columns.numbers(name)[~empty]
        return bool((values < low).all() or (values > high).all())

    def describe(self, columns: Columns, rows: EncodedRows) -> dict[str, str]:
        """Return a summary of the rows by topic.  Show it only to the owner of the rows: its counts have no noise."""
        used = {*self.features, *self.table.labels, self.table.client, self.record}
        shown = {
            "file": columns.where,
            "rows": f"{len(rows.y):,} used" + (f", {rows.skipped:,} skipped for their gaps" if rows.skipped else ""),
            "label": "; ".join(f"{name}: {self._describe_column(columns, name)}" for name in self.table.labels),
        }
        shown |= {f"column {name}": self._describe_column(columns, name) for name in self.features}
        unused = [name for name in columns.names if name not in used]
        return shown | {"columns not used": ", ".join(unused) or "none"}

    def _describe_column(self, columns: Columns, name: str) -> str:
        texts = columns.texts(name, self.table.listed(name))
        empty = sum(text is None for text in texts)
        if name in self.table.categories:
            counts = {value: sum(text == value for text in texts) for value in self.table.listed(name)}
            other = len(texts) - empty - sum(counts.values())
            said = ", ".join(f"{value} {count:,}" for value, count in counts.items())
            said = f"categories {said}" + (f", other {other:,}" if other else "")
        else:
            low, high = self.table.range(name) or (0.0, 1.0)
            values = columns.numbers(name)
            outside = int(((values < low) | (values > high)).sum())
            said = f"range {low:g} .. {high:g}" + (f", {outside:,} values clipped to it" if outside else "")
        other = name in self.table.categories and name not in self.table.labels
        gap = self.table.gap(name)
        treated = "other" if other and gap in (REFUSE, INDICATOR) else gap
        return said + (f"; {empty:,} empty cells: {treated}" if empty else "")

    def _keep_rows(self, columns: Columns) -> tuple[Columns, int]:
        """Return the columns without the rows that are skipped for an empty cell, and the number of skipped rows.

        Raise InputError if columns are missing or have empty cells that `gaps` refuses; the error names these columns.
        Raise InputError also if all rows are skipped.
        """
        table, names = self.table, (*self.features, *self.table.labels)
        if missing := [name for name in names if name not in columns.names]:
            raise InputError(f"{columns.where} has no column {', '.join(map(repr, missing))}")
        gaps = {name: self._empty(columns, name) for name in names}
        skipped = np.zeros(len(columns), np.bool_)
        refused = []
        for name, empty in gaps.items():
            action = table.gap(name)
            if action == SKIP or (name in table.labels and action != REFUSE):
                skipped |= empty
            elif empty.any() and action == REFUSE and (name not in table.categories or name in table.labels):
                refused.append(name)
        if refused:
            feature, label = '"indicator"  # or "skip", or a public value', '"skip"  # leaves out rows without a label'
            lines = "\n".join(f"{toml_key(name)} = {label if name in table.labels else feature}" for name in refused)
            raise InputError(
                f"{columns.where} has empty cells in {', '.join(refused)}: say how to treat them, for example\n"
                f"[app.options.table.gaps]\n{lines}"
            )
        if not skipped.any():
            return columns, 0
        if skipped.all():
            raise InputError(f"{columns.where} has no row without an empty cell in a column whose gaps are skipped")
        return columns.select(~skipped), int(skipped.sum())

    def _empty(self, columns: Columns, name: str) -> npt.NDArray[np.bool_]:
        return np.array([text is None for text in columns.texts(name, self.table.listed(name))], np.bool_)

    def _clients(self, columns: Columns, client: str) -> npt.NDArray[Any]:
        if client not in columns.names:
            raise InputError(f"{columns.where} has no column '{client}', which names the clients")
        texts = columns.texts(client)
        if unknown := sum(text is None for text in texts):
            raise InputError(
                f"{columns.where} has {unknown} rows without a client in the column '{client}': nobody's budget covers "
                "them, so remove them or name their client"
            )
        return texts.astype(str)

    def _records(self, columns: Columns) -> npt.NDArray[Any]:
        if self.record not in columns.names:
            raise InputError(f"{columns.where} has no column '{self.record}', which names the records: privacy.record")
        texts = columns.texts(self.record)
        if unknown := sum(text is None for text in texts):
            raise InputError(
                f"{columns.where} has {unknown} rows without an id in the column '{self.record}', which names the "
                "records: give them one, or remove them"
            )
        return texts.astype(str)

    def _features(self, columns: Columns) -> Floats:
        parts = [self._encode_column(columns, name) for name in self.features]
        return np.concatenate(parts, axis=1) if len(columns) else np.zeros((0, self.width))

    def _encode_column(self, columns: Columns, name: str) -> Floats:
        if name in self.table.categories:
            return self._one_hot(columns.texts(name, self.table.listed(name)), name)
        low, high = self.table.range(name) or (0.0, 1.0)
        values, action = columns.numbers(name), self.table.gap(name)
        empty = np.isnan(values)
        if empty.any() and action in (REFUSE, SKIP):
            raise InputError(f"{columns.where} has empty cells in the column '{name}': fill them in")
        if isinstance(action, int | float):
            values = np.where(empty, float(action), values)
            empty = np.zeros_like(empty)
        elif action not in (REFUSE, SKIP, INDICATOR):
            raise InputError(f"the gaps of the numeric column '{name}' must be filled with a number, not with a text")
        scaled = np.where(empty, 0.0, 2 * (np.clip(values, low, high) - low) / (high - low) - 1)
        return np.stack([scaled, empty.astype(np.float64)] if action == INDICATOR else [scaled], axis=1)

    def _one_hot(self, texts: Texts, name: str) -> Floats:
        place = {value: i for i, value in enumerate(self.table.listed(name))}
        action = self.table.gap(name)
        filled = normalise(action) if action not in (REFUSE, SKIP, INDICATOR) else ""
        encoded = np.zeros((len(texts), len(place) + 1))
        for row, text in enumerate(texts):
            encoded[row, place.get(filled if text is None else text, len(place))] = 1.0
        return encoded

    def _labels(self, columns: Columns, clips: bool) -> npt.NDArray[Any]:
        table = self.table
        if table.target == "classification":
            (name,), places = table.labels, {value: i for i, value in enumerate(table.classes())}
            numbers = [places.get(text, -1) for text in columns.texts(name, places)]
            if unknown := numbers.count(-1):
                raise InputError(
                    f"{columns.where}: {unknown} rows have a label '{name}' that is not among its classes "
                    f"({', '.join(places)}): add the class to categories, or remove these rows"
                )
            return np.array(numbers, np.int64)
        lows, highs = self.label_ranges()
        values = np.stack([columns.numbers(name) for name in table.labels], axis=1)
        values = np.clip(values, lows, highs) if clips else values
        scaled = 2 * (values - lows) / (highs - lows) - 1
        return scaled[:, 0] if len(table.labels) == 1 else scaled


def without_record(table: Table, record: str) -> Table:
    """Return the description with the column `record`, which has the record ids, excluded from the features.

    Raise InputError if the description uses this column as label, feature or client.
    """
    if not record or record in table.exclude:
        return table
    if record in (*table.labels, *table.features, table.client):
        raise InputError(f"'{record}' names the records, so it cannot be a label, a feature or the client as well")
    return msgspec.structs.replace(table, exclude=(*table.exclude, record))
