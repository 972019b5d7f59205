"""How a client runs its application's code, and what becomes of a failure.

The server chooses the model.  If a client said that training failed, or stopped to answer, a server could choose one on
which it fails for some data and not for others: each round would tell it one exact bit.  So a client that is somebody
else's goes on with a zero update, and only its owner is told (docs/security.md).
"""

from collections.abc import Callable
from traceback import format_exception_only
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError, UnusableUpdate
from dordis.privacy.skellam import Floats

Result = TypeVar("Result")
TellOwner = Callable[[str], None]
"""Tells the client's owner, and nobody else, what failed."""
NoteTraining = Callable[[str, str], None]
"""Writes a training down for the owner, and why its update is zero: one of the kinds below, or empty if it is not."""
FAILED, LATE, NOT_ENCODED = "training failed", "too late", "encoding failed"


class UserCode(Protocol):
    """Where and how an application's code is run; None in place of a result means: go on without it."""

    @property
    def stored_as(self) -> type[np.float32] | None:
        """Return the type that every update is kept as, or None for its own."""
        ...

    def train(self, what: str, work: Callable[[], Floats]) -> Floats | None:
        """Return the update that `work` makes; when this returns must not depend on the client's data."""
        ...

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return what `work` returns."""
        ...

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return what `work` makes of an update of `dim` coordinates, at a time that the update does not decide."""
        ...

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`, now or later: nothing is answered that depends on it."""
        ...

    def stop(self) -> None:
        """Wait for nothing any more: the client is stopped."""
        ...


class StopOnFailure:
    """Let a failure stop the run, before anything is charged: for simulations, whose caller owns all clients."""

    stored_as = None

    def train(self, what: str, work: Callable[[], Floats]) -> Floats | None:
        """Return the update, or raise what `work` raises."""
        return work()

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the result, or raise what `work` raises."""
        return work()

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the result, or raise what `work` raises."""
        return work()

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`, or raise what it raises."""
        work()

    def stop(self) -> None:
        """Do nothing: nothing waits."""


class ZeroOnFailure:
    """Go on without what failed, with a zero update in the place of one, and tell the owner: for clients of others.

    All updates are kept as 32-bit numbers: else the time to store and encode one would tell a zero update from others.
    """

    stored_as = np.float32

    def __init__(self, tell_owner: TellOwner, note: NoteTraining = lambda what, failure: None) -> None:
        self._tell_owner, self._note = tell_owner, note

    def train(self, what: str, work: Callable[[], Floats]) -> Floats | None:
        """Return the update, or None if `work` failed."""
        update = contain(what, work, self._tell_owner)
        self._note(what, FAILED if update is None else "")
        return update

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the result, or None if `work` failed."""
        return contain(what, work, self._tell_owner)

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the result, or None if `work` failed."""
        encoded = contain(what, work, self._tell_owner)
        self._note("", NOT_ENCODED if encoded is None else "")
        return encoded

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`, whether it fails or not."""
        contain(what, work, self._tell_owner)

    def stop(self) -> None:
        """Do nothing: nothing waits."""


def contain(what: str, work: Callable[[], Result], tell_owner: TellOwner) -> Result | None:
    """Run code that sees a client's data; if it fails, in whatever way, tell the owner and return None.

    The one place where every exception is caught: which of them it is depends on the data, so none of them may leave.
    """
    try:
        return work()
    except KeyboardInterrupt:  # the owner's own, who stops the client
        raise
    except BaseException as error:  # noqa: BLE001  see above; sys.exit, a cancelled task, a panic of an extension
        tell_owner(f"{what} failed, and this client goes on without it: {describe_failure(error)}")
        return None


def describe_failure(error: BaseException) -> str:
    """Return what an error says of itself, or that it cannot: its methods are the application's code too."""
    try:
        return "".join(format_exception_only(error)).strip()
    except Exception:  # noqa: BLE001  see above
        return "an error that cannot describe itself"


def usable_update(
    prepare: Callable[[], Any], dim: int, whose: str, stored_as: type[np.float32] | None = None
) -> Floats:
    """Return the update that an application prepares, as finite numbers of the round's length, or raise."""
    try:
        prepared = np.asarray(prepare())
        usual: type[Any] = np.float32 if prepared.dtype == np.float32 else np.float64
        with np.errstate(over="ignore"):  # what is infinite then is refused
            update: Floats = np.asarray(prepared, stored_as or usual, order="C")  # no copy, if it need not be one
        check_update(update, dim)
    except InputError as error:
        raise UnusableUpdate(f"the update of {whose} is not usable: {error}") from None
    return update


def zero_update(dim: int) -> npt.NDArray[Any]:
    """Return the update of a client that changes nothing."""
    return np.zeros(dim, np.float32)


def check_update(update: Floats, dim: int) -> None:
    """An update is a vector of finite numbers, of the length that the round sums."""
    if update.shape != (dim,):
        raise InputError(f"it has the shape {update.shape}, the round sums vectors of {dim} coordinates")
    if not np.isfinite(update).all():
        raise InputError("it holds numbers that are not finite")
