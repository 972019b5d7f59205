"""Training in rounds whose unit of privacy is a record: sample records, compute one gradient for each, sum exactly.

The gradient of a record must not depend on other records.  But floating-point rounding depends on how many records are
computed together, and the server chooses the model, which may amplify rounding errors.  So gradients are computed in
*slices*: groups of constant size, filled up with dummies.  `check_independence` tests, for a given model and the
client's data, that the records of a slice do not influence each other.

No single record may make a deployed client fail.  If the computation of a slice raises, the gradients of its records
are computed one by one.  A record counts as zero if this raises too, or if its gradient is not finite.  In simulations
an error stops the run (`UserCode.attempt`), so that no budget is spent on noise without any signal.
"""

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.reals import add_records
from dordis.privacy.encoding import Entropy, Reals
from dordis.privacy.record_encoding import Integers, RecordEncoding, draw_sample
from dordis.protocols.parameters import RUN_BYTES
from dordis.rounds.app import AppClient, AppServer, RoundInfo
from dordis.rounds.model import ModelBytes, Numbers
from dordis.rounds.user_code import TellOwner, UserCode, contain

DUMMY = -1
"""The index in place of a record's, where fewer records than `RecordClient.width` are computed together."""
SEED_BYTES = 32
ROOM = 3.0
"""Least ratio of the agreed training time to the time that a client has measured for its own training.

A client that protects records may join a run only if the ratio is at least this large.
"""
Places = npt.NDArray[np.int64]
Attempt = Callable[[Callable[[], Reals]], Reals | None]
"""Runs an application's code on records that are computed together; returns the result, or None if the code raised.

In simulations it raises the error of the code.
"""


class RecordSum(NamedTuple):
    """The exact sum of quantised gradients.

    `below` is the number of gradients with a norm up to the clip bound minus the number with a larger norm.
    """

    total: Integers
    below: int


class RecordClient(AppClient):
    """A client whose application computes one gradient for each record."""

    @property
    @abstractmethod
    def records(self) -> int:
        """Return the number of the client's records."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Return how many records form a slice, whose gradients are computed together; it is constant over the run."""

    @abstractmethod
    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return one row for each index in `places`: what the record with this index adds to the update.

        `places` has `width` indices; some may be `DUMMY`.  For gradient descent a row is the negative gradient; other
        docstrings call it the record's gradient.  A row must depend on the model and its own record only; a row for a
        `DUMMY` may have any values.  The next call may overwrite the array.
        """

    def begin(self, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> None:
        """Raise InputError unless a test shows that a record's gradient depends on nothing else in its slice.

        A slice is a group of `width` records that are computed together: neither the other records nor the order of
        the records may matter.  The method is called before every sampling; a test that passed is not repeated.
        """
        if not self._tested and not is_independent(self, round, model, dim, attempt):
            raise InputError(
                f"the gradients of {type(self).__name__} depend on the other records of a slice: compute each by itself"
            )
        self._tested = True

    _tested = False


def is_independent(source: RecordClient, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> bool:
    """Tell whether gradients are independent of each other (`check_independence`); False if that cannot be computed."""
    found = attempt(lambda: np.full(1, float(check_independence(source, round, model, dim))))
    return found is not None and bool(found[0])


def as_record_client(app: AppClient) -> RecordClient:
    """Return the application as a `RecordClient`; raise InputError if it computes one update from all data."""
    if not isinstance(app, RecordClient):
        raise InputError(
            f"the application {type(app).__name__} makes one update of all its data: with records as the unit of "
            "privacy it has to give one gradient for each record (`RecordClient`)"
        )
    return app


def check_event(round: RoundInfo, encoding: RecordEncoding) -> None:
    """Raise ParametersRefused unless the round's index is below the number of planned events, which epsilon covers."""
    if not 0 <= round.index < encoding.events:
        raise ParametersRefused(f"the plan has {encoding.events} events, and this round has the index {round.index}")


def check_records(source: RecordClient, declared: int) -> None:
    """Raise InputError if the client has more records than were declared for it."""
    if source.records > declared:
        raise InputError(
            f"a client holds {source.records} records and {declared} are declared: set privacy.records, a public "
            "number, to at least as many as any client holds"
        )


def sum_records(
    source: RecordClient,
    round: RoundInfo,
    model: Numbers,
    dim: int,
    encoding: RecordEncoding,
    attempt: Attempt,
    entropy: Entropy,
) -> RecordSum:
    """Return the sum of the clipped and quantised gradients of a fresh Poisson sample of records.

    `attempt` runs the application's code on one group of records (see `Attempt`).  Raise InputError if the client has
    too many records, or if a gradient depends on other records.
    """
    check_records(source, encoding.records)
    source.begin(round, model, dim, attempt)
    sample = draw_sample(entropy(SEED_BYTES), encoding.sampling, source.records, encoding.cap)
    return sum_places(source, round, model, dim, encoding, attempt, sample)


def sum_for_round(
    user_code: UserCode,
    whose: str,
    source: RecordClient,
    round: RoundInfo,
    model: Numbers,
    dim: int,
    encoding: RecordEncoding,
    entropy: Entropy,
) -> RecordSum:
    """Return the sum of the gradients of a fresh sample of records.

    `whose` names client and round in messages.  If the gradients of some records cannot be computed, `user_code` stops
    the run, or these records count as zero and nobody is told.
    """

    def attempt(work: Callable[[], Reals]) -> Reals | None:
        return user_code.attempt(f"the gradients of {whose}", work)

    return user_code.sum_records(
        f"the gradients of {whose}", lambda: sum_records(source, round, model, dim, encoding, attempt, entropy)
    )


def sum_places(
    source: RecordClient,
    round: RoundInfo,
    model: Numbers,
    dim: int,
    encoding: RecordEncoding,
    attempt: Attempt,
    places: Places,
) -> RecordSum:
    """Return the sum of the clipped and quantised gradients of the records with the indices `places`."""
    total, below = np.zeros(dim, np.int64), 0
    for start in range(0, places.size, source.width):
        chosen = places[start : start + source.width]
        rows = _slice(source, round, model, chosen, dim, attempt)
        used = np.arange(source.width) < chosen.size
        below += add_records(rows, used, round.clip, encoding.length, total)
    return RecordSum(total, below)


def rehearse_records(
    source: RecordClient,
    server: AppServer,
    clip: float,
    encoding: RecordEncoding,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds that the gradients of a round's largest sample take, at the application's initial model.

    Before this measurement (`rehearse_batches`) the gradients of all records are computed once.  Raise InputError if
    there are more records than declared, if a gradient depends on other records, or if one cannot be computed.
    """
    model = ModelBytes.from_numbers(server.model(), server.dtype).array
    return rehearse_batches(source, model, server.dim, clip, encoding, clock)


def rehearse_batches(
    source: RecordClient,
    model: Numbers,
    dim: int,
    clip: float,
    encoding: RecordEncoding,
    clock: Callable[[], float] = time.perf_counter,
    tell_owner: TellOwner | None = None,
) -> float:
    """Return the seconds that the gradients of `encoding.cap` records take, the largest number that a round may sample.

    Raise InputError as `rehearse_records` does.  With `tell_owner`, only the owner learns why a gradient cannot be
    computed, and the text of the raised error does not depend on the data.
    """
    check_records(source, encoding.records)
    failures: list[str] = []
    info = RoundInfo(1, 0, bytes(RUN_BYTES), clip)

    def attempt(work: Callable[[], Reals]) -> Reals | None:
        return contain("the gradient of a record from the initial model", work, failures.append)

    def add(places: Places) -> None:
        sum_places(source, info, model, dim, encoding, attempt, places)

    source.begin(info, model, dim, attempt)
    failures.clear()  # a slice may fail although none of its records does
    add(np.arange(source.records))
    if failures:
        if tell_owner:
            tell_owner(failures[0])
        cause = "a record has no gradient, see its log" if tell_owner else failures[0]
        raise InputError(f"this client cannot join: {cause}; repair the application or its data first")
    started = clock()
    add(np.arange(encoding.cap) % max(1, source.records))
    return clock() - started


def check_independence(source: RecordClient, round: RoundInfo, model: Numbers, dim: int) -> bool:
    """Tell whether a record's gradient is independent of the other records of its slice and of its place there.

    A slice is the group of `source.width` records whose gradients are computed together.  Up to `width` records are
    computed in one slice and again in reversed order.  The first, the middle and the last of them are also computed
    each without other records, in the first and in the last place of a slice.  All bits must be equal.
    """
    width, count = source.width, min(source.width, source.records)
    if width == 1 or not count:
        return True

    def rows(places: Places) -> npt.NDArray[Any]:
        return check_rows(source.record_gradients(round, model, places), width, dim).copy()

    together = rows(pad_places(np.arange(count), width))
    backwards = rows(pad_places(np.arange(count), width)[::-1].copy())[::-1]
    alike = np.array_equal(together[:count], backwards[:count], equal_nan=True)
    for record in {0, count // 2, count - 1}:
        alone = rows(pad_places(np.array([record]), width))[0]
        last = rows(pad_places(np.array([record]), width)[::-1].copy())[-1]
        alike &= all(np.array_equal(together[record], other, equal_nan=True) for other in (alone, last))
    return bool(alike)


def pad_places(places: Places, width: int) -> Places:
    """Return record indices, filled up with `DUMMY` to `width` indices."""
    return np.concatenate([places, np.full(width - places.size, DUMMY, np.int64)])


def check_rows(rows: Any, width: int, dim: int) -> Reals:
    """Return gradients as an array of 32-bit or 64-bit floats; raise InputError if their shape is wrong."""
    values = np.asarray(rows)
    if values.shape != (width, dim) or values.dtype not in (np.float32, np.float64):
        raise InputError(f"gradients of records are {width} rows of {dim} numbers of 32 or 64 bits")
    return np.ascontiguousarray(values)


def _slice(source: RecordClient, round: RoundInfo, model: Numbers, chosen: Places, dim: int, attempt: Attempt) -> Reals:
    """Return a row with the gradient of each record in `chosen`, a slice (at most `source.width` records).

    The gradients are computed together.  If that fails, each is computed alone; if that fails too, its row is NaN.
    """
    width = source.width

    def compute(places: Places) -> Reals | None:
        return attempt(lambda: check_rows(source.record_gradients(round, model, places), width, dim))

    rows = compute(pad_places(chosen, width))
    if rows is not None:
        return rows
    each = np.full((width, dim), np.nan, np.float64)
    for place, record in enumerate(chosen):
        alone = compute(pad_places(np.array([record]), width))
        if alone is not None:
            each[place] = alone[0]
    return each
