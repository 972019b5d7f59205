"""Models as functions of one flat vector of parameters: softmax and linear regression, and one hidden layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning import losses, trainer
from dordis.apps.learning.data import Labels, Samples, Target
from dordis.apps.learning.trainer import Training
from dordis.errors import InputError
from dordis.privacy.skellam import Floats
from dordis.rounds.model import Numbers

Slope = Callable[[Floats], Floats]
"""Gives the gradient of the mean loss on some samples at parameters."""


@dataclass(frozen=True, eq=False)
class Work:
    """What one client trains on in a round, and the seed that the order of its samples comes from."""

    samples: Samples = field(repr=False)
    classes: int
    seed: tuple[int, ...]


class Model(ABC):
    """What a model has to tell; it holds no parameters itself.  Your own needs `dim`, `gradient` and `scores`."""

    target: Target = "classification"

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return how many parameters there are."""

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the parameters to begin with: zeros, unless the model needs something else."""
        return np.zeros(self.dim)

    @abstractmethod
    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean loss on inputs (n, features); `offset` is added to the scores of each."""

    def slope(self, x: Floats, y: Labels, offset: Floats) -> Slope:
        """Return the gradient on samples as a function of the parameters, for a model to be asked at many."""
        return partial(self.gradient, x=x, y=y, offset=offset)

    @abstractmethod
    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return the score of each class, (n, classes): the highest is what the model says."""

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Return how far the training of one client goes from `start`."""
        at, (x, y) = np.asarray(start, np.float64), work.samples
        return trainer.train(self, at, x, y, work.classes, how, work.seed)

    def fit_together(self, start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
        """Return the same for many clients in one pass, or None where one after the other is as good."""
        return None

    def trained(self, parameters: Floats) -> Any:
        """Return the model with these parameters, as its user wants to have it: here, the parameters."""
        return parameters

    def save(self, parameters: Floats, directory: Path) -> None:  # noqa: B027  parameters are in the checkpoint
        """Write the trained model to a directory, in a format that others read."""

    def evaluate(self, parameters: Floats, x: Floats, y: Labels) -> dict[str, float]:
        """Return what is told of the model: accuracy and mean loss of classes."""
        return losses.metrics(self.target, losses.total(self.target, self.scores(parameters, x), y))


class Softmax(Model):
    """Softmax regression: scores x W + b; the parameters are W, (features, classes), then b."""

    def __init__(self, features: int, classes: int) -> None:
        self.features, self.classes = features, classes

    @cached_property
    def dim(self) -> int:
        """Return (features + 1) classes."""
        return (self.features + 1) * self.classes

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return x^T r and the sum of r, for the residuals r."""
        return self.slope(x, y, offset)(parameters)

    def slope(self, x: Floats, y: Labels, offset: Floats) -> Slope:
        """Prepare what all steps on these samples share: inputs with a 1 for b at the end, and the indicator of y."""
        inputs = np.ones((y.size, self.features + 1))
        inputs[:, :-1] = x
        back = inputs.T / y.size
        indicator = np.zeros((y.size, self.classes))
        indicator[np.arange(y.size), y] = 1.0

        def at(parameters: Floats) -> Floats:
            r = softmax(inputs @ parameters.reshape(-1, self.classes) + offset)
            r -= indicator
            slope: Floats = (back @ r).ravel()
            return slope

        return at

    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return x W + b, multiplied in the precision of x: so many inputs are not copied to be tested with."""
        weights = parameters[: -self.classes].reshape(self.features, self.classes)
        exact = weights.astype(x.dtype, copy=False) if x.dtype == np.float32 else weights
        scores: Floats = x @ exact + parameters[-self.classes :]
        return scores


class Linear(Model):
    """Linear regression: a number x w + b, by least squares; the parameters are w, then b."""

    target: Target = "regression"

    def __init__(self, features: int) -> None:
        self.features = features

    @cached_property
    def dim(self) -> int:
        """Return features + 1."""
        return self.features + 1

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean squared error."""
        r = errors(self.scores(parameters, x), y)
        return np.append((x.T @ r).ravel(), r.sum())

    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return x w + b, (n, 1)."""
        scores: Floats = (x @ parameters[:-1] + parameters[-1])[:, None]
        return scores


class Mlp(Model):
    """A hidden layer of rectified units under a softmax: two affine maps, one after the other in the parameters.

    In a regression there is one output, and no softmax.
    """

    def __init__(self, features: int, classes: int, hidden: int = 32, target: Target = "classification") -> None:
        if hidden < 1:
            raise InputError(f"a hidden layer has a unit or more, not {hidden}")
        self.features, self.classes, self.hidden, self.target = features, classes, hidden, target
        self._top = Softmax(hidden, classes)

    @cached_property
    def dim(self) -> int:
        """Return the parameters of both layers."""
        return (self.features + 1) * self.hidden + self._top.dim

    def initial(self, rng: np.random.Generator) -> Floats:
        """Draw the hidden layer's weights with variance 2 / features (He et al., 2015), the top's with 1 / hidden."""
        drawn = np.zeros(self.dim)
        below, above = self.features * self.hidden, self.hidden * self.classes
        drawn[:below] = rng.normal(0, np.sqrt(2 / self.features), below)
        drawn[-self._top.dim : -self.classes] = rng.normal(0, np.sqrt(1 / self.hidden), above)
        return drawn

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Go back through both layers."""
        top, h = parameters[-self._top.dim :], self._units(parameters, x)
        scores = self._top.scores(top, h)
        r = errors(scores, y) if self.target == "regression" else residuals(scores + offset, y)
        weights = top[: -self.classes].reshape(self.hidden, self.classes)
        back = (r @ weights.T) * (h > 0)
        return np.concatenate([(x.T @ back).ravel(), back.sum(axis=0), (h.T @ r).ravel(), r.sum(axis=0)])

    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return the scores of the top layer."""
        return self._top.scores(parameters[-self._top.dim :], self._units(parameters, x))

    def _units(self, parameters: Floats, x: Floats) -> Floats:
        """Return the outputs of the hidden layer."""
        below = self.features * self.hidden
        weights, bias = parameters[:below].reshape(self.features, self.hidden), parameters[below : below + self.hidden]
        return np.maximum(x @ weights + bias, 0.0)


def softmax(scores: Floats) -> Floats:
    """Return the probabilities of the classes, row by row."""
    # ufuncs as they are: on the few samples of a client most of the time goes into calls
    shares: Floats = scores - np.maximum.reduce(scores, axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= np.add.reduce(shares, axis=1, keepdims=True)
    return shares


def residuals(scores: Floats, y: Labels) -> Floats:
    """Return the gradient of the mean cross entropy in the scores: (probability - indicator) / n."""
    differences = softmax(scores)
    differences[np.arange(y.size), y] -= 1.0
    differences /= y.size
    return differences


def errors(scores: Floats, y: Labels) -> Floats:
    """Return the gradient of the mean squared error in the scores, (n, 1)."""
    return 2 * (scores - y[:, None]) / y.size
