"""Bounds on the values of clients: given as public knowledge, or found privately by powers of two.

To find them, every client adds one, in each column, to the bin of its value: its sign and the least k with
|value| <= 2^k, k in -20 .. 40.  One client has a norm of sqrt(columns).  The bounds of a column reach, on either side
of 0, to the largest power of two whose noisy count exceeds a threshold that the noise alone passes, in any bin of any
column, with a chance of 1 in 10,000 at most, and on through the powers next to it while their counts exceed 2 sigma.
A side without a count above the threshold ends at 0.

Limits: a value beyond 2^40 counts, and is clipped, as 2^40; bounds below 2^-20 are not found.  Clients beyond the
bounds are clipped: about 2 sigma of them next to the bounds, up to a threshold of some 5 sigma further off, or across
0.  So small cohorts, wide tables and small budgets find nothing at all, and are refused.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dordis.apps.analytics.release import Conditions, QueryBudget, design, expected_sigma, one_hot, private_sum
from dordis.errors import InputError
from dordis.privacy.accounting import ReleaseCost
from dordis.privacy.skellam import Floats

SHARE = 0.1
"""The part of the budget that finding bounds takes: the noise on all else is 5 % larger for it."""
CONFIDENCE = 0.9999
"""A bin that only noise filled may widen the bounds a millionfold: it must hardly ever happen."""
NEXT = 2.0
"""Standard deviations above which a bin next to the bounds is taken in: to be wrong only doubles the noise."""
LEAST, MOST = -20, 40
_SIDE = MOST - LEAST + 1
WIDTH = 2 * _SIDE
"""Bins of a column: those of values from 0 on, by exponent, then those of negative ones."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Public bounds of each column, both (columns,)."""

    low: Floats
    high: Floats

    @property
    def centre(self) -> Floats:
        """Return the middle of each column."""
        middle: Floats = self.low / 2 + self.high / 2  # the sum of both may not be finite
        return middle

    @property
    def half(self) -> Floats:
        """Return half the range of each column."""
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


def given(bounds: tuple[npt.ArrayLike, npt.ArrayLike], columns: int) -> Bounds:
    """Read bounds, (low, high), each a number or one for each column."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, np.float64), columns) for end in bounds)
    except (TypeError, ValueError):
        raise InputError(f"bounds are (low, high), each a number or an array of {columns}, one a column") from None
    public = Bounds(low, high)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (public.half > 0).all()):
        raise InputError("bounds are finite, and each low one is below the high one")
    return public


def find(values: Floats, budget: QueryBudget, how: Conditions) -> tuple[Bounds, ReleaseCost]:
    """Find bounds privately, and return what that has cost; `values` are finite, (clients, columns)."""
    clients, columns = values.shape
    planned = design(clients, WIDTH * columns, math.sqrt(columns), budget, how)
    if clients - how.dropped <= quantile(columns) * expected_sigma(planned):
        raise InputError(
            f"{clients} clients and a tenth of what epsilon {budget.epsilon:.3g} allows are not enough to find the "
            f"bounds of {columns} column{'s'[: columns > 1]}: give public bounds, or a larger epsilon"
        )
    summed = private_sum(planned, one_hot(bins(values), WIDTH), how)
    return select(summed.total.reshape(columns, WIDTH), summed.sigma), summed.cost


def bins(values: Floats) -> npt.NDArray[np.int64]:
    """Return the bin of each value.

    >>> (bins(np.array([1.0, 1.5, 0.0, -4.0])) + LEAST).tolist()
    [0, 1, -20, 63]
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa 2^exponent, the mantissa in 1/2 .. 1
    least = np.where(values == 0, LEAST, exponent - (mantissa == 0.5))
    place: npt.NDArray[np.int64] = np.clip(least, LEAST, MOST).astype(np.int64) - LEAST + _SIDE * (values < 0)
    return place


def quantile(columns: int) -> float:
    """Return how many standard deviations the noise on no bin of any column exceeds, with the confidence above."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / (WIDTH * columns))


def select(counts: Floats, sigma: float) -> Bounds:
    """Return the bounds that noisy counts, (columns, WIDTH), tell: they are private, and so is all that follows."""
    sides = counts.reshape(-1, 2, _SIDE)
    seen = sides > quantile(len(counts)) * sigma
    unseen = np.flatnonzero(~seen.any(axis=(1, 2)))
    if unseen.size:
        raise InputError(
            f"no bounds of column {unseen[0]} (counted from 0) stand out of the noise, and the budget for them is "
            f"spent: give public bounds, or a larger epsilon"
        )
    last = _SIDE - 1 - np.argmax(seen[:, :, ::-1], axis=2)
    ends = (sides <= NEXT * sigma) & (np.arange(_SIDE) > last[:, :, None])
    last = np.where(ends.any(axis=2), np.argmax(ends, axis=2) - 1, _SIDE - 1)
    reach = np.where(seen.any(axis=2), np.exp2(last + LEAST), 0.0)
    return Bounds(0.0 - reach[:, 1], reach[:, 0])
