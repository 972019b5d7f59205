"""`dordis.mean` and `dordis.histogram`: check the values, see to the bounds, run a round, and tell what came out."""

import math
import secrets
from collections import Counter
from collections.abc import Sequence
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
    design,
    one_hot,
    private_sum,
    query_ledger,
)
from dordis.apps.analytics.results import PrivateHistogram, PrivateMean, figures
from dordis.apps.analytics.values import client_ids, column_names, table
from dordis.errors import InputError
from dordis.federation.ledger import Ledger
from dordis.privacy import accounting
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.encoding import Entropy
from dordis.privacy.skellam import Floats
from dordis.protocols.parameters import MALICIOUS

GivenBounds = tuple[npt.ArrayLike, npt.ArrayLike]
_Costs = tuple[ReleaseCost, ...]
_Bounded = tuple[Bounds, _Costs, QueryBudget]
"""Bounds, what they have cost, and what is left of the budget."""


def mean(
    values: npt.ArrayLike,
    *,
    epsilon: float,
    bounds: GivenBounds | None = None,
    delta: float | None = None,
    dropped: int = 0,
    colluders: int = 1,
    mode: str = MALICIOUS,
    fidelity: str = IDEAL,
    ledger: str | Path | None = None,
    budget: float | None = None,
    clients: Sequence[int] | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> PrivateMean:
    """Return the mean of clients' values under distributed differential privacy, one row for each client.

    `values` are (clients,) or (clients, columns).  `bounds`, (low, high), are numbers or one for each column: public
    knowledge, never taken from the values, which are clipped to them; the noise is in proportion to their distance.
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
    rows, single = table(values)
    wanted = QueryBudget.of(epsilon, delta, len(rows))
    charged = _ledger(ledger, wanted.delta, budget)
    how = Conditions(colluders, mode, dropped, fidelity, entropy, charged, client_ids(clients, len(rows)))
    limits, spent, left = _bounded(rows, bounds, wanted, how)
    scaled, columns = limits.scaled(rows), rows.shape[1]
    planned = design(len(rows), columns, math.sqrt(columns), left, how)
    summed = private_sum(planned, lambda client: scaled[client], how)
    return PrivateMean(
        mean=figures(limits.centre + limits.half * (summed.total / summed.count), single),
        sigma=figures(limits.half * (summed.sigma / summed.count), single),
        bounds=(figures(limits.low, single), figures(limits.high, single)),
        columns=column_names(values),
        **_common(summed, spent, left.delta, len(rows), how),
    )


def histogram(
    values: npt.ArrayLike,
    bins: int | None = None,
    *,
    epsilon: float,
    edges: npt.ArrayLike | None = None,
    bounds: GivenBounds | None = None,
    delta: float | None = None,
    dropped: int = 0,
    colluders: int = 1,
    mode: str = MALICIOUS,
    fidelity: str = IDEAL,
    ledger: str | Path | None = None,
    budget: float | None = None,
    clients: Sequence[int] | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> PrivateHistogram:
    """Return how many clients have a value in each bin, under distributed differential privacy.

    `values` are (clients,), or (clients, columns) for a histogram of each column.  Give `edges`: k of them make k + 1
    bins, the first and the last without end, and a value on an edge is in the bin above it.  Or give a number of
    `bins`, all as wide, between the `bounds`; values beyond those are in the first and the last.  Bounds that are not
    given are found privately.  Neither edges nor bounds are ever to be taken from the values.  Privacy is for one
    client, who is taken out of the counts; all else is as for `mean`.

    >>> import dordis
    >>> ages = [20 + i % 50 for i in range(1000)]
    >>> result = dordis.histogram(ages, epsilon=1, edges=[30, 60])
    >>> bool((abs(result.counts - [200, 600, 200]) < 6 * result.sigma).all())
    True
    >>> dordis.histogram(ages, bins=4, bounds=(0, 100), epsilon=1).edges.tolist()
    [25.0, 50.0, 75.0]
    """
    rows, single = table(values)
    wanted, columns = QueryBudget.of(epsilon, delta, len(rows)), rows.shape[1]
    charged = _ledger(ledger, wanted.delta, budget)
    how = Conditions(colluders, mode, dropped, fidelity, entropy, charged, client_ids(clients, len(rows)))
    between, limits, spent, left = _binned(rows, bins, edges, bounds, wanted, how)
    width = between.shape[1] + 1
    planned = design(len(rows), width * columns, math.sqrt(columns), left, how)
    places = [np.searchsorted(own, column, side="right") for own, column in zip(between, rows.T, strict=True)]
    summed = private_sum(planned, one_hot(np.stack(places, axis=1).astype(np.int64), width), how)
    counts = summed.total.reshape(columns, width)
    return PrivateHistogram(
        counts=counts[0] if single else counts,
        sigma=summed.sigma,
        edges=between[0] if single else between,
        bounds=None if limits is None else (figures(limits.low, single), figures(limits.high, single)),
        columns=column_names(values),
        **_common(summed, spent, left.delta, len(rows), how),
    )


def _ledger(path: str | Path | None, delta: float, budget: float | None) -> Ledger | None:
    if path is None and budget is not None:
        raise InputError("a budget over several queries needs the ledger that they are charged to")
    return None if path is None else query_ledger(path, delta, budget)


def _bounded(rows: Floats, bounds: GivenBounds | None, budget: QueryBudget, how: Conditions) -> _Bounded:
    """Take the bounds that are given, or spend a part of the budget on finding them."""
    if bounds is not None:
        return bounding.given(bounds, rows.shape[1]), (), budget
    part, rest = budget.split(bounding.SHARE)
    found, cost = bounding.find(rows, part, how)
    return found, (cost,), rest


def _binned(
    rows: Floats,
    bins: int | None,
    edges: npt.ArrayLike | None,
    bounds: GivenBounds | None,
    budget: QueryBudget,
    how: Conditions,
) -> tuple[Floats, Bounds | None, _Costs, QueryBudget]:
    """Return edges, (columns, bins - 1), given or dividing the bounds evenly, with those bounds, as `_bounded` does."""
    if (bins is None) == (edges is None) or (edges is not None and bounds is not None):
        raise InputError("a histogram takes either edges, or a number of bins with or without bounds")
    if edges is not None:
        between = histograms.Settings(edges=tuple(_numbers(edges))).edges
        return np.tile(between, (rows.shape[1], 1)), None, (), budget
    if not isinstance(bins, int | np.integer) or bins < 2:
        raise InputError("bins is a whole number from 2 on; boundaries of bins are given as edges")
    limits, spent, left = _bounded(rows, bounds, budget, how)
    return np.linspace(limits.low, limits.high, bins + 1, axis=1)[:, 1:-1], limits, spent, left


def _numbers(edges: npt.ArrayLike) -> list[float]:
    try:
        numbers: list[float] = np.asarray(edges, np.float64).ravel().tolist()
    except (TypeError, ValueError):
        raise InputError("the edges of a histogram are numbers") from None
    return numbers


def _common(summed: PrivateSum, for_bounds: _Costs, delta: float, clients: int, how: Conditions) -> dict[str, Any]:
    """Return what every result says: what the bounds and the figures have cost adds up."""
    return {
        "epsilon": _spent(*for_bounds, summed.cost, delta=delta),
        "delta": delta,
        "epsilon_for_bounds": _spent(*for_bounds, delta=delta),
        "clients": clients,
        "dropped": clients - summed.count,
        "colluders": how.colluders,
        "mode": how.mode,
        "fidelity": how.fidelity,
        "sum_check": summed.sum_check,
    }


def _spent(*costs: ReleaseCost, delta: float) -> float:
    return accounting.spent(frozenset(Counter(costs).items()), delta)
