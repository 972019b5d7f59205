"""Construct what server and clients of federated learning share: model, data and settings.

They come from a configuration, or from Python objects: a model, and the clients' data as a table, a list or a mapping.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning.models import Model
from dordis.apps.learning.networks import Inputs, check_fits, make_model
from dordis.apps.learning.partitioned_data import (
    Dataset,
    Samples,
    Target,
    Unit,
    Values,
    check_inputs,
    check_targets,
    default_partition,
    flatten,
    remove_clients,
)
from dordis.apps.learning.settings import Settings, table_defaults, weigh_classes, with_default_rate
from dordis.apps.learning.sources import DIGITS, cache, load, read_tables
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import as_array, first_line
from dordis.apps.tables.columns import as_columns
from dordis.apps.tables.description import Table
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError
from dordis.rounds.app import Task


class Use(IntEnum):
    """The purposes for which random numbers are drawn from the task's seed; each purpose has its own stream."""

    INITIAL, PARTITION, TRAINING = range(3)


@dataclass(frozen=True, eq=False)
class LearningTask:
    """Model, data and settings that the server and all clients of a simulation share."""

    model: Model
    clients: int
    samples: Callable[[int], Samples] = field(repr=False)
    """A function from the zero-based index of a client to the client's inputs and labels."""
    test: Samples | None = field(repr=False)
    """Public test data, if there are any."""
    classes: int
    settings: Settings
    seed: int
    unit: str = ""
    """A text that says what one client, the unit of privacy, is."""
    measured: str = ""
    """A text about the users of the test data; empty if the test data do not say whose they are."""
    encoder: Encoder | None = None
    """Preprocessing, if the data are a table."""
    described: Mapping[str, str] = field(repr=False, default_factory=dict)
    """Summary of the client's own file by topic, for the owner; empty if the clients have no files of their own."""
    keys: Callable[[int], Sequence[Any] | None] = field(repr=False, default=lambda place: None)
    """A function from the zero-based index of a client to its rows' record ids, or to None if each row is a record."""
    has_input_steps: bool = False
    """Whether inputs were scaled, centred or mapped to features, so that the model alone does not take raw inputs."""


def prepare_learning(settings: Settings, task: Task) -> LearningTask:
    """Return the learning task of a configuration: load the data, partition them, and construct the model."""
    if settings.features and settings.table is not None:
        raise InputError("app.options.features maps arrays, not the rows of a table: leave it or app.options.table out")
    if settings.own_files:
        return own_files_task(settings, task)
    data = load(settings, task.folder, task.record)
    centred = settings.data == DIGITS and settings.centred is not False
    has_input_steps = centred or bool(settings.features) or data.scale != 1
    data = data.centre_inputs() if centred else data
    if settings.features:
        from dordis.apps.learning.features import with_features

        data = with_features(data, settings.features, cache())
    if data.encoder is not None:
        settings = table_defaults(settings, task.options.keys(), data.encoder, task, settings.model)
    else:
        settings = with_default_rate(settings, task.options.keys(), settings.model)

    def build(inputs: Inputs) -> Model:
        return make_model(settings.model, inputs, settings.options, task.seed, settings.device)

    return replace(task_from_data(data, settings, task, build), has_input_steps=has_input_steps)


def own_files_task(settings: Settings, task: Task) -> LearningTask:
    """Return the learning task of a deployment in which each client trains on all rows of its own file.

    The server has no file of rows to train on.  The sizes of the model follow from the public description of the table,
    so that no party needs another party's file.
    """
    table, path = settings.table, task.folder / settings.data
    if table is None:
        raise InputError("own_files needs app.options.table: the server has no file to read columns from")
    encoder = Encoder.from_description(table, task.record)
    settings = table_defaults(settings, task.options.keys(), encoder, task, settings.model)
    settings = weigh_classes(settings, encoder, encoder.outputs)
    inputs = Inputs((encoder.width,), encoder.outputs, 0, table.target, task.folder)
    model = make_model(settings.model, inputs, settings.options, task.seed, settings.device)
    own = as_columns(path, str(path)) if path.is_file() else None
    rows = None if own is None else encoder.encode(own, str(path), needs_client=False, needs_record=True)

    def samples(place: int) -> Samples:
        if rows is None:
            raise InputError(f"there is no file {path}: give this client's own file with --data")
        return rows.x, rows.y

    public = None if settings.test is None else task.folder / settings.test
    where = str(public)
    tested = encoder.encode(public, where, needs_client=False, tests=True) if public and public.is_file() else None
    test = None if tested is None else take_first((tested.x, tested.y), settings.tested)
    described = {} if own is None or rows is None else encoder.describe(own, rows)
    unit = f"clients = {Unit(table.client or 'client').format_count(task.population)}, each with its own file"
    return LearningTask(
        model,
        task.population,
        samples,
        test,
        encoder.outputs,
        settings,
        task.seed,
        unit,
        encoder=encoder,
        keys=lambda place: None if rows is None or rows.records is None else rows.records.tolist(),
        described=described,
    )


def task_from_data(data: Dataset, settings: Settings, task: Task, build: Callable[[Inputs], Model]) -> LearningTask:
    """Return the learning task of a data set: partition the samples among the clients, and construct the model.

    `build` constructs the model from the description of its inputs and outputs.
    """
    settings = weigh_classes(settings, data.encoder, data.classes)
    model = build(Inputs(data.input_shape, data.classes, data.tokens, data.target, task.folder))
    check_fits(model, data.train(slice(0, 2)), data.classes)
    partition = settings.partition or default_partition(data)
    parts = partition.split(data, task.population, np.random.default_rng((Use.PARTITION, task.seed)))

    def samples(place: int) -> Samples:
        return data.train(parts[place])

    def keys(place: int) -> Sequence[Any] | None:
        return None if data.records is None else data.records[parts[place]].tolist()

    unit = partition.describe_unit(data, task.population)
    public, measured = remove_clients(data, parts)
    test, classes = take_first(public.test, settings.tested), data.classes
    shared = settings, task.seed, unit, measured, data.encoder
    return LearningTask(model, task.population, samples, test, classes, *shared, keys=keys)


def take_first(test: Samples | None, most: int) -> Samples | None:
    """Return the first `most` samples of the test data; return all samples if `most` is 0."""
    return test if test is None or not most else (test[0][:most], test[1][:most])


LEAST_CLIENTS = 3
"""Least number of clients: with two, each could subtract its update from the sum and see the other's, under noise."""


IGNORED_SETTINGS = {
    "centred", "client", "data_dir", "features", "label", "own_files", "partition", "shape", "vocabulary"
}  # fmt: skip
"""Settings that only apply to data read from files."""
IGNORED_WITH_TABLE = IGNORED_SETTINGS - {"client", "label", "partition"}
"""Settings that do not apply to tables; `Settings` refuses `client` and `label` beside a table."""


def gather(
    model: Any,
    clients: Any,
    test: Any,
    table: Table | None,
    settings: Settings,
    given: Collection[str],
    task: Task,
) -> LearningTask:
    """Return the learning task of a model and the data of clients; raise InputError if they do not fit each other.

    `clients` are the data: one entry for each client, or with `table` the rows of a table.  `given` names the settings
    that the caller set explicitly.  `task` has the seed and the name of the column with record ids; its number of
    clients is ignored, because the number follows from `clients`.
    """
    if table is not None:
        return _gather_table(model, clients, test, table, settings, given, task)
    if task.record:
        raise InputError(f"record='{task.record}' names a column of a table: give table=, or leave it out")
    if is_table(clients) or isinstance(clients, str | Path):
        raise InputError("a table needs a description: table=dordis.Table(label=..., client=..., ranges=..., ...)")
    if unused := sorted(IGNORED_SETTINGS & set(given)):
        raise InputError(f"{unused[0]} has no effect on data that are given in Python as arrays: leave it out")
    target = settings.target
    held = [check_samples(f"client {name}", x, y, target) for name, (x, y) in samples(clients).items()]
    check_clients(len(held))
    tested = None if test is None else check_samples("test", *_test_pair(test), target)
    if isinstance(model, str | Model) or not all(
        x.dtype.kind in "iu" for x, _ in [*held, *([tested] if tested else [])]
    ):
        held = [(as_numbers(x), y) for x, y in held]  # only torch modules take tokens
        tested = tested and (as_numbers(tested[0]), tested[1])
    shapes = {x.shape[1:] for x, _ in [*held, *([tested] if tested else [])]}
    if len(shapes) != 1:
        raise InputError(f"inputs of all clients and of the test data must have one shape, not {sorted(shapes)}")
    (shape,) = shapes
    if isinstance(model, str):  # built-in models take rows
        held = [(flatten(x), y) for x, y in held]
        tested = tested and (flatten(tested[0]), tested[1])
    targets = [y for _, y in [*held, *([tested] if tested else [])]]
    classes = _outputs(targets) if target == "regression" else settings.classes or check_labels_used(targets)
    settings = weigh_classes(with_default_rate(settings, given, model), None, classes)
    whole = as_model(model, Inputs(shape, classes, target=target), settings, task.seed)
    check_fits(whole, (held[0][0][:2], held[0][1][:2]), classes)
    unit = f"clients = {len(held):,}, as they were given"
    tested = take_first(tested, settings.tested)
    return LearningTask(whole, len(held), held.__getitem__, tested, classes, settings, task.seed, unit)


def _gather_table(
    model: Any, rows: Any, test: Any, table: Table, settings: Settings, given: Collection[str], task: Task
) -> LearningTask:
    if not isinstance(table, Table):
        raise InputError(f"table must be a dordis.Table(label=..., ...), not a {type(table).__name__}")
    if unused := sorted(IGNORED_WITH_TABLE & set(given)):
        raise InputError(f"{unused[0]} has no effect on a table that is given in Python: leave it out")
    data = read_tables(rows, test, table, task.record)
    assert data.encoder is not None  # noqa: S101  data of a table have an encoder
    clients = data.key_counts[0].size
    check_clients(clients)
    task = replace(task, population=clients)
    settings = table_defaults(settings, given, data.encoder, task, model)

    def build(inputs: Inputs) -> Model:
        return as_model(model, inputs, settings, task.seed)

    return task_from_data(data, settings, task, build)


def check_clients(count: int) -> None:
    """Raise InputError if `count` clients are too few for a sum to hide the update of one of them."""
    if count < LEAST_CLIENTS:
        raise InputError(f"{count} clients are too few to hide one among the others: give {LEAST_CLIENTS} or more")


def check_labels_used(targets: list[Any]) -> int:
    """Return the number of classes: the largest label plus 1.

    Raise InputError if only one label occurs, or if a whole number from 0 to the largest label never occurs.
    """
    used = np.unique(np.concatenate([y.ravel() for y in targets]))
    if used.size < 2:
        raise InputError("all labels are the same class: there is nothing to learn; pass classes= if there are more")
    classes = int(used[-1]) + 1
    if missing := sorted(set(range(classes)) - set(used.tolist())):
        raise InputError(
            f"labels must be 0, 1, 2, .., but {', '.join(map(str, missing[:5]))} never occur: number the classes "
            f"without gaps, or pass classes={classes} if they exist elsewhere"
        )
    return classes


def _outputs(targets: list[Any]) -> int:
    widths = {1 if y.ndim == 1 else int(y.shape[1]) for y in targets}
    if len(widths) != 1:
        raise InputError(f"targets of all clients must have the same number of columns, not {sorted(widths)}")
    return widths.pop()


def as_model(model: Any, inputs: Inputs, settings: Settings, seed: int) -> Model:
    """Return a `Model`: `model` itself if it is one, a new one for a name, a wrapped copy of a torch module."""
    if isinstance(model, str):
        return make_model(model, inputs, settings.options, seed, settings.device)
    if isinstance(model, Model):
        return model
    try:
        own = copy.deepcopy(model)  # the caller's module keeps its device, and its mode of training or evaluation
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the model cannot be copied by copy.deepcopy: {first_line(error)}") from None
    return TorchModel(own, inputs.target, settings.device)


def samples(clients: Any) -> dict[str, tuple[Any, Any]]:
    """Return pairs of inputs and labels by client name.

    `clients` is a list, or a mapping by name, of pairs (x, y), torch data sets or data loaders.
    """
    if not isinstance(clients, Iterable) or isinstance(clients, str | bytes) or hasattr(clients, "dataset"):
        raise InputError(
            "the data must be a list or a mapping with an entry for each client, such as a pair (x, y) or a data "
            f"loader, or a table, not {type(clients).__name__}"
        )
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    return {str(name): _pair(f"client {name}", held) for name, held in named.items()}


def _pair(whose: str, held: Any) -> tuple[Any, Any]:
    """Return inputs and labels from a pair of arrays, or from a list, a torch data set or a data loader of pairs."""
    if isinstance(held, tuple | list) and len(held) == 2 and not _is_list_of_samples(held):
        return held[0], held[1]
    items: list[Any] = []
    is_loader = hasattr(held, "dataset") and hasattr(held, "__iter__")
    if is_loader:
        items = list(held)
    elif hasattr(held, "__getitem__") and hasattr(held, "__len__") and not isinstance(held, np.ndarray | tuple):
        items = [held[i] for i in range(len(held))]
    if not items or not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise InputError(
            f"the data of {whose} must be a pair (x, y) of inputs and labels, or a torch data set or loader of pairs"
        )
    x, y = ([as_array(f"the data of {whose}", one) for one in column] for column in zip(*items, strict=True))
    try:
        return (np.concatenate(x), np.concatenate(y)) if is_loader else (np.stack(x), np.stack(y))
    except ValueError as error:
        raise InputError(f"the samples of {whose} do not have one shape: {error}") from None


def _is_list_of_samples(held: Any) -> bool:
    """Tell whether the entries of a list are samples (x, label), and not the inputs and the labels of all samples."""
    return all(isinstance(item, tuple) and len(item) == 2 and not np.ndim(item[1]) for item in held)


def _test_pair(test: Any) -> tuple[Any, Any]:
    if is_table(test):
        raise InputError("a test table needs the table= of the clients; a list of clients is tested with a pair (x, y)")
    return _pair("test", test)


def is_table(data: Any) -> bool:
    """Tell whether data are a DataFrame, without importing pandas."""
    return hasattr(data, "columns") and hasattr(data, "groupby")


def check_samples(whose: str, x: Any, y: Any, target: Target) -> Samples:
    """Return the inputs and targets of one client, or of the test data, as arrays.

    Raise InputError if inputs and targets do not fit each other or `target`; `whose` names their owner in the error.
    """
    inputs, labels = as_array(f"x of {whose}", x), as_array(f"y of {whose}", y)
    if inputs.ndim and not len(inputs):
        raise InputError(f"{whose} has no samples: leave it out")
    if target == "classification" and labels.dtype.kind == "f":
        raise InputError(
            f"y of {whose} has the type {labels.dtype}: labels of classes are whole numbers; to predict numbers, pass "
            'target="regression"'
        )
    checked = check_inputs(f"x of {whose}", inputs)
    return inputs if inputs.dtype.kind in "iu" else checked, check_targets(f"y of {whose}", labels, len(inputs), target)


def as_numbers(x: Values) -> Values:
    """Return inputs with whole numbers converted to floating-point numbers, except for bytes (uint8)."""
    return x if x.dtype.kind == "f" or x.dtype == np.uint8 else x.astype(np.float64)
