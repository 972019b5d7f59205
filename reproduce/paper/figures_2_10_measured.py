"""Figures 2 and 10, measured in at most 12 minutes: rounds of `dordis serve` and real clients in network namespaces."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from reproduce.cluster.command import plan_and_measure
from reproduce.cluster.experiment import Workload
from reproduce.cluster.namespaces import CANNOT_OPEN
from reproduce.cluster.results import ClusterResults, Setting
from reproduce.cluster.training import measure_training
from reproduce.paper import CANNOT_RUN, Job, Results

LATENCY, SEED = 0.05, 1
"""The largest latency of a client, one way, in seconds; the seed of links."""
ROUNDS = 2
"""Rounds with each number of chunks, of which the first does not count."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {"clients": 16, "dim": 1_000_000, "chunks": [1, 2, 4, 8], "slower": 1.0, "patience": 120.0},
    {"clients": 16, "dim": 1_000_000, "chunks": [1, 8], "slower": 10.0, "patience": 150.0},
    {"clients": 100, "dim": 1_000_000, "chunks": [1, 2], "slower": 1.0, "patience": 180.0},
    {"clients": 16, "dim": 11_000_000, "chunks": [1, 8], "slower": 1.0, "patience": 270.0},
)
"""Measured settings; an experiment that takes longer than its patience, in seconds, is given up: 12 minutes in all."""
TRAINING = "measured client training"


def label(setting: Mapping[str, Any]) -> str:
    """Name the job of a setting."""
    return f"measured {setting['clients']} clients, {setting['dim']}, links {setting['slower']:g} times slower"


def measured_jobs() -> list[Job]:
    """Return a job for each setting, and one for the training of a client."""
    jobs = [Job("cluster", setting, label(setting), alone=True) for setting in SETTINGS]
    return [*jobs, Job("client-training", {}, TRAINING, alone=True)]


def run_cluster(arguments: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Measure rounds behind the paper's links; raise InputError where namespaces cannot be made."""
    workload = Workload(
        arguments["clients"], arguments["dim"], arguments["chunks"], ROUNDS, patience=arguments["patience"]
    )
    chunks = ",".join(map(str, arguments["chunks"]))
    setting = plan_and_measure(workload, chunks, arguments["slower"], LATENCY, 1.0, SEED)
    found: dict[str, Any] = msgspec.to_builtins(setting)
    return found


def run_client_training(arguments: Mapping[str, Any], data_dir: Path | None) -> float:
    """Return the CPU seconds in which a client trains the paper's CNN."""
    return measure_training()


def read_measured(results: Results) -> ClusterResults:
    """Return the settings and the training time that were measured in this run."""
    found = [results[label(setting)] for setting in SETTINGS]
    settings = [msgspec.convert(one, Setting, strict=False) for one in found if CANNOT_RUN not in one]
    training = results[TRAINING]
    return ClusterResults(tuple(settings), None if isinstance(training, dict) else training)


def list_obstacles(results: Results) -> dict[str, str]:
    """Return why settings were not measured, by label."""
    found = {label(setting): results[label(setting)] for setting in SETTINGS}
    return {name: one[CANNOT_RUN].removeprefix(CANNOT_OPEN) for name, one in found.items() if CANNOT_RUN in one}
