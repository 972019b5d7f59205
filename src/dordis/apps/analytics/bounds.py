"""Bounds on the values of clients: given as public knowledge, or found privately as powers of two.

To find bounds, clients count their values in bins: a client with n values in a column adds 1 / n to the bin of each of
these values.  So its update has a norm of sqrt(columns) at most.  Each bin stands for a sign and an exponent k in -20
.. 63; the bin of a value has the sign of the value and the least k with |value| <= 2^k.

The positive values of a column have one bound, the negative values another.  A bound is at first the largest power of
two whose noisy count exceeds a threshold; with a probability of at least 0.9999, the noise stays below the threshold in
all bins of all columns.  Then the bound is doubled as long as the count of the next larger power of two exceeds
2 sigma, where sigma is the standard deviation of the noise in a count.  If no count of positive (or of negative) values
exceeds the threshold, their bound is 0.

Limits: a value beyond 2^63 is counted and clipped as 2^63; bounds below 2^-20 are not found.  Values beyond the bounds
are clipped.  The number of clients with such values may be about 2 sigma in the bin next to a bound.  It may be about
5 sigma in each bin further away, and in each bin of a sign whose bound is 0.  With few clients, many columns or a small
budget no bounds can be found, and the query is refused.

`find_ranges` spends a part of a run's budget on the ranges of a table's numeric columns.  The ranges and the run that
uses them together cost the given epsilon.  The type of each column (number or text) counts as public; everything
else is released with noise only.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.analytics.private_sum import (
    LEAST_CLIENTS,
    Conditions,
    PrivateSum,
    QueryBudget,
    Updates,
    expected_sigma,
    plan_release,
    private_sum,
    release_cost,
)
from dordis.apps.tables.columns import Columns, as_columns
from dordis.apps.tables.description import Range, Table
from dordis.errors import InputError
from dordis.ledger.combine_runs import open_data_ledger
from dordis.ledger.entries import RunCharge
from dordis.privacy import accounting, gdp
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.encoding import Entropy
from dordis.privacy.scaling import Floats
from dordis.protocols.parameters import RUN_BYTES

SHARE = 0.1
"""Part of the budget that is spent on finding bounds.  The statistic gets only the rest: its noise is 5 % larger."""
CONFIDENCE = 0.9999
"""Probability that the noise stays below the threshold in all bins.  It is high because a single bin whose noise
exceeds the threshold can make the bounds a million times too wide.
"""
NEXT = 2.0
"""A bound is extended by the next bin if the count of this bin exceeds this number of standard deviations of the noise.
The number can be small because a wrong extension only doubles the noise on the statistic.
"""
LEAST, MOST = -20, 63
_SIDE = MOST - LEAST + 1
WIDTH = 2 * _SIDE
"""Number of bins of a column: first the bins of non-negative values by exponent, then the bins of negative values."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Public lower and upper bounds of each column: two arrays of the shape (columns,)."""

    low: Floats
    high: Floats

    @property
    def centre(self) -> Floats:
        """Return the middle between the bounds of each column."""
        middle: Floats = self.low / 2 + self.high / 2  # low + high could overflow
        return middle

    @property
    def half(self) -> Floats:
        """Return half the distance between the bounds of each column."""
        reach: Floats = self.high / 2 - self.low / 2
        return reach

    def scaled(self, values: Floats) -> Floats:
        """Clip values to the bounds, and map each column to -1 .. 1, so that a row has a norm of sqrt(columns) at most.

        >>> Bounds(np.array([0.0]), np.array([8.0])).scaled(np.array([[0.0], [6.0], [99.0]])).ravel().tolist()
        [-1.0, 0.5, 1.0]
        """
        clipped = np.clip(values, self.low, self.high)
        scaled: Floats = np.clip((clipped - self.centre) / self.half, -1.0, 1.0)
        return scaled


def read_bounds(bounds: Any, columns: int, names: Sequence[str] = ()) -> Bounds:
    """Read public bounds, given as one pair (low, high) for all columns, as one pair for each column, or as a mapping
    from column names to pairs.  Raise InputError if they are invalid.
    """
    if isinstance(bounds, Mapping):
        if set(bounds) != set(names) or not names:
            raise InputError(
                f"bounds by name must have exactly the columns {', '.join(names) or '(these have no names)'}"
            )
        bounds = [bounds[name] for name in names]
    try:
        given = np.asarray(bounds, np.float64)
    except (TypeError, ValueError):
        given = np.zeros(0)
    if given.shape == (2,):
        given = np.tile(given, (columns, 1))
    if given.shape != (columns, 2):
        pairs = "" if columns == 1 else f", or {columns} pairs, one for each column"
        raise InputError(f"bounds must be one pair (low, high){pairs}")
    public = Bounds(given[:, 0].copy(), given[:, 1].copy())
    if not (np.isfinite(given).all() and (public.half > 0).all()):
        wrong = given[~(np.isfinite(given).all(axis=1) & (public.half > 0))][0].tolist()
        raise InputError(f"bounds must be finite, and each lower bound must be below the upper one, not {wrong}")
    return public


def find_bounds(values: Floats, budget: QueryBudget, how: Conditions) -> tuple[Bounds, ReleaseCost]:
    """Find the bounds of each column privately; return the bounds, and the privacy cost of this search.

    `values` has the shape (clients, columns) and no NaN.  Raise InputError if no bounds can be found.
    """
    summed = count_bins(values, np.arange(len(values)), budget, how)
    return select_bounds(summed.total.reshape(-1, WIDTH), summed.sigma), summed.cost


def count_bins(
    values: Floats,
    owner: npt.NDArray[np.int64],
    budget: QueryBudget,
    how: Conditions,
    charge: Callable[[ReleaseCost], None] | None = None,
) -> PrivateSum:
    """Return the noisy counts of all bins of all columns, summed over clients; `bin_shares` gives a client's counts.

    `values` has the shape (rows, columns), with NaN in empty cells; `owner` has the zero-based index of each row's
    client.  `charge` is called with the privacy cost before the values are counted.  If the noise would be too large to
    find bounds, InputError is raised and `charge` is not called.
    """
    clients, columns = int(owner.max()) + 1, values.shape[1]
    planned = plan_release(clients, WIDTH * columns, math.sqrt(columns), budget, how)
    if clients - how.dropped <= quantile(columns) * expected_sigma(planned):
        raise InputError(
            f"{clients} clients and a share of {budget.part:.3g} of epsilon {budget.epsilon:.3g} are not enough to "
            f"find the bounds of {columns} column{'s'[: columns > 1]}: give public bounds, or a larger epsilon"
        )
    if charge is not None:
        charge(release_cost(planned))
    return private_sum(planned, bin_shares(values, owner), how)


def bin_shares(values: Floats, owner: npt.NDArray[np.int64]) -> Updates:
    """Return a function from a client's index to the client's update: its counts of all bins, column after column.

    `values` has the shape (rows, columns), with NaN in empty cells; `owner` has the index of each row's client.  If n
    of the client's cells in a column are not empty, each of these cells adds 1 / n to the bin of its value.

    >>> update = bin_shares(np.array([[1.0], [4.0], [np.nan], [4.0]]), np.array([0, 0, 1, 0]))
    >>> update(0)[np.flatnonzero(update(0))].round(2).tolist(), update(1).any().item()
    ([0.33, 0.67], False)
    """
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(owner.max() + 2))
    bins, columns = find_bins(np.nan_to_num(values)), np.arange(values.shape[1])

    def update(client: int) -> Floats:
        rows = order[starts[client] : starts[client + 1]]
        present = ~np.isnan(values[rows])
        shares = np.zeros((len(columns), WIDTH))
        np.add.at(shares, (np.broadcast_to(columns, present.shape), bins[rows]), present)
        counted: Floats = shares / np.maximum(present.sum(axis=0), 1)[:, None]
        return counted.ravel()

    return update


def find_bins(values: Floats) -> npt.NDArray[np.int64]:
    """Return the zero-based index of each value's bin within its column.

    The first bins of a column are for 0 and positive values, one for each exponent from LEAST to MOST; then come as
    many bins for negative values.

    >>> (find_bins(np.array([1.0, 1.5, 0.0, -4.0])) + LEAST).tolist()
    [0, 1, -20, 86]
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa 2^exponent, the mantissa in 1/2 .. 1
    least = np.where(values == 0, LEAST, exponent - (mantissa == 0.5))
    place: npt.NDArray[np.int64] = np.clip(least, LEAST, MOST).astype(np.int64) - LEAST + _SIDE * (values < 0)
    return place


def quantile(columns: int) -> float:
    """Return the threshold for noisy counts, as a multiple of the standard deviation of the noise.

    With probability `CONFIDENCE` the noise stays below the threshold in all bins of all columns.
    """
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / (WIDTH * columns))


def select_bounds(counts: Floats, sigma: float) -> Bounds:
    """Return the bounds of each column from the noisy counts of its WIDTH bins, of the shape (columns, WIDTH).

    `sigma` is the standard deviation of the noise in each count.  Raise InputError if a column has no count above the
    threshold, which is `sigma` times the value of the function `quantile`.
    """
    bounds, found = read_counts(counts, sigma)
    if not found.all():
        raise InputError(
            f"no count of column {np.argmin(found)} (counted from 0) exceeds the noise, and the budget for its bounds "
            f"is spent: give public bounds, or a larger epsilon"
        )
    return bounds


def read_counts(counts: Floats, sigma: float) -> tuple[Bounds, npt.NDArray[np.bool_]]:
    """Return the bounds of each column, and whether one of its noisy counts exceeds the threshold.

    If none does, both bounds of the column are 0.  `sigma` is the standard deviation of the noise in each count; the
    threshold is `sigma` times the value of the function `quantile`.
    """
    sides = counts.reshape(-1, 2, _SIDE)
    seen = sides > quantile(len(counts)) * sigma
    last = _SIDE - 1 - np.argmax(seen[:, :, ::-1], axis=2)
    ends = (sides <= NEXT * sigma) & (np.arange(_SIDE) > last[:, :, None])
    last = np.where(ends.any(axis=2), np.argmax(ends, axis=2) - 1, _SIDE - 1)
    reach = np.where(seen.any(axis=2), np.exp2(last + LEAST), 0.0)
    found: npt.NDArray[np.bool_] = np.asarray(seen.any(axis=(1, 2)))
    return Bounds(0.0 - reach[:, 1], reach[:, 0]), found


@dataclass(frozen=True)
class PrivateRanges:
    """The result of `find_ranges`: the ranges found, by column, and their privacy cost.

    `not_found` lists the columns for which no range was found, because no count was clearly above the noise.
    """

    table: Table
    """The given description, with the found ranges added."""
    ranges: dict[str, Range]
    not_found: tuple[str, ...]
    epsilon: float
    """Epsilon spent on the ranges alone."""
    epsilon_left: float
    """Epsilon of a run such that the ranges and the run together cost the epsilon given to `find_ranges`."""
    delta: float
    clients: int


def find_ranges(
    data: Any,
    table: Table,
    *,
    epsilon: float,
    share: float = SHARE,
    columns: Sequence[str] | None = None,
    delta: float | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    entropy: Entropy | None = None,
) -> PrivateRanges:
    """Find ranges of numeric columns privately.  The ends of each range are 0, or plus or minus a power of two.

    `data` and `table` are as in `dordis.train`.  `columns` are by default all numeric features to which `table` gives
    neither a range nor categories.  `epsilon` is the budget for the ranges and a later run together: the fraction
    `share` of it is spent here, and `epsilon_left` of the result is left for the run.  The guarantee protects each
    single client with all its rows.  `ledger`, `budget` and `entropy` are as in `dordis.mean`.

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
    counted = count_bins(values, owner, part, Conditions(entropy=entropy or secrets.token_bytes), charge)
    limits, found = read_counts(counted.total.reshape(len(names), -1), counted.sigma)
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
    """Return the columns to find ranges of: `wanted`, or by default all numeric features without range or categories.

    Raise InputError if no column remains, or if a wanted column is absent, holds text or already has a range.
    """
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
    """Return the zero-based number of each row's client; each row is one client if the table has no client column.

    Raise InputError if the client column is missing, or is empty in a row.
    """
    if table.client is None:
        return np.arange(len(rows))
    if table.client not in rows.names:
        raise InputError(f"{rows.where} has no column '{table.client}', which names the clients")
    texts = rows.texts(table.client)
    if any(text is None for text in texts):
        raise InputError(f"{rows.where} has rows without a client: remove them or name their client")
    return np.unique(texts.astype(str), return_inverse=True)[1].astype(np.int64).reshape(-1)
