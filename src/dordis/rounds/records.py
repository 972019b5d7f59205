"""A client's part of a round whose unit of privacy is a record: sample, differentiate record by record, add exactly.

One record's gradient must not depend on the other records.  The bits of a gradient depend on the shape of the batch,
and the server chooses the model, which may amplify a rounding error at will.  So gradients are computed in slices of
one constant shape, empty places filled with dummies, and `check_independence` tests a client's own model and data.

No record may zero or stop its client: a slice that raises is computed again record by record, and records that raise
or have a gradient that is not finite count as zero.
"""

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.reals import add_records
from dordis.privacy.encoding import Entropy, Reals
from dordis.privacy.records.encoding import Integers, RecordEncoding, draw_sample
from dordis.protocols.parameters import RUN_BYTES
from dordis.rounds.app import AppClient, AppServer, RoundInfo
from dordis.rounds.model import ModelBytes, Numbers
from dordis.rounds.user_code import TellOwner, UserCode, contain

DUMMY = -1
"""An empty place of a slice."""
SEED_BYTES = 32
ROOM = 3.0
"""Ratio of the agreed time of training to the time that it took when the client joined: recommended, and for records
required."""
Places = npt.NDArray[np.int64]


class Attempt(Protocol):
    """Run an application's code on one slice; None if it raised."""

    def __call__(self, work: Callable[[], Reals]) -> Reals | None:
        """Return the result of `work`, or None."""
        ...


class RecordSum(NamedTuple):
    """The exact sum of a client's quantised records; `below` counts norms up to the clip bound less the others."""

    total: Integers
    below: int


class RecordClient(AppClient):
    """A client whose application gives one gradient for each record."""

    @property
    @abstractmethod
    def records(self) -> int:
        """Return how many records the client holds."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Return how many places every slice has: constant over the run."""

    @abstractmethod
    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return a row for each of `width` places: the gradient of that record, or anything for a `DUMMY`.

        A row depends on the model and its own record alone.  The array may be a buffer that the next call writes to.
        """

    def begin(self, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> None:
        """Test before the first sample that gradients depend on neither neighbours nor place; raise if they do."""
        if not self._tested and not is_independent(self, round, model, dim, attempt):
            raise InputError(
                f"the gradients of {type(self).__name__} depend on the other records of a slice: compute each by itself"
            )
        self._tested = True

    _tested = False


def is_independent(source: RecordClient, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> bool:
    """Do as `check_independence`; False if the gradients of a slice raise, which may depend on the data."""
    found = attempt(lambda: np.full(1, float(check_independence(source, round, model, dim))))
    return found is not None and bool(found[0])


def as_record_client(app: AppClient) -> RecordClient:
    """Return an application that gives gradients of records, or refuse it."""
    if not isinstance(app, RecordClient):
        raise InputError(
            f"the application {type(app).__name__} makes one update of all its data: with records as the unit of "
            "privacy it has to give one gradient for each record (`RecordClient`)"
        )
    return app


def check_event(round: RoundInfo, encoding: RecordEncoding) -> None:
    """The round is one of the events that the run was planned for: no other is in its epsilon."""
    if not 0 <= round.index < encoding.events:
        raise ParametersRefused(f"the plan has {encoding.events} events, and this round has the index {round.index}")


def check_records(source: RecordClient, declared: int) -> None:
    """The client holds no more records than were declared for it."""
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
    """Return the sum of the clipped, quantised gradients of a fresh Poisson sample of the records."""
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
    """Return the sum of a fresh sample in a round; slices that fail are told to nobody, not even to a log."""

    def attempt(work: Callable[[], Reals]) -> Reals | None:
        return contain(f"a slice of records of {whose}", work, lambda text: None)

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
    """Return the sum of the clipped, quantised gradients of the records at some places."""
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
    """Differentiate every record from the initial model, then time as many as a round may sample at most.

    Raise InputError if there are more records than declared, if a gradient depends on other records, or if one fails.
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
    """Do as `rehearse_records` from a model; with `tell_owner`, errors name no cause that depends on data."""
    check_records(source, encoding.records)
    failures: list[str] = []
    info = RoundInfo(1, 0, bytes(RUN_BYTES), clip)

    def attempt(work: Callable[[], Reals]) -> Reals | None:
        return contain("the gradient of a record from the initial model", work, failures.append)

    def add(places: Places) -> None:
        sum_places(source, info, model, dim, encoding, attempt, places)

    source.begin(info, model, dim, attempt)
    failures.clear()  # the test of slices may fail where single records do not
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
    """Tell whether the bits of gradients depend on neither the neighbours in a slice nor the place.

    Each of up to `width` records is computed among the others, in the reversed order, and alone at both ends.
    """
    width, count = source.width, min(source.width, source.records)
    if width == 1 or not count:
        return True

    def rows(places: Places) -> npt.NDArray[Any]:
        return checked_rows(source.record_gradients(round, model, places), width, dim).copy()

    together = rows(padded(np.arange(count), width))
    backwards = rows(padded(np.arange(count), width)[::-1].copy())[::-1]
    alike = np.array_equal(together[:count], backwards[:count], equal_nan=True)
    for record in {0, count // 2, count - 1}:
        alone = rows(padded(np.array([record]), width))[0]
        last = rows(padded(np.array([record]), width)[::-1].copy())[-1]
        alike &= all(np.array_equal(together[record], other, equal_nan=True) for other in (alone, last))
    return bool(alike)


def padded(places: Places, width: int) -> Places:
    """Return places with dummies up to the constant width."""
    return np.concatenate([places, np.full(width - places.size, DUMMY, np.int64)])


def checked_rows(rows: Any, width: int, dim: int) -> Reals:
    """Return gradients as an array of 32 or 64 bits, or refuse their shape."""
    values = np.asarray(rows)
    if values.shape != (width, dim) or values.dtype not in (np.float32, np.float64):
        raise InputError(f"gradients of records are {width} rows of {dim} numbers of 32 or 64 bits")
    return np.ascontiguousarray(values)


def _slice(source: RecordClient, round: RoundInfo, model: Numbers, chosen: Places, dim: int, attempt: Attempt) -> Reals:
    """Return the rows of a slice; if it raises, each record is computed alone, and NaN stands for those that raise."""
    width = source.width

    def compute(places: Places) -> Reals | None:
        return attempt(lambda: checked_rows(source.record_gradients(round, model, places), width, dim))

    rows = compute(padded(chosen, width))
    if rows is not None:
        return rows
    each = np.full((width, dim), np.nan, np.float64)
    for place, record in enumerate(chosen):
        alone = compute(padded(np.array([record]), width))
        if alone is not None:
            each[place] = alone[0]
    return each
