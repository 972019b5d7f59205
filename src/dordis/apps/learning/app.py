"""Federated learning as an application: clients train, the server steps by the private mean of their updates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from dordis.apps.learning import optim
from dordis.apps.learning.data import Samples, Target
from dordis.apps.learning.features import with_features
from dordis.apps.learning.models import Mlp, Model, Softmax
from dordis.apps.learning.optim import FedAvg, Memory, Optimiser
from dordis.apps.learning.partition import Partition, partition_of
from dordis.apps.learning.sources import DIGITS, WORDS, Source, cache, load
from dordis.apps.learning.torch_model import TorchModel, seeded
from dordis.apps.learning.trainer import Training, train
from dordis.apps.options import check_place, shared
from dordis.errors import InputError
from dordis.names import named
from dordis.privacy.skellam import Floats
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, State, Task
from dordis.rounds.model import Numbers

_MODELS: dict[str, Callable[..., Model]] = {"softmax": Softmax, "mlp": Mlp}


class Use(IntEnum):
    """What a seed is used for: no two uses share a stream."""

    INITIAL, PARTITION, TRAINING = range(3)


class Settings(Training, frozen=True):
    """Say what is learnt and how, beside what `Training` says of a client's part.

    The defaults are made for digits, 100 clients with 50 in a round, 20 rounds, epsilon 6 and a clip of 1.

    `data` is a name, a file or a folder, see `sources`, where `data_dir`, `client`, `label`, `test`, `target`, `shape`,
    `classes` and `vocabulary` are explained; paths are relative to the configuration.  `partition` says who holds what:
    if it is not given, each key of the data is a client, or, where the data have none, mixes of labels are dealt.
    `centred` takes its own mean from each of the digits, and is for them only.  `features` are public ones, computed
    from each input by itself: "scattering" for images, or "package.module:function" of your own.  `model` is
    "softmax", "mlp", or "package.module:name" of your own: what is called with the number of features, that of classes
    and `options`, and returns a `Model` or a torch.nn.Module.  `average` is the weight of the past in the moving
    average of the server's parameters, which is what is evaluated and kept; clients start from the newest.
    """

    data: str = DIGITS
    data_dir: str = ""
    client: str | None = None
    label: str | None = None
    test: str | None = None
    target: Target = "classification"
    shape: tuple[int, ...] = ()
    classes: int = 0
    vocabulary: str | int = WORDS
    centred: bool | None = None
    partition: Partition | None = None
    features: str = ""
    model: str = "softmax"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    optimiser: Optimiser = FedAvg()
    average: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average < 1:
            raise InputError(f"the weight of the past in the average lies in 0..1, below 1, not at {self.average}")
        if self.centred and self.data != DIGITS:
            raise InputError(f"centred is for {DIGITS} only: leave it out")

    def source(self, folder: Path) -> Source:
        """Return what to read, with paths relative to a folder."""
        known = {name: getattr(self, name) for name in Source.__dataclass_fields__ if name != "folder"}
        return Source(**known, folder=folder)


class Server(AppServer):
    """Hold the parameters, step by the mean update, and evaluate their moving average on public test data."""

    def __init__(
        self,
        model: Model,
        initial: Floats,
        test: Samples | None,
        optimiser: Optimiser | None = None,
        average: float = 0.0,
        unit: str = "",
    ) -> None:
        self._model, self._test, self._unit = model, test, unit
        self._optimiser, self._weight = optimiser or FedAvg(), average
        self._parameters, self._memory, self._average = initial, Memory(), Memory()

    @classmethod
    def of(cls, task: Task) -> Self:
        """Make it from `Settings`.

        >>> Server.of(Task({"model": "softmax"}, population=100)).dim
        650
        """
        return cls.learning(_learning(task))

    @classmethod
    def learning(cls, common: "Learning") -> Self:
        """Make it of what all have in common."""
        settings, rng = common.settings, np.random.default_rng((Use.INITIAL, common.seed))
        initial = common.model.initial(rng)
        return cls(common.model, initial, common.test, settings.optimiser, settings.average, common.unit)

    @property
    def unit(self) -> str:
        """Say what one client is."""
        return self._unit

    @property
    def dim(self) -> int:
        """Return the number of parameters."""
        return self._parameters.size

    def model(self) -> Floats:
        """Return the newest parameters."""
        return self._parameters.copy()

    def learnt(self) -> Floats:
        """Return the average of the parameters: what to use after the last round."""
        return learnt(self.state())

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Take a step."""
        stepped, self._memory = self._optimiser.step(self._parameters, aggregate.mean, self._memory)
        self._parameters = stepped.astype(self.dtype).astype(np.float64)  # what travels: clients can follow
        self._average = optim.decayed(self._average, "average", self._parameters, self._weight)

    def evaluate(self) -> dict[str, float]:
        """Return accuracy and loss on the test data, if there is any."""
        return {} if self._test is None else self._model.evaluate(self.learnt(), *self._test)

    def result(self) -> Any:
        """Return the trained model."""
        return self._model.trained(self.learnt())

    def export(self, directory: Path) -> None:
        """Write the trained model to a directory."""
        self._model.save(self.learnt(), directory)

    def state(self) -> State:
        """Return the parameters, their average, and what the optimiser remembers."""
        memory = {f"optimiser.{name}": value for name, value in self._memory.items()}
        return {"parameters": self._parameters} | self._average | memory

    def restore(self, state: State) -> None:
        """Go on from such a state."""
        if state["parameters"].shape != self._parameters.shape:
            raise InputError(f"the state is of {state['parameters'].size} parameters, the model has {self.dim}")
        self._parameters = state["parameters"]
        self._average = {name: value for name, value in state.items() if name.startswith("average")}
        self._memory = {
            name.removeprefix("optimiser."): value for name, value in state.items() if name.startswith("optimiser.")
        }


def learnt(state: State) -> Floats:
    """Return the average of the parameters from the state of a server, or the newest before the first round."""
    parameters: Floats = optim.corrected(state, "average") if "average" in state else state["parameters"]
    return parameters


class Client(AppClient):
    """Train on one's own samples, from the model of the round; `seed` decides their order, anew in each round."""

    def __init__(self, model: Model, samples: Samples, classes: int, settings: Settings, seed: tuple[int, ...]) -> None:
        self._model, self._samples, self._classes = model, samples, classes
        self._settings, self._seed = settings, seed

    @classmethod
    def of(cls, task: Task, place: int) -> Self:
        """Make it from `Settings`; a client is its samples, and no more."""
        return cls.learning(_learning(task), place)

    @classmethod
    def learning(cls, common: "Learning", place: int) -> Self:
        """Make the client at a place of what all have in common."""
        check_place(place, common.clients)
        seed = (int(Use.TRAINING), common.seed, place)
        return cls(common.model, common.samples(place), common.classes, common.settings, seed)

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return how far the training went."""
        if model.shape != (self._model.dim,):
            raise InputError(f"the round's model has {model.size} parameters, mine has {self._model.dim}")
        start = np.asarray(model, np.float64)
        return train(self._model, start, *self._samples, self._classes, self._settings, (*self._seed, round.index))

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Take the server's step, unless that depends on what it remembers of earlier rounds."""
        following, memory = self._settings.optimiser.step(np.asarray(model, np.float64), aggregate.mean, {})
        return None if memory else following


@dataclass(frozen=True, eq=False)
class Learning:
    """What the server and all clients of a simulation have in common."""

    model: Model
    clients: int
    samples: Callable[[int], Samples] = field(repr=False)
    """Gives inputs and labels of the client at a place."""
    test: Samples | None = field(repr=False)
    """Public, if there are any."""
    classes: int
    settings: Settings
    seed: int
    unit: str = ""
    """What one client is."""


def begin(settings: Settings, task: Task) -> Learning:
    """Load the data, give them to the clients, and make the model."""
    data, seed = load(settings.source(task.folder)), task.seed
    data = data.centred() if settings.data == DIGITS and settings.centred is not False else data
    data = with_features(data, settings.features, cache()) if settings.features else data
    model = make_model(settings.model, data.features, data.classes, settings.options, seed)
    partition = settings.partition or partition_of(data)
    parts = partition.split(data, task.population, np.random.default_rng((Use.PARTITION, seed)))

    def samples(place: int) -> Samples:
        return data.train(parts[place])

    unit = partition.words(data, task.population)
    return Learning(model, task.population, samples, data.test, data.classes, settings, seed, unit)


def make_model(name: str, features: int, classes: int, options: dict[str, Any], seed: int) -> Model:
    """Return the model that a name stands for; a torch.nn.Module is wrapped, and begins as the seed says."""
    if name not in _MODELS and ":" not in name:
        raise InputError(f"there is no model '{name}': pass one of {', '.join(_MODELS)}, or package.module:name")
    maker: Callable[..., Any] = _MODELS.get(name) or named(name, "the model", Callable)  # type: ignore[arg-type]
    try:
        with seeded(seed):
            model = maker(features, classes, **options)
    except TypeError as error:
        raise InputError(
            f"the model '{name}' is not made of features, classes and {sorted(options)}: {error}"
        ) from error
    return model if isinstance(model, Model) else TorchModel(model)


_learning = shared(Settings, begin)
