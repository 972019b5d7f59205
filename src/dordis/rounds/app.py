"""The interface of applications: clients compute updates from their data, and the server uses the private mean."""

import inspect
import math
import operator
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
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.model import ModelBytes, Numbers

State = Mapping[str, npt.NDArray[Any]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class RoundInfo:
    """A round as the application's server and clients see it.

    On the server, `number` is 1 plus the number of finished rounds, and `index` counts all tries of rounds from 0.  On
    a client, `number` is `index` + 1 (see `told_number`).  `run` is the run id.
    """

    number: int
    index: int
    run: bytes = b""
    clip: float = math.inf
    """The largest norm of an update in this round; if records are the unit of privacy, of a record's gradient."""
    deviation: float = 0.0
    """Standard deviation of the noise in each coordinate of the sum; 0 on clients, and on the server before the sum."""


def told_number(said: int, index: int) -> int:
    """Return the round number that a client's application sees: `index` + 1, whatever number the server said.

    All clients agree on the index.  If the server told each client a number of its own, and the application used it,
    say for a decaying learning rate, the server could make the updates of all clients but one vanish, and the sum
    would contain this one update only.
    """
    return index + 1


@dataclass(frozen=True)
class Task:
    """What an application is constructed from: its options in the configuration, the number of clients, and a seed.

    The seed is for data and training in simulations; no privacy guarantee depends on it.  Relative paths in the
    options are relative to `folder`, the configuration's directory.
    """

    options: Mapping[str, Any]
    population: int
    seed: int = 0
    folder: Path = Path()
    by_record: bool = False
    """Whether records are the unit of privacy, so that clients compute one gradient for each record."""
    record: str = ""
    """Name of the table column with the ids of records: rows with the same id are one record.

    The name is empty if each row is a record.
    """


class AppServer(ABC):
    """The server's side of an application: the model that clients train from, and the use of their private mean."""

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Return the server's application for a task; by default the constructor gets `task.options` as arguments."""
        return construct(cls, **task.options)

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the length of an update in the next round."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Return all lengths that updates may have during the run; by default only `dim`."""
        return (self.dim,)

    @property
    def model_lengths(self) -> tuple[int, ...]:
        """Return all lengths, in numbers, that the model may have in this run; by default only its present length."""
        return (ModelBytes.from_numbers(self.model(), self.dtype).array.size,)

    @property
    def measured(self) -> str:
        """Return an explanation of the metrics, such as the vocabulary of a perplexity; empty if none is needed."""
        return ""

    @property
    def unit(self) -> str:
        """Return a text that says what a client is, such as "clients = 60 hospitals"; empty if unknown."""
        return ""

    folds: ClassVar[bool] = False
    """Whether `privacy.projection = "auto"` may project updates to fewer coordinates, with a small error.

    Leave it False if the application reads single coordinates of the sum.
    """
    dtype: ClassVar[str] = "<f4"
    """Number type of the model on the wire; by default 32-bit floats."""
    evaluates_beside: ClassVar[bool] = False
    """Whether a deployed server may call `evaluate` and `state` while another thread reads `model` and `dim`.

    If so, the clients of the next round train while the server evaluates.  Evaluation must not change the model.
    """

    @property
    def further(self) -> tuple[FurtherValue, ...]:
        """Return descriptions of the values that clients release beside updates, each with its part of the budget.

        The descriptions are the same in every round.  `AppClient.further_values` returns the values of one client, and
        `Aggregate.further` has their sums.
        """
        return ()

    def model(self) -> Floats:
        """Return the public model from which clients of the next round train; it may be empty."""
        return np.zeros(0)

    @abstractmethod
    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Use the sum of a round, which is differentially private: computing from it costs no more epsilon."""

    def evaluate(self) -> dict[str, float]:
        """Return metrics after a round. They are published, so they may depend on outputs and public data only."""
        return {}

    def concerns(self) -> tuple[str, ...]:
        """Return new warnings about the course of the run, such as a rising loss; called after every round."""
        return ()

    def result(self) -> Any:
        """Return the result of the run for its caller, such as a trained model or a mean."""
        return None

    def export(self, directory: Path) -> None:  # noqa: B027  most applications store only a checkpoint
        """Write the result into the directory of the run, in a format that other programs read."""

    def state(self) -> State:
        """Return the state from which a restarted server continues."""
        return {}

    def restore(self, state: State) -> None:  # noqa: B027  nothing to restore is the default
        """Continue, after a restart, from a state that `state` returned."""


def update_lengths(app: AppServer) -> tuple[int, ...]:
    """Return all lengths that updates of an application may have; raise InputError unless they are whole numbers."""
    try:
        return tuple(operator.index(dim) for dim in app.dims)
    except TypeError:
        raise InputError(
            f"the properties dim and dims of {type(app).__name__} return lengths of updates, which are whole numbers, "
            f"not {app.dims!r}"
        ) from None


def check_keeps_state(app: AppServer, rounds: int) -> None:
    """Raise InputError if a run is to be continued after `rounds` > 0 rounds, but the application stores no state."""
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
    """Number type and lengths of an application's models and updates; a client refuses invitations with others."""

    dtype: str
    """Number type of a model on the wire."""
    models: frozenset[int]
    """All lengths that models may have, counted in numbers, not in bytes."""
    updates: frozenset[int]
    """All lengths that updates may have, in coordinates."""

    @classmethod
    def from_server(cls, app: AppServer) -> "AppForm":
        """Return number type and lengths of an application; a client constructs `app` from its own installation."""
        return cls(app.dtype, frozenset(app.model_lengths), frozenset(update_lengths(app)))


class AppClient(ABC):
    """The client's side of an application, which has the data of one client."""

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        """Return the application of client `place`, a zero-based index; by default `cls(place, **task.options)`."""
        return construct(cls, place, **task.options)

    @classmethod
    def of_records(cls, task: Task, place: int) -> "AppClient":
        """Return the application of client `place` (from 0) as a `RecordClient`, for records as the unit of privacy."""
        raise InputError(
            f"the application {cls.__name__} makes one update of all of a client's data: with records as the unit of "
            "privacy it has to give one gradient for each record (`RecordClient`)"
        )

    @abstractmethod
    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update of this round, which is then clipped.

        The array is not copied: do not change it before the round is over.  If this raises, or does not return finite
        numbers of the right length, a simulation stops.  A deployed client continues with a zero update and tells only
        its owner, because the server chose the model and must not learn of the failure.
        """

    def is_ready(self, round: RoundInfo) -> bool:
        """Tell whether this client can take part; called before the model is known.  The server sees the answer.

        "No data today" belongs here: after this answer no client declines because of its data.  The answer must not
        depend on an earlier training, whose model the server chose.  A deployed client with `train_seconds` rounds
        the duration of this call up to a multiple of 50 ms.
        """
        return True

    def further_values(self, round: RoundInfo, model: Numbers) -> Mapping[str, npt.ArrayLike]:
        """Return this client's values for the further releases (`AppServer.further`) by name; missing values are zero.

        Called after `prepare_data`, with the same model.  Values are clipped to the declared norm.
        """
        return {}

    def describe_data(self) -> Mapping[str, str]:
        """Return a description of the client's data by topic, which `dordis join --check` shows to the owner alone."""
        return {}

    def expect(self, round: RoundInfo, peers: Sequence["AppClient"]) -> None:  # noqa: B027  most train alone
        """Prepare to train together with `peers`, the applications of all clients of the round in this process.

        A simulation calls this method before the clients train, and only on the first client of `peers`.
        """

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:  # noqa: B027  most clients do nothing
        """Use the sum of a round that this client took part in; in deployments only the owner learns of exceptions."""

    @property
    def follows(self) -> bool:
        """Tell whether the client can use missed sums: whether `next_model` needs only the previous model and the sum.

        The server sees the answer: it must depend on public settings only, never on the client's data.
        """
        return type(self).next_model is not AppClient.next_model

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Return the model after this round from the model before it and the sum; None if the client cannot compute it.

        The server sees the hash of this model: compute it from the arguments and public settings only, never from the
        client's data.
        """
        return None


class FixedClient(AppClient):
    """A client with the same update in every round."""

    def __init__(self, update: Floats) -> None:
        self.update = update

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        return self.update


def construct(kind: type[Made], *arguments: Any, **options: Any) -> Made:
    """Return an object of a class with options from a configuration; raise InputError if the options do not fit."""
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
        raise InputError(f"the class {kind.__name__} is not complete: it lacks {missing}")
    try:
        inspect.signature(kind).bind(*arguments, **options)
    except TypeError as error:
        place = "; the first argument of a client is its zero-based index" if arguments else ""
        raise InputError(f"the options of {kind.__name__} do not fit: {error}{place}") from None
    return kind(*arguments, **options)
