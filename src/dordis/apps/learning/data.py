"""Data sets: inputs with their targets and the keys of their clients; checks of arrays; and public feature maps.

A feature map is applied to inputs before training at no cost in privacy: it is a fixed function of one input, which may
use synthetic images, and does not depend on clients' data.  `scattering` is for images.  A map of your own is named
`package.module:function`; it takes inputs in their original shape.
"""

import hashlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dordis.apps.tables.encoding import Encoder
from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.loading import load_object

Values = npt.NDArray[Any]
"""Inputs: numbers of any kind, or tokens."""
Labels = npt.NDArray[Any]
"""Targets: classes, numbers, or next tokens."""
Samples = tuple[Values, Labels]
Arrays = Mapping[str, Values]
Target = Literal["classification", "regression", "next-token"]

_SCORES = {"classification": "classes", "regression": "number", "next-token": "tokens"}

IGNORED = -100
"""Target of positions without a token to predict; torch's losses ignore it by default."""


@dataclass(frozen=True)
class Unit:
    """Noun for one client of the data, such as "hospital", and the source of clients' names, "the column hospital"."""

    name: str = "key"
    origin: str = "the array keys"

    def format_count(self, count: int) -> str:
        """Return a count with the noun.

        >>> Unit("city").format_count(3), Unit("hospital").format_count(1)
        ('3 cities', '1 hospital')
        """
        vowel = self.name[-2:-1] in "aeiou"
        many = f"{self.name[:-1]}ies" if self.name.endswith("y") and not vowel else f"{self.name}s"
        return f"{count:,} {self.name if count == 1 else many}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training inputs, as stored rows (n, features), with their targets; and the same for testing, if there are any.

    `keys` names the owner of each training input, such as its writer, if it is known; the data of one key are the unit
    of privacy, unless the configuration says otherwise.  `test_keys` names the owners of the test inputs.  `shape` is
    the shape of one input before it became a row.  Inputs are divided by `scale` when they are used.
    """

    x_train: Values = field(repr=False)
    y_train: Labels = field(repr=False)
    x_test: Values | None = field(default=None, repr=False)
    y_test: Labels | None = field(default=None, repr=False)
    keys: Values | None = field(default=None, repr=False)
    shape: tuple[int, ...] = ()
    outputs: int = 0
    """Number of classes, tokens or numbers to predict; 0 means the largest training label plus one, or one number."""
    scale: float = 1.0
    target: Target = "classification"
    tokens: int = 0
    """Size of the vocabulary; 0 if inputs are numbers."""
    unit: Unit = field(default_factory=Unit)
    test_keys: Values | None = field(default=None, repr=False)
    encoder: Encoder | None = field(default=None, repr=False)
    """Encoder by which rows of a table became inputs and targets; None for other data."""
    records: Values | None = field(default=None, repr=False)
    """The record id of each training input; None if each input is a record."""

    @property
    def features(self) -> int:
        """Return the length of an input as a row."""
        return int(self.x_train.shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return self.shape or (self.features,)

    @cached_property
    def classes(self) -> int:
        """Return the number of scores that a model returns for an input."""
        if self.target == "regression":
            return self.outputs or 1
        return self.outputs or int(self.y_train.max()) + 1

    @cached_property
    def key_counts(self) -> tuple[Values, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the distinct keys, the index of each input's key, and the number of inputs of each key."""
        if self.keys is None:
            raise InputError("the data do not name their clients: give the array keys, or set the column client")
        keys, number, counts = np.unique(self.keys, return_inverse=True, return_counts=True)
        return keys, number.reshape(-1), counts

    def train(self, rows: Any = slice(None)) -> Samples:
        """Return inputs and targets to train on, ready for a model."""
        return self.as_inputs(self.x_train[rows]), self.y_train[rows]

    @property
    def test(self) -> Samples | None:
        """Return inputs and targets to test with, ready for a model."""
        return None if self.x_test is None or self.y_test is None else (self.as_inputs(self.x_test), self.y_test)

    def as_inputs(self, x: Values) -> Values:
        """Return stored inputs as a model takes them: tokens unchanged, numbers as floats divided by `scale`."""
        if self.tokens:
            return x
        if x.dtype.kind == "f":
            return x if self.scale == 1 else x / x.dtype.type(self.scale)
        return x.astype(np.float32) / np.float32(self.scale)

    def centre_inputs(self) -> "Dataset":
        """Return the data set with every input minus its own mean; no other input is used, so this costs no privacy."""
        x, test = (part - part.mean(axis=1, keepdims=True) for part in (self.x_train, self.x_test))  # type: ignore[union-attr]
        return replace(self, x_train=x, x_test=test)

    def describe(self) -> dict[str, str]:
        """Return shapes, counts and clients of the data as text."""
        rows = {
            "inputs": f"{len(self.x_train):,} to train on, {0 if self.x_test is None else len(self.x_test):,} to test",
            "shape of an input": f"{' x '.join(map(str, self.input_shape))}, {self.x_train.dtype}",
            "target": f"{self.target}, {self.classes:,} {_SCORES[self.target]}",
        }
        if self.keys is None:
            return rows | {"whose": "the data do not say"}
        _, _, counts = self.key_counts
        each = f"{int(counts.min()):,} to {int(counts.max()):,} inputs each, {counts.mean():.1f} on average"
        return rows | {"whose": f"{self.unit.format_count(counts.size)}, from {self.unit.origin}; {each}"}


def check_dataset(data: Dataset) -> Dataset:
    """Return the data set; raise InputError if inputs, targets, keys and shape do not fit each other."""
    if data.x_test is not None and data.x_train.shape[1] != data.x_test.shape[1]:
        here, there = data.x_train.shape[1], data.x_test.shape[1]
        raise InputError(f"training inputs have {here} features, test inputs {there}: both must have the same number")
    if data.shape and math.prod(data.shape) != data.features:
        raise InputError(f"inputs have {data.features} numbers, which are not {' x '.join(map(str, data.shape))}")
    if data.keys is not None and data.keys.shape != (len(data.y_train),):
        raise InputError(f"there are {len(data.y_train)} inputs to train on, and keys of shape {data.keys.shape}")
    if data.test_keys is not None and (data.y_test is None or data.test_keys.shape != (len(data.y_test),)):
        raise InputError(f"test_keys of shape {data.test_keys.shape} are not one for each input to test with")
    if data.target == "classification":
        check_classes(data)
    return data


def check_classes(data: Dataset) -> None:
    """Raise if a label is not below the number of classes."""
    largest, size = int(data.y_train.max()), data.y_train.size
    if not data.outputs and largest >= size:  # more classes than samples are a mistake
        raise InputError(f"y_train has labels up to {largest} and only {size} inputs: labels must be 0, 1, 2, ..")
    if data.outputs and largest >= data.outputs:
        raise InputError(f"y_train has labels up to {largest}, and there are {data.outputs} classes")
    if data.y_test is not None and data.y_test.max() >= data.classes:
        raise InputError(f"y_test has labels up to {data.y_test.max()}, y_train up to {data.classes - 1} only")


def check_inputs(name: str, x: Values) -> Values:
    """Return inputs as bytes or floating-point numbers; raise if they are not finite numbers."""
    if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold numbers, one row or image for each input, not {x.dtype} {x.shape}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InputError(f"{name} holds values that are not finite")
    return x if x.dtype in (np.uint8, np.float32) else x.astype(np.float64)


def flatten(x: Values) -> Values:
    """Return inputs of any shape as rows, one for each input."""
    return x.reshape(len(x), -1)


def check_labels(name: str, y: Values, inputs: int) -> Labels:
    """Return labels as whole numbers, True and False as 1 and 0; raise if they are not whole numbers from 0 on."""
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    if y.shape != (inputs,) or y.dtype.kind not in "iu":
        raise InputError(f"{name} must hold {inputs} whole numbers, one for each input, not {y.dtype} {y.shape}")
    if y.size and y.min() < 0:
        raise InputError(f"{name} has the label {y.min()}: labels must be 0, 1, 2, ..")
    return y.astype(np.int64)


def check_targets(name: str, y: Values, inputs: int, target: Target) -> Labels:
    """Return targets as an array; raise if they do not fit the kind of target or the number of inputs."""
    if target == "classification":
        return check_labels(name, y, inputs)
    if y.ndim not in (1, 2) or len(y) != inputs or y.dtype.kind not in "fiu" or not np.isfinite(y).all():
        raise InputError(f"{name} must hold {inputs} finite numbers, one for each input, not {y.dtype} {y.shape}")
    return y.astype(np.float64)


FeatureMap = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Maps inputs (count, ...) to rows of features (count, features)."""

MAPS = {"scattering": "dordis.apps.learning.scattering:scatter_images"}
"""Built-in feature maps, imported on first use."""
VERSION = b"dordis features 1"
"""Part of the names of cached files; change it when a map computes other features, so that old files are not used."""
WORTH_KEEPING = 5000
"""Least number of inputs whose features are cached."""


def with_features(data: Dataset, name: str, folder: Path) -> Dataset:
    """Return the data set with the features `name` in place of inputs; for many inputs they are cached in `folder`."""
    if data.tokens:
        raise InputError("feature maps take numbers, but these inputs are tokens: leave features out")
    train = _cached_features(data, data.x_train, name, folder)
    test = None if data.x_test is None else _cached_features(data, data.x_test, name, folder)
    return replace(data, x_train=train, x_test=test, shape=(), scale=1.0)


def _cached_features(data: Dataset, inputs: Values, name: str, folder: Path) -> Values:
    if name not in MAPS or len(inputs) < WORTH_KEEPING:
        return _compute_features(data, inputs, name)
    stamp = f"{name} {data.input_shape} {data.scale} {inputs.dtype} {inputs.shape}".encode()
    digest = hashlib.sha256(VERSION + stamp + np.ascontiguousarray(inputs).tobytes()).hexdigest()
    path = folder / "features" / f"{digest}.npy"
    if path.is_file():
        features: Values = np.load(path, allow_pickle=False)
        return features
    features = _compute_features(data, inputs, name)
    archive = io.BytesIO()
    np.save(archive, features, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, archive.getvalue())
    return features


def _compute_features(data: Dataset, inputs: Values, name: str) -> Values:
    shaped = data.as_inputs(inputs).reshape(len(inputs), *data.input_shape)
    features = np.asarray(_find_map(name)(shaped))
    if features.ndim != 2 or len(features) != len(inputs) or not np.isfinite(features).all():
        raise InputError(
            f"the features '{name}' give {features.dtype} {features.shape} for {len(inputs)} inputs: one row of "
            "finite numbers is needed for each input"
        )
    return features


def _find_map(name: str) -> FeatureMap:
    if name not in MAPS and ":" not in name:
        raise InputError(f"there are no features '{name}': pass one of {', '.join(MAPS)}, or package.module:function")
    given: FeatureMap = load_object(MAPS.get(name, name), "the features", Callable)  # type: ignore[arg-type]
    return given
