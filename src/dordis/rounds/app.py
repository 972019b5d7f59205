"""The interface of applications: clients turn their data into updates, the server uses their private mean."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.scaling import Floats
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.model import Numbers

State = Mapping[str, npt.NDArray[Any]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class RoundInfo:
    """A round as the application's server and clients see it.

    `number` counts finished rounds, starting at 1; `index` counts tries, failed ones too, starting at 0.
    A client is told the number of its try, see `told_number`.
    """

    number: int
    index: int
    run: bytes = b""
    clip: float = math.inf
    """The largest norm of an update in this round."""
    deviation: float = 0.0
    """Standard deviation of the noise that is left in each coordinate of the sum: known to the server in the end."""


def told_number(said: int, index: int) -> int:
    """Return the number of a round that a client's application is told: that of the try, whatever the server says.

    All clients agree on the index.  If the application trained by a number that the server told each of them, with a
    rate that falls round by round for instance, the server could have all updates vanish but one.
    """
    return index + 1


@dataclass(frozen=True)
class Task:
    """Arguments of an application: the options of its configuration, the number of clients, and a seed.

    The seed is for data and training in simulations; nothing that protects anybody comes from it.  Relative paths in
    the options begin at `folder`: that of the configuration.
    """

    options: Mapping[str, Any]
    population: int
    seed: int = 0
    folder: Path = Path()
    by_record: bool = False
    """Whether records are the unit of privacy, so that clients give gradients of single records."""
    record: str = ""
    """Column of a table whose rows with the same id are one record; empty if each row is a record."""


class AppServer(ABC):
    """The server's side of an application: what clients start from, and what becomes of their private mean."""

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Make it as a configuration says; by default its options are arguments of the constructor."""
        return made(cls, **task.options)

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the length of an update in the next round."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Return every length that updates of the run may have, of which the next round has `dim`; usually one."""
        return (self.dim,)

    @property
    def model_lengths(self) -> tuple[int, ...]:
        """Return all lengths that the model may have in this run."""
        return (self.model().size,)

    @property
    def measured(self) -> str:
        """Say what the metrics are, where their names do not tell: over which vocabulary a perplexity is, and so on."""
        return ""

    @property
    def unit(self) -> str:
        """Say what one client is, whom privacy protects as a whole: "clients = 60 hospitals"; nothing if not known."""
        return ""

    folds: ClassVar[bool] = False
    """Whether `privacy.projection = "auto"` may fold updates: a sum of many small changes bears it, one whose single
    coordinates are read does not."""
    dtype: ClassVar[str] = "<f4"
    """How the numbers of the model travel: rounded to 32 bits, unless an application says otherwise."""
    evaluates_beside: ClassVar[bool] = False
    """Whether a deployed server may call `evaluate` and `state` while another thread reads `model` and `dim` for the
    next round: then its clients train meanwhile.  Evaluation must not change the model."""

    @property
    def further(self) -> tuple[FurtherValue, ...]:
        """Return the values that clients release beside their updates, each with its part of the privacy budget.

        They are the same in every round.  `AppClient.further_values` gives a client's, `Aggregate.further` the sums.
        """
        return ()

    def model(self) -> Floats:
        """Return the public state that the clients of the next round start from; it may be empty."""
        return np.zeros(0)

    @abstractmethod
    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Use the sum of a round; it is private already, so whatever is made of it costs nothing more."""

    def evaluate(self) -> dict[str, float]:
        """Return metrics after a round.  They are published: make them from the output and public data only."""
        return {}

    def concerns(self) -> tuple[str, ...]:
        """Return new warnings about the course of the run, such as a rising loss; asked after every round."""
        return ()

    def result(self) -> Any:
        """Return the result of the run for its caller: a trained model, a mean."""
        return None

    def export(self, directory: Path) -> None:  # noqa: B027  most applications have their checkpoint only
        """Write the result to the directory of the run, in a format that others read."""

    def state(self) -> State:
        """Return everything that a restarted server needs to go on."""
        return {}

    def restore(self, state: State) -> None:  # noqa: B027  nothing to restore is the default
        """Go on from what `state` returned."""


def check_keeps_state(app: AppServer, rounds: int) -> None:
    """Raise InputError if an application has finished rounds but stores no state: it would restart from round 0."""
    kind = type(app)
    if rounds and kind.state is AppServer.state:
        raise InputError(
            f"{kind.__name__} has no state to continue from after {rounds} rounds: define in it\n"
            '    def state(self): return {"weights": self.weights}\n'
            '    def restore(self, state): self.weights = state["weights"]\n'
            "with every array that it changes in use_output, or return {} if it keeps none; then start a new run"
        )


@dataclass(frozen=True)
class AppForm:
    """Number type and lengths of an application's models and updates, known to the client; invitations must match."""

    dtype: str
    """Number type of a model on the wire."""
    models: frozenset[int]
    """Lengths that models may have, in numbers."""
    updates: frozenset[int]
    """Lengths that updates may have."""

    @classmethod
    def from_server(cls, app: AppServer) -> "AppForm":
        """Return the form of an application, read from its server side, which a client has installed too."""
        return cls(app.dtype, frozenset(app.model_lengths), frozenset(app.dims))


class AppClient(ABC):
    """One client's side of an application: it holds the client's data."""

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        """Construct the client at a zero-based index; by default index and options are arguments of the constructor."""
        return made(cls, place, **task.options)

    @classmethod
    def of_records(cls, task: Task, place: int) -> "AppClient":
        """Make the client at a place for records as the unit of privacy: a `RecordClient`."""
        raise InputError(
            f"the application {cls.__name__} makes one update of all of a client's data: with records as the unit of "
            "privacy it has to give one gradient for each record (`RecordClient`)"
        )

    @abstractmethod
    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update of this round; it is clipped.

        It is not copied: leave the array as it is until the round is over.  If this raises, or does not
        return finite numbers of the right length, a simulation stops.  A deployed client continues with a zero update
        and tells its owner only: the server chose the model and must not learn of the failure.
        """

    def is_ready(self, round: RoundInfo) -> bool:
        """Tell whether this client can take part in a round; asked before the model is known, and the server sees it.

        "No data today" belongs here: after this answer no client declines because of its data.  The answer must not
        depend on the outcome of an earlier training, whose model the server chose.
        """
        return True

    def further_values(self, round: RoundInfo, model: Numbers) -> Mapping[str, npt.ArrayLike]:
        """Return this client's values for the further releases (`AppServer.further`) by name; missing ones are zero.

        Called after `prepare_data`, with the same model.  Values are clipped to the norm that was declared.
        """
        return {}

    def describe_data(self) -> Mapping[str, str]:
        """Return a description of the client's data by topic, which `dordis join --check` shows to the owner alone."""
        return {}

    def expect(self, round: RoundInfo, peers: Sequence["AppClient"]) -> None:  # noqa: B027  most train alone
        """Get ready to train together with `peers`; a simulation calls this before they prepare data in one process.

        It is called for the first of the peers only.
        """

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:  # noqa: B027  most clients do nothing
        """Use the result of a round that this client took part in; only the owner is told of an exception."""

    @property
    def follows(self) -> bool:
        """Tell whether `next_model` needs the last model and the sum alone: then missed sums can be replayed.

        The server sees the answer: it must depend on public settings only, never on the client's data.
        """
        return type(self).next_model is not AppClient.next_model

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Return the model that the server makes of this round, if this client can tell: it need not be sent then.

        The server sees its hash: compute it from the arguments and public settings only, never from the client's data.
        """
        return None


class FixedClient(AppClient):
    """A client that gives the same update in every round."""

    def __init__(self, update: Floats) -> None:
        self.update = update

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update."""
        return self.update


def made(kind: type[Made], *arguments: Any, **options: Any) -> Made:
    """Make an object with options from a configuration, or say that they do not fit."""
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        raise InputError(f"the class {kind.__name__} is not complete: it lacks {missing}")
    try:
        inspect.signature(kind).bind(*arguments, **options)
    except TypeError as error:
        raise InputError(f"the options of {kind.__name__} do not fit: {error}") from None
    return kind(*arguments, **options)
