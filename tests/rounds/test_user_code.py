"""Application code: a failure stops a simulation, and is a zero update that only the owner hears of elsewhere."""

import numpy as np
import pytest

from dordis.errors import UnusableUpdate
from dordis.rounds.app import AppClient, RoundInfo
from dordis.rounds.user_code import (
    FAILED,
    NOT_ENCODED,
    StopOnFailure,
    ZeroOnFailure,
    contain,
    prepare,
    usable_update,
)


class Mute(Exception):
    """An error whose own methods fail."""

    def __str__(self):
        raise RuntimeError("cannot be shown")


def fail(error):
    def work():
        raise error

    return work


def test_in_a_simulation_a_failure_is_raised():
    code = StopOnFailure()
    for run in (code.train, code.call, code.notify, lambda what, work: code.encode(what, work, 3)):
        with pytest.raises(ZeroDivisionError):
            run("training", fail(ZeroDivisionError()))
    assert code.call("work", lambda: 7) == 7


@pytest.mark.parametrize("error", [ValueError("bad data"), SystemExit(3), Mute(), MemoryError()])
def test_elsewhere_a_failure_gives_no_result_and_is_told_to_the_owner_alone(error):
    told, noted = [], []
    code = ZeroOnFailure(told.append, lambda what, failure: noted.append(failure))
    assert code.train("training", fail(error)) is None
    assert code.call("call", fail(error)) is None
    assert code.encode("encoding", fail(error), 3) is None
    code.notify("notice", fail(error))
    assert noted == [FAILED, NOT_ENCODED]
    assert [message.split()[0] for message in told] == ["training", "call", "encoding", "notice"]


def test_a_success_is_noted_without_a_failure():
    noted = []
    code = ZeroOnFailure(pytest.fail, lambda what, failure: noted.append(failure))
    assert code.train("training", lambda: np.ones(3)).size == 3
    assert code.encode("encoding", lambda: 1, 3) == 1
    assert noted == ["", ""]


def test_the_owner_can_interrupt():
    with pytest.raises(KeyboardInterrupt):
        contain("training", fail(KeyboardInterrupt()), pytest.fail)


@pytest.mark.parametrize("update", [np.ones(4), np.ones((3, 1)), [1.0, np.nan, 0.0], [np.inf, 0, 0], np.full(3, 1e300)])
def test_an_update_of_another_shape_or_not_finite_is_refused(update):
    with pytest.raises(UnusableUpdate, match="the update of client 1 is not usable"):
        usable_update(lambda: update, 3, "client 1", np.float32)


@pytest.mark.parametrize(("update", "dtype"), [([1, 2, 3], np.float64), (np.ones(3, np.float32), np.float32)])
def test_updates_keep_32_bits_and_become_64_otherwise(update, dtype):
    assert usable_update(lambda: update, 3, "client 1").dtype == dtype


class Released(AppClient):
    """Give an update and some values for further releases, or fail."""

    def __init__(self, values):
        self._values = values

    def prepare_data(self, round, model):
        return np.ones(3)

    def further_values(self, round, model):
        return self._values()


def test_values_for_further_releases_come_with_the_update():
    def prepared(values):
        return prepare(Released(values), RoundInfo(1, 0), np.zeros(0), 3, ["right"], "client 1", None)

    assert prepared(lambda: {"right": 4}).values["right"].tolist() == [4.0]
    assert prepared(dict).values == {}
    with pytest.raises(UnusableUpdate, match=r"\['wrong'\]"):
        prepared(lambda: {"right": 4, "wrong": 1})
    told = []
    failing = ZeroOnFailure(told.append).train("the training", lambda: prepared(lambda: 1 / 0))
    assert failing is None
    assert "ZeroDivisionError" in told[0]


def test_values_that_no_round_asks_for_are_not_made():
    app = Released(lambda: 1 / 0)
    assert prepare(app, RoundInfo(1, 0), np.zeros(0), 3, [], "client 1", None).update.tolist() == [1.0] * 3
