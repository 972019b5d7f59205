"""Training in a fixed time: the update is ready `train_seconds` after `Train`, never earlier, whatever the data.

A server that sees when training ends could choose a model on which that time depends on the data.  Late training gives
a zero update; the application may continue in its own thread, and nothing waits for it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats
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
    usable_update,
)

log = logging.getLogger("dordis.network")

Wait = Callable[[float], object]
"""Waits for a number of seconds, or until the client is stopped."""
LEAST_WINDOW, WINDOW_PER_COORDINATE = 0.05, 5e-8
"""Seconds of a window for encoding: several times the usual time, since the rounding may be repeated."""


class OwnerLog:
    """Log failures of user code for a client's owner, and count them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Tell the owner, and nobody else."""
        self.count += 1
        log.error("%s", message)


class TimedTraining(ZeroOnFailure):
    """Run an application in one thread, in the order of calls, and return at times that do not depend on its data."""

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

    def train(self, what: str, work: Callable[[], Floats]) -> Floats | None:
        """Return the update after `train_seconds`; None if training failed or is not finished."""
        due = self._clock() + self._seconds
        begun = self._submit(what, work)
        wait_out(due - self._clock(), self._wait)  # starting the thread may take long, too
        done = begun.done()
        finished = done and begun.exception() is None
        update = begun.result() if finished else None
        self._note(what, "" if update is not None else FAILED if done else LATE)
        if not finished:
            begun.cancel()  # it may not have begun, if an earlier training still runs
            self._tell_owner(
                f"{what} was not finished after {self._seconds:g} seconds, so its update is zero: agree on a larger "
                "deployment.train_seconds (under Flower dordis-train-seconds), or train less"
            )
        return update

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the result after a whole number of windows: the number of roundings depends on the data."""
        start = self._clock()
        encoded = super().encode(what, work, dim)
        window = LEAST_WINDOW + WINDOW_PER_COORDINATE * dim
        took = self._clock() - start
        wait_out(max(1, math.ceil(took / window)) * window - took, self._wait)
        return encoded

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work` later, after the earlier calls of the application."""
        self._submit(what, work)

    def stop(self) -> None:
        """End all waiting: the client is stopped and answers nothing."""
        self._stopped.set()

    def _submit(self, what: str, work: Callable[[], Result]) -> "Future[Result | None]":
        return self._thread.submit(contain, what, work, self._tell_owner)


def user_code_for(train_seconds: float | None, tell_owner: TellOwner, note: NoteTraining) -> UserCode:
    """Return the runner of a deployed client's user code: in a fixed time if `train_seconds` is set."""
    if train_seconds is None:
        return ZeroOnFailure(tell_owner, note)
    return TimedTraining(train_seconds, tell_owner, note=note)


def rehearse(app: AppClient, server: AppServer, clip: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Train once from the application's own initial model; return the seconds, or raise InputError if it fails."""
    failures: list[str] = []
    model, info = ModelBytes.of(server.model(), server.dtype), RoundInfo(1, 0, bytes(RUN_BYTES), clip)
    started = clock()
    update = contain(
        "training from the application's own initial model",
        lambda: usable_update(lambda: app.prepare_data(info, model.array), server.dim, "this client", np.float32),
        failures.append,
    )
    if update is None:
        raise InputError(f"this client does not join: {failures[0]}; mend the application or its data first")
    return clock() - started


def wait_out(seconds: float, wait: Wait) -> None:
    """Wait until a fixed time has passed, even if the work is finished earlier."""
    wait(max(0.0, seconds))
