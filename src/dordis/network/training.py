"""Training that takes the same time whatever the data: an update is there `train_seconds` after `Train`, never earlier.

A server that could see when training ends would choose a model on which that depends on the data.  What is not finished
in time is a zero update; the application may go on, in a thread of its own, and nothing waits for it.
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
"""Waits for so many seconds, unless the client is stopped before."""
LEAST_WINDOW, WINDOW_PER_COORDINATE = 0.05, 5e-8
"""Seconds in which an update is encoded: several times what it takes, since the rounding may be drawn again."""


class OwnerLog:
    """Tell a client's owner in the log what failed, and count it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        """Tell the owner, and nobody else."""
        self.count += 1
        log.error("%s", message)


class TimedTraining(ZeroOnFailure):
    """Run an application in one thread, in the order of its calls, and answer at times that its data do not decide."""

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
        """Return the update when `train_seconds` are over: None if it failed, or is not there yet."""
        due = self._clock() + self._seconds
        begun = self._submit(what, work)
        wait_out(due - self._clock(), self._wait)  # to start the thread may take long, too
        done = begun.done()
        finished = done and begun.exception() is None
        update = begun.result() if finished else None
        self._note(what, "" if update is not None else FAILED if done else LATE)
        if not finished:
            begun.cancel()  # if it has not begun: an earlier training may be going on
            self._tell_owner(
                f"{what} was not finished after {self._seconds:g} seconds (deployment.train_seconds): "
                "its update is zero"
            )
        return update

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the result when a whole number of windows is over: how often rounding is drawn depends on the data."""
        start = self._clock()
        encoded = super().encode(what, work, dim)
        window = LEAST_WINDOW + WINDOW_PER_COORDINATE * dim
        took = self._clock() - start
        wait_out(max(1, math.ceil(took / window)) * window - took, self._wait)
        return encoded

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work` later, after what the application is doing."""
        self._submit(what, work)

    def stop(self) -> None:
        """Wait for nothing any more: the client is stopped, and answers nothing."""
        self._stopped.set()

    def _submit(self, what: str, work: Callable[[], Result]) -> "Future[Result | None]":
        return self._thread.submit(contain, what, work, self._tell_owner)


def user_code_for(train_seconds: float | None, tell_owner: TellOwner, note: NoteTraining) -> UserCode:
    """Return how a deployed client runs its application: in a fixed time, where one is agreed on."""
    if train_seconds is None:
        return ZeroOnFailure(tell_owner, note)
    return TimedTraining(train_seconds, tell_owner, note=note)


def rehearse(app: AppClient, server: AppServer, clip: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Train once from the application's own initial model; return the seconds that it took, or refuse to join."""
    told: list[str] = []
    model, info = ModelBytes.of(server.model(), server.dtype), RoundInfo(1, 0, bytes(RUN_BYTES), clip)
    started = clock()
    update = contain(
        "training from the application's own initial model",
        lambda: usable_update(lambda: app.prepare_data(info, model.array), server.dim, "this client", np.float32),
        told.append,
    )
    if update is None:
        raise InputError(f"this client does not join: {told[0]}; mend the application or its data first")
    return clock() - started


def wait_out(seconds: float, wait: Wait) -> None:
    """Let a fixed time pass, whatever is finished before."""
    wait(max(0.0, seconds))
