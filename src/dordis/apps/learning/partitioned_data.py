"""Data sets (inputs, targets and *keys*, the owners of samples, such as writers), and partitions among clients.

A partition assigns samples to clients, each sample to at most one client.  By default the samples of one key are one
client, or of a random part if there are no keys; the configuration can set another partition.  The client is the unit
of privacy; the method `describe_unit` of a partition says in reports what one client is.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError

Values = npt.NDArray[Any]
"""Inputs: numbers of any kind, or tokens."""
Labels = npt.NDArray[Any]
"""Targets: classes, numbers, or next tokens."""
Samples = tuple[Values, Labels]
Target = Literal["classification", "regression", "next-token"]

_SCORES = {"classification": "classes", "regression": "number", "next-token": "tokens"}

IGNORED = -100
"""The target at positions of a sequence without a token to predict; torch's losses ignore this target by default."""


@dataclass(frozen=True)
class Unit:
    """What a key in the data means: its noun, such as "hospital", and its origin, such as "the column hospital"."""

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
    """Training inputs and targets, and possibly test inputs and targets; inputs are stored as rows (n, features).

    `keys` names the owner of each training input, such as its writer, or is None if owners are not known.  All data of
    one key are the unit of privacy, unless the configuration says otherwise.  `test_keys` names the owners of the test
    inputs.  `shape` is the shape of one input before it became a row.  `as_inputs` divides inputs by `scale`.
    """

    x_train: Values = field(repr=False)
    y_train: Labels = field(repr=False)
    x_test: Values | None = field(default=None, repr=False)
    y_test: Labels | None = field(default=None, repr=False)
    keys: Values | None = field(default=None, repr=False)
    shape: tuple[int, ...] = ()
    outputs: int = 0
    """Number of classes, tokens or numbers to predict; 0 means the largest training label + 1 (in a regression: 1)."""
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
        """Return the number of values in one input: its length when it is flattened to a row."""
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
        """Return the distinct keys, the index of each training input's key, and the number of inputs of each key."""
        if self.keys is None:
            raise InputError("the data do not name their clients: give the array keys, or set the column client")
        keys, number, counts = np.unique(self.keys, return_inverse=True, return_counts=True)
        return keys, number.reshape(-1), counts

    def train(self, rows: Any = slice(None)) -> Samples:
        """Return training inputs and targets as a model takes them; `rows` selects the inputs, by default all."""
        return self.as_inputs(self.x_train[rows]), self.y_train[rows]

    @property
    def test(self) -> Samples | None:
        """Return test inputs and targets as a model takes them; None if there are none."""
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
        """Return a summary of the data as texts by topic: inputs, shape, targets, owners."""
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
    """Raise InputError if a label is not below the number of classes."""
    largest, size = int(data.y_train.max()), data.y_train.size
    if not data.outputs and largest >= size:  # more classes than samples are a mistake
        raise InputError(f"y_train has labels up to {largest} and only {size} inputs: labels must be 0, 1, 2, ..")
    if data.outputs and largest >= data.outputs:
        raise InputError(f"y_train has labels up to {largest}, and there are {data.outputs} classes")
    if data.y_test is not None and data.y_test.max() >= data.classes:
        raise InputError(f"y_test has labels up to {data.y_test.max()}, y_train up to {data.classes - 1} only")


def check_inputs(name: str, x: Values) -> Values:
    """Return inputs as uint8, float32 or float64; raise InputError unless they are rows or images of finite numbers."""
    if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold numbers, one row or image for each input, not {x.dtype} {x.shape}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InputError(f"{name} holds values that are not finite")
    return x if x.dtype in (np.uint8, np.float32) else x.astype(np.float64)


def flatten(x: Values) -> Values:
    """Return inputs of any shape as rows, one for each input."""
    return x.reshape(len(x), math.prod(x.shape[1:]))


def check_labels(name: str, y: Values, inputs: int) -> Labels:
    """Return class labels as int64, True as 1; raise InputError unless they are `inputs` whole numbers from 0 up."""
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    if y.shape != (inputs,) or y.dtype.kind not in "iu":
        raise InputError(f"{name} must hold {inputs} whole numbers, one for each input, not {y.dtype} {y.shape}")
    if y.size and y.min() < 0:
        raise InputError(f"{name} has the label {y.min()}: labels must be 0, 1, 2, ..")
    return y.astype(np.int64)


def check_targets(name: str, y: Values, inputs: int, target: Target) -> Labels:
    """Return targets as int64 (classification) or float64; raise InputError unless there are `inputs` valid ones."""
    if target == "classification":
        return check_labels(name, y, inputs)
    if y.ndim not in (1, 2) or len(y) != inputs or y.dtype.kind not in "fiu" or not np.isfinite(y).all():
        raise InputError(f"{name} must hold {inputs} finite numbers, one for each input, not {y.dtype} {y.shape}")
    return y.astype(np.float64)


Indices = npt.NDArray[np.int64]
Generator = np.random.Generator


class Iid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="iid"):
    """Divide the samples at random; the numbers of samples of any two clients differ by at most one."""

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        _check_count(data.y_train, clients, 1)
        return np.array_split(rng.permutation(len(data.y_train)), clients)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return a text that says what one client, the unit of privacy, is."""
        return describe_parts(data, clients)


class Lda(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lda"):
    """Give each client its own mix of labels, from a Dirichlet distribution with all parameters `alpha`.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019.  A small alpha gives a client
    few labels, a large alpha all labels.  Clients with fewer than `least` samples get samples of the largest clients.
    """

    alpha: float = 1.0
    least: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise InputError(f"alpha of the Dirichlet distribution is positive and finite, not {self.alpha}")
        if self.least < 0:
            raise InputError(f"a client has 0 samples or more, not {self.least}")

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        _check_count(data.y_train, clients, self.least)
        if data.target != "classification":
            raise InputError(f"mixes of labels are for classification, not for {data.target}: pass another partition")
        mixes = rng.dirichlet(np.full(data.classes, self.alpha), size=clients)
        owner = np.empty(data.y_train.size, np.int64)
        for label, weights in enumerate(mixes.T):
            held = rng.permutation(np.flatnonzero(data.y_train == label))
            owner[held] = _assign_owners(held.size, weights)
        _even_out(owner, clients, self.least, rng)
        return _by_owner(owner, clients)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return a text that says what one client, the unit of privacy, is."""
        return describe_parts(data, clients)


class Natural(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="natural"):
    """Each user in the data, such as a writer, is one client; with `some`, randomly chosen users may be left out."""

    some: bool = False

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        keys, _, _ = data.key_counts
        check_keys(data, clients, 1, self.some)
        return _group_keys(data, clients, 1, rng if keys.size > clients else None)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return a text that says what one client, the unit of privacy, is."""
        return describe_groups(data, clients, 1)


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="merge"):
    """Each client has the data of `keys` keys (3 writers in the paper); `some` permits fewer clients than possible."""

    keys: int = 3
    some: bool = False

    def __post_init__(self) -> None:
        if self.keys < 2:
            raise InputError(f"merge needs two keys or more, not {self.keys}: for one key a client use kind 'natural'")

    def split(self, data: Dataset, clients: int, rng: Generator) -> list[Indices]:
        """Return the indices of each client's samples."""
        check_keys(data, clients, self.keys, self.some)
        return _group_keys(data, clients, self.keys, rng)

    def describe_unit(self, data: Dataset, clients: int) -> str:
        """Return a text that says what one client, the unit of privacy, is."""
        return describe_groups(data, clients, self.keys)


Partition = Iid | Lda | Natural | Merge


def default_partition(data: Dataset) -> Partition:
    """Return the default partition: by key if there are keys, else `Lda` for a classification, else at random."""
    if data.keys is not None:
        return Natural()
    return Lda() if data.target == "classification" else Iid()


def remove_clients(data: Dataset, parts: list[Indices]) -> tuple[Dataset, str]:
    """Return the data set without the test inputs of clients, and a text that describes the remaining test data.

    If all test inputs are of clients, none is removed.  Without `keys` or `test_keys` owners are not known; test data
    then stay as they are, as public data, and the text is empty.  `parts` has the indices of each client's inputs.
    """
    if data.keys is None or data.test_keys is None or data.x_test is None or data.y_test is None:
        return data, ""
    tested, said = select_test_inputs(data.test_keys, data.keys[np.concatenate(parts)], data.unit)
    test = data.x_test[tested], data.y_test[tested], data.test_keys[tested]
    return replace(data, x_test=test[0], y_test=test[1], test_keys=test[2]), said


def select_test_inputs(keys: Values, clients: Values, unit: Unit) -> tuple[npt.NDArray[np.bool_], str]:
    """Return a mask of the test inputs to use, and a text that describes them.

    `keys` has the owner of each test input, `clients` the owners who are clients; `unit` is only for the text.  Inputs
    of clients are used only if there are no others: metrics have no noise, so epsilon does not cover those on clients.
    """
    public = ~np.isin(keys, clients)
    if not public.any():
        said = f"test data = {keys.size:,} inputs of the clients themselves: these metrics are made from clients' data"
        return ~public, f"{said} without noise, and epsilon does not cover them"
    users = unit.format_count(np.unique(keys[public]).size)
    said = f"test data = {np.count_nonzero(public):,} inputs of {users} held out, no clients among them"
    return public, said if public.all() else f"{said}; {np.count_nonzero(~public):,} inputs of clients are left out"


def check_keys(data: Dataset, clients: int, each: int, some: bool) -> None:
    """Raise InputError unless the keys make `clients` clients with `each` keys each, or more clients if `some`."""
    keys, _, _ = data.key_counts
    there = data.unit.format_count(keys.size) + f", from {data.unit.origin}"
    possible = keys.size // each
    if clients > possible:
        raise InputError(f"there are {there}: with {each} for each client that makes {possible} clients, not {clients}")
    if clients < possible and not some:
        raise InputError(
            f"there are {there}, and privacy protects each of them. For {clients} clients some would have to be "
            f"merged or left out. Set federation.clients = {possible}, or allow it in app.options.partition: "
            '{ kind = "merge", keys = .. }, { kind = "natural", some = true }, or { kind = "iid" }'
        )


def describe_groups(data: Dataset, clients: int, each: int) -> str:
    """Return a text that says what a client is (`each` keys, such as writers), and how many keys are left out."""
    keys, _, _ = data.key_counts
    one = data.unit.format_count(clients) if each == 1 else f"{clients:,} groups of {data.unit.format_count(each)}"
    left = keys.size - clients * each
    rest = f"; {data.unit.format_count(left)} left out" if left else ""
    return f"clients = {one}, from {data.unit.origin}{rest}"


def describe_parts(data: Dataset, clients: int) -> str:
    """Return a text that says: clients are random parts of the data, and owners in the data are not protected."""
    parts = f"clients = {clients:,} parts of the data, dealt at random"
    if data.keys is None:
        return f"{parts}: the data do not say whose they are"
    keys, _, _ = data.key_counts
    return f"{parts}, not the {data.unit.format_count(keys.size)} from {data.unit.origin}, which are not protected"


def _check_count(labels: Labels, clients: int, least: int) -> None:
    if clients < 1:
        raise InputError(f"samples are divided among one client or more, not {clients}")
    if len(labels) < clients * least:
        raise InputError(f"{len(labels)} samples are too few for {clients} clients with {least} or more each")


def _assign_owners(count: int, weights: npt.NDArray[np.float64]) -> Indices:
    """Return the client of each of `count` samples; the clients' numbers of samples are proportional to `weights`."""
    total = weights.sum()
    shares = weights / total if total > 0 else np.full(weights.size, 1 / weights.size)  # tiny alphas underflow
    ends = np.rint(np.cumsum(shares) * count).astype(np.int64)
    ends[-1] = count
    return np.repeat(np.arange(weights.size), np.diff(ends, prepend=0))


def _even_out(owner: Indices, clients: int, least: int, rng: Generator) -> None:
    """Move random samples from the largest client to clients with fewer than `least`, one at a time."""
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            owner[rng.choice(np.flatnonzero(owner == rich))] = poor
            sizes[rich], sizes[poor] = sizes[rich] - 1, sizes[poor] + 1


def _group_keys(data: Dataset, clients: int, each: int, rng: Generator | None) -> list[Indices]:
    """Return the indices of each client's samples: all samples of `each` owners, such as writers.

    The keys of the owners are taken in ascending order, or at random if there is an `rng`.  Excess keys are left out.
    """
    keys, number, _ = data.key_counts
    order = np.arange(keys.size) if rng is None else rng.permutation(keys.size)
    owner = np.full(keys.size, clients, np.int64)
    owner[order[: clients * each]] = np.arange(clients * each) // each
    return _by_owner(owner[number], clients + 1)[:clients]


def _by_owner(owner: Indices, clients: int) -> list[Indices]:
    """Return the indices of each client's samples in ascending order; `owner` has the client of each sample."""
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
