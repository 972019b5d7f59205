"""Learning with records as the unit of privacy: the gradient of each record, and the client that computes it.

Gradients of numpy models are computed by formulas, gradients of torch modules by `torch.func`.  Records are processed
in *slices*: groups of a constant number of records, whose gradients are computed at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dordis.apps.learning.models import Linear, Mlp, Model, Softmax, softmax, torch_losses
from dordis.apps.learning.partitioned_data import Labels, Samples, Values
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import check_buffers, import_torch, use_threads
from dordis.errors import InputError
from dordis.privacy.encoding import Reals
from dordis.privacy.scaling import Floats
from dordis.rounds.app import RoundInfo
from dordis.rounds.model import Numbers
from dordis.rounds.records import DUMMY, Attempt, Places, RecordClient, is_independent
from dordis.rounds.user_code import contain

MOST_NUMBERS = 2**22
"""Largest number of coordinates of all gradients of a slice (`slice_width`), so that they fit in the cache."""
MOST_WIDTH = 128


def slice_width(dim: int) -> int:
    """Return the number of records whose gradients are computed at once (a slice), for a model of `dim` parameters.

    >>> slice_width(650), slice_width(26_010), slice_width(10_000_000)
    (128, 128, 1)
    """
    return max(1, min(MOST_WIDTH, MOST_NUMBERS // dim))


class RecordGradients(ABC):
    """Base of the classes that compute, for some records at once, the gradient of each single record's loss."""

    @abstractmethod
    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return one row for each record (x[i], y[i]): its gradient.  The next call may overwrite the array."""


def make_record_gradients(model: Model) -> RecordGradients:
    """Return the `RecordGradients` for a model: by formulas, by `torch.func`, or one record after the other."""
    if isinstance(model, TorchModel):
        return TorchGradients(model)
    match model:
        case Softmax():
            return SoftmaxGradients(model)
        case Linear():
            return LinearGradients(model)
        case Mlp():
            return MlpGradients(model)
    return OneByOne(model)


class OneByOne(RecordGradients):
    """Gradients of any numpy model, such as a user's, computed one record after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return the model's gradient on each record by itself."""
        at, offset = np.asarray(parameters, np.float64), np.zeros(1)
        rows = np.empty((len(y), self._model.dim))
        for i in range(len(y)):
            rows[i] = self._model.gradient(at, x[i : i + 1], y[i : i + 1], offset)
        return rows


class SoftmaxGradients(RecordGradients):
    """Gradients of softmax regression: the outer product of (x, 1) and the residual, for each input x."""

    def __init__(self, model: Softmax) -> None:
        self._model = model

    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return (x, 1) r^T for each record, where r are the predicted class probabilities minus the one-hot label."""
        weights = np.asarray(parameters, np.float64).reshape(-1, self._model.classes)
        inputs = with_one(x)
        return outer(inputs, class_residuals(row_products(inputs, weights), y))


class LinearGradients(RecordGradients):
    """Gradients of linear regression: twice the error times (x, 1), for each input x."""

    def __init__(self, model: Linear) -> None:
        self._model = model

    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return 2 (x, 1) (x W + b - y)^T for each record, where W are the weights and b are the biases."""
        inputs = with_one(x)
        weights = np.asarray(parameters, np.float64).reshape(-1, self._model.outputs)
        return outer(inputs, 2 * (row_products(inputs, weights) - y.reshape(len(y), -1)))


class MlpGradients(RecordGradients):
    """Gradients of a network with one hidden layer.

    The gradient of a layer is the outer product of the layer's inputs and of the errors at the layer's outputs.
    """

    def __init__(self, model: Mlp) -> None:
        self._model = model

    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return each record's gradient by back-propagation through both layers."""
        model, flat = self._model, np.asarray(parameters, np.float64)
        ends = (model.features + 1) * model.hidden
        below, above = flat[:ends].reshape(-1, model.hidden), flat[ends:].reshape(-1, model.classes)
        inputs = with_one(x)
        units = np.maximum(row_products(inputs, below), 0.0)
        hidden = with_one(units)
        scores = row_products(hidden, above)
        r = 2 * (scores - y.reshape(len(y), -1)) if model.target == "regression" else class_residuals(scores, y)
        back = row_products(r, np.ascontiguousarray(above[:-1].T)) * (units > 0)
        return np.concatenate([outer(inputs, back), outer(hidden, r)], axis=1)


def with_one(x: Values) -> Floats:
    """Return inputs with a 1 appended to each row, for the bias."""
    inputs = np.ones((len(x), x.shape[1] + 1))
    inputs[:, :-1] = x
    return inputs


def row_products(x: Floats, weights: Floats) -> Floats:
    """Return the matrix product of `x` and `weights`, computed row by row.

    In one product of whole matrices the rounding of a row could depend on the number of rows.
    """
    products: Floats = np.stack([row @ weights for row in x])
    return products


def outer(x: Floats, r: Floats) -> Floats:
    """Return a matrix whose row i is the outer product of row i of `x` and row i of `r`, flattened."""
    products: Floats = (x[:, :, None] * r[:, None, :]).reshape(len(x), -1)
    return products


def class_residuals(scores: Floats, y: Labels) -> Floats:
    """Return, for each row of scores, the class probabilities minus the one-hot label."""
    r = softmax(scores)
    r[np.arange(y.size), y] -= 1.0
    return r


class TorchGradients(RecordGradients):
    """Gradients of a torch module by `vmap` of `grad`: each record is a batch of one, in evaluation mode.

    Every record has its own view of the weights.  With common weights a layer would multiply all records at once, and
    the rounding of such a product depends on a record's position among the others.  Layers that draw random numbers,
    such as dropout, are switched off: the numbers drawn for one record would depend on the other records.
    """

    def __init__(self, model: TorchModel) -> None:
        torch = import_torch()
        check_no_batch_statistics(model._module)
        self._torch, self._model = torch, model
        model._module.eval()
        slopes = torch.func.grad(self._loss)
        self._slopes = torch.func.vmap(slopes, in_dims=(0, 0, 0), randomness="error")
        self._buffer = np.empty((0, model.dim), np.float32)

    def _loss(self, views: dict[str, Any], x: Any, y: Any) -> Any:
        scores = self._model._call(views, x[None])
        each, there = torch_losses(self._model.target, scores, y[None], 0)
        return (each * there).sum() / there.sum().clamp(min=1)

    def rows(self, parameters: Numbers, x: Values, y: Labels) -> Reals:
        """Return one gradient for each record; repeated calls give bitwise equal results (`constant_arithmetic`)."""
        model, torch = self._model, self._torch
        if self._buffer.shape[0] != len(y):
            self._buffer = np.empty((len(y), model.dim), np.float32)
        model._module.eval()
        with constant_arithmetic(torch), torch.no_grad():
            views = model._views(model._parameters(parameters))
            weights = {name: view.expand(len(y), *view.shape) for name, view in views.items()}
            found = self._slopes(weights, model._inputs(x), model._labels(y))
            start = 0
            for name in views:
                part = found[name].reshape(len(y), -1)
                torch.from_numpy(self._buffer[:, start : start + part.shape[1]]).copy_(part)
                start += part.shape[1]
        check_buffers(model._module, model._buffers)
        return self._buffer


@contextmanager
def constant_arithmetic(torch: Any) -> Iterator[None]:
    """Let torch use one thread, deterministic algorithms and full float32 precision inside the block.

    So the same computation on the same records always gives bitwise the same gradients.
    """
    strict, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    try:
        with use_threads(1):
            yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_float32_matmul_precision(precision)


def check_no_batch_statistics(module: Any) -> None:
    """Raise InputError if a torch module has batch normalisation, which mixes the records of a batch.

    A layer that stays in evaluation mode is allowed if it has statistics, because it then uses these instead.
    """
    norms = import_torch().nn.modules.batchnorm._BatchNorm
    module.train()  # a module of your own may keep some of its layers in evaluation mode
    found = [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if isinstance(layer, norms) and (layer.training or layer.running_mean is None)
    ]
    if found:
        raise InputError(
            f"the layer '{found[0]}' normalises over the records of a batch, so that one record's gradient depends on "
            "the others: use group normalisation instead"
        )


ROWS_AT_ONCE = 16
"""Number of rows of one record whose gradients are computed at once, if records have several rows."""


class RecordLearner(RecordClient):
    """A client with records as the unit of privacy: a record is one row or, with `keys`, all rows with the same id.

    A *slice* is the group of records whose gradients are computed at once.
    """

    def __init__(self, model: Model, samples: Samples, keys: Sequence[Any] | None = None) -> None:
        x, y = samples
        if len(x) != len(y) or (keys is not None and len(keys) != len(y)):
            raise InputError(f"{len(x)} inputs need as many labels and record keys: there are {len(y)} labels")
        self._model, self._gradients = model, make_record_gradients(model)
        self._rows = rows_of_records(len(y), keys)
        several = any(rows.size > 1 for rows in self._rows)
        self._width = ROWS_AT_ONCE if several else slice_width(model.dim)
        # Dummy records of a slice use row 0: its gradient is computed and discarded.
        self._x = np.concatenate([np.zeros((1, *x.shape[1:]), x.dtype), x])
        self._y = np.concatenate([np.zeros((1, *y.shape[1:]), y.dtype), y])
        self._several = several
        self.described: Mapping[str, str] = {}

    def describe_data(self) -> Mapping[str, str]:
        """Return a summary of the client's data by topic: numbers of rows and records, and facts about its own file."""
        rows = {"rows": f"{len(self._y) - 1:,} used"}
        return rows | dict(self.described) | {"records": f"{self.records:,}"}

    @property
    def records(self) -> int:
        """Return the number of records of the client."""
        return len(self._rows)

    @property
    def width(self) -> int:
        """Return the number of records in a slice: one, if records have several rows."""
        return 1 if self._several else self._width

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Raise InputError: with records as the unit of privacy only gradients of records are summed."""
        raise InputError("this client computes gradients of records and no update: use records as the unit of privacy")

    def begin(self, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> None:
        """At the first call, test whether the rounding of a gradient depends on the other records of a slice.

        If it does, or if a slice cannot be computed, the client computes the gradient of one record, or of one row of a
        record, at a time from now on.
        """

        def test(work: Callable[[], Reals]) -> Reals | None:
            return contain("the test of a slice of records", work, lambda text: None)

        if not self._tested and not is_independent(self, round, model, dim, test):
            self._width = 1
        self._tested = True

    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return the negative gradient of each record's loss, so that the server has to add the mean to the model."""
        if self._several:
            return self._mean_gradient(model, int(places[0]))
        rows = np.array([0 if place == DUMMY else self._rows[place][0] + 1 for place in places])
        descents = self._gradients.rows(model, self._x[rows], self._y[rows])
        return np.negative(descents, out=descents)

    def _mean_gradient(self, model: Numbers, record: int) -> Reals:
        """Return the negative mean of the gradients of one record's rows; zeros for a dummy.

        The rows are processed in groups of constant size, without rows of other records.
        """
        rows = np.zeros(0, np.int64) if record == DUMMY else self._rows[record] + 1
        total = np.zeros((1, self._model.dim))
        for start in range(0, rows.size, self._width):
            part = rows[start : start + self._width]
            padded = np.concatenate([part, np.zeros(self._width - part.size, np.int64)])
            found = self._gradients.rows(model, self._x[padded], self._y[padded])
            total += np.asarray(found[: part.size], np.float64).sum(axis=0)
        return -total / max(1, rows.size)


def rows_of_records(rows: int, keys: Sequence[Any] | None) -> list[Places]:
    """Return the row indices of each record; the records are in the order of their first rows.

    If `keys` is None, each row is a record.

    >>> [rows.tolist() for rows in rows_of_records(4, ["b", "a", "b", "c"])]
    [[0, 2], [1], [3]]
    """
    if keys is None:
        return [np.array([row]) for row in range(rows)]
    check_keys(keys)
    found: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return [np.array(places) for places in found.values()]


def check_keys(keys: Sequence[Any]) -> None:
    """Raise InputError if a key, the record id of a row, is missing."""
    for row, key in enumerate(keys):
        if key is None or key == "" or key != key:  # NaN is not equal to itself
            raise InputError(f"row {row + 1} has no record id: give every row one, or leave the row out")
