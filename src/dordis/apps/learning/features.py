"""Public feature maps, applied to inputs before training at no cost in privacy.

A feature map is a fixed function of one input, which may use synthetic images: it does not depend on clients' data.
`scattering` is for images.  A map of your own is named `package.module:function`; it takes inputs in their original
shape.
"""

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dordis.apps.learning.data import Dataset, Values
from dordis.durable_files import write_atomically
from dordis.errors import InputError
from dordis.loading import load_object

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
    return changed(data, x_train=train, x_test=test, shape=(), scale=1.0)


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
