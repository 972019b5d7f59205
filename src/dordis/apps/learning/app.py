"""Federated learning as an application: clients train, the server steps by the private mean of their updates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dordis.apps.learning import optim
from dordis.apps.learning.data import Samples
from dordis.apps.learning.features import with_features
from dordis.apps.learning.making import check_fits, make_model
from dordis.apps.learning.models import Model, Work
from dordis.apps.learning.networks import Inputs
from dordis.apps.learning.optim import FedAvg, Memory, Optimiser
from dordis.apps.learning.partition import hold_out, partition_of
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.sources import DIGITS, cache, load
from dordis.apps.learning.weights import SampleWeights, clipped
from dordis.apps.options import check_place, shared
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.protocols.distributed_dp import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, State, Task
from dordis.rounds.model import Numbers


class Use(IntEnum):
    """What a seed is used for: no two uses share a stream."""

    INITIAL, PARTITION, TRAINING = range(3)


class Server(AppServer):
    """Hold the parameters, step by the mean update, and evaluate their moving average on public test data."""

    folds: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        initial: Floats,
        test: Samples | None,
        optimiser: Optimiser | None = None,
        average: float = 0.0,
        unit: str = "",
        weights: SampleWeights | None = None,
        measured: str = "",
    ) -> None:
        self._model, self._test, self._unit, self._weights = model, test, unit, weights
        self._measured = measured
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
        steps = settings.optimiser, settings.average, common.unit, settings.weights
        return cls(common.model, initial, common.test, *steps, common.measured)

    @property
    def unit(self) -> str:
        """Say what one client is."""
        return self._unit

    @property
    def measured(self) -> str:
        """Describe the users of the test data, if the data name them."""
        return self._measured

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
        mean = weighted_mean(aggregate, self._weights)
        stepped, self._memory = self._optimiser.step(self._parameters, mean, self._memory)
        self._parameters = stepped.astype(self.dtype).astype(np.float64)  # what travels: clients can follow
        if self._weight:
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
        """Return the parameters, their average if they are not it, and what the optimiser remembers."""
        memory = {f"optimiser.{name}": value for name, value in self._memory.items()}
        return {"parameters": self._parameters} | self._average | memory

    def restore(self, state: State) -> None:
        """Go on from such a state."""
        if state["parameters"].shape != self._parameters.shape:
            raise InputError(f"the state is of {state['parameters'].size} parameters, the model has {self.dim}")
        self._parameters = state["parameters"]
        self._average = {name: value for name, value in state.items() if self._weight and name.startswith("average")}
        self._memory = {
            name.removeprefix("optimiser."): value for name, value in state.items() if name.startswith("optimiser.")
        }


def learnt(state: State) -> Floats:
    """Return the average of the parameters from the state of a server, or the newest, where there is none."""
    parameters: Floats = optim.corrected(state, "average") if "average" in state else state["parameters"]
    return parameters


def weighted_mean(aggregate: Aggregate, weights: SampleWeights | None) -> Floats:
    """Return the mean update, in which weights of less than 1 are made up for."""
    return aggregate.mean if weights is None else aggregate.mean * weights.restored


class Client(AppClient):
    """Train on one's own samples, from the model of the round; `seed` decides their order, anew in each round."""

    def __init__(self, model: Model, samples: Samples, classes: int, settings: Settings, seed: tuple[int, ...]) -> None:
        self._model, self._samples, self._classes = model, samples, classes
        self._settings, self._seed = settings, seed
        self._cohort: Cohort | None = None

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

    def work(self, round: RoundInfo) -> Work:
        """Return what this client trains on in a round."""
        return Work(self._samples, self._classes, (*self._seed, round.index))

    def expect(self, round: RoundInfo, peers: Sequence[AppClient]) -> None:
        """Train in one pass with those who have the same model."""
        alike = [peer for peer in peers if isinstance(peer, Client) and peer._model is self._model]
        cohort = Cohort(round, alike, self._settings)
        for peer in alike:
            peer._cohort = cohort

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return how far the training went, with the weight that the number of samples gives."""
        if model.shape != (self._model.dim,):
            raise InputError(f"the round's model has {model.size} parameters, mine has {self._model.dim}")
        update = self._cohort.update(self, round, model) if self._cohort is not None else None
        if update is None:
            update = self._model.fit(model, self.work(round), self._settings)
        if self._settings.weights is None:
            return update
        return clipped(update, round.clip) * self._settings.weights.of(len(self._samples[1]))

    @property
    def follows(self) -> bool:
        """Tell whether the server's step depends on nothing that it remembers of earlier rounds."""
        return not self._settings.optimiser.remembers

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Take the server's step, if it remembers nothing."""
        if not self.follows or model.size != aggregate.total.size:
            return None
        mean = weighted_mean(aggregate, self._settings.weights)
        return self._settings.optimiser.step(np.asarray(model, np.float64), mean, {})[0]


class Cohort:
    """Clients of one process that train in the same round: the first that is asked has all of them train at once."""

    def __init__(self, round: RoundInfo, clients: Sequence[Client], settings: Settings) -> None:
        self._index, self._clients, self._settings = round.index, clients, settings
        self._start: Numbers | None = None
        self._updates: dict[int, Floats] = {}

    def update(self, client: Client, round: RoundInfo, start: Numbers) -> Floats | None:
        """Return the update of a client, once; None if it was not made in one pass."""
        if round.index != self._index:
            return None
        if self._start is None:
            self._start = start
            works = [peer.work(round) for peer in self._clients]
            try:
                updates = client._model.fit_together(start, works, self._settings)
            except InputError:  # whose training it was that failed is seen when each trains alone
                updates = None
            self._updates = {} if updates is None else dict(zip(map(id, self._clients), updates, strict=True))
        elif self._start is not start and not np.array_equal(self._start, start):
            return None
        return self._updates.pop(id(client), None)


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
    measured: str = ""
    """Description of the users of the test data."""


def begin(settings: Settings, task: Task) -> Learning:
    """Load the data, give them to the clients, and make the model."""
    data, seed = load(settings, task.folder), task.seed
    data = data.centred() if settings.data == DIGITS and settings.centred is not False else data
    data = with_features(data, settings.features, cache()) if settings.features else data
    inputs = Inputs(data.input_shape, data.classes, data.tokens, data.target, task.folder)
    model = make_model(settings.model, inputs, settings.options, seed, settings.device)
    check_fits(model, data.train(slice(0, 2)), data.classes)
    partition = settings.partition or partition_of(data)
    parts = partition.split(data, task.population, np.random.default_rng((Use.PARTITION, seed)))

    def samples(place: int) -> Samples:
        return data.train(parts[place])

    unit = partition.words(data, task.population)
    public, measured = hold_out(data, parts)
    test = first(public.test, settings.tested)
    return Learning(model, task.population, samples, test, data.classes, settings, seed, unit, measured)


def first(test: Samples | None, most: int) -> Samples | None:
    """Return the first of the test data, as many as are to be evaluated."""
    return test if test is None or not most else (test[0][:most], test[1][:most])


_learning = shared(Settings, begin)
