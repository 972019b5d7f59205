"""Federated learning: clients train locally, and the server moves the model along the private mean of their updates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dordis.apps import build_once, check_place
from dordis.apps.learning import optim
from dordis.apps.learning.models import Model, Work, table_metrics
from dordis.apps.learning.optim import FedAvg, Memory, Optimiser, SampleWeights
from dordis.apps.learning.partitioned_data import Labels, Samples
from dordis.apps.learning.record_gradients import RecordLearner
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.task import LearningTask, Use, prepare_learning
from dordis.apps.learning.trained_model import SAVED_MODEL, TrainedModel, is_built_in
from dordis.apps.mean import clip_to_norm
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, State, Task
from dordis.rounds.model import Numbers


class Server(AppServer):
    """The server of federated learning: it moves the parameters along the mean update of each round.

    It evaluates a moving average of the parameters, or without one the newest parameters, on test data.
    """

    folds: ClassVar[bool] = True
    evaluates_beside: ClassVar[bool] = True
    _has_input_steps = False

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
        encoder: Encoder | None = None,
    ) -> None:
        self._model, self._test, self._unit, self._weights = model, test, unit, weights
        self._measured, self._encoder = measured, encoder
        self._progress = Progress()
        self._optimiser, self._weight = optimiser or FedAvg(), average
        self._parameters, self._memory, self._average = initial, Memory(), Memory()

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Construct the server from the task's options, read as `Settings`.

        >>> Server.from_task(Task({"model": "softmax"}, population=100)).dim
        650
        """
        return cls.from_learning_task(_learning(task))

    @classmethod
    def from_learning_task(cls, common: "LearningTask") -> Self:
        """Construct the server of a learning task."""
        settings, rng = common.settings, np.random.default_rng((Use.INITIAL, common.seed))
        initial = common.model.initial(rng)
        steps = settings.optimiser, settings.average, common.unit, settings.weights
        server = cls(common.model, initial, common.test, *steps, common.measured, common.encoder)
        server._has_input_steps = common.has_input_steps
        return server

    @property
    def unit(self) -> str:
        """Return a text that says what one client, the unit of privacy, is."""
        return self._unit

    @property
    def measured(self) -> str:
        """Return a text on whose data the metrics are measured: how many users, and whether these are clients.

        The text is empty if the test data do not name their users.
        """
        return self._measured

    @property
    def dim(self) -> int:
        """Return the number of parameters, which is the length of an update."""
        return self._parameters.size

    def model(self) -> Floats:
        """Return the newest parameters."""
        return self._parameters.copy()

    def average_parameters(self) -> Floats:
        """Return the parameters that are evaluated and exported: their moving average, or without one the newest."""
        return average_parameters(self.state())

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Apply the server's optimiser to the mean update of a round."""
        mean = weighted_mean(aggregate, self._weights)
        stepped, self._memory = self._optimiser.step(self._parameters, mean, self._memory)
        self._parameters = stepped.astype(self.dtype).astype(
            np.float64
        )  # rounded as on the wire, so that clients can compute the same model
        if self._weight:
            self._average = optim.update_average(self._average, "average", self._parameters, self._weight)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the test data; an empty dictionary if there are no test data."""
        if self._test is None:
            return {}
        (x, y), parameters = self._test, self.average_parameters()
        if self._encoder is None:
            found = self._model.evaluate(parameters, x, y)
        else:
            found = table_metrics(self._encoder, self._model.scores(parameters, x), y)
        self._progress.add(found, y)
        return found

    def concerns(self) -> tuple[str, ...]:
        """Return the warnings about the training, such as a rising loss, that were not returned before."""
        return self._progress.take_warnings()

    def trained_model(self) -> TrainedModel:
        """Return the model with its evaluated parameters and, if it was trained on a table, its preprocessing."""
        return TrainedModel(self._model, self.average_parameters(), self._encoder)

    def result(self) -> Any:
        """Return the trained model: a torch module, or the parameters if the model is not a torch module."""
        return self._model.trained(self.average_parameters())

    def export(self, directory: Path) -> None:
        """Write the trained model to a directory: the state_dict of a torch module, and the file `SAVED_MODEL`.

        `SAVED_MODEL` is written for every model that was trained on a table.  Without a table it is written only for
        built-in models, and not if inputs were scaled, centred or mapped to features: the file has no such step.
        """
        self._model.save(self.average_parameters(), directory)
        if self._encoder is not None or (is_built_in(self._model) and not self._has_input_steps):
            self.trained_model().save(directory / SAVED_MODEL)

    def state(self) -> State:
        """Return the parameters, their moving average and the optimiser's memory."""
        memory = {f"optimiser.{name}": value for name, value in self._memory.items()}
        return {"parameters": self._parameters} | self._average | memory

    def restore(self, state: State) -> None:
        """Continue from what `state` returned; raise InputError if the number of parameters is not the model's."""
        if state["parameters"].shape != self._parameters.shape:
            raise InputError(f"the stored state has {state['parameters'].size} parameters, the model {self.dim}")
        self._parameters = state["parameters"]
        self._average = {name: value for name, value in state.items() if self._weight and name.startswith("average")}
        self._memory = {
            name.removeprefix("optimiser."): value for name, value in state.items() if name.startswith("optimiser.")
        }


def average_parameters(state: State) -> Floats:
    """Return the moving average of the parameters from a server's state; if it has none, the newest parameters."""
    parameters: Floats = optim.average_without_bias(state, "average") if "average" in state else state["parameters"]
    return parameters


def weighted_mean(aggregate: Aggregate, weights: SampleWeights | None) -> Floats:
    """Return the mean update of a round; with `weights`, multiply the mean by `SampleWeights.correction`."""
    return aggregate.mean if weights is None else aggregate.mean * weights.correction


class Client(AppClient):
    """A client that trains on its samples, starting from the model of the round.

    The order of the samples follows from `seed` and the index of the round.
    """

    def __init__(self, model: Model, samples: Samples, classes: int, settings: Settings, seed: tuple[int, ...]) -> None:
        self._model, self._samples, self._classes = model, samples, classes
        self._settings, self._seed = settings, seed
        self._cohort: Cohort | None = None
        self.described: Mapping[str, str] = {}

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        """Construct the client with this zero-based index from the task's options, read as `Settings`."""
        return cls.from_learning_task(_learning(task), place)

    @classmethod
    def from_learning_task(cls, common: "LearningTask", place: int) -> Self:
        """Construct the client with this zero-based index of a learning task."""
        check_place(place, common.clients)
        seed = (int(Use.TRAINING), common.seed, place)
        client = cls(common.model, common.samples(place), common.classes, common.settings, seed)
        client.described = common.described
        return client

    @classmethod
    def of_records(cls, task: Task, place: int) -> RecordLearner:
        """Construct the client with this zero-based index for a run with records as the unit of privacy."""
        return record_learner(_learning(task), place)

    def describe_data(self) -> Mapping[str, str]:
        """Return a summary of the client's own file, by topic; without such a file, the number of its samples."""
        return self.described or {"rows": f"{len(self._samples[1]):,} used"}

    def work(self, round: RoundInfo) -> Work:
        """Return the samples with which this client trains in a round, and the seed of their order."""
        return Work(self._samples, self._classes, (*self._seed, round.index))

    def expect(self, round: RoundInfo, peers: Sequence[AppClient]) -> None:
        """Let those clients in `peers` that use this client's model object, itself included, train in one pass."""
        alike = [peer for peer in peers if isinstance(peer, Client) and peer._model is self._model]
        cohort = Cohort(round, alike, self._settings)
        for peer in alike:
            peer._cohort = cohort

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the update: the parameters after training minus the parameters before.

        With `weights` in the settings, the update is clipped, and then multiplied by the client's weight.
        """
        if model.shape != (self._model.dim,):
            raise InputError(f"the round's model has {model.size} parameters, this client's {self._model.dim}")
        update = self._cohort.update(self, round, model) if self._cohort is not None else None
        if update is None:
            update = self._model.fit(model, self.work(round), self._settings)
        if self._settings.weights is None:
            return update
        return clip_to_norm(update, round.clip) * self._settings.weights.weight(len(self._samples[1]))

    @property
    def follows(self) -> bool:
        """Tell whether the server's optimiser has no memory, so that a client can repeat the server's step."""
        return not self._settings.optimiser.has_memory

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Return the model after the server's step along the mean of `aggregate`.

        Return None if the server's optimiser has memory, which clients do not know, or if sum and model have different
        lengths.
        """
        if not self.follows or model.size != aggregate.total.size:
            return None
        mean = weighted_mean(aggregate, self._settings.weights)
        return self._settings.optimiser.step(np.asarray(model, np.float64), mean, {})[0]


class Cohort:
    """Clients of one process in the same round; all of them train at the first call of `update`."""

    def __init__(self, round: RoundInfo, clients: Sequence[Client], settings: Settings) -> None:
        self._index, self._clients, self._settings = round.index, clients, settings
        self._start: Numbers | None = None
        self._updates: dict[int, Floats] = {}

    def update(self, client: Client, round: RoundInfo, start: Numbers) -> Floats | None:
        """Return the update of `client`, trained together with the other clients from the model `start`.

        Return None, so that the client trains alone, in four cases: a second call for a client, another round than the
        cohort's, another model than in the first call, or clients that cannot train together.
        """
        if round.index != self._index:
            return None
        if self._start is None:
            self._start = start
            works = [peer.work(round) for peer in self._clients]
            try:
                updates = client._model.fit_together(start, works, self._settings)
            except InputError:  # training one by one shows which client failed
                updates = None
            self._updates = {} if updates is None else dict(zip(map(id, self._clients), updates, strict=True))
        elif self._start is not start and not np.array_equal(self._start, start):
            return None
        return self._updates.pop(id(client), None)


def record_learner(common: LearningTask, place: int) -> RecordLearner:
    """Construct the client with this zero-based index for a run with records as the unit of privacy."""
    check_place(place, common.clients)
    learner = RecordLearner(common.model, common.samples(place), common.keys(place))
    learner.described = common.described
    return learner


RISES = 2
"""A loss that has risen in this number of rounds in a row causes a warning."""
MARGIN = 1.1
"""A rising loss causes a warning only if it exceeds the first loss by this factor: noise can make a small loss rise."""
PATIENCE = 3
"""From this number of rounds on, a model that is no better than a constant prediction causes a warning."""
USEFUL_AUC = 0.6
"""A model with a larger AUC counts as better than a constant prediction, even if its accuracy is no better."""


class Progress:
    """The losses of the rounds so far, and warnings if the training goes wrong."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._pending: list[str] = []
        self._given: set[str] = set()

    def add(self, metrics: dict[str, float], y: Labels) -> None:
        """Record a round's metrics on test data with the labels `y`, and warn if they show a failing training."""
        loss = metrics.get("loss")
        if loss is None:
            return
        self._losses.append(loss)
        recent = self._losses[-RISES - 1 :]
        rising = len(recent) > RISES and all(later > earlier for earlier, later in pairwise(recent))
        if rising and loss > MARGIN * self._losses[0]:
            self._warn(
                "rises",
                f"the loss has risen {RISES} rounds in a row, to {loss:.3g}: the run diverges; stop it and lower lr or "
                "optimiser.lr",
            )
        if len(self._losses) >= PATIENCE and (reason := worse_than_constant(metrics, y)):
            self._warn(
                "constant",
                f"after {len(self._losses)} rounds {reason}: the model is no better than a constant; see dordis plan "
                "for the clients and the epsilon that it takes, and check the ranges of the table",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            self._pending.append(text)

    def take_warnings(self) -> tuple[str, ...]:
        """Return the warnings that were not returned before."""
        taken, self._pending = tuple(self._pending), []
        return taken


def worse_than_constant(metrics: dict[str, float], y: Labels) -> str:
    """Return as a text the metric that shows that a model is no better than a constant prediction of the labels `y`.

    Return an empty text if the model is better, or if the metrics do not show which of the two is better.
    """
    if "r2" in metrics:
        return f"R^2 is {metrics['r2']:.2g}" if metrics["r2"] <= 0 else ""
    accuracy, known = metrics.get("accuracy"), np.ndim(y) == 1 and np.asarray(y).dtype.kind in "iu"
    if accuracy is None or not known or not len(y):
        return ""
    share = Counter(np.asarray(y).tolist()).most_common(1)[0][1] / len(y)
    if accuracy > share or metrics.get("auc", 0.0) > USEFUL_AUC:
        return ""
    return f"the accuracy is {accuracy:.1%}, and the most frequent class has {share:.1%}"


_learning = build_once(Settings, prepare_learning)
