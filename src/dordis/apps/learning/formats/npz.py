"""numpy's .npz files of plain arrays."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dordis.apps.learning.data import Arrays, Dataset, Target, check_inputs, check_targets, checked, flat
from dordis.errors import InputError

_NEEDED = ("x_train", "y_train")


def read_npz(path: Path, target: Target = "classification") -> Dataset:
    """Read x_train, y_train and, if they are there, x_test, y_test; inputs may have any shape.

    Optional are `scale`, a number that inputs are divided by, and `keys`, one for each input to train on.
    """
    arrays = read_arrays(path)
    try:
        return dataset(arrays, target)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_arrays(path: Path) -> Arrays:
    """Read all arrays of a file."""
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array: pass an .npz file with {', '.join(_NEEDED)}")
        with stored:
            return {name: stored[name] for name in stored.files}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no data set {path}: pass the path of an .npz file") from error
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} cannot be read: pass an .npz file of plain arrays") from error


def dataset(arrays: Arrays, target: Target) -> Dataset:
    """Return a data set of such arrays, or say what is wrong with them."""
    needed = (*_NEEDED, *(("x_test", "y_test") if {"x_test", "y_test"} & arrays.keys() else ()))
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(f"the arrays {', '.join(missing)} are missing")
    scale = arrays.get("scale", np.ones(()))
    if scale.shape != () or scale.dtype.kind not in "fiu" or not 0 < float(scale) < np.inf:
        raise InputError("scale is one positive number")
    parts: dict[str, Any] = {}
    for part in ("train", "test") if len(needed) > len(_NEEDED) else ("train",):
        x = check_inputs(f"x_{part}", arrays[f"x_{part}"])
        parts[f"x_{part}"] = flat(x)
        parts[f"y_{part}"] = check_targets(f"y_{part}", arrays[f"y_{part}"], len(x), target)
    shape = arrays["x_train"].shape[1:]
    return checked(Dataset(**parts, keys=arrays.get("keys"), shape=shape, scale=float(scale), target=target))
