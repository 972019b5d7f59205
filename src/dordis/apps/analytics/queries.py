"""The functions `dordis.mean` and `dordis.histogram`, and the classes of their results.

A call simulates one round, and before it a round that finds bounds, if bounds are needed and not given.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps import histogram as histograms
from dordis.apps.analytics import bounds as bounding
from dordis.apps.analytics.bounds import Bounds
from dordis.apps.analytics.private_sum import (
    IDEAL,
    ClientRows,
    Conditions,
    PrivateSum,
    QueryBudget,
    group_rows,
    one_hot,
    plan_release,
    private_sum,
)
from dordis.apps.histogram import project_to_simplex
from dordis.apps.tables.cell_texts import normalise
from dordis.errors import InputError
from dordis.ledger.combine_runs import open_data_ledger
from dordis.ledger.ledger import Ledger
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost, budget_warnings
from dordis.privacy.encoding import Entropy
from dordis.privacy.scaling import Floats
from dordis.protocols.parameters import MALICIOUS

Figures = float | Floats
"""A statistic: one number if the caller's values have the shape (clients,), else an array of one number per column."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateAnswer:
    """The fields that every private statistic has: its guarantee, and facts about the round that computed it.

    `epsilon` and `delta` are the privacy cost of the whole query.  `epsilon_for_bounds` is the epsilon of the search
    for bounds alone, at the same delta; it is 0 if the caller gave bounds.  `clients` is the number of clients;
    `dropped` of them dropped out, and their values are not in the statistic.  The guarantee holds against
    a server of the kind `mode` that colludes with `colluders` of the clients.  `fidelity` says how the round was
    simulated.  `sum_check` is the result of the check for impossible sums (`dordis.rounds.impossible_sums`): `passed`,
    or `vacuous` if garbage would have passed too.
    """

    epsilon: float
    delta: float
    epsilon_for_bounds: float
    clients: int
    dropped: int
    colluders: int
    mode: str
    fidelity: str
    sum_check: str
    columns: tuple[str, ...] = ()
    """The names of the columns of a DataFrame; empty if the values had no column names."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Return the terms of the guarantee as sentences, and warnings if epsilon or delta is too large.

        The sentences say what is protected and against whom, what is outside the guarantee, and what was simulated.
        """
        server = "a server that may deviate" if self.mode == MALICIOUS else "a server that follows the protocol"
        simulated = {
            "ideal": "simulated: the noise law and rounding of the protocol, no masks and no messages",
            "full": "simulated: every message of the protocol",
        }
        return (
            f"for one client, its whole row, whose contribution is replaced by zero{self._zero}; "
            "the number of clients is public",
            f"against {server}, with {self.colluders} of the clients",
            "dropout that depends on a client's data is outside the guarantee",
            simulated[self.fidelity],
            *(f"warning: {text}" for text in budget_warnings(self.epsilon, self.delta, self.clients)),
        )

    @property
    def _zero(self) -> str:
        """Return a clause for the first sentence of `terms`: what a zero update means for the statistic."""
        return ""

    def __repr__(self) -> str:
        shown = (f"{name}={_format(getattr(self, name))}" for name in _figures_first(self))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateMean(PrivateAnswer):
    """The noisy mean of each column; `sigma` is the standard deviation of the noise on the mean.

    Values were clipped to `bounds`, the lower and the upper bound of each column.
    """

    mean: Figures
    sigma: Figures
    bounds: tuple[Figures, Figures]

    @property
    def _zero(self) -> str:
        return ", which stands for the middle of the bounds"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateHistogram(PrivateAnswer):
    """The noisy number of clients in each bin; `sigma` is the standard deviation of the noise on a number.

    `counts` are these numbers, which may be negative.  They have the shape (bins,) if the caller's values have the
    shape (clients,), else (columns, bins).  `edges` are the boundaries between bins,
    with the shape (bins - 1,) or (columns, bins - 1).  The first and the last bin are unbounded: if the query had
    `bounds`, these two bins also count the values beyond the bounds.
    """

    counts: Floats
    sigma: float
    edges: Floats
    bounds: tuple[Figures, Figures] | None
    categories: tuple[str, ...] = ()
    """The names of the bins if they are categories (the last is `other`); empty if the bins are ranges of numbers."""

    @property
    def _zero(self) -> str:
        return ", so that no bin counts it"

    @property
    def frequencies(self) -> Floats:
        """Return the maximum-likelihood shares of clients in the bins: none is negative, and their sum is 1."""
        present = self.clients - self.dropped
        return np.apply_along_axis(project_to_simplex, -1, self.counts / present)


def _figures_first(answer: PrivateAnswer) -> Iterator[str]:
    common = [item.name for item in fields(PrivateAnswer)]
    yield from (item.name for item in fields(answer) if item.name not in common)
    yield from common


def _format(value: object) -> str:
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, threshold=8, edgeitems=3, separator=", ").replace("\n", "")
    if isinstance(value, tuple):
        return f"({', '.join(map(_format, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def as_figures(array: npt.NDArray[np.float64], single: bool) -> Figures:
    """Return the array as it is; with `single`, return its first element as a number."""
    return float(array[0]) if single else array


_Costs = tuple[ReleaseCost, ...]
_SettledBounds = tuple[Bounds, _Costs, QueryBudget]
"""Bounds, the privacy cost of finding them, and the remaining budget."""


def mean(
    values: Any,
    *,
    epsilon: float,
    bounds: Any = None,
    delta: float | None = None,
    dropped: int = 0,
    colluders: int = 1,
    mode: str = MALICIOUS,
    fidelity: str = IDEAL,
    ledger: str | Path | None = None,
    budget: float | None = None,
    client: Any = None,
    clients: Sequence[int] | None = None,
    entropy: Entropy | None = None,
) -> PrivateMean:
    """Return the noisy mean of clients' values, under distributed differential privacy.  Each client has one row.

    `values` has the shape (clients,) or (clients, columns).  If clients have several rows, `client` is the DataFrame's
    column that names the client of each row, or a list of one client name for each row; then the mean of a client's
    rows counts as its one row.  Values are clipped to the `bounds`: one pair (low, high) for all columns, a list of one
    pair for each column, or a dictionary by column name.  Bounds must be public knowledge, never computed from the
    values; the noise is proportional to high - low.  If no bounds are given, a tenth of the budget is spent on finding
    bounds that are 0 or plus or minus powers of two.  This search needs some hundreds of clients (see
    `dordis.apps.analytics.bounds`) and makes the noise on the mean 5 % larger.  `sigma` of the result is the standard
    deviation of the noise; it does not include the error that clipping causes.

    The guarantee protects each single client: the result is about as likely if the client's row is replaced by the
    middle of the bounds.  It holds against a server that colludes with `colluders` of the clients.  `delta` is
    min{n^-1.1, 10^-5} for n clients if it is not given.  `dropped` clients, chosen at random, drop out.  With
    `fidelity` "ideal" the noise in the sum is drawn at once; with "full" every message of SecAgg is sent.  `mode` is
    the kind of server: "malicious" or "semi-honest".  `ledger` is the path of a file to which all queries over the same
    clients are charged; the first query creates the file.  `budget` is the epsilon that all queries in the ledger may
    spend together; a query that would exceed it is refused.  `clients` are the client ids of the rows, by default
    1, 2, .. ; with a ledger and these defaults, the rows must have the same order in every query.  Pass `entropy` in
    tests only: anybody who can predict these random bytes can remove the noise.

    >>> import dordis
    >>> ages = [20 + i % 50 for i in range(1000)]
    >>> result = dordis.mean(ages, epsilon=1, bounds=(0, 100))
    >>> abs(result.mean - 44.5) < 6 * result.sigma < 1.5
    True
    >>> round(result.epsilon, 3), result.delta, result.clients, result.bounds
    (1.0, 1e-05, 1000, (0.0, 100.0))
    """
    held = group_rows(values, client, clients)
    rows, single = held.means(), held.single
    wanted = QueryBudget.for_clients(epsilon, delta, len(rows))
    charged = _ledger(ledger, wanted.delta, budget, held, client)
    how = Conditions(colluders, mode, dropped, fidelity, entropy or secrets.token_bytes, charged, held.ids)
    limits, spent, left = _settle_bounds(rows, bounds, wanted, how, held.names)
    scaled, columns = limits.scaled(rows), rows.shape[1]
    planned = plan_release(len(rows), columns, math.sqrt(columns), left, how)
    summed = private_sum(planned, lambda client: scaled[client], how)
    return PrivateMean(
        mean=as_figures(limits.centre + limits.half * (summed.total / summed.count), single),
        sigma=as_figures(limits.half * (summed.sigma / summed.count), single),
        bounds=(as_figures(limits.low, single), as_figures(limits.high, single)),
        columns=held.names,
        **_common(summed, spent, left.delta, len(rows), how),
    )


def histogram(
    values: Any,
    bins: int | None = None,
    *,
    epsilon: float,
    edges: Any = None,
    categories: Sequence[Any] | None = None,
    bounds: Any = None,
    delta: float | None = None,
    dropped: int = 0,
    colluders: int = 1,
    mode: str = MALICIOUS,
    fidelity: str = IDEAL,
    ledger: str | Path | None = None,
    budget: float | None = None,
    client: Any = None,
    clients: Sequence[int] | None = None,
    entropy: Entropy | None = None,
) -> PrivateHistogram:
    """Return the number of clients in each bin, under distributed differential privacy.

    `values` has the shape (clients,), or (clients, columns) for a histogram of each column.  Bins are given in one of
    three ways.  k `edges` make k + 1 bins; the first and the last are unbounded, and a value on an edge is in the bin
    above the edge.  A number of `bins` divides the range between the `bounds` evenly; values beyond the bounds are in
    the first and the last bin, and bounds that are not given are found privately.  The public `categories` of a text
    column have one bin each; all other values share one more bin, the last.  Never compute edges, bounds or categories
    from the values.  If `client` names the client of each row, each of a client's n rows adds 1 / n to a bin.  The
    guarantee protects each single client: the counts are about as likely if no bin counts this client.  All other
    arguments are as in `mean`.

    >>> import dordis
    >>> ages = [20 + i % 50 for i in range(1000)]
    >>> result = dordis.histogram(ages, epsilon=1, edges=[30, 60])
    >>> bool((abs(result.counts - [200, 600, 200]) < 6 * result.sigma).all())
    True
    >>> dordis.histogram(ages, bins=4, bounds=(0, 100), epsilon=1).edges.tolist()
    [25.0, 50.0, 75.0]
    """
    if categories is not None:
        if edges is not None or bins is not None or bounds is not None:
            raise InputError("a histogram of categories takes neither bins nor edges nor bounds")
        values, edges = _number_categories(values, categories), np.arange(len(categories)) + 0.5
    held = group_rows(values, client, clients)
    rows, single, count = held.values, held.single, held.clients
    wanted, columns = QueryBudget.for_clients(epsilon, delta, count), rows.shape[1]
    charged = _ledger(ledger, wanted.delta, budget, held, client)
    how = Conditions(colluders, mode, dropped, fidelity, entropy or secrets.token_bytes, charged, held.ids)
    between, limits, spent, left = _settle_edges(held, bins, edges, bounds, wanted, how)
    width = between.shape[1] + 1
    planned = plan_release(count, width * columns, math.sqrt(columns), left, how)
    places = [np.searchsorted(own, column, side="right") for own, column in zip(between, rows.T, strict=True)]
    indicator = one_hot(np.stack(places, axis=1).astype(np.int64), width)
    if count < len(rows):  # clients have several rows: the rows of a client share one count in each column
        shares = held.average(np.stack([indicator(row) for row in range(len(rows))]))
        indicator = shares.__getitem__
    summed = private_sum(planned, indicator, how)
    counts = summed.total.reshape(columns, width)
    return PrivateHistogram(
        counts=counts[0] if single else counts,
        sigma=summed.sigma,
        edges=between[0] if single else between,
        bounds=None if limits is None else (as_figures(limits.low, single), as_figures(limits.high, single)),
        columns=held.names,
        categories=() if categories is None else (*map(normalise, categories), "other"),
        **_common(summed, spent, left.delta, count, how),
    )


def _number_categories(values: Any, categories: Sequence[Any]) -> Any:
    """Return the zero-based index of each value's category; other values get the index after the last category."""
    place = {normalise(name): float(i) for i, name in enumerate(categories)}
    if not place or len(place) != len(categories):
        raise InputError("categories must be one or more different values")
    cells = np.asarray(values, object)
    if cells.ndim != 1:
        raise InputError("a histogram of categories takes one column, with client= as one name for each row")
    return [place.get(normalise(cell), float(len(place))) for cell in cells]


def _ledger(
    path: str | Path | None, delta: float, budget: float | None, held: ClientRows, client: Any
) -> Ledger | None:
    if path is not None and client is not None and held.ids is None:
        raise InputError("with a ledger, clients must be named by whole numbers of at least 1, the same in all queries")
    if path is None and budget is not None:
        raise InputError("a budget over several queries needs a ledger: pass ledger as well")
    return None if path is None else open_data_ledger(path, delta, budget)


def _settle_bounds(
    rows: Floats, bounds: Any, budget: QueryBudget, how: Conditions, names: Sequence[str]
) -> _SettledBounds:
    """Return bounds, the privacy cost of finding them, and the remaining budget; find bounds only if none are given."""
    if bounds is not None:
        return bounding.read_bounds(bounds, rows.shape[1], names), (), budget
    part, rest = budget.split(bounding.SHARE)
    found, cost = bounding.find_bounds(rows, part, how)
    return found, (cost,), rest


def _settle_edges(
    held: ClientRows,
    bins: int | None,
    edges: Any,
    bounds: Any,
    budget: QueryBudget,
    how: Conditions,
) -> tuple[Floats, Bounds | None, _Costs, QueryBudget]:
    """Return the edges, the bounds, the privacy cost of finding the bounds, and the remaining budget.

    The edges have the shape (columns, bins - 1).  The bounds are None if the caller gave edges.
    """
    if (bins is None) == (edges is None) or (edges is not None and bounds is not None):
        raise InputError("a histogram takes either edges, or a number of bins with or without bounds")
    if edges is not None:
        between = histograms.Settings(edges=tuple(_numbers(edges))).edges
        return np.tile(between, (held.values.shape[1], 1)), None, (), budget
    if not isinstance(bins, int | np.integer) or bins < 2:
        raise InputError("bins is a whole number from 2 on; boundaries of bins are given as edges")
    limits, spent, left = _settle_bounds(held.means(), bounds, budget, how, held.names)
    return np.linspace(limits.low, limits.high, bins + 1, axis=1)[:, 1:-1], limits, spent, left


def _numbers(edges: npt.ArrayLike) -> list[float]:
    try:
        numbers: list[float] = np.asarray(edges, np.float64).ravel().tolist()
    except (TypeError, ValueError):
        raise InputError("the edges of a histogram are numbers") from None
    return numbers


def _common(summed: PrivateSum, for_bounds: _Costs, delta: float, clients: int, how: Conditions) -> dict[str, Any]:
    """Return the fields of `PrivateAnswer` by name; `epsilon` covers both the search for bounds and the statistic.

    `for_bounds` has the costs of this search, and `clients` is the number of clients before dropouts.
    """
    return {
        "epsilon": _epsilon_spent(*for_bounds, summed.cost, delta=delta),
        "delta": delta,
        "epsilon_for_bounds": _epsilon_spent(*for_bounds, delta=delta),
        "clients": clients,
        "dropped": clients - summed.count,
        "colluders": how.colluders,
        "mode": how.mode,
        "fidelity": how.fidelity,
        "sum_check": summed.sum_check,
    }


def _epsilon_spent(*costs: ReleaseCost, delta: float) -> float:
    return accounting.epsilon_spent(frozenset(Counter(costs).items()), delta)
