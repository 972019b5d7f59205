"""`dordis.mean` and `dordis.histogram`: check the values, settle the bounds, run a round, return the answer."""

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
from dordis.apps.analytics.release import (
    IDEAL,
    Conditions,
    PrivateSum,
    QueryBudget,
    one_hot,
    plan_release,
    private_sum,
)
from dordis.apps.analytics.values import ClientRows, group_rows
from dordis.apps.histogram import project_to_simplex
from dordis.apps.tables.columns import normalise
from dordis.errors import InputError
from dordis.ledger.data_ledger import open_data_ledger
from dordis.ledger.ledger import Ledger
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost, budget_warnings
from dordis.privacy.encoding import Entropy
from dordis.privacy.scaling import Floats
from dordis.protocols.parameters import MALICIOUS

Figures = float | Floats
"""A number if the values came as one column, (clients,), else an array."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateAnswer:
    """Guarantee and conditions of a private statistic.

    `epsilon` and `delta` are proved for all of it; `epsilon_for_bounds` is what finding the bounds would have cost
    alone, at the same delta.  `dropped` of the `clients` vanished, and are not in the figures.  `sum_check` says
    whether the sum behind the figures was compared with what honest clients can make: `passed`, or `vacuous` if garbage
    would have passed too.
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
    """The names of the columns, if the values came with names, as a DataFrame does."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Return the terms of epsilon: unit and adjacency, adversary, simulation."""
        server = "a server that may deviate" if self.mode == MALICIOUS else "a server that keeps to the protocol"
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
        """Describe a zero update in terms of the values."""
        return ""

    def __repr__(self) -> str:
        shown = (f"{name}={_format(getattr(self, name))}" for name in _figures_first(self))
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateMean(PrivateAnswer):
    """The mean of each column; `sigma` is the standard deviation of its noise, and values are clipped to `bounds`."""

    mean: Figures
    sigma: Figures
    bounds: tuple[Figures, Figures]

    @property
    def _zero(self) -> str:
        return ", which stands for the middle of the bounds"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PrivateHistogram(PrivateAnswer):
    """The clients in each bin: `sigma` is the standard deviation of the noise on a count, which may be negative.

    Counts are (bins,) for a single column, else (columns, bins), and `edges`, which lie between the bins, likewise.
    The first and the last bin have no end, or, where there are `bounds`, hold what was clipped to them.
    """

    counts: Floats
    sigma: float
    edges: Floats
    bounds: tuple[Figures, Figures] | None
    categories: tuple[str, ...] = ()
    """Names of the bins of a text column, `other` last; none for bins of numbers."""

    @property
    def _zero(self) -> str:
        return ", so that no bin counts it"

    @property
    def frequencies(self) -> Floats:
        """Return the likeliest shares given the counts: not negative, and 1 in all."""
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
    """Return one column's figure as a number."""
    return float(array[0]) if single else array


_Costs = tuple[ReleaseCost, ...]
_SettledBounds = tuple[Bounds, _Costs, QueryBudget]
"""Bounds, their cost, and the remaining budget."""


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
    """Return the mean of clients' values under distributed differential privacy, one row for each client.

    `values` are (clients,) or (clients, columns).  If clients have several rows, `client` names the client of each row,
    by a column of a DataFrame or one name for each row: the mean row of a client counts once.  `bounds` are public
    knowledge, never taken from the values, which are clipped to them; the noise is in proportion to their distance:
    one pair (low, high) for all columns, a list of one pair for each column, or a dictionary by column name.
    Without them a tenth of the budget is spent on finding powers of two, which takes some hundreds of clients (see
    `dordis.apps.analytics.bounds`); the noise on the mean is then 5 % larger.  What clipping does to the mean is not in
    `sigma`, which is that of the noise.

    Privacy is for one client, whose row is replaced by the middle of the bounds, against the server and `colluders` of
    the clients.  `delta` is min{n^-1.1, 10^-5} if it is not given.  As many clients as `dropped` vanish at random.
    `fidelity` is "ideal", where the noise that is left in the sum is drawn at once, or "full", where every message of
    SecAgg is made, against a server whose `mode` is "malicious" or "semi-honest".  A `ledger` is a file in which all
    queries over the same clients are charged, each under its number.  `clients` are the numbers of the rows' clients,
    1, 2, .. if they are not given: then rows must keep their places.  It is begun by the first query, with a `budget`
    in epsilon, if one is given, beyond which nothing is answered.  Leave `entropy` alone but in tests: whoever can
    foretell it can remove the noise.

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
    """Return how many clients have a value in each bin, under distributed differential privacy.

    `values` are (clients,), or (clients, columns) for a histogram of each column.  Give `edges`: k of them make k + 1
    bins, the first and the last without end, and a value on an edge is in the bin above it.  Or give a number of
    `bins`, all as wide, between the `bounds`; values beyond those are in the first and the last.  Bounds that are not
    given are found privately.  Or give the public `categories` of a text column: all other values are the last bin.
    With `client`, the rows of a client share one count.  Neither edges nor bounds nor categories are ever to be taken
    from the values.  Privacy is for one client, who is taken out of the counts; all else is as for `mean`.

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
    if count < len(rows):  # the rows of a client share one count in each column
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
    """Return the number of each value's category, that of all others last."""
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
        raise InputError("a ledger needs clients with whole numbers of at least 1 that stay the same over queries")
    if path is None and budget is not None:
        raise InputError("a budget over several queries needs the ledger that they are charged to")
    return None if path is None else open_data_ledger(path, delta, budget)


def _settle_bounds(
    rows: Floats, bounds: Any, budget: QueryBudget, how: Conditions, names: Sequence[str]
) -> _SettledBounds:
    """Return the given bounds, or spend a part of the budget on finding them."""
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
    """Return edges, (columns, bins - 1), given or dividing the bounds evenly, and the bounds with their cost."""
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
    """Return the fields of every answer; costs of bounds and figures add up."""
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
