"""Training runs as jobs: a preset with settings, and the metric, epsilon and dropout of every round."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dordis.config.reading import config_to_toml, read_config
from dordis.errors import InputError
from dordis.records.run_records import load_run
from dordis.simulation.run import prepare
from reproduce.paper import Job

BEFORE_UPLOAD = 'simulation.dropout.stages=["CollectInput"]'
MEMORY = Path("/dev/shm")  # noqa: S108  a folder with a random name is made in it
"""A folder in memory for the files of runs, if it exists: nobody needs them later, so no write need wait for a disk."""
TINY = ("app.server=reproduce.paper.tiny_app:Server", "app.client=reproduce.paper.tiny_app:Client")
"""Settings of an application with short updates: epsilon depends on clients, rounds and dropout, not on the model."""
NOISES = {
    "orig": ("privacy.noise={kind='orig'}",),
    "xnoise": ("privacy.noise={kind='xnoise',scheme='exact'}",),
    "early": ("privacy.noise={kind='early'}",),
    "con-2": ("privacy.noise={kind='conservative',rate=0.2,overspend=true}",),
    "con-5": ("privacy.noise={kind='conservative',rate=0.5,overspend=true}",),
    "con-8": ("privacy.noise={kind='conservative',rate=0.8,overspend=true}",),
    "none": ("privacy.noise={kind='none'}",),
}
"""Settings of the paper's noise strategies; as in the paper, runs with Con-2, Con-5 and Con-8 may exceed the budget."""


def dropout_keys(rate: float) -> list[str]:
    """Return settings of the paper's dropout: a fixed fraction of each round's clients drops out before the upload."""
    if not rate:
        return ["simulation.dropout={kind='none'}"]
    return [f"simulation.dropout={{kind='rate',rate={rate},stages=['CollectInput']}}"]


def training_job(label: str, preset: str, keys: list[str], metric: str = "", trace: int = 0) -> Job:
    """Return the job of one run; with `trace`, its clients are that many of the most volatile devices."""
    arguments = {"preset": preset, "keys": keys, "metric": metric, "trace": trace}
    return Job("training", arguments, label)


def run_training(arguments: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Run a training; return metric, epsilon and share of dropouts of every round, and why it stopped."""
    metric, keys = arguments["metric"], [*arguments["keys"], "performance.threads=1"]
    with tempfile.TemporaryDirectory(prefix="dordis-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        if metric:
            keys.append(f"app.options.data_dir={json.dumps(str(require_data(data_dir)))}")
        if arguments["trace"]:
            path = Path(folder) / "volatile.npz"
            write_volatile(require_trace(data_dir), arguments["trace"], path)
            keys.append(f"simulation.dropout={{kind='matrix',path={json.dumps(str(path))}}}")
        config = read_config(preset=arguments["preset"], keys=keys)
        run = prepare(config).start(Path(folder), config_to_toml(config))
        result = run.complete()
        stored = load_run(run.records.path)
    return {
        "metric": [line.values.get(metric) for line in stored.metrics] if metric else [],
        "epsilon": [record.epsilon for record in stored.rounds],
        "dropped": [1 - min(record.survivors) / len(record.clients) for record in stored.rounds],
        "invited": [len(record.clients) for record in stored.rounds],
        "rounds": len(stored.rounds),
        "planned": config.federation.rounds,
        "stopped": result.stopped,
    }


def require_data(data_dir: Path | None) -> Path:
    """Return the data directory; raise InputError without one."""
    if data_dir is None:
        raise InputError("needs data: give --data-dir")
    return data_dir.resolve()


def require_trace(data_dir: Path | None) -> Path:
    """Return the availability trace in the data directory; raise InputError without one."""
    found = sorted(require_data(data_dir).glob("**/*avail*.npz"))
    if not found:
        raise InputError("needs a trace of availability: an .npz with 'avail' in its name in the data directory")
    return found[0]


def write_volatile(trace: Path, count: int, path: Path) -> None:
    """Write to `path` the trace of those `count` devices whose availability changes most often."""
    with np.load(trace) as stored:
        slots = stored["avail"]
    changes = (np.diff((slots == 1).astype(np.int8), axis=0) != 0).sum(axis=0)
    ranked = np.argsort(-changes, kind="stable")[:count]
    np.savez(path, avail=slots[:, ranked])
