"""Learning from objects instead of names: a model, and the data of clients as lists, mappings or a table."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dordis.apps.learning.app import Learning, first
from dordis.apps.learning.data import Samples, Target, Unit, check_inputs, check_targets, flat
from dordis.apps.learning.making import check_fits, make_model
from dordis.apps.learning.models import Model
from dordis.apps.learning.networks import Inputs
from dordis.apps.learning.partition import tested_inputs
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.torch_model import TorchModel
from dordis.errors import InputError


def gather(
    model: Any, clients: Any, test: Any, client: str | None, label: str | None, settings: Settings, seed: int
) -> Learning:
    """Check all of it, or say what is wrong."""
    target = settings.target
    named = samples(clients, client, label)
    held = [checked(f"client {name}", x, y, target) for name, (x, y) in named.items()]
    if not held:
        raise InputError("there are no clients: give the data of three or more")
    test, measured = public_rows(test, client, named)
    tested = None if test is None else checked("test", *test_samples(test, client, label), target)
    shapes = {x.shape[1:] for x, _ in [*held, *([tested] if tested else [])]}
    if len(shapes) != 1:
        raise InputError(f"all clients, and the test data, have inputs of one shape, not of {sorted(shapes)}")
    (shape,) = shapes
    if isinstance(model, str):  # our own models take rows
        held = [(flat(x), y) for x, y in held]
        tested = tested and (flat(tested[0]), tested[1])
    targets = [y for _, y in [*held, *([tested] if tested else [])]]
    classes = 1 if target == "regression" else settings.classes or 1 + max(int(y.max(initial=0)) for y in targets)
    whole = as_model(model, Inputs(shape, classes, target=target), settings, seed)
    check_fits(whole, (held[0][0][:2], held[0][1][:2]), classes)
    unit = f"clients = {len(held):,}, as they were given" if client is None else ""
    unit = unit or f"clients = {Unit(client or '').counted(len(held))}, from the column {client}"
    tested = first(tested, settings.tested)
    return Learning(whole, len(held), held.__getitem__, tested, classes, settings, seed, unit, measured)


def as_model(model: Any, inputs: Inputs, settings: Settings, seed: int) -> Model:
    """Return the model that is meant: one of ours by name, a `Model`, or a torch module."""
    if isinstance(model, str):
        return make_model(model, inputs, settings.options, seed, settings.device)
    return model if isinstance(model, Model) else TorchModel(model, inputs.target, settings.device)


def samples(clients: Any, client: str | None, label: str | None) -> dict[str, tuple[Any, Any]]:
    """Return inputs and labels by client, from a list of pairs, a mapping, or a table with named columns."""
    if is_table(clients):
        if client is None or label is None:
            raise InputError("a table needs client= and label=, the names of two of its columns")
        check_columns(clients, client, label)
        groups = clients.groupby(client, sort=True)
        return {str(name): split(rows.drop(columns=client), label) for name, rows in groups}
    if not isinstance(clients, Iterable):
        raise InputError(
            f"clients is a list of pairs (x, y), a mapping of them, or a table, not {type(clients).__name__}"
        )
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    for name, pair in named.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"the data of client {name} is a pair (x, y) of inputs and labels")
    return {str(name): (pair[0], pair[1]) for name, pair in named.items()}


def public_rows(test: Any, client: str | None, clients: Iterable[str]) -> tuple[Any, str]:
    """Remove rows of clients from a test table that names clients and others; return it with a description."""
    if client is None or not is_table(test) or client not in test.columns:
        return test, ""
    tested, said = tested_inputs(test[client].to_numpy().astype(str), np.array(list(clients)), Unit(client))
    return test[tested], said


def test_samples(test: Any, client: str | None, label: str | None) -> tuple[Any, Any]:
    """Return public inputs and labels, from a pair or from a table."""
    if is_table(test):
        if label is None:
            raise InputError("a table needs label=, the name of one of its columns")
        check_columns(test, label)
        return split(test.drop(columns=[client] if client in test.columns else []), label)
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise InputError("test is a pair (x, y) of inputs and labels, or a table")
    return test[0], test[1]


def is_table(data: Any) -> bool:
    """Tell a DataFrame from anything else, without importing pandas."""
    return hasattr(data, "columns") and hasattr(data, "groupby")


def check_columns(table: Any, *names: str) -> None:
    """A table has these columns."""
    for name in names:
        if name not in table.columns:
            raise InputError(f"the table has no column '{name}': it has {', '.join(map(str, table.columns))}")


def split(rows: Any, label: str) -> tuple[Any, Any]:
    """Return the features of a table, all columns but the label, and the labels."""
    return rows.drop(columns=label).to_numpy(), rows[label].to_numpy()


def checked(whose: str, x: Any, y: Any, target: Target) -> Samples:
    """Return inputs and targets as arrays, or say what is wrong with them."""
    inputs, labels = np.asarray(x), np.asarray(y)
    return check_inputs(f"x of {whose}", inputs), check_targets(f"y of {whose}", labels, len(inputs), target)
