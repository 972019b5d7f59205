"""Application code: a failure stops a simulation; elsewhere only the owner hears of it, and no reply comes early."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest

from dordis.errors import Aborted, Diverged, InputError, NotReady, UnusableUpdate
from dordis.rounds.app import AppClient, RoundInfo
from dordis.rounds.invitation import Ready, Train
from dordis.rounds.user_code import (
    FAILED,
    LEAST_WINDOW,
    NOT_ENCODED,
    WINDOW_PER_COORDINATE,
    TimedTraining,
    UserCode,
    ZeroOnFailure,
    contain,
    prepare,
    rehearse,
    usable_update,
)
from tests.network.process_roles import Constant, Total
from tests.rounds.parties import DIM, Member, agreed, invite_to, pieces


class Mute(Exception):
    """An error whose own methods fail."""

    def __str__(self):
        raise RuntimeError("cannot be shown")


def fail(error):
    def work():
        raise error

    return work


def test_in_a_simulation_a_failure_is_raised():
    code = UserCode()
    for run in (
        code.train,
        code.attempt,
        code.call,
        code.ask,
        code.notify,
        lambda what, work: code.encode(what, work, 3),
    ):
        with pytest.raises(ZeroDivisionError):
            run("training", fail(ZeroDivisionError()))
    assert code.call("work", lambda: 7) == 7
    with pytest.raises(UnusableUpdate, match=r"the encoding failed \(too large\): .* lower learning rate"):
        code.encode("the encoding", fail(InputError("too large")), 3)


@pytest.mark.parametrize("error", [ValueError("bad data"), SystemExit(3), Mute(), MemoryError()])
def test_elsewhere_a_failure_gives_no_result_and_is_told_to_the_owner_alone(error):
    told, noted = [], []
    code = ZeroOnFailure(told.append, lambda what, failure: noted.append(failure))
    assert code.train("training", fail(error)) is None
    assert code.attempt("a slice of private records", fail(error)) is None
    assert code.call("call", fail(error)) is None
    assert code.ask("question", fail(error)) is None
    assert code.encode("encoding", fail(error), 3) is None
    code.notify("notice", fail(error))
    assert noted == [FAILED, NOT_ENCODED]
    assert [message.split()[0] for message in told] == ["training", "call", "question", "encoding", "notice"]


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


class NeedsGradient:
    """Refuses to be an array, as a torch tensor with a gradient does."""

    def __array__(self, *args, **options):
        raise RuntimeError("use detach()")


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (None, "it is None, not an array"),
        ({"a": 1}, "no array of real numbers: TypeError"),
        ([[1], [1, 2], 3], "no array of real numbers: ValueError"),
        (["a", "b", "c"], "no array of real numbers: ValueError"),
        (NeedsGradient(), "no array of real numbers: RuntimeError: use detach"),
        (np.full(3, 1j), "complex numbers"),
    ],
)
def test_an_update_that_is_no_array_of_numbers_is_refused(update, words):
    with pytest.raises(UnusableUpdate, match=f"the update of client 1 is not usable: it .*{words.removeprefix('it ')}"):
        usable_update(lambda: update, 3, "client 1")


def test_an_exception_of_the_application_keeps_its_kind_and_names_the_training():
    with pytest.raises(TypeError, match="a bug") as caught:
        UserCode().train("the training of client 4 in round 1", fail(TypeError("a bug")))
    assert caught.value.__notes__ == ["This error ended the training of client 4 in round 1."]
    with pytest.raises(TypeError, match="a bug"):
        usable_update(fail(TypeError("a bug")), 3, "client 1")


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


SECONDS = 7.0
UPDATE = np.ones(DIM, np.float32)


class Timed:
    """A `TimedTraining` with a clock of its own; `waiting` is called while it waits."""

    def __init__(self, waiting=lambda: None):
        self.waited, self.told, self.noted, self.now = [], [], [], 0.0
        self.waiting = waiting
        self.code = TimedTraining(SECONDS, self.told.append, self.wait, lambda: self.now, self.note)

    def wait(self, seconds):
        self.waited.append(seconds)
        self.waiting()

    def note(self, what, failure):
        self.noted.append((what, failure))

    def finish(self):
        """Wait until the application's thread is idle."""
        self.code._thread.submit(int).result()


def trained(error=None):
    def work():
        if error is not None:
            raise error
        return UPDATE

    return work


@pytest.mark.parametrize("error", [None, ValueError("no"), MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_the_whole_time_passes_whether_training_ends_early_or_fails(error):
    timed = Timed()
    timed.waiting = timed.finish
    update = timed.code.train("training", trained(error))
    assert timed.waited == [SECONDS]
    assert (update is None) == (error is not None)
    assert len(timed.told) == (error is not None)
    assert timed.noted == [("training", "" if error is None else "training failed")]


def test_a_late_sum_of_records_is_waited_for_and_never_replaced_by_zero():
    """One slow record would remove all others from the sum, which `train` shows: it gives no update then."""
    begun, go_on = threading.Event(), threading.Event()
    timed = Timed(begun.wait)

    def slow():
        begun.set()
        go_on.wait()
        return UPDATE

    def wait():
        begun.wait()
        if len(timed.waited) == 3:
            go_on.set()
            timed.finish()

    timed.waiting = wait
    assert timed.code.sum_records("the gradients of client 1", slow) is UPDATE
    assert timed.waited == [SECONDS, 2 * SECONDS, 3 * SECONDS]  # this clock stands still
    assert len(timed.told) == 2
    assert "replies late" in timed.told[0]
    assert not timed.noted
    begun.clear()
    go_on.clear()
    timed.waiting = begun.wait
    assert timed.code.train("training", slow) is None
    go_on.set()


def test_a_sum_of_records_takes_the_whole_time_and_a_stopped_client_waits_no_longer():
    timed = Timed()
    timed.waiting = timed.finish
    assert timed.code.sum_records("the gradients of client 1", trained()) is UPDATE
    assert timed.waited == [SECONDS]
    go_on = threading.Event()
    timed.waiting = timed.code.stop
    with pytest.raises(Aborted):
        timed.code.sum_records("the gradients of client 1", go_on.wait)
    go_on.set()


def test_what_is_not_finished_in_time_is_no_update_and_its_late_result_is_never_used():
    begun, go_on = threading.Event(), threading.Event()
    timed = Timed(begun.wait)

    def slow():
        begun.set()
        go_on.wait()
        return UPDATE * 2

    assert timed.code.train("training of round 1", slow) is None
    assert timed.told == [
        "training of round 1 was not finished after 7 seconds, so its update is zero: agree on a larger "
        "deployment.train_seconds (under Flower dordis-train-seconds), or train less"
    ]
    assert timed.noted == [("training of round 1", "too late")]
    calls = []
    timed.waiting = lambda: None  # the next round comes, while the first training still goes on: nothing waits for it
    assert timed.code.train("training of round 2", lambda: calls.append(2)) is None
    assert timed.waited == [SECONDS, SECONDS]
    go_on.set()
    timed.waiting = timed.finish
    assert timed.code.train("training of round 3", trained()) is UPDATE
    assert calls == []  # a training that had not begun when its time was over never begins


def test_nothing_waits_for_an_application_that_uses_a_sum():
    begun, go_on, order = threading.Event(), threading.Event(), []

    def use():
        begun.set()
        go_on.wait()
        order.append("use")

    timed = Timed(lambda: None)
    timed.code.notify("use_output", use)
    begun.wait()
    timed.waiting = lambda: (go_on.set(), timed.finish())
    assert timed.code.train("training", lambda: (order.append("train"), UPDATE)[1]) is UPDATE
    assert order == ["use", "train"]
    assert timed.waited == [SECONDS]


@pytest.mark.parametrize("windows", [0.2, 1.0, 1.7, 3.2])
def test_encoding_ends_with_a_whole_number_of_windows(windows):
    window = LEAST_WINDOW + 1000 * WINDOW_PER_COORDINATE
    timed = Timed()

    def encode():
        timed.now += windows * window
        return 5

    assert timed.code.encode("encoding", encode, 1000) == 5
    assert timed.now + timed.waited[0] == pytest.approx(np.ceil(windows) * window)


@pytest.mark.parametrize("answer", [True, False, OSError("no disk")], ids=str)
@pytest.mark.parametrize("windows", [0.0, 0.2, 1.0, 1.7])
def test_a_client_answers_an_invitation_at_the_end_of_a_window_whether_its_application_is_ready_or_not(windows, answer):
    timed = Timed()
    member = Member(1, user_code=timed.code)

    def is_ready(round):
        timed.now += windows * LEAST_WINDOW
        if isinstance(answer, OSError):
            raise answer
        return answer

    member.app.is_ready = is_ready
    with nullcontext() if answer is True else pytest.raises(NotReady):
        member.handle(invite_to(agreed(index=3)))
    assert len(timed.waited) == 1
    assert timed.now + timed.waited[0] == pytest.approx(max(1, np.ceil(windows)) * LEAST_WINDOW)


def test_an_application_that_leaves_is_ready_as_it_is_has_no_window_to_wait_for():
    timed = Timed()
    member = Member(1, user_code=timed.code)

    class Plain(AppClient):
        def prepare_data(self, round, model):
            raise AssertionError("nothing is trained here")

    member.app.is_ready = Plain().is_ready
    member.handle(invite_to(agreed(index=3)))
    assert timed.waited == []


def test_a_client_that_is_stopped_while_it_trains_waits_no_longer():
    code = TimedTraining(3600.0, print)
    begun = threading.Event()
    thread = threading.Thread(target=code.train, args=("training", begun.set))
    thread.start()
    begun.wait()
    code.stop()
    thread.join()


def test_a_client_whose_training_is_late_says_ready_with_a_zero_update():
    begun, go_on = threading.Event(), threading.Event()
    timed = Timed()
    member, parameters = Member(1, user_code=timed.code), agreed(index=3)
    member.handle(invite_to(parameters))
    timed.waiting = begun.wait

    def late(round, model):
        begun.set()
        go_on.wait()
        return UPDATE

    member.app.prepare_data = late
    assert member.handle(*pieces(), Train())[-1] == Ready()
    go_on.set()
    assert not member.client.round._update.update.any()


def test_a_rehearsal_tells_how_long_training_takes():
    times = iter([10.0, 12.5])
    assert rehearse(Constant(0, dim=8), Total(8), 1.0, lambda: next(times)) == 2.5


class Broken(AppClient):
    """Fail, or prepare something else than an update."""

    def __init__(self, result):
        self.result = result

    def prepare_data(self, round, model):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [ValueError("no rows"), np.zeros(3), np.full(8, np.nan), None], ids=str)
def test_a_client_whose_training_fails_on_the_initial_model_does_not_join(result):
    with pytest.raises(InputError, match="this client cannot join: training from the application's initial model"):
        rehearse(Broken(result), Total(8), 1.0)


def test_gradients_that_are_all_undefined_stop_a_simulation_and_count_as_zero_in_deployments():
    one_bad = np.array([[1.0, np.nan], [0.5, 0.5]])
    all_bad = np.array([[1.0, np.nan], [np.inf, 0.5]])
    assert UserCode().attempt("the gradients of client 1", lambda: one_bad) is one_bad
    with pytest.raises(Diverged, match="the gradients of client 1 are all NaN or infinite"):
        UserCode().attempt("the gradients of client 1", lambda: all_bad)
    assert ZeroOnFailure(lambda text: None).attempt("the gradients of client 1", lambda: all_bad) is all_bad
