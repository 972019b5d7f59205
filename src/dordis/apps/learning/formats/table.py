"""Tables, CSV or Parquet: a column of labels, a column that says whose a row is, and all others are features."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.analytics.csv_file import read_cells
from dordis.apps.learning.data import Dataset, Target, Unit, Values, check_inputs, check_targets, checked
from dordis.errors import InputError


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are for; `client` may be missing: then the rows are nobody's."""

    label: str
    client: str | None = None
    target: Target = "classification"

    @property
    def unit(self) -> Unit:
        """Return what one value of the column `client` is."""
        return Unit(self.client or "row", f"the column {self.client}")


@dataclass(frozen=True, eq=False)
class Rows:
    """Features (n, columns), targets, whose each row is if that is known, and the names of the features."""

    x: Values = field(repr=False)
    y: Values = field(repr=False)
    keys: Values | None = field(repr=False)
    names: tuple[str, ...]


def read_tables(path: Path, test: Path | None, roles: Roles) -> Dataset:
    """Read a table to train on and, if there is one, a public one to test with.

    Where the public one has the column `client` too, its rows of clients are known, so that they can be left out.
    """
    train = read(path, roles)
    data: dict[str, Any] = {"x_train": train.x, "y_train": train.y, "keys": train.keys}
    if test is not None:
        tested = read(test, roles, optional=True)
        check_alike(path, train.names, test, tested.names)
        data |= {"x_test": tested.x, "y_test": tested.y, "test_keys": tested.keys}
    try:
        return checked(Dataset(**data, target=roles.target, unit=roles.unit))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read(path: Path, roles: Roles, optional: bool = False) -> Rows:
    """Read one table, whose column `client` may be `optional`."""
    names, numbers, texts = (_parquet if path.suffix.lower() == ".parquet" else _csv)(path)
    roles = replace(roles, client=None) if optional and roles.client not in names else roles
    for name in filter(None, (roles.label, roles.client)):
        if names.count(name) != 1:
            many = "no column" if name not in names else "several columns"
            raise InputError(f"{path} has {many} '{name}': its columns are {', '.join(names)}")
    features = [name for name in names if name not in {roles.label, roles.client}]
    if not features:
        raise InputError(f"{path} has no column beside the label and the client: there is nothing to learn from")
    x = check_inputs(f"{path}: the table", numbers(features))
    y = check_targets(f"{path}: the column '{roles.label}'", whole(numbers([roles.label])[:, 0]), len(x), roles.target)
    return Rows(x, y, None if roles.client is None else texts(roles.client), tuple(features))


def whole(y: Values) -> Values:
    """Return whole numbers as such; others as they are."""
    return y.astype(np.int64) if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.rint(y)).all() else y


def check_alike(path: Path, names: Sequence[str], test: Path, others: Sequence[str]) -> None:
    """Both tables have the same features, in the same order."""
    if tuple(names) != tuple(others):
        raise InputError(f"{path} has the features {', '.join(names)}, and {test} has {', '.join(others)}")


def _csv(path: Path) -> Any:
    cells = read_cells(path)
    return list(cells.names), cells.numbers, lambda name: np.array(cells.texts(name))


def _parquet(path: Path) -> Any:
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise InputError(
            f"{path}: Parquet needs pandas with pyarrow: pip install pandas pyarrow, or pass a CSV"
        ) from None
    try:
        table = pandas.read_parquet(path)
    except ImportError:
        raise InputError(f"{path}: pandas needs pyarrow to read Parquet: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from None

    def numbers(names: Sequence[str]) -> Values:
        try:
            found: Values = table[list(names)].to_numpy(dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{path} has columns that are no numbers among {', '.join(names)}") from None
        return found

    return [str(name) for name in table.columns], numbers, lambda name: table[name].astype(str).to_numpy(dtype=str)
