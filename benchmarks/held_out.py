"""Choose the server's rate and average without looking at test data: a sixth of the training data is held out.

python -m benchmarks.held_out --preset mnist-writers --data-dir DIR --rate 0.6 --rate 1.2 --average 0.7 [-c KEY=VALUE]

Where the data say whose they are, whole clients are held out; otherwise samples are.  The test data are not read into
any figure.  One JSON object for each pair is printed, with the accuracy on what was held out.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

import dordis
from dordis.apps.learning.features import with_features
from dordis.apps.learning.partitioned_data import Dataset
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.sources import cache, load
from dordis.config import reading

PARTS = 6
_SEED = 2026


def held_out(data: Dataset) -> Dataset:
    """Return the training data alone: one part of the clients, or of the samples, is there to test with."""
    rng = np.random.default_rng(_SEED)
    if data.keys is None:
        out = rng.permutation(len(data.y_train)) < len(data.y_train) // PARTS
    else:
        keys, number, _ = data.key_counts
        out = (rng.permutation(keys.size) < keys.size // PARTS)[number]
    kept = None if data.keys is None else data.keys[~out]
    x, y = data.x_train, data.y_train
    return replace(data, x_train=x[~out], y_train=y[~out], x_test=x[out], y_test=y[out], keys=kept)


def save(data: Dataset, path: Path) -> None:
    """Write a data set as dordis reads it."""
    keys = {} if data.keys is None else {"keys": data.keys}
    np.savez(path, x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test, **keys)


def main() -> None:
    """Run every pair of a rate and an average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--rate", type=float, action="append", required=True)
    parser.add_argument("--average", type=float, action="append", required=True)
    parser.add_argument("-c", dest="keys", action="append", default=[])
    given = parser.parse_args()
    preset = reading.read_config(None, given.preset, [f"app.options.data_dir='{given.data_dir.resolve()}'"])
    settings = msgspec.convert(preset.app.options, Settings)
    data = held_out(with_features(load(settings), settings.features, cache()))
    with tempfile.TemporaryDirectory() as folder:
        save(data, Path(folder) / "held_out.npz")
        fixed = [f"output='{folder}'", f"app.options.data='{folder}/held_out.npz'", "app.options.features=''"]
        if data.keys is not None:
            fixed.append(f"federation.clients={data.key_counts[0].size}")
        for rate, average in product(given.rate, given.average):
            chosen = [f"app.options.optimiser.lr={rate}", f"app.options.average={average}"]
            result = dordis.run(reading.read_config(None, given.preset, [*fixed, *given.keys, *chosen]))
            print(json.dumps({"rate": rate, "average": average, "accuracy": result.metrics["accuracy"]}), flush=True)


if __name__ == "__main__":
    main()
