"""The arrays of a Flower model as one vector, and back; what is not made of real numbers stays as the server has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict

from dordis.errors import InputError
from dordis.privacy.skellam import Floats


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the arrays that are summed, in the order of the record, and the types of all arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]

    @classmethod
    def of(cls, record: ArrayRecord) -> "Layout":
        """Return the layout of a model."""
        shapes = {name: tuple(array.shape) for name, array in record.items() if _is_real(array)}
        if not shapes:
            raise InputError("the train message holds no array of floating-point numbers: there is nothing to sum")
        return cls(shapes, {name: array.dtype for name, array in record.items()})

    @property
    def dim(self) -> int:
        """Return the number of coordinates of all arrays."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def vector(self, record: ArrayRecord) -> Floats:
        """Put the arrays of a record, which must be like those of the model, behind each other."""
        if not self.shapes.keys() <= record.keys():
            raise InputError("the arrays of the reply are not named like those of the model")
        arrays = {name: record[name].numpy() for name in self.shapes}
        for name, array in arrays.items():
            if array.shape != self.shapes[name]:
                raise InputError(
                    f"the array '{name}' has the shape {array.shape}, that of the model {self.shapes[name]}"
                )
        kind = np.result_type(np.float32, *(array.dtype for array in arrays.values()))
        return np.concatenate([np.ravel(array).astype(kind, copy=False) for array in arrays.values()])

    def typed(self, model: ArrayRecord) -> ArrayRecord:
        """Return a model with the types that it had at first: a strategy's averages are of other types."""
        if model.keys() != self.types.keys():
            raise InputError("the arrays of the model are not named like those of the first round")
        if all(array.dtype == self.types[name] for name, array in model.items()):
            return model
        return ArrayRecord({name: Array(_cast(array.numpy(), self.types[name])) for name, array in model.items()})

    def record(self, model: ArrayRecord, vector: Floats) -> ArrayRecord:
        """Return the arrays of a model with the numbers of a vector in them."""
        arrays, first = {}, 0
        for name, array in model.items():
            if name not in self.shapes:
                arrays[name] = array
                continue
            size = int(np.prod(self.shapes[name]))
            values = vector[first : first + size].reshape(self.shapes[name])
            arrays[name] = Array(np.ascontiguousarray(values, np.dtype(array.dtype)))
            first += size
        return ArrayRecord(arrays)


def model_of(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the one record of arrays in a message, and its name."""
    records = content.array_records
    if len(records) != 1:
        raise InputError(f"a train message and its reply hold one ArrayRecord, not {len(records)}")
    name: str = next(iter(records))
    return name, records[name]


def _cast(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return numbers as a type, rounded where it is one of whole numbers."""
    whole = not np.issubdtype(np.dtype(dtype), np.floating)
    return np.asarray(np.rint(array) if whole else array).astype(dtype)


def _is_real(array: Any) -> bool:
    return bool(np.issubdtype(np.dtype(array.dtype), np.floating))
