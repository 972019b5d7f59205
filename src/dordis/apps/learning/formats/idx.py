"""The idx format of MNIST, EMNIST and Fashion-MNIST: a magic number, sizes, then bytes; gzipped or not."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning.data import Dataset, Values, check_labels, checked, flat
from dordis.errors import InputError

_BYTES = 8
"""The type of elements, the third byte of the magic number: unsigned bytes, which all of these files have."""


def read_idx_folder(folder: Path, prefix: str = "", transposed: bool = False, first: int = 0) -> Dataset:
    """Read {train,t10k or test}-{images-idx3,labels-idx1}-ubyte[.gz]; `prefix` stands before these names.

    EMNIST's images are `transposed`; the `first` label of EMNIST's letters is 1.
    """
    parts: dict[str, Any] = {}
    for part, names in (("train", ("train",)), ("test", ("t10k", "test"))):
        images = read_idx(_find(folder, [f"{prefix}{name}-images-idx3-ubyte" for name in names]), 3)
        labels = read_idx(_find(folder, [f"{prefix}{name}-labels-idx1-ubyte" for name in names]), 1)
        images = images.transpose(0, 2, 1) if transposed else images
        parts[f"x_{part}"] = flat(images)
        parts[f"y_{part}"] = check_labels(f"the labels to {part} in {folder}", labels, len(images)) - first
    return checked(Dataset(**parts, shape=images.shape[1:], scale=255.0))


def read_idx(path: Path, dimensions: int) -> Values:
    """Read one file of unsigned bytes in so many dimensions."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise InputError(f"{path} is no idx file of bytes in {dimensions} dimensions")
    shape = tuple(int(size) for size in np.frombuffer(data[4:header], ">u4"))
    if len(data) - header != math.prod(shape):
        raise InputError(
            f"{path} has {len(data) - header:,} bytes after its header, which promises {math.prod(shape):,}"
        )
    if not math.prod(shape):
        raise InputError(f"{path} is empty")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _find(folder: Path, names: list[str]) -> Path:
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise InputError(f"{folder} has no file {names[0]}.gz")
