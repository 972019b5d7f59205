"""Gradients of single records: right, and independent of the other records, whatever the server's model amplifies."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from dordis.apps.learning.models import Linear, Mlp, Model, Softmax
from dordis.apps.learning.record_gradients import (
    OneByOne,
    RecordGradients,
    RecordLearner,
    make_record_gradients,
    rows_of_records,
    slice_width,
)
from dordis.errors import InputError
from dordis.kernels.reals import LEAST_LENGTH
from dordis.privacy.encoding import Reals
from dordis.privacy.record_encoding import RecordEncoding
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.records import (
    Places,
    RecordSum,
    check_independence,
    rehearse_records,
    sum_for_round,
    sum_places,
    sum_records,
)
from dordis.rounds.user_code import UserCode, ZeroOnFailure, contain

CASES = int(os.environ.get("DORDIS_HOSTILE_CASES", "2000"))
"""Hostile pairs of neighbouring data that go through a model; set the variable to 100000 for the full number."""
ROUND = RoundInfo(1, 0, b"", clip=1.0)
ALL = RecordEncoding(2**32, LEAST_LENGTH, 20, 1000, 3)


def attempt(work: Callable[[], Reals]) -> Reals | None:
    return contain("a slice", work, lambda text: None)


def summed(client: RecordLearner, parameters: np.ndarray) -> np.ndarray:
    dim = parameters.size
    return sum_records(client, ROUND, parameters, dim, ALL, attempt, os.urandom).total


def models(rng: np.random.Generator) -> list[tuple[Model, np.ndarray]]:
    """Return models and labels for inputs of six features."""
    return [
        (Softmax(6, 3), rng.integers(0, 3, 40)),
        (Linear(6), rng.normal(size=40)),
        (Mlp(6, 3, hidden=5), rng.integers(0, 3, 40)),
        (Mlp(6, 1, hidden=5, target="regression"), rng.normal(size=40)),
        (Linear(6), rng.normal(size=(40, 1))),
        (Linear(6, 2), rng.normal(size=(40, 2))),
        (Mlp(6, 1, hidden=5, target="regression"), rng.normal(size=(40, 1))),
        (Mlp(6, 2, hidden=5, target="regression"), rng.normal(size=(40, 2))),
    ]


@pytest.mark.parametrize("which", range(8))
def test_gradients_are_those_of_the_records_alone(which: int) -> None:
    rng = np.random.default_rng(which)
    model, y = models(rng)[which]
    x, parameters = rng.normal(size=(40, 6)), rng.normal(size=model.dim)
    expected = OneByOne(model).rows(parameters, x, y)
    np.testing.assert_allclose(make_record_gradients(model).rows(parameters, x, y), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("which", range(8))
def test_bits_depend_on_neither_neighbours_nor_places(which: int) -> None:
    rng = np.random.default_rng(which)
    model, y = models(rng)[which]
    client = RecordLearner(model, (rng.normal(size=(40, 6)), y))
    assert check_independence(client, ROUND, rng.normal(size=model.dim), model.dim)


class Neighbourly(RecordLearner):
    """A client whose gradients depend on the other records of a slice, as a batch norm's would."""

    def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> Reals:
        rows = super().record_gradients(round, model, places)
        return rows + 1e-13 * rows.sum(axis=0)


def test_gradients_that_depend_on_neighbours_are_noticed_and_computed_alone() -> None:
    rng = np.random.default_rng(0)
    client = Neighbourly(Softmax(6, 3), (rng.normal(size=(40, 6)), rng.integers(0, 3, 40)))
    parameters = rng.normal(size=21)
    assert not check_independence(client, ROUND, parameters, 21)
    client.begin(ROUND, parameters, 21, attempt)
    assert client.width == 1
    assert check_independence(client, ROUND, parameters, 21)


def hostile(rng: np.random.Generator) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray]:
    """Return a model, parameters that amplify rounding, and 13 records of which some fail."""
    model = (Softmax(6, 3), Mlp(6, 3, hidden=4))[rng.integers(2)]
    parameters = rng.normal(size=model.dim) * 10.0 ** rng.integers(-3, 9)
    x = rng.normal(size=(13, 6)) * 10.0 ** rng.integers(-3, 6, (13, 1))
    if rng.integers(2):
        x[rng.integers(13), rng.integers(6)] = rng.choice([np.nan, np.inf, 1e300])
    return model, parameters, x, rng.integers(0, 3, 13)


def change(client: RecordLearner, parameters: np.ndarray, out: int) -> int:
    """Return the squared change of the sum of 13 records, from the 12 without one of them, in integers."""
    places, dim = np.arange(13), parameters.size
    with_it, without = (
        sum_places(client, ROUND, parameters, dim, ALL, attempt, chosen).total
        for chosen in (places, np.delete(places, out))
    )
    changed = with_it - without
    return int(changed @ changed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
def test_a_thirteenth_record_changes_the_sum_by_at_most_the_clip() -> None:
    rng = np.random.default_rng(0)
    for case in range(CASES):
        model, parameters, x, y = hostile(rng)
        client = Failing(model, (x, y))
        client.bad = frozenset({case % 13}) if case % 3 == 0 else frozenset()
        assert change(client, parameters, int(rng.integers(13))) <= LEAST_LENGTH**2


class ByShape(RecordGradients):
    """Gradients of rounding errors, which depend on the number of records in a slice as those of a matrix product do.

    Libraries add up products in an order that depends on the shape and on the processor; this one does so everywhere.
    """

    def rows(self, parameters: np.ndarray, x: np.ndarray, y: np.ndarray) -> Reals:
        order = np.roll(np.arange(x.shape[1]), len(y))
        products = (x * parameters).astype(np.float32)
        error = products[:, order].cumsum(axis=1)[:, -1] - products.astype(np.float64).sum(axis=1)
        return np.sin(1e9 * error)[:, None] * np.ones(x.shape[1])


class Unpadded(RecordLearner):
    """Mutant: slices as long as the batch."""

    def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> Reals:
        chosen = places[places >= 0]
        rows = np.zeros((len(places), model.size))
        rows[: chosen.size] = self._gradients.rows(model, self._x[chosen + 1], self._y[chosen + 1])
        return rows


@pytest.mark.parametrize("kind", [RecordLearner, Unpadded])
def test_slices_as_long_as_the_batch_are_caught(kind: type[RecordLearner]) -> None:
    rng, worst = np.random.default_rng(5), 0
    client = kind(Linear(23), (rng.normal(size=(13, 24)), np.zeros(13)))
    client._gradients = ByShape()
    for _ in range(100):
        worst = max(worst, change(client, rng.normal(size=24), int(rng.integers(13))))
    assert (worst > LEAST_LENGTH**2) is (kind is Unpadded)


class Failing(RecordLearner):
    """A client some of whose records raise, with short slices: they are faster where a test has 13 records."""

    width = 16
    bad: frozenset[int] = frozenset()

    def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> Reals:
        if self.bad.intersection(places.tolist()):
            raise ValueError("this record cannot be read")
        return super().record_gradients(round, model, places)


def test_a_record_that_raises_counts_as_zero_and_takes_no_other_with_it() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(200, 6)), rng.integers(0, 3, 200)
    parameters = rng.normal(size=21)
    good = RecordLearner(Softmax(6, 3), samples)
    failing = Failing(Softmax(6, 3), samples)
    failing.bad = frozenset({3, 150})
    keep = [i for i in range(200) if i not in failing.bad]
    rest = RecordLearner(Softmax(6, 3), (samples[0][keep], samples[1][keep]))
    assert np.array_equal(summed(failing, parameters), summed(rest, parameters))
    assert not np.array_equal(summed(failing, parameters), summed(good, parameters))


def test_in_a_simulation_a_record_that_raises_stops_the_run() -> None:
    rng = np.random.default_rng(1)
    failing = Failing(Softmax(6, 3), (rng.normal(size=(40, 6)), rng.integers(0, 3, 40)))
    everything = RecordEncoding(2**32, LEAST_LENGTH, 40, 1000, 40)

    def run(code: UserCode) -> RecordSum:
        return sum_for_round(code, "client 1", failing, ROUND, np.zeros(21), 21, everything, lambda count: bytes(count))

    assert run(UserCode()).total.any()
    failing.bad = frozenset(range(40))
    with pytest.raises(ValueError, match="this record cannot be read") as caught:
        run(UserCode())
    assert "the gradients of client 1" in caught.value.__notes__[0]
    assert not run(ZeroOnFailure(pytest.fail)).total.any()


def test_rows_of_one_person_are_one_record() -> None:
    rng = np.random.default_rng(2)
    x, y, keys = rng.normal(size=(40, 6)), rng.integers(0, 3, 40), [0] * 38 + [1, 2]
    client = RecordLearner(Softmax(6, 3), (x, y), keys)
    parameters = rng.normal(size=21)
    assert client.records == 3
    rows = OneByOne(Softmax(6, 3)).rows(parameters, x, y)
    first = client.record_gradients(ROUND, parameters, np.array([0]))[0]
    np.testing.assert_allclose(first, -rows[:38].mean(axis=0), rtol=1e-9, atol=1e-12)
    whole, without = summed(client, parameters), summed(RecordLearner(Softmax(6, 3), (x[38:], y[38:])), parameters)
    changed = whole - without
    assert 0 < int(changed @ changed) <= LEAST_LENGTH**2


@pytest.mark.parametrize("key", [None, "", float("nan")])
def test_rows_without_an_id_are_refused(key: object) -> None:
    with pytest.raises(InputError, match="row 2 has no record id"):
        rows_of_records(2, ["a", key])


def test_an_empty_sample_gives_zero() -> None:
    client = RecordLearner(Softmax(6, 3), (np.zeros((0, 6)), np.zeros(0, np.int64)))
    assert not summed(client, np.zeros(21)).any()


def test_more_records_than_declared_are_refused() -> None:
    client = RecordLearner(Linear(2), (np.zeros((1001, 2)), np.zeros(1001)))
    with pytest.raises(InputError, match="holds 1001 records and 1000 are declared"):
        summed(client, np.zeros(3))


def test_slices_have_one_width() -> None:
    widths: list[int] = []

    class Watched(RecordLearner):
        def record_gradients(self, round: RoundInfo, model: np.ndarray, places: Places) -> Reals:
            widths.append(len(places))
            return super().record_gradients(round, model, places)

    for count in (1, 127, 128, 129, 300):
        summed(Watched(Linear(2), (np.ones((count, 2)), np.ones(count))), np.zeros(3))
    assert set(widths) == {slice_width(3)}


class Toy(AppServer):
    """A server with a softmax of zeros."""

    dim = Softmax(6, 3).dim

    def model(self) -> np.ndarray:
        return np.zeros(self.dim)

    def use_output(self, round: RoundInfo, aggregate: object) -> None:
        raise AssertionError("nothing is summed")


def test_a_rehearsal_times_the_largest_batch_once_every_record_has_a_gradient() -> None:
    rng = np.random.default_rng(1)
    times = iter([10.0, 17.5])
    client = RecordLearner(Softmax(6, 3), (rng.normal(size=(40, 6)), rng.integers(0, 3, 40)))
    encoding = RecordEncoding(2**30, LEAST_LENGTH, 20, 40, 3)
    assert rehearse_records(client, Toy(), 1.0, encoding, lambda: next(times)) == 7.5
    few = RecordEncoding(2**30, LEAST_LENGTH, 20, 39, 3)
    with pytest.raises(InputError, match="holds 40 records and 39 are declared"):
        rehearse_records(client, Toy(), 1.0, few)


def test_a_client_with_a_record_that_fails_from_the_start_does_not_join() -> None:
    rng, labels = np.random.default_rng(1), np.zeros(40, np.int64)
    labels[17] = 9  # no such class
    client = RecordLearner(Softmax(6, 3), (rng.normal(size=(40, 6)), labels))
    with pytest.raises(InputError, match="this client cannot join: the gradient of a record"):
        rehearse_records(client, Toy(), 1.0, ALL)
