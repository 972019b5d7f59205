"""Public features: what is computed from an input before anything is learnt, at no cost in privacy.

A feature map is a fixed function of one input, or of images that the package draws itself: it depends on nobody's data.
`scattering` is for images; one of your own is named `package.module:function` and takes inputs in their shape.
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
from dordis.errors import InputError
from dordis.federation.durable import replace
from dordis.names import named

FeatureMap = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Takes inputs (count, ...), gives rows of features (count, features)."""

MAPS = {"scattering": "dordis.apps.learning.features.public:scattered"}
"""Where they are; imported when they are asked for, with what they need."""
VERSION = b"dordis features 1"
"""Changes whenever a map gives other features."""
WORTH_KEEPING = 5000
"""Inputs from which on features are kept in the cache."""


def with_features(data: Dataset, name: str, folder: Path) -> Dataset:
    """Return the data with features in place of inputs; features of many inputs are kept in a folder."""
    if data.tokens:
        raise InputError("features are made of numbers, and the inputs are tokens: leave features out")
    train = _kept(data, data.x_train, name, folder)
    test = None if data.x_test is None else _kept(data, data.x_test, name, folder)
    return changed(data, x_train=train, x_test=test, shape=(), scale=1.0)


def _kept(data: Dataset, inputs: Values, name: str, folder: Path) -> Values:
    if name not in MAPS or len(inputs) < WORTH_KEEPING:
        return _computed(data, inputs, name)
    stamp = f"{name} {data.input_shape} {data.scale} {inputs.dtype} {inputs.shape}".encode()
    digest = hashlib.sha256(VERSION + stamp + np.ascontiguousarray(inputs).tobytes()).hexdigest()
    path = folder / "features" / f"{digest}.npy"
    if path.is_file():
        features: Values = np.load(path, allow_pickle=False)
        return features
    features = _computed(data, inputs, name)
    archive = io.BytesIO()
    np.save(archive, features, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, archive.getvalue())
    return features


def _computed(data: Dataset, inputs: Values, name: str) -> Values:
    shaped = data.ready(inputs).reshape(len(inputs), *data.input_shape)
    features = np.asarray(_map(name)(shaped))
    if features.ndim != 2 or len(features) != len(inputs) or not np.isfinite(features).all():
        raise InputError(
            f"the features '{name}' give {features.dtype} {features.shape} for {len(inputs)} inputs: one row of "
            "finite numbers is wanted for each"
        )
    return features


def _map(name: str) -> FeatureMap:
    if name not in MAPS and ":" not in name:
        raise InputError(f"there are no features '{name}': pass one of {', '.join(MAPS)}, or package.module:function")
    given: FeatureMap = named(MAPS.get(name, name), "the features", Callable)  # type: ignore[arg-type]
    return given
