"""The binary version of CIFAR-10 and CIFAR-100: a record is its labels, a byte each, then 3,072 of red, green, blue."""

from pathlib import Path

import numpy as np

from dordis.apps.learning.data import Dataset, Samples, checked
from dordis.errors import InputError

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path) -> Dataset:
    """Read data_batch_1.bin to data_batch_5.bin and test_batch.bin."""
    return _dataset(folder, [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", labels=1, classes=10)


def read_cifar100(folder: Path) -> Dataset:
    """Read train.bin and test.bin, with the fine labels."""
    return _dataset(folder, ["train.bin"], "test.bin", labels=2, classes=100)


def _dataset(folder: Path, train: list[str], test: str, labels: int, classes: int) -> Dataset:
    parts = [read_batch(folder / name, labels, classes) for name in train]
    x_test, y_test = read_batch(folder / test, labels, classes)
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return checked(Dataset(x, y, x_test, y_test, shape=SHAPE, outputs=classes, scale=255.0))


def read_batch(path: Path, labels: int, classes: int) -> Samples:
    """Read one file of records, whose last label of several counts."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    record = labels + _PIXELS
    if not data.size or data.size % record:
        raise InputError(f"{path} is no binary CIFAR file: {data.size:,} bytes are not records of {record:,}")
    rows = data.reshape(-1, record)
    y = rows[:, labels - 1].astype(np.int64)
    if y.max() >= classes:
        raise InputError(f"{path} has the label {y.max()}, and there are {classes} classes")
    return np.ascontiguousarray(rows[:, labels:]), y
