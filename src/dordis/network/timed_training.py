"""Training in a fixed time, so that its duration reveals nothing about the data.

A client replies `train_seconds` after `Train`, never earlier: otherwise a malicious server could send a model on which
the training time depends on the data.  Late training gives a zero update; the client does not wait for the
application's thread.

With records as the unit of privacy, a late sum of gradients is not replaced by zero, because one slow record would
remove all others.  Instead the client replies after a multiple of `train_seconds`.  It joins only if `train_seconds` is
at least three times the measured time of the largest batch.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dordis.errors import Aborted, InputError
from dordis.protocols.parameters import RUN_BYTES
from dordis.rounds.app import AppClient, AppServer, RoundInfo
from dordis.rounds.model import ModelBytes
from dordis.rounds.user_code import (
    FAILED,
    LATE,
    NoteTraining,
    Result,
    TellOwner,
    UserCode,
    ZeroOnFailure,
    contain,
    prepare,
)

log = logging.getLogger("dordis.network")

Wait = Callable[[float], object]
"""Waits for the given seconds, or until the client is stopped."""
LEAST_WINDOW, WINDOW_PER_COORDINATE = 0.05, 5e-8
"""Seconds of an encoding window: a constant, and a part per coordinate; several times the usual encoding time.

An encoding takes a whole number of windows.
"""


class OwnerLog:
    """Logs failures of user code for the client's owner, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Log a failure, which the server does not learn."""
        self.count += 1
        log.error("%s", message)

    def summarise(self) -> None:
        """Log how often the application failed or was late, if ever."""
        if self.count:
            log.error(
                "the application failed or was late %d times, so that updates may have been zero: see the errors above",
                self.count,
            )


class TimedTraining(ZeroOnFailure):
    """Runs an application's code in one thread, in order, and returns at times that do not depend on its data."""

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
        """Return the update, `train_seconds` after the call; None if training failed or is not finished then."""
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
        """Return the sum over the sampled records after `train_seconds`, or after a multiple of it if slow."""
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
        """Return the encoded update after a whole number of encoding windows.

        The exact time would reveal the number of rounding attempts, which depends on the data.
        """
        start = self._clock()
        encoded = super().encode(what, work, dim)
        window = LEAST_WINDOW + WINDOW_PER_COORDINATE * dim
        took = self._clock() - start
        wait_out(max(1, math.ceil(took / window)) * window - took, self._wait)
        return encoded

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work` in the application's thread after all earlier calls, without waiting for it."""
        self._submit(what, work)

    def stop(self) -> None:
        """End all waiting, because the client is stopped and replies no more."""
        self._stopped.set()

    def _submit(self, what: str, work: Callable[[], Result]) -> "Future[Result | None]":
        return self._thread.submit(contain, what, work, self._tell_owner)


def user_code_for(train_seconds: float | None, tell_owner: TellOwner, note: NoteTraining) -> UserCode:
    """Return the runner of a deployed client's user code; training takes a fixed time if `train_seconds` is set."""
    if train_seconds is None:
        return ZeroOnFailure(tell_owner, note)
    return TimedTraining(train_seconds, tell_owner, note=note)


def rehearse(app: AppClient, server: AppServer, clip: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one training from the application's initial model; raise InputError if it fails."""
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
    """Wait for the rest of a fixed time, which hides the duration of the work."""
    wait(max(0.0, seconds))
