"""A trained model with its preprocessing: it predicts from raw rows, and can be saved, loaded and exported.

Exporting, to torch or ONNX, needs torch.  If the model was trained on a table, the exported program takes rows of
32-bit numbers, with the columns in the order of `preprocessing.json`.  A number is passed as it is in the table, an
empty cell as NaN, and a text as its index in the public list of categories, or -1 if it is not in the list.  The
program clips, scales and encodes as in training.  It returns scores of the classes, or numbers in the units of the
labels.  If training would refuse or skip a row for an empty cell in a numeric column, the program returns NaN for it.

Without a table the program takes inputs of the module's shape; a built-in model takes each image as one flat row.
"""

import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.apps.learning.models import Linear, Mlp, Model, Softmax
from dordis.apps.learning.networks import Architecture
from dordis.apps.learning.partitioned_data import Target, flatten
from dordis.apps.learning.torch_model import TorchModel
from dordis.apps.learning.trainer import as_array, first_line, import_torch
from dordis.apps.tables.cell_texts import normalise
from dordis.apps.tables.description import INDICATOR, REFUSE, SKIP
from dordis.apps.tables.encoding import Encoder
from dordis.errors import InputError, MissingExtra
from dordis.privacy.scaling import Floats

SAVED_MODEL = "model.dordis"
"""Name of the file with the trained model and its preprocessing, in the directory of a run."""
WEIGHTS, FIXED, DESCRIPTION = "parameters.npy", "fixed.npz", "model.json"
FORMAT = "dordis model 2"


class ModelDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a saved model, from which a built-in model is constructed again.

    `kind` is the name of a built-in model.  Its dimensions are in `sizes`, or in `architecture` for a torch network.
    For a user's model, `kind` only names the class: the class itself is not stored.
    """

    format: str
    kind: str
    sizes: dict[str, int]
    target: str
    encoder: Encoder | None = None
    architecture: Architecture | None = None


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model: the model, its parameters, and, if it was trained on a table, the encoder of its rows.

    `model` is None if the class of a user's model is not known.
    """

    model: Model | None = field(repr=False)
    parameters: Floats = field(repr=False)
    encoder: Encoder | None = field(default=None, repr=False)
    description: ModelDescription | None = None
    fixed: Mapping[str, npt.NDArray[Any]] = field(repr=False, default_factory=dict)
    """Frozen parameters and buffers of a torch module, by name, as they were read from a file."""

    @classmethod
    def from_run(cls, directory: Path, model: Model | None, parameters: Floats, target: str) -> Self:
        """Return the trained model of a run of `dordis.train`, from the caller's `model` and the trained `parameters`.

        A torch module predicts for the run's `target`, and its frozen parameters and buffers are read from the run's
        directory.  With `model` None the result cannot predict.  Raise InputError if the parameters do not fit `model`.
        """
        check_size(model, parameters, directory)
        if isinstance(model, TorchModel):
            model.target = cast(Target, target)
            model.restore_saved(directory)
        return cls(model, parameters)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the feature columns that `predict` needs; none if the model was not trained on a table."""
        return () if self.encoder is None else self.encoder.features

    @property
    def module(self) -> Any:
        """Return the trained torch module, or the parameters if the model is not a torch module."""
        return self.parameters if self.model is None else self.model.trained(self.parameters)

    def scores(self, rows: Any) -> Floats:
        """Return the scores of rows: one for each class, or the predicted numbers of a regression.

        In a regression on a table the range of a label is scaled to -1..1.
        """
        if self.model is None:
            kind = self.description.kind if self.description else "the model"
            raise InputError(f"the class of the model, {kind}, is not stored: pass it, dordis.load(path, model=...)")
        x = as_array("the rows", rows) if self.encoder is None else self.encoder.encode_features(rows, "the table")
        if x.ndim < 2:
            raise InputError(f"predict takes one row for each input, not an array of shape {x.shape}")
        if is_built_in(self.model):
            x = flatten(x)  # they are trained on rows, and networks restore the shape of images
        unchanged = x.dtype.kind == "f" or (isinstance(self.model, TorchModel) and x.dtype.kind in "iu")
        try:
            return self.model.scores(self.parameters, x if unchanged else x.astype(np.float64))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(f"the model cannot take inputs of shape {x.shape[1:]}: {first_line(error)}") from error

    def predict(self, rows: Any) -> npt.NDArray[Any]:
        """Return the predictions for table rows or an array of inputs: classes, tokens, or numbers in label units."""
        scores = self.scores(rows)
        if self.encoder is not None:
            return self.encoder.decode(scores)
        if self.model is not None and self.model.target != "regression":
            return np.asarray(scores.argmax(axis=-1))
        numbers = scores.reshape(len(scores), -1)
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers

    def save(self, path: str | Path) -> Path:
        """Write the parameters and the description of model and table to a file; return its path.

        `dordis.load` reads the file.  It contains no pickled objects.
        """
        where, weights = Path(path), io.BytesIO()
        np.save(weights, self.parameters, allow_pickle=False)
        description = self.description or describe_model(self.model, self.encoder)
        try:
            with zipfile.ZipFile(where, "w") as archive:
                archive.writestr(DESCRIPTION, msgspec.json.format(msgspec.json.encode(description), indent=2))
                archive.writestr(WEIGHTS, weights.getvalue())
                if fixed := self.model.fixed() if isinstance(self.model, TorchModel) else self.fixed:
                    archive.writestr(FIXED, _as_npz(fixed))
        except OSError as error:
            raise InputError(f"cannot write {where}: {error.strerror or error}") from None
        return where

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the model as ONNX or by torch.export; return the path.  The arguments are those of `export_model`."""
        return export_model(self, path, example)


def is_built_in(model: Model | None) -> bool:
    """Tell whether dordis constructed the model, so that it can be constructed again from its description."""
    return isinstance(model, Softmax | Linear | Mlp) or getattr(model, "architecture", None) is not None


def describe_model(model: Model | None, encoder: Encoder | None) -> ModelDescription:
    """Return the description of a model, which is stored with the parameters."""
    kind, sizes = f"class {type(model).__qualname__}", {}
    architecture: Architecture | None = getattr(model, "architecture", None)
    if isinstance(model, Softmax | Linear | Mlp):
        names = ("features", "classes", "outputs", "hidden")
        kind = type(model).__name__.lower()
        sizes = {name: getattr(model, name) for name in names if hasattr(model, name)}
    elif architecture is not None:
        kind = architecture.name
    elif (module := getattr(model, "_module", None)) is not None:
        kind = f"torch {type(module).__qualname__}"
    target = "" if model is None else model.target
    return ModelDescription(FORMAT, kind, sizes, target, encoder, architecture)


def read_model(path: Path, model: Model | None = None) -> TrainedModel:
    """Read a saved model.

    The file does not contain the class of a user's own model.  Pass such a model as `model`; without it, the result has
    the parameters but cannot predict.  Raise InputError if the file cannot be read or does not fit `model`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            description = msgspec.json.decode(archive.read(DESCRIPTION), type=ModelDescription)
            parameters: Floats = np.load(io.BytesIO(archive.read(WEIGHTS)), allow_pickle=False)
            fixed = _read_npz(archive.read(FIXED)) if FIXED in archive.namelist() else {}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, KeyError, ValueError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a model that dordis saved: {error}") from None
    if description.format != FORMAT:
        raise InputError(f"{path} has the format '{description.format}', this version reads '{FORMAT}'")
    built = model if model is not None else _build(description)
    check_size(built, parameters, path)
    if isinstance(built, TorchModel):
        built.target = cast(Target, description.target or built.target)
        if fixed:
            built.restore_fixed(fixed)
    return TrainedModel(built, parameters, description.encoder, description, fixed)


def check_size(model: Model | None, parameters: Floats, path: Path) -> None:
    """Raise InputError if the stored `parameters` are more or fewer than those of `model`; `path` names their file."""
    if model is not None and model.dim != parameters.size:
        raise InputError(f"{path} has {parameters.size} parameters, and the model has {model.dim}")


def _as_npz(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return named arrays as the bytes of a .npz file; the names may contain dots and slashes."""
    file, names = io.BytesIO(), np.array(list(arrays))
    np.savez(file, names, *arrays.values())
    return file.getvalue()


def _read_npz(data: bytes) -> dict[str, npt.NDArray[Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {str(name): held[f"arr_{i}"] for i, name in enumerate(held["arr_0"], 1)}


def _build(description: ModelDescription) -> Model | None:
    sizes = description.sizes
    if description.architecture is not None:
        return description.architecture.construct()
    match description.kind:
        case "softmax":
            return Softmax(sizes["features"], sizes["classes"])
        case "linear":
            return Linear(sizes["features"], sizes["outputs"])
        case "mlp":
            target: Target = "regression" if description.target == "regression" else "classification"
            return Mlp(sizes["features"], sizes["classes"], sizes["hidden"], target)
    return None


PREPROCESSING = "preprocessing.json"
"""Name of the description of columns and output in an exported program: an extra file of torch.export, or a field of
the ONNX metadata.
"""
ONNX = ".onnx"


def export_model(trained: TrainedModel, path: str | Path, example: Any = None) -> Path:
    """Write a trained model as ONNX if the name ends with .onnx, else by torch.export; return the path.

    A torch module that was not trained on a table needs an `example`: an array of one or more inputs.
    """
    torch, where = import_torch(), Path(path)
    if trained.model is None:
        raise InputError("the class of the model is not stored: pass it, dordis.load(path, model=...)")
    if not where.parent.is_dir() or where.is_dir():
        raise InputError(f"cannot write {where}: name a file in a directory that exists")
    module = torch_module(trained.model, trained.parameters)
    if trained.encoder is not None:
        module = with_preprocessing(module, trained.encoder)
        inputs = torch.zeros(2, len(trained.encoder.features))
    else:
        inputs = _example_inputs(trained.model, example)
    described = json.dumps(describe_preprocessing(trained), indent=2)
    rows = torch.export.Dim("rows")
    try:
        program = torch.export.export(module.eval(), (inputs,), dynamic_shapes=({0: rows},))
    except (RuntimeError, ValueError, TypeError) as error:
        shape, kind = tuple(inputs.shape), str(inputs.dtype).removeprefix("torch.")
        raise InputError(
            f"torch cannot export the model for inputs of shape {shape} and type {kind}: {first_line(error)}"
        ) from error
    try:
        if where.suffix == ONNX:
            _write_onnx(program, where, described)
        else:
            torch.export.save(program, where, extra_files={PREPROCESSING: described})
    except OSError as error:
        raise InputError(f"cannot write {where}: {error.strerror or error}") from None
    return where


def _write_onnx(program: Any, where: Path, described: str) -> None:
    try:
        import onnxscript  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("export") from None
    torch = import_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch calls deprecated functions of its own
        written = torch.onnx.export(program, dynamo=True, input_names=["rows"], output_names=["scores"], verbose=False)
    written.model.metadata_props[PREPROCESSING] = described
    written.save(str(where))


def _example_inputs(model: Model, example: Any) -> Any:
    torch = import_torch()
    if example is None:
        features = getattr(model, "features", None)
        if features is None:
            raise InputError("a model that was not trained on a table needs an example: an array of some inputs")
        return torch.zeros(2, features)
    array = as_array("the example", example)
    if array.ndim < 2 or not len(array):
        raise InputError(f"the example is an array of one or more inputs, not of shape {array.shape}")
    array = flatten(array) if is_built_in(model) else array
    rows = np.concatenate([array, array]) if len(array) == 1 else array  # one row would fix the number at 1
    return torch.from_numpy(rows).to(torch.float32 if rows.dtype.kind == "f" else torch.int64)


def torch_module(model: Model, parameters: Floats) -> Any:
    """Return a torch module that computes the scores of `model` with these parameters.

    Raise InputError for a user's model that is not a torch module.
    """
    torch = import_torch()

    def affine(values: Floats, inputs: int, outputs: int) -> Any:
        layer = torch.nn.Linear(inputs, outputs)
        weights, bias = values[: inputs * outputs].reshape(inputs, outputs).T, values[inputs * outputs :]
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weights)))
            layer.bias.copy_(torch.from_numpy(np.ascontiguousarray(bias)))
        return layer

    if isinstance(model, Softmax):
        return affine(parameters, model.features, model.classes)
    if isinstance(model, Linear):
        return affine(parameters, model.features, model.outputs)
    if isinstance(model, Mlp):
        below = (model.features + 1) * model.hidden
        first = affine(parameters[:below], model.features, model.hidden)
        return torch.nn.Sequential(first, torch.nn.ReLU(), affine(parameters[below:], model.hidden, model.classes))
    module = model.trained(parameters)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a model of the class {type(model).__name__} is no torch module: export it yourself")
    for parameter in module.parameters():
        parameter.data = parameter.data.cpu().clone()  # for a view, torch would store the whole flat vector
    module = module.cpu().float()
    return module if not isinstance(model, TorchModel) else with_class_scores(module, model)


def with_class_scores(module: Any, model: TorchModel) -> Any:
    """Return `module`; for a classification, wrap it so that a single output becomes the scores of two classes."""

    class Scores(import_torch().nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, rows: Any) -> Any:
            return model._class_scores(self.model(rows))

    return Scores() if model.target == "classification" else module


def with_preprocessing(module: Any, encoder: Encoder) -> Any:
    """Return a torch module that encodes raw rows as `encoder` does, and applies `module` to them.

    Its output is scores of the classes, or numbers in the units of the labels.
    """
    torch, table = import_torch(), encoder.table

    def number(values: Any, name: str) -> list[Any]:
        low, high = table.range(name) or (0.0, 1.0)
        gap, empty = table.gap(name), torch.isnan(values)
        if isinstance(gap, int | float):
            values = torch.where(empty, torch.full_like(values, float(gap)), values)
        scaled = 2 * (torch.clamp(values, low, high) - low) / (high - low) - 1
        if gap != INDICATOR:
            return [scaled[:, None]]
        return [torch.where(empty, torch.zeros_like(scaled), scaled)[:, None], empty.to(values.dtype)[:, None]]

    def category(values: Any, name: str) -> list[Any]:
        listed, gap = [normalise(value) for value in table.categories[name]], table.gap(name)
        filled = normalise(gap) if gap not in (REFUSE, SKIP, INDICATOR) else ""
        if filled in listed:
            values = torch.where(torch.isnan(values), torch.full_like(values, listed.index(filled)), values)
        one_hot = (values[:, None] == torch.arange(len(listed), dtype=values.dtype)).to(values.dtype)
        return [one_hot, 1 - one_hot.sum(dim=1, keepdim=True)]

    class Preprocessed(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, rows: Any) -> Any:
            parts = []
            for place, name in enumerate(encoder.features):
                parts += (category if name in table.categories else number)(rows[:, place], name)
            scores = self.model(torch.cat(parts, dim=1))
            if table.target == "classification":
                return scores
            lows, highs = (torch.tensor(ends, dtype=scores.dtype) for ends in encoder.label_ranges())
            return lows + (scores.reshape(-1, len(table.labels)) + 1) / 2 * (highs - lows)

    return Preprocessed()


def describe_preprocessing(trained: TrainedModel) -> dict[str, Any]:
    """Return the input columns in order and the meaning of the output, for callers of the exported program."""
    if trained.encoder is None:
        return {"columns": [], "output": "scores" if trained.model is None else trained.model.target}
    table, columns = trained.encoder.table, []
    for name in trained.encoder.features:
        if name in table.categories:
            columns.append({"name": name, "categories": list(table.categories[name]), "other": -1})
        else:
            columns.append({"name": name, "range": list(table.range(name) or (0.0, 1.0)), "empty": "NaN"})
        columns[-1]["gaps"] = table.gap(name)
    output: dict[str, Any] = {"labels": list(table.labels)}
    if table.target == "classification":
        output["scores of classes"] = list(table.categories[table.labels[0]])
    return {"columns": columns, "output": output}
