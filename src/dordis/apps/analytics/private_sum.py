"""One private sum over the values of clients: checks of the values, the plan of the release, and one simulated round.

The values are the rows of a table; error messages never contain a value.  The sum has distributed Skellam noise
(XNoise).  Two inputs are neighbours if they differ in one client only, whose update is zero in one of the two inputs.
The number of clients is public.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.tables.cell_texts import as_texts
from dordis.dropout_models import RateDropout
from dordis.errors import InputError
from dordis.ledger.ledger import Ledger
from dordis.privacy.accounting import (
    ALL_ROUNDS,
    ParticipationSchedule,
    ReleaseCost,
    check_delta,
    check_epsilon,
    default_delta,
)
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.planning import Plan
from dordis.privacy.scaling import MOST_BITS, Floats
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import LARGEST_VARIANCE
from dordis.protocol import ClientId
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SECAGG
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.population import SimulatedHome
from dordis.simulation.run import first_ids, home_of_updates, single_round

LEAST_CLIENTS = 3
"""Least number of clients.  If there were two, and one colluded with the server, the other's value would be hidden by
noise only, and not among the values of other clients.
"""


def column_names(values: object) -> tuple[str, ...]:
    """Return the column names of a DataFrame; empty for other values."""
    return tuple(map(str, getattr(values, "columns", ())))


def check_values(values: npt.ArrayLike) -> tuple[Floats, bool]:
    """Return values as an array of the shape (rows, columns), and whether the caller's values had the shape (rows,).

    Raise InputError if there are fewer rows than `LEAST_CLIENTS`, or if a value is not a finite number.

    >>> check_values([1, 2, 3])[0].shape
    (3, 1)
    """
    if isinstance(values, str | Path | Mapping):
        raise InputError(
            f"values are numbers, an array or a DataFrame, not a {type(values).__name__}: read a file first, for "
            "example with pandas.read_csv, or pass one column of a mapping"
        )
    array = _array(values)
    if array.ndim not in (1, 2):
        raise InputError(f"values are (clients,) or (clients, columns), not {array.ndim}-dimensional")
    single = array.ndim == 1
    rows = array.reshape(len(array), -1) if array.size else array
    if len(array) < LEAST_CLIENTS:
        raise InputError(f"{len(array)} rows are too few to hide a client among: give {LEAST_CLIENTS} or more")
    if not array.size:
        raise InputError("the rows are empty: give a value or more for each client")
    astray = np.argwhere(~np.isfinite(rows))
    if astray.size:
        raise InputError(f"the value in {_place(astray[0].tolist(), values)} is NaN or infinite")
    return rows, single


def client_ids(clients: Sequence[int] | None, rows: int) -> tuple[ClientId, ...] | None:
    """Return the client ids of the rows, or None if `clients` is None.

    Raise InputError unless there is one id for each row, all ids are distinct, and all are at least 1.
    """
    if clients is None:
        return None
    ids = tuple(ClientId(int(u)) for u in clients)
    if len(ids) != rows or len(set(ids)) != rows or min(ids, default=1) < 1:
        raise InputError(
            f"clients must be {rows} different numbers from 1 on, one for each row: got {len(set(ids))} of them"
        )
    return ids


def _array(values: npt.ArrayLike) -> Floats:
    """Return values as float64; raise an InputError with the row and column of the first value that is no number."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(_ragged(values)) from None
    except (RuntimeError, TypeError) as error:  # a tensor with a gradient, or on a graphics processor
        raise InputError(f"the values cannot be read as an array: {error}") from None
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    objects = np.asarray(values, dtype=object)  # if there is a text, np.asarray(values) makes all values texts
    numbers = np.array([_number(item) for item in objects.flat]).reshape(objects.shape)
    astray = np.argwhere(np.isnan(numbers))
    if astray.size:
        raise InputError(f"the value in {_place(astray[0].tolist(), values)} is not a number")
    return numbers


def _place(place: Sequence[int], values: object) -> str:
    """Return the position of a value as words: its row, and the name or the number of its column."""
    row, column = (*place, 0)[:2]
    names = column_names(values)
    return (
        f"row {row} (counted from 0), column '{names[column]}'"
        if names
        else (f"row {row}, column {column} (counted from 0)")
    )


def _ragged(values: npt.ArrayLike) -> str:
    rows = values if isinstance(values, Sequence | np.ndarray) else ()
    lengths = [len(row) if isinstance(row, Sequence | np.ndarray) else 1 for row in rows]
    row = next((i + 1 for i, (one, other) in enumerate(pairwise(lengths)) if one != other), 0)
    return f"all rows must have the same number of values, but row {row} (counted from 0) differs"


def _number(item: object) -> float:
    """Return an object as a number; NaN if it is a text or cannot be converted."""
    if isinstance(item, str | bytes):
        return math.nan
    try:
        return float(item)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows of all clients; a client has one row or several.

    `values` has the shape (rows, columns), `owner` has the zero-based index of each row's client, and `clients` is the
    number of clients.  `single` tells whether the caller's values had the shape (rows,), `names` has the names of the
    columns, and `ids` has the ids of the clients, or is None if they have no ids.
    """

    values: Floats
    owner: npt.NDArray[np.int64]
    clients: int
    single: bool
    names: tuple[str, ...]
    ids: tuple[ClientId, ...] | None = None

    def means(self) -> Floats:
        """Return the mean row of each client, so that every client counts once."""
        return self.average(self.values)

    def average(self, rows: Floats) -> Floats:
        """Return, for each client, the mean of its rows in `rows`, an array with the same order of rows as `values`."""
        if self.clients == len(rows):
            return rows[np.argsort(self.owner)]
        totals = np.zeros((self.clients, rows.shape[1]))
        np.add.at(totals, self.owner, rows)
        averages: Floats = totals / np.bincount(self.owner, minlength=self.clients)[:, None]
        return averages


def group_rows(values: Any, client: Any, ids: Sequence[int] | None) -> ClientRows:
    """Return the rows, grouped by their clients.

    `client` is the name of the column that names the client of each row, or a sequence of one client name for each row.
    Names that are all positive whole numbers become the client ids.  If `client` is None, each row is one client, and
    `ids` may give the client ids.  Raise InputError if a row has no client, if the number of names or ids is wrong, or
    if a value is not a finite number.
    """
    if client is None:
        rows, single = check_values(values)
        count = len(rows)
        return ClientRows(rows, np.arange(count), count, single, column_names(values), client_ids(ids, count))
    if ids is not None:
        raise InputError("give either client, the client of each row, or clients, the ids of clients with one row each")
    if isinstance(client, str):
        if client not in column_names(values):
            raise InputError(
                f"there is no column '{client}': the columns are {', '.join(column_names(values)) or 'unnamed'}"
            )
        client, values = values[client], values.drop(columns=client)
    named = as_texts(np.asarray(client, object).tolist())
    if any(name is None for name in named):
        raise InputError("some rows have no client: remove them, or name their client")
    rows, single = check_values(values)
    if len(named) != len(rows):
        raise InputError(f"client must name one client for each of the {len(rows)} rows, not {len(named)}")
    found, owner = np.unique(named.astype(str), return_inverse=True)
    if len(found) < LEAST_CLIENTS:
        raise InputError(f"{len(found)} clients are too few to hide one among them: give {LEAST_CLIENTS} or more")
    numbers = [int(name) for name in found] if all(name.isdecimal() and int(name) > 0 for name in found) else None
    chosen = None if numbers is None else tuple(ClientId(u) for u in numbers)
    return ClientRows(rows, owner.reshape(-1), len(found), single, column_names(values), chosen)


IDEAL, FULL = "ideal", "full"
HEADROOM = 8.0
"""Number of standard deviations of a summed coordinate that the integers modulo 2^bits hold without overflow."""
_FINE = 100.0
_MARGIN = 0.9  # part of LARGEST_VARIANCE to use: with fewer bits than MOST_BITS the plan needs slightly more noise

Updates = Callable[[int], Floats]
"""A function from the zero-based index of a client to the client's update."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of a round: threat model, dropout, fidelity, ledger.

    `dropped` is the number of clients that drop out.  With the fidelity `ideal` all randomness comes from `entropy`;
    with `full` the secrets of the protocol come from the operating system.
    """

    colluders: int = 1
    mode: str = MALICIOUS
    dropped: int = 0
    fidelity: str = IDEAL
    entropy: Entropy = field(default=secrets.token_bytes, repr=False)
    ledger: Ledger | None = None
    """Ledger to which every release is charged; if None, nothing is charged."""
    clients: tuple[ClientId, ...] | None = None
    """The ids of the clients, in the order of their indices; None stands for 1, 2, .. ."""

    def __post_init__(self) -> None:
        if self.mode not in (MALICIOUS, SEMI_HONEST):
            raise InputError(f"the mode is '{MALICIOUS}' or '{SEMI_HONEST}', not '{self.mode}'")
        if isinstance(self.dropped, bool) or not isinstance(self.dropped, int | np.integer):
            raise InputError(f"dropped is the number of clients that drop out, a whole number, not {self.dropped!r}")
        if self.fidelity not in (IDEAL, FULL):
            raise InputError(f"the fidelity is '{IDEAL}' or '{FULL}', not '{self.fidelity}'")


@dataclass(frozen=True)
class QueryBudget:
    """The budget of one query, and the fraction `part` of this budget that one release of the query may spend."""

    epsilon: float
    delta: float
    part: float = 1.0

    @classmethod
    def for_clients(cls, epsilon: float, delta: float | None, clients: int) -> "QueryBudget":
        """Return the budget of a query; if delta is None, it is min{n^-1.1, 10^-5} for n clients.

        Raise InputError if epsilon or delta is invalid.
        """
        return cls(check_epsilon(epsilon), default_delta(clients) if delta is None else check_delta(delta))

    def split(self, share: float) -> "tuple[QueryBudget, QueryBudget]":
        """Return two budgets: the fraction `share` of this budget, and the rest."""
        return replace(self, part=share * self.part), replace(self, part=(1 - share) * self.part)


@dataclass(frozen=True, eq=False)
class PrivateSum:
    """The noisy sum over `count` clients; `sigma` is the standard deviation of the noise in each coordinate.

    `cost` is the privacy cost of the release.  `sum_check` is the result of the check for impossible sums
    (`dordis.rounds.impossible_sums`).
    """

    total: Floats = field(repr=False)
    count: int
    sigma: float
    cost: ReleaseCost
    sum_check: str


def plan_release(clients: int, dim: int, clip: float, budget: QueryBudget, how: Conditions) -> RoundPlan:
    """Plan a round of all clients, whose updates have `dim` coordinates and a norm of `clip` at most.

    Raise InputError if there are too many clients, or if `how.dropped` exceeds the number of dropouts that the plan
    tolerates.
    """
    if clients > MOST_CLIENTS:
        raise InputError(
            f"a private statistic is one round, which has at most {MOST_CLIENTS:,} clients, not {clients:,}: give "
            "one row for each hospital, branch or other group, or draw rows at random, independently of their values"
        )
    once = ParticipationSchedule(clients, clients, rounds=1, accounting=ALL_ROUNDS)
    setting = Setting(once, dim, clip, budget.delta, bits=MOST_BITS, headroom=HEADROOM, colluders=how.colluders)
    if not 0 <= how.dropped <= setting.T:
        raise InputError(f"of {clients} clients 0 to {setting.T} may drop out, not {how.dropped}")
    allowance = budget.part * setting.allowance(budget.epsilon)
    planned = RoundPlan(XNoise(), setting, budget.epsilon, ThreatModel(how.mode), allowance=allowance)
    bits = _bits(planned)
    return planned if bits == MOST_BITS else replace(planned, setting=replace(setting, bits=bits))


def _bits(planned: RoundPlan) -> int:
    """Return the number of bits of a coordinate of the sum: enough for a fine grid of integers, and no more.

    On a fine grid, rounding adds at most about 1 % to the norm of an update and to the variance of the sum.  Each
    further bit would quadruple the variance of the noise on the integers, and the tables for drawing noise of a
    large variance take seconds to compute.  With `ideal` fidelity there is also a largest variance that can be drawn at
    once.  The noise in real units hardly depends on the grid.
    """
    ring = planned.setting.ring(MOST_BITS)
    noise = ring.kappa * _plan(planned).sigma ** 2

    def bits(scale: float) -> float:
        return math.log2(2 * HEADROOM * math.sqrt(scale**2 * (ring.signal + noise) + ring.clients / 4))

    for_norm = _FINE * max(1.0, math.sqrt(ring.dim) / 2) / ring.clip
    for_sum = math.sqrt(max(_FINE**3, _FINE * ring.clients / 4) / noise)
    most = math.sqrt(_MARGIN * float(LARGEST_VARIANCE) / noise)
    return min(MOST_BITS, math.ceil(bits(max(for_norm, for_sum))), math.floor(bits(most)))


def _plan(planned: RoundPlan) -> Plan:
    assert planned.plan is not None  # noqa: S101  every plan of XNoise has noise
    return planned.plan


def expected_sigma(planned: RoundPlan) -> float:
    """Return the standard deviation of noise and rounding errors in a coordinate of the sum if no client drops out."""
    clients = planned.setting.clients
    return deviation(planned, float(_plan(planned).noise.variance_left(range(clients), b"")), clients)


def deviation(planned: RoundPlan, left: float, count: int) -> float:
    """Return the standard deviation of noise and rounding errors in a coordinate of the sum, in real units.

    `left` is the variance of the noise in the sum of integers.  To this variance the rounding of each of `count`
    clients adds at most 1/4.
    """
    return math.sqrt(left + count / 4) / planned.mechanism.grid.scale


def private_sum(planned: RoundPlan, updates: Updates, how: Conditions) -> PrivateSum:
    """Run one round, in which `how.dropped` clients drop out before the upload, and return its noisy sum."""
    result = single_round(_population(planned, updates, how), ledger=how.ledger).result
    (output,) = result.outputs
    count = len(output.survivors)
    sigma = deviation(planned, float(output.left), count)
    return PrivateSum(result.aggregate.total, count, sigma, release_cost(planned), result.sum_check)


def release_cost(planned: RoundPlan) -> ReleaseCost:
    """Return the privacy cost of the sum of a planned round."""
    return ReleaseCost(planned.mechanism.release(_plan(planned).variance), planned.setting.distance)


def _population(planned: RoundPlan, updates: Updates, how: Conditions) -> SimulatedHome:
    """Return the population of the clients; `how.dropped` of them, drawn at random, drop out before the upload."""
    part = (how.dropped + 0.5) / planned.setting.clients
    vanishing = RateDropout(how.entropy(SEED_BYTES), part, SECAGG.stages[: SECAGG.upload + 1])
    ids = how.clients or first_ids(planned.setting.clients)
    place = {u: i for i, u in enumerate(ids)}
    return home_of_updates(planned, SECAGG, lambda u: updates(place[u]), how.entropy, vanishing, how.fidelity, ids)


def one_hot(places: npt.NDArray[np.int64], width: int) -> Updates:
    """Return a function from a client's index to an update that encodes the client's value in each column one-hot.

    Each column has `width` coordinates of the update: coordinate `places[client, column]` is 1, all others are 0.
    """
    columns = places.shape[1]
    starts = width * np.arange(columns)

    def update(client: int) -> Floats:
        indicator = np.zeros(width * columns)
        indicator[starts + places[client]] = 1.0
        return indicator

    return update
