"""How a client runs its application's code, and what a failure of that code does.

The server chooses the model.  If a failure of training were visible, a server could choose a model on which training
fails for some data only, and learn one exact bit in each round.  So a deployed client continues with a zero update, and
only its owner is told (docs/proofs/answers.md).
"""

from collections.abc import Callable, Collection, Mapping
from traceback import format_exception_only
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError, UnusableUpdate
from dordis.privacy.scaling import Floats
from dordis.rounds.app import AppClient, RoundInfo
from dordis.rounds.model import Numbers

Result = TypeVar("Result")
TellOwner = Callable[[str], None]
"""Tells the client's owner, and nobody else, what failed."""
NoteTraining = Callable[[str, str], None]
"""Writes a training down for the owner, and why its update is zero: one of the kinds below, or empty if it is not."""
FAILED, LATE, NOT_ENCODED = "training failed", "too late", "encoding failed"


class UserCode(Protocol):
    """Runs an application's code; a result of None means that the code failed or was late."""

    @property
    def stored_as(self) -> type[np.float32] | None:
        """Return the number type in which every update is stored, or None to keep its own."""
        ...

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update that `work` makes; the time of return must not depend on the client's data."""
        ...

    def sum_records(self, what: str, work: Callable[[], Result]) -> Result:
        """Return the sum of a sample of records, which contains failures record by record and is never replaced."""
        ...

    def call(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`."""
        ...

    def encode(self, what: str, work: Callable[[], Result], dim: int) -> Result | None:
        """Return the result of `work` on an update of `dim` coordinates, at a time independent of the update."""
        ...

    def notify(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`, now or later; no answer may depend on it."""
        ...

    def stop(self) -> None:
        """End all waiting: the client is stopped."""
        ...


class StopOnFailure:
    """Let a failure stop the run, before anything is charged: for simulations, whose caller owns all clients."""

    stored_as = None

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update, or raise what `work` raises."""
        return work()

    def sum_records(self, what: str, work: Callable[[], Result]) -> Result:
        """Return the sum."""
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
    """Continue after a failure, with a zero update, and tell the owner: for deployed clients and Flower nodes.

    All updates are stored as 32-bit numbers: otherwise the time to store and encode would reveal a zero update.
    """

    stored_as = np.float32

    def __init__(self, tell_owner: TellOwner, note: NoteTraining = lambda what, failure: None) -> None:
        self._tell_owner, self._note = tell_owner, note

    def train(self, what: str, work: Callable[[], Result]) -> Result | None:
        """Return the update, or None if `work` failed."""
        update = contain(what, work, self._tell_owner)
        self._note(what, FAILED if update is None else "")
        return update

    def sum_records(self, what: str, work: Callable[[], Result]) -> Result:
        """Return the sum."""
        return work()

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
    """Run code that sees a client's data; if it raises anything, tell the owner and return None.

    The one place where every exception of user code is caught: an exception may depend on the data, so none may leave.
    """
    try:
        return work()
    except KeyboardInterrupt:  # the owner stops the client
        raise
    except BaseException as error:  # noqa: BLE001  sys.exit, a cancelled task, a panic of an extension
        tell_owner(f"{what} failed, and this client continues without its result: {describe_failure(error)}")
        return None


def describe_failure(error: BaseException) -> str:
    """Return an error's message, or a substitute if its methods, which are the application's code too, fail."""
    try:
        return "".join(format_exception_only(error)).strip()
    except Exception:  # noqa: BLE001  see above
        return "an error that cannot describe itself"


def usable_update(
    prepare: Callable[[], Any], dim: int, whose: str, stored_as: type[np.float32] | None = None
) -> Floats:
    """Return the update that `prepare` makes; raise UnusableUpdate if it is not `dim` finite numbers."""
    try:
        prepared = np.asarray(prepare())
        usual: type[Any] = np.float32 if prepared.dtype == np.float32 else np.float64
        with np.errstate(over="ignore"):  # infinite values are refused below
            update: Floats = np.asarray(prepared, stored_as or usual, order="C")  # copies only if needed
        check_update(update, dim)
    except InputError as error:
        raise UnusableUpdate(f"the update of {whose} is not usable: {error}") from None
    return update


class Prepared(NamedTuple):
    """What an application made of its data: the update, and its values for further releases by their names."""

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
    """Have an application make its update and the values that the round releases; raise UnusableUpdate if it cannot."""
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
    """An update is a vector of finite numbers, of the length that the round sums."""
    if update.shape != (dim,):
        raise InputError(f"its shape is {update.shape}, and the round sums vectors of {dim} coordinates")
    if not np.isfinite(update).all():
        raise InputError("it holds numbers that are not finite")
