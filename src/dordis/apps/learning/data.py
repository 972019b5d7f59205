"""Data sets of inputs and labels: the digits that come with dordis, or a file in the same format."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.privacy.skellam import Floats

Labels = npt.NDArray[np.int64]
Samples = tuple[Floats, Labels]
Arrays = Mapping[str, npt.NDArray[Any]]

DIGITS = "digits"
_NEEDED = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs as rows (n, features), and labels 0, 1, .. to train on and to test with.

    `keys` says whose each input to train on is, such as its writer, where that is known.
    """

    x_train: Floats = field(repr=False)
    y_train: Labels = field(repr=False)
    x_test: Floats = field(repr=False)
    y_test: Labels = field(repr=False)
    keys: npt.NDArray[Any] | None = field(default=None, repr=False)

    @property
    def features(self) -> int:
        """Return the length of an input."""
        return int(self.x_train.shape[1])

    @cached_property
    def classes(self) -> int:
        """Return how many labels there are: one more than the largest."""
        return int(self.y_train.max()) + 1

    def centred(self) -> "Dataset":
        """Take its own mean from every input: that needs no other input, so it costs no privacy."""
        x, test = (part - part.mean(axis=1, keepdims=True) for part in (self.x_train, self.x_test))
        return replace(self, x_train=x, x_test=test)


def digits() -> Dataset:
    """Return 1,797 handwritten digits of 8 by 8 pixels from 0 to 1; `digits.md` names source, authors and licence.

    >>> data = digits()
    >>> data.x_train.shape, data.x_test.shape, data.classes
    ((1437, 64), (360, 64), 10)
    """
    with as_file(files(__package__) / "digits.npz") as path:
        return read(path)


def load(source: str) -> Dataset:
    """Return the data set "digits", or the one in an .npz file."""
    return digits() if source == DIGITS else read(Path(source))


def read(path: Path) -> Dataset:
    """Read x_train, y_train, x_test, y_test from an .npz file, inputs flattened to rows.

    Optional are `scale`, a number that inputs are divided by, and `keys`, one for each input to train on.
    """
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array: pass an .npz file with {', '.join(_NEEDED)}")
        with stored:
            arrays = {name: stored[name] for name in stored.files}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no data set {path}: pass '{DIGITS}' or the path of an .npz file") from error
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} cannot be read: pass an .npz file of plain arrays") from error
    try:
        return checked(arrays)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def checked(arrays: Arrays) -> Dataset:
    """Return a data set of such arrays, or say what is wrong with them."""
    if missing := [name for name in _NEEDED if name not in arrays]:
        raise InputError(f"the arrays {', '.join(missing)} are missing")
    scale = arrays.get("scale", np.ones(()))
    if scale.shape != () or scale.dtype.kind not in "fiu" or not 0 < float(scale) < np.inf:
        raise InputError("scale is one positive number")
    x, x_test = (flat(check_inputs(name, arrays[name])) / float(scale) for name in ("x_train", "x_test"))
    y, y_test = (check_labels(name, arrays[name], len(inputs)) for name, inputs in (("y_train", x), ("y_test", x_test)))
    if x.shape[1] != x_test.shape[1]:
        raise InputError(f"inputs to train on have {x.shape[1]} features, those to test with {x_test.shape[1]}")
    if y.max() >= y.size:  # so many classes are a mistake, and would take as many scores for every input
        raise InputError(f"y_train has labels up to {y.max()}, and only {y.size} inputs: they count from 0 on")
    if y_test.max() > y.max():
        raise InputError(f"y_test has labels up to {y_test.max()}, y_train up to {y.max()} only")
    keys = arrays.get("keys")
    if keys is not None and keys.shape != y.shape:
        raise InputError(f"there are {y.size} inputs to train on, and keys of shape {keys.shape}")
    return Dataset(x, y, x_test, y_test, keys)


def check_inputs(name: str, x: npt.NDArray[Any]) -> Floats:
    """Return inputs as floating-point numbers of the same shape, or say what is wrong with them."""
    if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
        raise InputError(f"{name} has to hold numbers, one row or image for each input, not {x.dtype} {x.shape}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InputError(f"{name} holds values that are not finite")
    return x.astype(np.float64)


def flat(x: Floats) -> Floats:
    """Return one row for each input."""
    return x.reshape(len(x), -1)


def check_labels(name: str, y: npt.NDArray[Any], inputs: int) -> Labels:
    """Return labels as whole numbers, or say what is wrong with them."""
    if y.shape != (inputs,) or y.dtype.kind not in "iu":
        raise InputError(f"{name} has to hold {inputs} whole numbers, one for each input, not {y.dtype} {y.shape}")
    if y.min() < 0:
        raise InputError(f"{name} has labels from {y.min()} on: they count from 0 on")
    return y.astype(np.int64)
