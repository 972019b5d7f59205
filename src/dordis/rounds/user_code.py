"""How a client runs the application's code: what follows from a failure, and when the client replies.

The server chooses the model.  If failures of training were visible, a server could choose a model on which training
fails only for some data, and learn one exact bit about the data in each round.  So after a failure a deployed client
continues with a zero update, and reports the failure to its owner only (docs/proofs/answers.md).

The duration of training must not depend on the data either.  With `TimedTraining` a client replies `train_seconds`
after `Train`, never earlier.  Late training gives a zero update; the client does not wait for the application's thread.
With records as the unit of privacy, a late sum of gradients is not replaced by zero, because one slow record would
remove all others.  Instead the client replies late, after a multiple of `train_seconds`.  To make this unlikely, a
client joins a run only if `train_seconds` is at least three times the measured time of the largest sample.  The
durations of encoding and of `AppClient.is_ready` are rounded up to multiples of a fixed time, the *window*.

`work` is a call of the application's code.  `what` and `whose` describe it in messages: "the training of client 3 in
round 2", "client 3 in round 2".
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from traceback import format_exception_only
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dordis.errors import Aborted, Diverged, DordisError, InputError, UnusableUpdate
from dordis.kernels.reals import is_finite
from dordis.privacy.scaling import Floats
from dordis.protocols.parameters import RUN_BYTES
from dordis.rounds.app import AppClient, AppServer, RoundInfo
from dordis.rounds.model import ModelBytes, Numbers, check_gradients

log = logging.getLogger("dordis.network")  # the log of a deployed client

Result = TypeVar("Result")
TellOwner = Callable[[str], None]
"""Reports a failure to the client's owner, and to nobody else."""
NoteTraining = Callable[[str, str], None]
"""Records a training for the owner: what was trained (empty for an encoding), and the kind of failure, or empty."""
FAILED, LATE, NOT_ENCODED = "training failed", "too late", "encoding failed"
Wait = Callable[[float], object]
"""Waits for the given seconds, or until the client is stopped."""
LEAST_WINDOW, WINDOW_PER_COORDINATE = 0.05, 5e-8
"""Seconds of an encoding window: `LEAST_WINDOW`, plus `WINDOW_PER_COORDINATE` for each coordinate of the update.

`TimedTraining` returns an encoding only after a whole number of these windows, and usually one suffices by far.  The
answer of `AppClient.is_ready` is returned after a whole number of windows of `LEAST_WINDOW` seconds.
"""


class UserCode:
    """Runs an application's code, and raises every failure, which stops the run: for simulations.

    The caller of a simulation has all data anyway.  Subclasses return None instead if the code failed or was late.  In
    all methods `what` describes the work in error messages.
    """

    stored_as: type[np.float32] | None = None
    """The number type in which every update is stored; None if an update keeps its own type."""

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update that `work` computes; in deployments the duration must not depend on the client's data.

        An error of `work` gets a note that says which training failed.
        """
        try:
            return work()
        except Exception as error:
            if not isinstance(error, DordisError):  # which names the client
                error.add_note(f"This error ended {what}.")
            raise

    def sum_records(self, what: str, work: Callable[[], Result]) -> Result:
        """Return the sum over sampled records that `work` computes, by calling `attempt` for each group of records."""
        return work()

    def attempt(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the gradients of one group of records; an error of `work` gets a note that says what to do."""
        try:
            found = work()
        except Exception as error:
            error.add_note(
                f"This error ended the computation of {what}. With records as the unit of privacy the application has "
                "to compute a gradient for each record by itself; deployed clients count records without a gradient "
                "as zero: repair the application or its data."
            )
            raise
        check_gradients(found, what)
        return found

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`, a computation on public values only, such as the next model."""
        return work()

    def ask(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the answer of `work`, which may look at the data; therefore `TimedTraining` rounds up the duration."""
        return work()

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the encoded update, which has `dim` coordinates; raise Diverged if `work` raises InputError.

        In deployments the duration must not depend on the update.
        """
        try:
            return work()
        except InputError as error:
            raise Diverged(f"{what} failed ({error}): if training diverged, pass a lower learning rate") from None

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`, now or later; no answer of the client may depend on it."""
        work()

    def stop(self) -> None:
        """End all waits that delay a reply to a fixed time; called when the client stops and sends no more replies."""


class ZeroOnFailure(UserCode):
    """Continues after a failure with a zero update, and tells the owner: for deployed clients and Flower nodes.

    All updates are stored as 32-bit numbers, as zero updates are.  With another type, the time to store and encode an
    update would reveal whether it is a zero update.
    """

    stored_as = np.float32

    def __init__(self, tell_owner: TellOwner, note: NoteTraining = lambda what, failure: None) -> None:
        self._tell_owner, self._note = tell_owner, note

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update; None, which stands for a zero update, if `work` failed."""
        update = contain(what, work, self._tell_owner)
        self._note(what, FAILED if update is None else "")
        return update

    def attempt(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the gradients, or None if `work` failed; nobody is told, as that would reveal the sampled records."""
        return contain(what, work, lambda text: None)

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the result, or None if `work` failed."""
        return contain(what, work, self._tell_owner)

    def ask(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the answer of `work`, or None if `work` failed."""
        return contain(what, work, self._tell_owner)

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the encoded update, or None if `work` failed; `dim` is not used."""
        encoded = contain(what, work, self._tell_owner)
        self._note("", NOT_ENCODED if encoded is None else "")
        return encoded

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`; only the owner learns of a failure."""
        contain(what, work, self._tell_owner)


def contain(what: str, work: Callable[[], Result], tell_owner: TellOwner) -> Result | None:
    """Return the result of `work`; if it raises anything but KeyboardInterrupt, tell the owner and return None.

    This is the one place that catches every exception of user code.  An exception may depend on the data, so it must
    not reach the server.
    """
    try:
        return work()
    except KeyboardInterrupt:  # the owner stops the client
        raise
    except BaseException as error:  # noqa: BLE001  sys.exit, a cancelled task, a panic of an extension
        tell_owner(f"{what} failed, and this client continues without its result: {describe_failure(error)}")
        return None


def describe_failure(error: BaseException) -> str:
    """Return an error's message, or a substitute if the error's own methods fail, since they are user code too."""
    try:
        return "".join(format_exception_only(error)).strip()
    except Exception:  # noqa: BLE001  see above
        return "an error that cannot describe itself"


def usable_update(
    prepare: Callable[[], Any], dim: int, whose: str, stored_as: type[np.float32] | None = None
) -> Floats:
    """Return the update that `prepare` computes, as `stored_as`; None: float32 stays, other types become float64.

    Raise UnusableUpdate unless it is a vector of `dim` finite numbers.
    """
    try:
        prepared = _as_reals(prepare())
        usual: type[Any] = np.float32 if prepared.dtype == np.float32 else np.float64
        with np.errstate(over="ignore"):  # infinite values are refused below
            update: Floats = np.asarray(prepared, stored_as or usual, order="C")  # copies only if needed
        check_update(update, dim)
    except InputError as error:
        kind = Diverged if isinstance(error, Diverged) else UnusableUpdate
        raise kind(f"the update of {whose} is not usable: {error}") from None
    return update


def _as_reals(update: Any) -> npt.NDArray[Any]:
    """Return what an application returned as an array; raise InputError unless it holds real numbers."""
    if update is None:
        raise InputError("it is None, not an array: does prepare_data return it?")
    try:
        array = np.asarray(update)
        if array.dtype.kind not in "fiubc":
            array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"it is no array of real numbers: {describe_failure(error)}") from None
    if array.dtype.kind == "c":
        raise InputError("it holds complex numbers, not real ones")
    return array


class Prepared(NamedTuple):
    """An application's result: the update, and the values of further releases by name."""

    update: Floats
    values: Mapping[str, Floats] = {}


def prepare(
    app: AppClient,
    round: RoundInfo,
    model: Numbers,
    dim: int,
    names: Collection[str],
    whose: str,
    stored_as: type[np.float32] | None,
) -> Prepared:
    """Return the update and the further values of an application, where `names` are the round's further releases.

    `whose` names client and round in errors; `stored_as` is as in `usable_update`.
    Raise UnusableUpdate if the update is not `dim` finite numbers, or if a value has a name that is not in `names`.
    """
    update = usable_update(lambda: app.prepare_data(round, model), dim, whose, stored_as)
    if not names:
        return Prepared(update)
    given = app.further_values(round, model)
    values = {name: np.atleast_1d(np.array(value, np.float64)) for name, value in given.items()}
    if unknown := set(values) - set(names):
        raise UnusableUpdate(f"{whose} has values for {sorted(unknown)}, and the round releases {sorted(names)}")
    return Prepared(update, values)


def zero_update(dim: int) -> npt.NDArray[Any]:
    """Return an update of zeros."""
    return np.zeros(dim, np.float32)


def check_update(update: Floats, dim: int) -> None:
    """Raise InputError unless an update is a vector of `dim` finite numbers."""
    if update.shape != (dim,):
        raise InputError(f"its shape is {update.shape}, and the round sums vectors of {dim} coordinates")
    if not is_finite(update):
        raise InputError("it holds numbers that are not finite")


class OwnerLog:
    """Logs failures of user code for the client's owner, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Log a failure, which the server does not learn."""
        self.count += 1
        log.error("%s", message)

    def summarise(self) -> None:
        """Log how often the application has failed or been late; log nothing if it never did."""
        if self.count:
            log.error(
                "the application failed or was late %d times, so that updates may have been zero: see the errors above",
                self.count,
            )


class TimedTraining(ZeroOnFailure):
    """Trains in one thread, one training after the other, and hides how long the application's code takes.

    `train` returns `seconds` after the call (None if training is late); the other methods say when they return.
    """

    def __init__(
        self,
        seconds: float,
        tell_owner: TellOwner,
        wait: Wait | None = None,
        clock: Callable[[], float] = time.monotonic,
        note: NoteTraining = lambda what, failure: None,
    ) -> None:
        super().__init__(tell_owner, note)
        self._stopped = threading.Event()
        self._seconds, self._wait, self._clock = seconds, wait or self._stopped.wait, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dordis-application")

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update, `seconds` after the call; None if training failed or is not finished by then."""
        due = self._clock() + self._seconds
        begun = self._submit(what, work)
        wait_out(due - self._clock(), self._wait)  # `due` includes the time to start the thread
        done = begun.done()
        finished = done and begun.exception() is None
        update = begun.result() if finished else None
        self._note(what, "" if update is not None else FAILED if done else LATE)
        if not finished:
            begun.cancel()  # works only if the training still waits for an earlier one
            self._tell_owner(
                f"{what} was not finished after {self._seconds:g} seconds, so its update is zero: agree on a larger "
                "deployment.train_seconds (under Flower dordis-train-seconds), or train less"
            )
        return update

    def sum_records(self, what: str, work: Callable[[], Result]) -> Result:
        """Return the sum over the sampled records `seconds` after the call, or at a later multiple of `seconds`.

        Raise Aborted if the client is stopped meanwhile.
        """
        due = self._clock() + self._seconds
        begun = self._thread.submit(work)
        wait_out(due - self._clock(), self._wait)
        while not begun.done():
            if self._stopped.is_set():
                raise Aborted("this client is stopped")
            self._tell_owner(
                f"{what} were not finished after {self._seconds:g} seconds, so this client replies late, which the "
                "server sees: agree on a larger deployment.train_seconds"
            )
            due += self._seconds
            wait_out(due - self._clock(), self._wait)
        return begun.result()

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the encoded update, or None if `work` failed, after a whole number of windows.

        A window is `LEAST_WINDOW` seconds, plus `WINDOW_PER_COORDINATE` for each of `dim` coordinates.  The exact time
        would reveal the number of rounding attempts, which depends on the data.
        """
        start = self._clock()
        encoded = super().encode(what, work, dim)
        self._end_window(start, LEAST_WINDOW + WINDOW_PER_COORDINATE * dim)
        return encoded

    def ask(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the answer of `work`, or None if it failed, after a whole number of windows of `LEAST_WINDOW` seconds.

        So the duration tells little about the data.
        """
        start = self._clock()
        answer = super().ask(what, work)
        self._end_window(start, LEAST_WINDOW)
        return answer

    def _end_window(self, start: float, window: float) -> None:
        """Wait until a whole number of windows of `window` seconds, at least one, has passed since `start`."""
        took = self._clock() - start
        wait_out(max(1, math.ceil(took / window)) * window - took, self._wait)

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work` in the application's thread after all earlier calls, without waiting for it."""
        self._submit(what, work)

    def stop(self) -> None:
        self._stopped.set()

    def _submit(self, what: str, work: Callable[[], Result]) -> "Future[Result | None]":
        return self._thread.submit(contain, what, work, self._tell_owner)


def user_code_for(train_seconds: float | None, tell_owner: TellOwner, note: NoteTraining) -> UserCode:
    """Return the runner of a deployed client's user code; training takes a fixed time if `train_seconds` is set."""
    if train_seconds is None:
        return ZeroOnFailure(tell_owner, note)
    return TimedTraining(train_seconds, tell_owner, note=note)


def rehearse(app: AppClient, server: AppServer, clip: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one training with this clip bound from the initial model; raise InputError if it fails."""
    failures: list[str] = []
    model, info = ModelBytes.from_numbers(server.model(), server.dtype), RoundInfo(1, 0, bytes(RUN_BYTES), clip)
    names, started = {value.name for value in server.further}, clock()
    update = contain(
        "training from the application's initial model",
        lambda: prepare(app, info, model.array, server.dim, names, "this client", np.float32),
        failures.append,
    )
    if update is None:
        raise InputError(f"this client cannot join: {failures[0]}; repair the application or its data first")
    return clock() - started


def wait_out(seconds: float, wait: Wait) -> None:
    """Wait `seconds`, the rest of a fixed time, to hide how long the work before took; 0 seconds if it is negative."""
    wait(max(0.0, seconds))
