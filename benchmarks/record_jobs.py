"""Data, models and rates of `benchmarks.records`: breast cancer, MNIST and features of CIFAR-10.

The variable DORDIS_RECORDS_DATA names the folder with `mnist/*.gz` and `cifar-10-batches-bin`.  Rates were chosen for
Opacus, by `python -m benchmarks records --only rates`, on seeds that no comparison uses.
"""

import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dordis.apps.learning.features import scatter_images
from dordis.privacy.accounting import default_delta


@dataclass(frozen=True)
class Job:
    """Records, a model, and how both sides learn."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    model: str
    epsilon: float
    sampling: float
    steps: int
    lr: float
    momentum: float
    clip: float
    clients: int = 10
    seed: int = 0

    @property
    def delta(self) -> float:
        """Return the default delta for all records."""
        return default_delta(len(self.y))

    @property
    def settings(self) -> dict[str, Any]:
        """Return everything but the data."""
        names = ("model", "epsilon", "delta", "sampling", "steps", "lr", "momentum", "clip", "clients", "seed")
        return {name: getattr(self, name) for name in names}

    def module(self) -> Any:
        """Return the torch module with its initial weights, which follow from the seed."""
        import torch

        from benchmarks.opacus_model import mnist_cnn

        torch.manual_seed(self.seed)
        classes = int(max(self.y.max(), self.y_test.max())) + 1
        return mnist_cnn() if self.model == "cnn" else torch.nn.Linear(self.x.shape[1], classes)


def table_job(seed: int, split: int) -> Job:
    """Return breast cancer, split at random into 80 % and a test set; features are scaled by declared ranges."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    sizes = [30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]
    errors = [3, 5, 25, 550, 0.04, 0.15, 0.4, 0.06, 0.08, 0.03]
    worst = [40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25]
    bounds = np.array([*sizes, *errors, *worst])
    scaled = (2 * x / bounds - 0.6).astype(np.float32)
    order = np.random.default_rng((7, split)).permutation(len(y))
    train, test = order[:455], order[455:]
    rates: dict[str, Any] = {"sampling": 0.2, "steps": 100, "lr": 1.0, "momentum": 0.5, "clip": 1.0}
    data = scaled[train], y[train].astype(np.int64), scaled[test], y[test].astype(np.int64)
    return Job(*data, model="linear", epsilon=3.0, **rates, clients=8, seed=seed)


def mnist_job(folder: Path, steps: int, seed: int) -> Job:
    """Return MNIST, scaled by the mean and deviation that are public for it."""

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / "mnist" / name).read_bytes()), np.uint8)[offset:]

    data: list[np.ndarray] = []
    for part in ("train", "t10k"):
        images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).astype(np.float32)
        data += [(images / 255 - 0.1307) / 0.3081, read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)]
    rates: dict[str, Any] = {"sampling": 600 / len(data[1]), "steps": steps, "lr": 2.0, "momentum": 0.5, "clip": 1.0}
    return Job(*data, model="cnn", epsilon=3.0, **rates, seed=seed)


def cifar_job(folder: Path, steps: int, seed: int) -> Job:
    """Return public features of CIFAR-10, 1,840 of each image, and a softmax above them."""
    train = _cifar_part(folder, tuple(f"data_batch_{i}.bin" for i in range(1, 6)))
    test = _cifar_part(folder, ("test_batch.bin",))
    rates: dict[str, Any] = {"sampling": 0.01, "steps": steps, "lr": 2.0, "momentum": 0.5, "clip": 1.0}
    return Job(*train, *test, model="linear", epsilon=6.0, **rates, seed=seed)


@lru_cache(maxsize=2)
def _cifar_part(folder: Path, names: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels; features are kept beside the data, since they take minutes."""
    raw = b"".join((folder / "cifar-10-batches-bin" / name).read_bytes() for name in names)
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
    kept = folder / f"features-{len(rows)}.npy"
    if not kept.is_file():
        np.save(kept, scatter_images(rows[:, 1:].reshape(-1, 3, 32, 32) / np.float32(255)))
    return np.load(kept), rows[:, 0].astype(np.int64)


def data_folder(name: str) -> Path | None:
    """Return the folder of the data if it holds these."""
    folder = Path(os.environ.get("DORDIS_RECORDS_DATA", ""))
    return folder if (folder / name).is_dir() else None
