"""Models whose parameters are one flat vector: softmax regression, linear regression, and a network with one hidden
layer; and losses and metrics for each kind of target.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dordis.apps.learning import trainer
from dordis.apps.learning.partitioned_data import IGNORED, Labels, Samples, Target
from dordis.apps.learning.trainer import Training
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError
from dordis.privacy.scaling import Floats
from dordis.rounds.model import Numbers

Slope = Callable[[Floats], Floats]
"""A function from the parameters to the gradient of the mean loss on fixed samples."""


@dataclass(frozen=True, eq=False)
class Work:
    """What one client trains on in a round: its samples, the number of classes, and the seed of the samples' order."""

    samples: Samples = field(repr=False)
    classes: int
    seed: tuple[int, ...]


class Model(ABC):
    """A model whose methods take the parameters as one vector.  Your own class defines `dim`, `gradient`, `scores`."""

    target: Target = "classification"

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the number of parameters."""

    def initial(self, rng: np.random.Generator) -> Floats:
        """Return the initial parameters; zeros by default."""
        return np.zeros(self.dim)

    @abstractmethod
    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean loss on samples; `offset` is added to the class scores of each input."""

    def slope(self, x: Floats, y: Labels, offset: Floats) -> Slope:
        """Return the gradient of the mean loss on these samples (see `gradient`), as a function of the parameters."""
        return partial(self.gradient, x=x, y=y, offset=offset)

    @abstractmethod
    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return the scores of n inputs, of the shape (n, classes); the prediction is the class with the highest."""

    def fit(self, start: Numbers, work: Work, how: Training) -> Floats:
        """Return the update of one client that trains from `start`: the parameters after training minus `start`."""
        at, (x, y) = np.asarray(start, np.float64), work.samples
        return trainer.train(self, at, x, y, work.classes, how, work.seed)

    def fit_together(self, start: Numbers, works: Sequence[Work], how: Training) -> list[Floats] | None:
        """Return the updates of many clients, trained together to save time; None if `fit` should train each alone."""
        return None

    def trained(self, parameters: Floats) -> Any:
        """Return the trained model as the result of a run; by default, the parameters."""
        return parameters

    def save(self, parameters: Floats, directory: Path) -> None:  # noqa: B027  parameters are in the checkpoint
        """Write the trained model to a directory in a format that other programs read; nothing by default."""

    def evaluate(self, parameters: Floats, x: Floats, y: Labels) -> dict[str, float]:
        """Return the metrics of the model on samples."""
        return metrics(self.target, total(self.target, self.scores(parameters, x), y))


class Softmax(Model):
    """Softmax regression: scores x W + b; the parameters are W, of the shape (features, classes), followed by b."""

    def __init__(self, features: int, classes: int) -> None:
        self.features, self.classes = features, classes

    @cached_property
    def dim(self) -> int:
        """Return the number of parameters, (features + 1) * classes."""
        return (self.features + 1) * self.classes

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean cross entropy: x^T r for the weights, and the sum of the rows of r for b.

        r is (probabilities - one-hot labels) / (number of samples), where `offset` was added to the scores.
        """
        return self.slope(x, y, offset)(parameters)

    def slope(self, x: Floats, y: Labels, offset: Floats) -> Slope:
        """Return a function from the parameters to the `gradient` on these samples, which is fast in repeated calls."""
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
        """Return x W + b; the product is computed in the precision of x, so that large test data are not copied."""
        weights = parameters[: -self.classes].reshape(self.features, self.classes)
        exact = weights.astype(x.dtype, copy=False) if x.dtype == np.float32 else weights
        scores: Floats = x @ exact + parameters[-self.classes :]
        return scores


class Linear(Model):
    """Linear regression x W + b by least squares; the parameters are W, (features, outputs), followed by b."""

    target: Target = "regression"

    def __init__(self, features: int, outputs: int = 1) -> None:
        self.features, self.outputs = features, outputs

    @cached_property
    def dim(self) -> int:
        """Return the number of parameters, (features + 1) * outputs."""
        return (self.features + 1) * self.outputs

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient of the mean squared error; `offset`, made for scores of classes, is ignored."""
        r = errors(self.scores(parameters, x), y)
        return np.append((x.T @ r).ravel(), r.sum(axis=0))

    def scores(self, parameters: Floats, x: Floats) -> Floats:
        """Return x W + b, of the shape (n, outputs)."""
        weights = parameters[: -self.outputs].reshape(self.features, self.outputs)
        scores: Floats = x @ weights + parameters[-self.outputs :]
        return scores


class Mlp(Model):
    """A network with one hidden layer of rectified units, and a top layer with softmax (without it for a regression).

    The parameters are weights and biases of the hidden layer, then of the top layer.
    """

    def __init__(self, features: int, classes: int, hidden: int = 32, target: Target = "classification") -> None:
        if hidden < 1:
            raise InputError(f"a hidden layer has a unit or more, not {hidden}")
        self.features, self.classes, self.hidden, self.target = features, classes, hidden, target
        self._top = Softmax(hidden, classes)

    @cached_property
    def dim(self) -> int:
        """Return the number of parameters of the hidden and the top layer."""
        return (self.features + 1) * self.hidden + self._top.dim

    def initial(self, rng: np.random.Generator) -> Floats:
        """Draw weights of variance 2 / features (hidden; He et al., 2015) and 1 / hidden (top layer); biases are 0."""
        drawn = np.zeros(self.dim)
        below, above = self.features * self.hidden, self.hidden * self.classes
        drawn[:below] = rng.normal(0, np.sqrt(2 / self.features), below)
        drawn[-self._top.dim : -self.classes] = rng.normal(0, np.sqrt(1 / self.hidden), above)
        return drawn

    def gradient(self, parameters: Floats, x: Floats, y: Labels, offset: Floats) -> Floats:
        """Return the gradient by back-propagation through both layers."""
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
    """Return the class probabilities of each row of scores."""
    # np.maximum.reduce instead of scores.max: with few samples, most of the time is the overhead of calls
    shares: Floats = scores - np.maximum.reduce(scores, axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= np.add.reduce(shares, axis=1, keepdims=True)
    return shares


def residuals(scores: Floats, y: Labels) -> Floats:
    """Return the gradient of the mean cross entropy by the scores: (probability - one-hot label) / samples."""
    differences = softmax(scores)
    differences[np.arange(y.size), y] -= 1.0
    differences /= y.size
    return differences


def errors(scores: Floats, y: Labels) -> Floats:
    """Return the gradient of the mean squared error with respect to the scores, which have the shape (n, outputs)."""
    return 2 * (scores - y.reshape(len(y), -1)) / len(y)


class Totals(NamedTuple):
    """Sum of losses, number of right predictions, and number of all predictions, of samples or of their tokens."""

    loss: float
    right: float
    number: float


def metrics(target: Target, totals: Totals) -> dict[str, float]:
    """Return by name the mean loss and, for the kind of target, accuracy, root mean squared error or perplexity.

    >>> metrics("next-token", Totals(2 * math.log(8.0), 1, 2))["perplexity"]
    8.0
    """
    loss, accuracy = totals.loss / max(totals.number, 1), totals.right / max(totals.number, 1)
    match target:
        case "regression":
            return {"rmse": math.sqrt(loss), "loss": loss}
        case "next-token":
            return {"perplexity": round(math.exp(min(loss, 700.0)), 9), "accuracy": accuracy, "loss": loss}
    return {"accuracy": accuracy, "loss": loss}


def total(target: Target, scores: Floats, y: Labels) -> Totals:
    """Return the totals of n samples from scores (n, classes) or, in a regression, (n, outputs); there `right` is 0."""
    if target == "regression":
        return Totals(float(((scores.reshape(y.shape) - y) ** 2).sum()), 0.0, y.size)
    shares = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shares).sum(axis=1)) - shares[np.arange(y.size), y]
    return Totals(float(losses.sum()), float((scores.argmax(axis=1) == y).sum()), y.size)


def table_metrics(encoder: Encoder, scores: Floats, y: Labels) -> dict[str, float]:
    """Return the metrics of scores for rows of a table; in a regression, `rmse` is in the units of the labels."""
    if encoder.table.target == "classification":
        return metrics("classification", total("classification", scores, y)) | class_metrics(scores, y)
    scaled, true = scores.reshape(len(y), -1), y.reshape(len(y), -1)
    lows, highs = encoder.label_ranges()
    errors = (scaled - true) * (highs - lows) / 2
    spread = ((true - true.mean(axis=0)) ** 2).sum(axis=0)
    explained = 1 - ((scaled - true) ** 2).sum(axis=0) / np.where(spread > 0, spread, 1.0)
    found = {"rmse": math.sqrt(float((errors**2).mean())), "r2": float(explained.mean())}
    if len(lows) > 1:
        each = zip(encoder.table.labels, errors.T, explained, strict=True)
        for name, error, share in each:
            found |= {f"rmse_{name}": math.sqrt(float((error**2).mean())), f"r2_{name}": float(share)}
    return found | {"loss": float(((scaled - true) ** 2).sum(axis=1).mean())}


def class_metrics(scores: Floats, y: Labels) -> dict[str, float]:
    """Return balanced accuracy, macro F1 and mean one-against-rest AUC by name, over the classes that occur in `y`.

    >>> class_metrics(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), np.array([0, 1, 0]))["auc"]
    0.5
    """
    said, recalls, f1s, aucs = scores.argmax(axis=1), [], [], []
    for label in np.unique(y):
        own, called = y == label, said == label
        hits = np.count_nonzero(own & called)
        recalls.append(hits / np.count_nonzero(own))
        f1s.append(2 * hits / (np.count_nonzero(own) + np.count_nonzero(called)))
        if not own.all():
            lead = scores[:, label] - np.delete(scores, label, axis=1).max(axis=1)
            aucs.append(_auc(lead, own))
    found = {"balanced_accuracy": float(np.mean(recalls)), "f1": float(np.mean(f1s))}
    return found | ({"auc": float(np.mean(aucs))} if aucs else {})


def _auc(scores: Floats, positive: Labels) -> float:
    """Return the share of pairs of a positive and a negative sample in which the positive sample has the higher score;
    ties count half.
    """
    above = np.count_nonzero(positive)
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place][positive].sum()
    return float((ranks - above * (above + 1) / 2) / (above * (positive.size - above)))


def torch_losses(target: Target, scores: Any, y: Any, offset: Any) -> tuple[Any, Any]:
    """Return two tensors: the loss of each sample or token, and a mask of the samples or tokens that have a target.

    In a classification, `offset` is added to the scores of each sample; for other targets it has no effect.
    """
    import torch

    if target == "regression":
        losses = (scores.reshape(y.shape) - y) ** 2
        return losses, torch.ones_like(losses)
    if target == "classification":
        losses = torch.nn.functional.cross_entropy(scores + offset, y, reduction="none")
        return losses, torch.ones_like(losses)
    flat = torch.nn.functional.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), y.reshape(-1), ignore_index=IGNORED, reduction="none"
    )
    return flat.reshape(y.shape), (y != IGNORED).to(flat.dtype)
