"""Bounds on the values of clients: given as public knowledge, or found privately as powers of two.

To find them, every client adds one to a bin of each column: the bin of the sign of its value and of the least k with
|value| <= 2^k, for k in -20 .. 40.  So the update of a client has a norm of sqrt(columns) at most.  On either side of
0, the bound of a column is the largest power of two whose noisy count exceeds a threshold.  Noise alone exceeds this
threshold, in any bin of any column, with a probability of at most 1 in 10,000.  The bound is then extended to the next
powers of two while their counts exceed 2 sigma, where sigma is the standard deviation of the noise in a count.  A side
without a count above the threshold ends at 0.

Limits: a value beyond 2^40 is counted and clipped as 2^40; bounds below 2^-20 are not found.  Values beyond the bounds
are clipped: values of about 2 sigma clients in the bin next to a bound, and of some 5 sigma clients in a bin further
away or on the other side of 0.  With few clients, many columns or a small budget no bounds can be found, and the query
is refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.analytics.release import (
    Conditions,
    PrivateSum,
    QueryBudget,
    Updates,
    expected_sigma,
    plan_release,
    private_sum,
    release_cost,
)
from dordis.errors import InputError
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.scaling import Floats

SHARE = 0.1
"""Part of the budget that is spent on finding bounds, which makes the noise of the answer 5 % larger."""
CONFIDENCE = 0.9999
"""Probability that no bin exceeds the threshold by noise alone; a bin that does may widen the bounds a millionfold."""
NEXT = 2.0
"""A bin next to the bounds is included if its count exceeds this number of standard deviations of the noise; a wrong
inclusion only doubles the noise of the answer."""
LEAST, MOST = -20, 40
_SIDE = MOST - LEAST + 1
WIDTH = 2 * _SIDE
"""Number of bins of a column: first those of non-negative values by exponent, then those of negative values."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Public lower and upper bounds of each column, both (columns,)."""

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
        """Clip values, and map each column to -1 .. 1: a row then has a norm of sqrt(columns) at most.

        >>> Bounds(np.array([0.0]), np.array([8.0])).scaled(np.array([[0.0], [6.0], [99.0]])).ravel().tolist()
        [-1.0, 0.5, 1.0]
        """
        clipped = np.clip(values, self.low, self.high)
        scaled: Floats = np.clip((clipped - self.centre) / self.half, -1.0, 1.0)
        return scaled


def read_bounds(bounds: Any, columns: int, names: Sequence[str] = ()) -> Bounds:
    """Read public bounds: one pair (low, high) for all columns, one pair for each, or pairs by the name of a column."""
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
        raise InputError("bounds must be finite, and each lower bound must be below the upper one")
    return public


def find_bounds(values: Floats, budget: QueryBudget, how: Conditions) -> tuple[Bounds, ReleaseCost]:
    """Find bounds privately, and return them with their privacy cost; `values` are finite, (clients, columns)."""
    summed = count_bins(values, np.arange(len(values)), budget, how)
    return select_bounds(summed.total.reshape(-1, WIDTH), summed.sigma), summed.cost


def count_bins(
    values: Floats,
    owner: npt.NDArray[np.int64],
    budget: QueryBudget,
    how: Conditions,
    charge: Callable[[ReleaseCost], None] | None = None,
) -> PrivateSum:
    """Return the noisy number of clients in each bin of each column.

    `values` are (rows, columns), NaN where empty; `owner` has the zero-based index of each row's client.  `charge` is
    called with the privacy cost before anything is counted.
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
    """Return a function from a client's index to its update: in every column the client's rows share one count.

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

    >>> (find_bins(np.array([1.0, 1.5, 0.0, -4.0])) + LEAST).tolist()
    [0, 1, -20, 63]
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa 2^exponent, the mantissa in 1/2 .. 1
    least = np.where(values == 0, LEAST, exponent - (mantissa == 0.5))
    place: npt.NDArray[np.int64] = np.clip(least, LEAST, MOST).astype(np.int64) - LEAST + _SIDE * (values < 0)
    return place


def quantile(columns: int) -> float:
    """Return the threshold in standard deviations, below which all bins' noise stays with probability `CONFIDENCE`."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / (WIDTH * columns))


def select_bounds(counts: Floats, sigma: float) -> Bounds:
    """Return the bounds of each column from noisy counts, (columns, WIDTH), whose noise has the deviation `sigma`.

    Raise InputError if a column has no count above the threshold.
    """
    bounds, found = read_counts(counts, sigma)
    if not found.all():
        raise InputError(
            f"no count of column {np.argmin(found)} (counted from 0) exceeds the noise, and the budget for its bounds "
            f"is spent: give public bounds, or a larger epsilon"
        )
    return bounds


def read_counts(counts: Floats, sigma: float) -> tuple[Bounds, npt.NDArray[np.bool_]]:
    """Return the bounds of each column from its noisy counts, and whether it has a count above the threshold."""
    sides = counts.reshape(-1, 2, _SIDE)
    seen = sides > quantile(len(counts)) * sigma
    last = _SIDE - 1 - np.argmax(seen[:, :, ::-1], axis=2)
    ends = (sides <= NEXT * sigma) & (np.arange(_SIDE) > last[:, :, None])
    last = np.where(ends.any(axis=2), np.argmax(ends, axis=2) - 1, _SIDE - 1)
    reach = np.where(seen.any(axis=2), np.exp2(last + LEAST), 0.0)
    found: npt.NDArray[np.bool_] = np.asarray(seen.any(axis=(1, 2)))
    return Bounds(0.0 - reach[:, 1], reach[:, 0]), found
