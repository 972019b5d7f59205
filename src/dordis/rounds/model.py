"""The public model of a round as it travels: bytes with a digest, sent in pieces, kept by clients that have it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError

PIECE = 1 << 20
"""Bytes of a piece at most."""
DTYPES = ("<f4", "<f8", "<f2")
"""Types of a model's numbers on the wire."""

Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ModelBytes:
    """A model as bytes of one type of number; the digest covers both."""

    dtype: str
    data: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def from_numbers(cls, values: npt.ArrayLike, dtype: str = DTYPES[0]) -> "ModelBytes":
        """Write a model down for the wire.

        >>> ModelBytes.from_numbers([1.0, 2.0]).array.tolist()
        [1.0, 2.0]
        """
        check_dtype(dtype)
        return cls.read(dtype, np.ascontiguousarray(values, dtype).tobytes())

    @classmethod
    def read(cls, dtype: str, data: bytes) -> "ModelBytes":
        """Take bytes for a model, whatever they are."""
        return cls(dtype, data, digest(dtype, data))

    @property
    def array(self) -> Numbers:
        """Return the numbers, read-only."""
        values: Numbers = np.frombuffer(self.data, self.dtype)
        return values

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Cut the bytes; yield each piece with its offset."""
        for offset in range(0, len(self.data), PIECE):
            yield offset, self.data[offset : offset + PIECE]


def digest(dtype: str, data: bytes) -> bytes:
    """Return the hash of a model that all clients of a round start from."""
    hashed = hashlib.sha256(b"dordis/v1/model" + dtype.encode())
    hashed.update(data)  # not copied: a model may be large
    return hashed.digest()


def check_dtype(dtype: str) -> None:
    """A model is made of little-endian floating-point numbers."""
    if dtype not in DTYPES:
        raise InputError(f"the numbers of a model travel as one of {', '.join(DTYPES)}, not as '{dtype}'")


class ModelCache(Protocol):
    """Where a client keeps the last model it had."""

    def get(self, digest: bytes) -> ModelBytes | None:
        """Return the model with this digest, if it is here."""
        ...

    def last(self) -> ModelBytes | None:
        """Return the model that is kept, if there is one."""
        ...

    def keep(self, model: ModelBytes) -> None:
        """Keep a model."""
        ...


class LastModel:
    """Keep one model; caches with the same `shared` dictionary keep equal models in memory once."""

    def __init__(self, shared: "WeakValueDictionary[bytes, ModelBytes] | None" = None) -> None:
        self._shared = WeakValueDictionary() if shared is None else shared
        self._model: ModelBytes | None = None

    def get(self, digest: bytes) -> ModelBytes | None:
        """Return the model with this digest, if it is here."""
        return self._model if self._model is not None and self._model.digest == digest else None

    def last(self) -> ModelBytes | None:
        """Return the model that is kept, if there is one."""
        return self._model

    def keep(self, model: ModelBytes) -> None:
        """Keep a model in the place of the last one."""
        self._model = self._shared.setdefault(model.digest, model)
