"""Federated learning as an application: clients train, the server steps by the private mean of their updates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import msgspec
import numpy as np

from dordis.apps.learning import optim
from dordis.apps.learning.data import Dataset, Labels, load
from dordis.apps.learning.models import Mlp, Model, Softmax
from dordis.apps.learning.optim import FedAvg, Memory, Optimiser
from dordis.apps.learning.partition import Indices, Lda, Partition
from dordis.apps.learning.torch_model import TorchModel, seeded
from dordis.apps.learning.trainer import Training, train
from dordis.apps.options import shared
from dordis.apps.tables import check_place
from dordis.errors import InputError
from dordis.federation.app import AppClient, AppServer, State, Task
from dordis.named import named
from dordis.privacy.skellam import Floats
from dordis.protocols.distributed_dp import Aggregate

_MODELS: dict[str, Callable[..., Model]] = {"softmax": Softmax, "mlp": Mlp}


class _Use(IntEnum):
    """What a seed is used for: no two uses share a stream."""

    INITIAL, PARTITION, TRAINING = range(3)


class Settings(Training, frozen=True):
    """Say what is learnt and how, beside what `Training` says of a client's part.

    The defaults are made for digits, 100 clients with 50 in a round, 20 rounds, epsilon 6 and a clip of 1.

    `data` is "digits" or an .npz file, see `data.read`.  `centred` takes its own mean from each input.  `model` is
    "softmax", "mlp", or "package.module:name" of your own: what is called with the number of features, that of classes
    and `options`, and returns a `Model` or a torch.nn.Module.  `average` is the weight of the past in the moving
    average of the server's parameters, which is what is evaluated and kept; clients start from the newest.
    """

    data: str = "digits"
    centred: bool = True
    partition: Partition = Lda()
    model: str = "softmax"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    optimiser: Optimiser = FedAvg()
    average: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.average < 1:
            raise InputError(f"the weight of the past in the average lies in 0..1, below 1, not at {self.average}")


class Server(AppServer):
    """Hold the parameters, step by the mean update, and evaluate their moving average on public test data."""

    def __init__(
        self,
        model: Model,
        initial: Floats,
        test: tuple[Floats, Labels],
        optimiser: Optimiser | None = None,
        average: float = 0.0,
    ) -> None:
        self._model, self._test = model, test
        self._optimiser, self._weight = optimiser or FedAvg(), average
        self._parameters, self._memory, self._average = initial, Memory(), Memory()

    @classmethod
    def of(cls, task: Task) -> Self:
        """Make it from `Settings`.

        >>> Server.of(Task({"model": "softmax"}, population=100)).dim
        650
        """
        made = _learning(task)
        test = made.data.x_test, made.data.y_test
        return cls(made.model, made.initial, test, made.settings.optimiser, made.settings.average)

    @property
    def dim(self) -> int:
        """Return the number of parameters."""
        return self._parameters.size

    def model(self) -> Floats:
        """Return the newest parameters."""
        return self._parameters.copy()

    def learnt(self) -> Floats:
        """Return the average of the parameters: what to use after the last round."""
        return optim.corrected(self._average, "average") if self._average else self.model()

    def use_output(self, round: int, aggregate: Aggregate) -> None:
        """Take a step."""
        self._parameters, self._memory = self._optimiser.step(self._parameters, aggregate.mean, self._memory)
        self._average = optim.decayed(self._average, "average", self._parameters, self._weight)

    def evaluate(self) -> dict[str, float]:
        """Return accuracy and loss on the test data."""
        return self._model.evaluate(self.learnt(), *self._test)

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


class Client(AppClient):
    """Train on one's own samples, from the model of the round; `seed` decides their order, anew in each round."""

    def __init__(
        self, model: Model, samples: tuple[Floats, Labels], classes: int, training: Training, seed: tuple[int, ...]
    ) -> None:
        self._model, self._samples, self._classes = model, samples, classes
        self._training, self._seed = training, seed

    @classmethod
    def of(cls, task: Task, place: int) -> Self:
        """Make it from `Settings`; a client is its samples, and no more."""
        made = _learning(task)
        return cls(made.model, made.samples(place), made.data.classes, made.settings, (_Use.TRAINING, made.seed, place))

    def prepare_data(self, round: int, model: Floats) -> Floats:
        """Return how far the training went."""
        if model.shape != (self._model.dim,):
            raise InputError(f"the round's model has {model.size} parameters, mine has {self._model.dim}")
        start = np.asarray(model, np.float64)
        return train(self._model, start, *self._samples, self._classes, self._training, (*self._seed, round))


@dataclass(frozen=True, eq=False)
class Learning:
    """What the server and all clients of a simulation have in common."""

    settings: Settings
    data: Dataset
    model: Model
    parts: list[Indices] = field(repr=False)
    initial: Floats = field(repr=False)
    seed: int

    def samples(self, place: int) -> tuple[Floats, Labels]:
        """Return inputs and labels of the client at a place."""
        check_place(place, len(self.parts))
        held = self.parts[place]
        return self.data.x_train[held], self.data.y_train[held]


def begin(settings: Settings, population: int, seed: int) -> Learning:
    """Load the data, deal them to the clients, and make the model."""
    data = load(settings.data)
    data = data.centred() if settings.centred else data
    model = make_model(settings.model, data, settings.options, seed)
    parts = settings.partition.split(data, population, np.random.default_rng((_Use.PARTITION, seed)))
    return Learning(settings, data, model, parts, model.initial(np.random.default_rng((_Use.INITIAL, seed))), seed)


def make_model(name: str, data: Dataset, options: dict[str, Any], seed: int) -> Model:
    """Return the model that a name stands for; a torch.nn.Module is wrapped, and begins as the seed says."""
    if name not in _MODELS and ":" not in name:
        raise InputError(f"there is no model '{name}': pass one of {', '.join(_MODELS)}, or package.module:name")
    maker: Callable[..., Any] = _MODELS.get(name) or named(name, "the model", Callable)  # type: ignore[arg-type]
    try:
        with seeded(seed):
            model = maker(data.features, data.classes, **options)
    except TypeError as error:
        raise InputError(
            f"the model '{name}' is not made of features, classes and {sorted(options)}: {error}"
        ) from error
    return model if isinstance(model, Model) else TorchModel(model)


_learning = shared(Settings, begin)
