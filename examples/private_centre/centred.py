"""Learning on centred features: the first round releases the centre, a private mean, and later rounds train.

Use this application for features without a public mean.  The first round, which is charged like any other round,
releases the mean of the directions of the rows: every row is scaled to norm 1, so that no bound on the features is
needed.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from dordis.apps.learning.app import Client, Server
from dordis.apps.learning.models import Work
from dordis.apps.learning.partitioned_data import Samples
from dordis.apps.learning.task import LearningTask
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import AppClient, RoundInfo, State
from dordis.rounds.model import Numbers

FILE = "centre.npy"


class CentredServer(Server):
    """A server that estimates the centre of the features in the first round, and then trains like `Server`."""

    folds: ClassVar[bool] = False
    _features = 0
    _centre: Floats | None = None

    @classmethod
    def from_learning_task(cls, common: LearningTask) -> Self:
        """Construct the server of a learning task."""
        server = super().from_learning_task(common)
        server._features = math.prod(common.samples(0)[0].shape[1:])
        server._has_input_steps = True  # inputs are centred, so that the model alone does not predict
        return server

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the two lengths of updates: the number of features (first round), and of parameters (later rounds)."""
        return self._features, self._parameters.size

    @property
    def dim(self) -> int:
        """Return the length of an update in the next round."""
        return self.dims[0 if self._centre is None else 1]

    @property
    def model_lengths(self) -> tuple[int, ...]:
        """Return the lengths of the public model: 0 in the first round, parameters and centre in later rounds."""
        return 0, self._parameters.size + self._features

    def model(self) -> Floats:
        """Return an empty model in the first round, then parameters and centre."""
        return np.zeros(0) if self._centre is None else np.concatenate([super().model(), self._centre])

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """After the first round store the centre; after later rounds move the parameters like `Server`."""
        if self._centre is not None:
            return super().use_output(round, aggregate)
        deviation = round.deviation / min(aggregate.survivors) / round.clip
        self._centre = shrink_mean(aggregate.mean / round.clip, deviation).astype(self.dtype).astype(np.float64)
        return None

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on centred test data; before the centre is known, on test data without centring."""
        if self._test is None or self._centre is None:
            return super().evaluate()
        return self._model.evaluate(self.average_parameters(), *subtract_centre(self._test, self._centre))

    def export(self, directory: Path) -> None:
        """Write the trained model, and the centre to subtract from its inputs."""
        super().export(directory)
        if self._centre is not None:
            np.save(directory / FILE, self._centre, allow_pickle=False)

    def state(self) -> State:
        """Return the state of `Server` and the centre."""
        known = {} if self._centre is None else {"centre": self._centre}
        return {**super().state(), **known}

    def restore(self, state: State) -> None:
        """Continue from a stored state."""
        super().restore(state)
        self._centre = state.get("centre")


class CentredClient(Client):
    """A client whose first update is the mean direction of its rows, and which later trains on centred features."""

    _centre: Floats | None = None

    def expect(self, round: RoundInfo, peers: Sequence[AppClient]) -> None:
        """Do nothing: these clients train one by one, because each learns the centre only with the model of a round."""

    def work(self, round: RoundInfo) -> Work:
        """Return the samples with which this client trains in a round, centred if the centre is known."""
        work = super().work(round)
        return (
            work if self._centre is None else Work(subtract_centre(work.samples, self._centre), work.classes, work.seed)
        )

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return the client's update.

        In the first round, in which the model is empty, the update is the mean direction of the client's rows.  In
        later rounds it is the change of the parameters by training.

        Raise InputError if the number of features in the model differs from the number in the client's samples.
        """
        if not model.size:
            mean: Floats = directions(self._samples[0])[0].mean(axis=0)
            return mean * (round.clip if math.isfinite(round.clip) else 1.0)
        parameters, self._centre = np.split(np.asarray(model, np.float64), [self._model.dim])
        if self._centre.size != math.prod(self._samples[0].shape[1:]):
            raise InputError(f"the round's centre has {self._centre.size} features, this client's samples have others")
        return super().prepare_data(round, parameters)

    def next_model(self, round: RoundInfo, model: Numbers, aggregate: Aggregate) -> Floats | None:
        """Return the model after the server's step; None after the first round, whose step depends on the deviation of
        the noise, which only the server knows.
        """
        if not model.size:
            return None
        parameters, centre = np.split(np.asarray(model, np.float64), [self._model.dim])
        following = super().next_model(round, parameters, aggregate)
        return None if following is None else np.concatenate([following, centre])


def shrink_mean(mean: Floats, deviation: float) -> Floats:
    """Return a noisy mean, shrunk towards zero to reduce its expected error.

    The mean is multiplied by 1 - q, or by 0 if 1 - q is negative.  Here q is the expected squared norm of the noise,
    divided by the squared norm of the mean.  `deviation` is the standard deviation of the noise in each coordinate.

    >>> shrink_mean(np.array([3.0, 4.0]), 2.5).tolist()
    [1.5, 2.0]
    """
    squared = float(mean @ mean)
    part = max(0.0, 1.0 - mean.size * deviation**2 / squared) if squared else 0.0
    return part * mean


def directions(x: Floats) -> tuple[Floats, Floats]:
    """Return the rows scaled to norm 1, and the norms of the original rows; rows of zeros stay zero."""
    rows = np.asarray(x, np.float64).reshape(len(x), -1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0), norms


def subtract_centre(samples: Samples, centre: Floats) -> Samples:
    """Return the samples, with each row x replaced by (x / |x| - centre) |x|."""
    x, y = samples
    unit, norms = directions(x)
    return ((unit - centre) * norms).astype(x.dtype).reshape(x.shape), y
