"""A trained model with its preprocessing: predicts from raw rows, is saved to one file and loaded from it."""

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.learning.data import Target
from dordis.apps.learning.models import Linear, Mlp, Model, Softmax
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError
from dordis.privacy.scaling import Floats

SAVED_MODEL = "model.dordis"
"""Name of the file with model and preprocessing in the directory of a run."""
WEIGHTS, DESCRIPTION = "parameters.npy", "model.json"
FORMAT = "dordis model 1"


class ModelDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description by which a saved model is constructed again: a built-in model with its sizes, or a user's class."""

    format: str
    kind: str
    sizes: dict[str, int]
    target: str
    encoder: Encoder | None = None


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, its parameters, and the preprocessing of its inputs, if it was trained on a table."""

    model: Model | None = field(repr=False)
    parameters: Floats = field(repr=False)
    encoder: Encoder | None = field(default=None, repr=False)
    description: ModelDescription | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the feature columns that `predict` needs; none if the model was not trained on a table."""
        return () if self.encoder is None else self.encoder.features

    @property
    def module(self) -> Any:
        """Return the trained torch module, or the parameters if the model is not a torch module."""
        return self.parameters if self.model is None else self.model.trained(self.parameters)

    def scores(self, rows: Any) -> Floats:
        """Return the scores of rows: one for each class, or numbers in -1..1 for a regression on a table."""
        if self.model is None:
            kind = self.description.kind if self.description else "the model"
            raise InputError(f"the class of the model, {kind}, is not stored: pass it, dordis.load(path, model=...)")
        x = np.asarray(rows) if self.encoder is None else self.encoder.encode_features(rows, "the table")
        if x.ndim < 2:
            raise InputError(f"predict takes one row for each input, not an array of shape {x.shape}")
        return self.model.scores(self.parameters, x if x.dtype.kind == "f" else x.astype(np.float64))

    def predict(self, rows: Any) -> npt.NDArray[Any]:
        """Return predictions for rows of a table, or for inputs: classes, or numbers in the units of the label."""
        scores = self.scores(rows)
        if self.encoder is not None:
            return self.encoder.decode(scores)
        classes = self.model is not None and self.model.target == "classification"
        return np.asarray(scores.argmax(axis=1) if classes else scores.reshape(len(scores), -1).squeeze(1))

    def save(self, path: str | Path) -> Path:
        """Write parameters, columns, ranges and categories to one file, which `dordis.load` reads; no pickle."""
        where, weights = Path(path), io.BytesIO()
        np.save(weights, self.parameters, allow_pickle=False)
        description = self.description or describe_model(self.model, self.encoder)
        try:
            with zipfile.ZipFile(where, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(DESCRIPTION, msgspec.json.format(msgspec.json.encode(description), indent=2))
                archive.writestr(WEIGHTS, weights.getvalue())
        except OSError as error:
            raise InputError(f"cannot write {where}: {error.strerror or error}") from None
        return where

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the model as ONNX if the name ends with .onnx, else by torch.export; see `RunResult.export`."""
        from dordis.apps.learning.export import export_model

        return export_model(self, path, example)


def describe_model(model: Model | None, encoder: Encoder | None) -> ModelDescription:
    """Return the description of a model, which is stored with the parameters."""
    kind, sizes = f"class {type(model).__qualname__}", {}
    if isinstance(model, Softmax | Linear | Mlp):
        names = ("features", "classes", "outputs", "hidden")
        kind = type(model).__name__.lower()
        sizes = {name: getattr(model, name) for name in names if hasattr(model, name)}
    elif (module := getattr(model, "_module", None)) is not None:
        kind = f"torch {type(module).__qualname__}"
    return ModelDescription(FORMAT, kind, sizes, "" if model is None else model.target, encoder)


def read_model(path: Path, model: Model | None = None) -> TrainedModel:
    """Read a saved model.

    The file does not contain the class of a user's own model: pass `model`, or only the parameters are read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            description = msgspec.json.decode(archive.read(DESCRIPTION), type=ModelDescription)
            parameters: Floats = np.load(io.BytesIO(archive.read(WEIGHTS)), allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, KeyError, ValueError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a model that dordis saved: {error}") from None
    if description.format != FORMAT:
        raise InputError(f"{path} has the format '{description.format}', this version reads '{FORMAT}'")
    built = model if model is not None else _build(description)
    if built is not None and built.dim != parameters.size:
        raise InputError(f"{path} has {parameters.size} parameters, and the model has {built.dim}")
    return TrainedModel(built, parameters, description.encoder, description)


def _build(description: ModelDescription) -> Model | None:
    sizes = description.sizes
    match description.kind:
        case "softmax":
            return Softmax(sizes["features"], sizes["classes"])
        case "linear":
            return Linear(sizes["features"], sizes["outputs"])
        case "mlp":
            target: Target = "regression" if description.target == "regression" else "classification"
            return Mlp(sizes["features"], sizes["classes"], sizes["hidden"], target)
    return None
