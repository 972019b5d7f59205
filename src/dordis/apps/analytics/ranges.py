"""Ranges of the numeric columns of a table, found privately with a share of the budget.

The rest of the budget is left for the run that uses the ranges: ranges and run together cost the given epsilon.  The
types of columns (number or text) count as public; everything else is released with noise only.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dordis.apps.analytics import bounds as bounding
from dordis.apps.analytics.release import Conditions, QueryBudget
from dordis.apps.analytics.values import LEAST_CLIENTS
from dordis.apps.tables.columns import Columns, as_columns
from dordis.apps.tables.description import Range, Table
from dordis.errors import InputError
from dordis.ledger.data_ledger import open_data_ledger
from dordis.ledger.round_charge import RunCharge
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.encoding import Entropy
from dordis.protocols.parameters import RUN_BYTES


@dataclass(frozen=True)
class PrivateRanges:
    """Ranges by column, the columns for which no range was found in the noise, and the privacy cost."""

    table: Table
    """The given description, with the found ranges added."""
    ranges: dict[str, Range]
    not_found: tuple[str, ...]
    epsilon: float
    """Epsilon spent on the ranges alone."""
    epsilon_left: float
    """Epsilon that is left for a run, so that ranges and run together cost the given epsilon."""
    delta: float
    clients: int


def find_ranges(
    data: Any,
    table: Table,
    *,
    epsilon: float,
    share: float = bounding.SHARE,
    columns: Sequence[str] | None = None,
    delta: float | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    entropy: Entropy | None = None,
) -> PrivateRanges:
    """Find ranges of numeric columns privately, as powers of two on either side of 0.

    `data` and `table` are those of `dordis.train`.  `columns` are by default all numeric features without a range or
    categories.  A `share` of the budget `epsilon` is spent, and the rest is left for a run: `epsilon_left`.  Privacy is
    for one client, with all its rows.  With a `ledger` every client is charged before anything is computed.

    >>> import dordis
    >>> rows = {"age": [20 + i % 60 for i in range(2000)], "ill": ["no", "yes"] * 1000}
    >>> table = dordis.Table(label="ill", categories={"ill": ("no", "yes")})
    >>> found = dordis.find_ranges(rows, table, epsilon=6)
    >>> found.ranges, found.epsilon < 2, 5 < found.epsilon_left < 6
    ({'age': (0.0, 128.0)}, True, True)
    """
    if not 0 < share < 1:
        raise InputError(f"share, the part of the budget for the ranges, must lie between 0 and 1, not at {share}")
    rows = as_columns(data, "the data")
    names = choose_columns(rows, table, columns)
    owner = number_clients(rows, table)
    clients = int(owner.max()) + 1
    if clients < LEAST_CLIENTS:
        raise InputError(f"{clients} clients are too few to hide one among them: give {LEAST_CLIENTS} or more")
    whole = QueryBudget.for_clients(epsilon, delta, clients)
    part, rest = whole.split(share)
    values = np.stack([rows.numbers(name) for name in names], axis=1)

    def charge(cost: ReleaseCost) -> None:
        spent = gdp.theta_budget(_epsilon(cost, whole.delta), whole.delta)
        if ledger is not None:
            label = f"ranges of {', '.join(names)}"
            opened = open_data_ledger(ledger, whole.delta, budget)
            opened.charge_run(secrets.token_bytes(RUN_BYTES), RunCharge(label, spent, Fraction(0)))

    if ledger is None and budget is not None:
        raise InputError("a budget over several queries needs a ledger: pass ledger as well")
    counted = bounding.count_bins(values, owner, part, Conditions(entropy=entropy or secrets.token_bytes), charge)
    limits, found = bounding.read_counts(counted.total.reshape(len(names), -1), counted.sigma)
    ranges = {
        name: (float(low), float(high))
        for name, low, high, seen in zip(names, limits.low, limits.high, found, strict=True)
        if seen
    }
    known = table.ranges if isinstance(table.ranges, dict) else {}
    return PrivateRanges(
        table=msgspec.structs.replace(table, ranges=known | ranges),
        ranges=ranges,
        not_found=tuple(name for name in names if name not in ranges),
        epsilon=_epsilon(counted.cost, whole.delta),
        epsilon_left=gdp.epsilon(rest.part * gdp.theta_budget(epsilon, whole.delta), whole.delta),
        delta=whole.delta,
        clients=clients,
    )


def _epsilon(cost: ReleaseCost, delta: float) -> float:
    return accounting.epsilon_spent(frozenset({(cost, 1)}), delta)


def choose_columns(rows: Columns, table: Table, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns whose ranges are to be found; raise if one is absent, holds text or has a range."""
    if wanted is not None:
        if absent := [name for name in wanted if name not in rows.names]:
            raise InputError(f"{rows.where} has no column {', '.join(absent)}: its columns are {', '.join(rows.names)}")
        chosen = tuple(dict.fromkeys(wanted))
        if texts := [name for name in chosen if not rows.has_numbers(name)]:
            raise InputError(f"text has categories instead of a range: leave out {', '.join(texts)}")
        if known := [name for name in chosen if table.range(name) is not None]:
            raise InputError(f"the table already has a range of {', '.join(known)}, which costs nothing: leave it out")
    else:
        features = table.feature_names(rows.names, rows.where)
        plain = [name for name in features if table.range(name) is None and name not in table.categories]
        chosen = tuple(name for name in plain if rows.has_numbers(name) and not rows.is_bool(name))
    if not chosen:
        raise InputError("every numeric column has a range: there is nothing to find")
    return chosen


def number_clients(rows: Columns, table: Table) -> np.typing.NDArray[np.int64]:
    """Return the zero-based number of each row's client; each row is one client if the table has no client column."""
    if table.client is None:
        return np.arange(len(rows))
    if table.client not in rows.names:
        raise InputError(f"{rows.where} has no column '{table.client}', which names the clients")
    texts = rows.texts(table.client)
    if any(text is None for text in texts):
        raise InputError(f"{rows.where} has rows without a client: remove them or name their client")
    return np.unique(texts.astype(str), return_inverse=True)[1].astype(np.int64).reshape(-1)
