"""The public model of a round: bytes with a digest, which the server sends in pieces and clients cache."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from dordis.errors import Diverged, InputError
from dordis.protocols.limits import LARGEST_WEIGHT

PIECE = 1 << 20
"""Largest size of a piece in bytes."""
DTYPES = ("<f4", "<f8", "<f2")
"""Number types that a model may have on the wire."""

Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ModelBytes:
    """A model as bytes of one number type; its digest covers the bytes and the type."""

    dtype: str
    data: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def from_numbers(cls, values: npt.ArrayLike, dtype: str = DTYPES[0]) -> "ModelBytes":
        """Return the model of these numbers, encoded in a number type of the wire.

        >>> ModelBytes.from_numbers([1.0, 2.0]).array.tolist()
        [1.0, 2.0]
        """
        check_dtype(dtype)
        if values is None:
            raise InputError("a model is an array of numbers, not None: return np.zeros(0) if there is none")
        try:
            with np.errstate(over="ignore"):  # `check_trained` refuses infinite numbers
                numbers = np.ascontiguousarray(values, dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"a model is an array of numbers, not {type(values).__name__}: {error}") from None
        return cls.read(dtype, numbers.tobytes())

    @classmethod
    def read(cls, dtype: str, data: bytes) -> "ModelBytes":
        """Return the model that these bytes encode, with its digest; type and length of the bytes are not checked."""
        return cls(dtype, data, digest(dtype, data))

    @property
    def array(self) -> Numbers:
        """Return the model's numbers as a read-only array."""
        values: Numbers = np.frombuffer(self.data, self.dtype)
        return values

    @cached_property
    def largest(self) -> float:
        """Return the largest magnitude of the model's numbers; NaN if one of them is NaN."""
        values = self.array
        return float(np.maximum(values.max(), -values.min())) if values.size else 0.0

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the model's bytes in order, in pieces of at most `PIECE` bytes, each with its offset in bytes."""
        for offset in range(0, len(self.data), PIECE):
            yield offset, self.data[offset : offset + PIECE]


def digest(dtype: str, data: bytes) -> bytes:
    """Return the digest of a model's number type and bytes; an invitation states this digest."""
    hashed = hashlib.sha256(b"dordis/v1/model" + dtype.encode())
    hashed.update(data)  # not copied: a model may be large
    return hashed.digest()


def check_trained(model: ModelBytes) -> ModelBytes:
    """Return `model` unchanged; raise Diverged if its numbers are not finite, or too large for clients to accept."""
    if not model.largest <= LARGEST_WEIGHT:
        raise Diverged(
            f"the model has numbers that are not finite or beyond {LARGEST_WEIGHT}: training diverged, so pass a lower "
            "learning rate"
        )
    return model


def check_dtype(dtype: str) -> None:
    """Raise InputError for a number type that a model cannot have on the wire."""
    if dtype not in DTYPES:
        raise InputError(f"the numbers of a model travel as one of {', '.join(DTYPES)}, not as '{dtype}'")


class LastModel:
    """A client's cache of its last model, in memory.

    Caches made with the same `shared` dictionary hold equal models in one copy, for simulations of many clients.
    """

    def __init__(self, shared: "WeakValueDictionary[bytes, ModelBytes] | None" = None) -> None:
        self._shared = WeakValueDictionary() if shared is None else shared
        self._model: ModelBytes | None = None

    def get(self, digest: bytes) -> ModelBytes | None:
        """Return the cached model if it has this digest, otherwise None."""
        return self._model if self._model is not None and self._model.digest == digest else None

    def last(self) -> ModelBytes | None:
        """Return the cached model; None if there is none."""
        return self._model

    def keep(self, model: ModelBytes) -> None:
        """Store a model in place of the cached model."""
        self._model = self._shared.setdefault(model.digest, model)


def check_gradients(rows: object, what: str) -> None:
    """Raise Diverged if `rows`, the gradients of several records, have NaN or infinity in every row.

    Another value, such as the gradient of one record, is not checked.
    """
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and len(rows) > 1 and not np.isfinite(rows).all(axis=1).any():
        raise Diverged(
            f"{what} are all NaN or infinite: check the loss of the model and its layers, or pass a lower learning rate"
        )
