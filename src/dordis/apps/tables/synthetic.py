"""Synthetic rows for trial runs, drawn from the public ranges and categories of a table description only."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dordis.apps.tables.columns import Columns, as_columns
from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError

NOISE = 0.3
"""Standard deviation of the noise on the scores from which labels follow; without noise, that of the scores is 1."""


def draw_rows(table: Table, names: Sequence[str], clients: int, each: int, seed: int) -> dict[str, list[Any]]:
    """Return synthetic features, labels and clients as columns by name, with `each` rows for every client.

    `names` are the columns of the real table; columns without one of these roles are left out.  Features are uniform in
    their ranges or categories; labels follow from the features by a linear rule with noise.  Raise
    InputError if a feature or label has neither a range nor categories.
    """
    rng, count = np.random.default_rng(seed), clients * each
    features = table.feature_names(names, "the table")
    rows: dict[str, list[Any]] = {name: _draw(table, name, count, rng) for name in features}
    blank = {name: [_placeholder(table, name)] * count for name in table.labels}
    encoder = Encoder.from_columns(Table(**_plain(table)), _columns({**rows, **blank}))
    x = encoder.encode(_columns({**rows, **blank}), "the rehearsal").x
    for name in table.labels:
        outputs = len(table.categories[name]) if name in table.categories else 1
        scores = x @ rng.normal(size=(x.shape[1], outputs))
        scores = (scores - scores.mean(axis=0)) / np.maximum(scores.std(axis=0), 1e-9)
        scores += rng.normal(0, NOISE, scores.shape)
        rows[name] = _labels(table, name, scores)
    if table.client is not None:
        rows[table.client] = [f"client{i // each:06}" for i in range(count)]
    return rows


def _draw(table: Table, name: str, count: int, rng: np.random.Generator) -> list[Any]:
    if name in table.categories:
        values = list(table.categories[name])
        return [values[i] for i in rng.integers(0, len(values), count)]
    low, high = _range(table, name)
    return list(np.round(rng.uniform(low, high, count), 6).tolist())


def _range(table: Table, name: str) -> tuple[float, float]:
    pair = table.range(name)
    if pair is None:
        raise InputError(f"the column '{name}' has neither a range nor categories: a rehearsal needs them too")
    return pair


def _labels(table: Table, name: str, scores: Any) -> list[Any]:
    if name in table.categories:
        values = list(table.categories[name])
        return [values[i] for i in scores.argmax(axis=1)]
    low, high = _range(table, name)
    return list(np.clip((low + high) / 2 + scores[:, 0] * (high - low) / 8, low, high).tolist())


def _placeholder(table: Table, name: str) -> Any:
    return table.categories[name][0] if name in table.categories else _range(table, name)[0]


def _plain(table: Table) -> dict[str, Any]:
    """Return the fields of a description by name, without its client column and its excluded columns."""
    fields = {name: getattr(table, name) for name in table.__struct_fields__}
    return fields | {"client": None, "exclude": ()}


def _columns(rows: dict[str, list[Any]]) -> Columns:
    return as_columns(rows, "the rehearsal")


HOSPITALS = Table(
    label="ill",
    client="hospital",
    features=("age", "pressure", "sugar", "smoker"),
    exclude=("patient",),
    ranges={"age": (0, 100), "pressure": (80, 220), "sugar": (40, 300)},
    categories={"smoker": ("no", "yes"), "ill": ("no", "yes")},
)
"""Description of the table of made-up patients that `draw_hospitals` returns."""


def draw_hospitals(hospitals: int, patients: int, seed: int) -> dict[str, list[Any]]:
    """Return made-up hospital visits as columns by name; each of the `hospitals` has `patients` patients.

    Each patient has one to three visits (rows), with the same age and diagnosis in all of them.

    >>> rows = draw_hospitals(2, 3, seed=1)
    >>> len(set(rows["patient"])), sorted(set(rows["hospital"]))
    (6, ['hospital-01', 'hospital-02'])
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("hospital", "patient", "age", "pressure", "sugar", "smoker", "ill")
    }
    for patient in range(hospitals * patients):
        age, smoker, severity = int(rng.integers(20, 91)), rng.random() < 0.25, rng.normal()
        risk = (age - 55) / 15 + 1.5 * severity + 1.2 * smoker + rng.normal(0, 0.5)
        for _ in range(int(rng.integers(1, 4))):
            measured = {
                "hospital": f"hospital-{patient // patients + 1:02}",
                "patient": f"p{patient + 1:05}",
                "age": age,
                "pressure": round(float(130 + 18 * severity + rng.normal(0, 8))),
                "sugar": round(float(110 + 25 * severity + rng.normal(0, 15))),
                "smoker": "yes" if smoker else "no",
                "ill": "yes" if risk > 0.4 else "no",
            }
            for name, value in measured.items():
                rows[name].append(value)
    return rows
