"""Measured rounds of the page: at most 12 minutes, alone, and shown as what was measured."""

from reproduce.paper import CANNOT_RUN
from reproduce.paper.figures_2_10_measured import (
    SETTINGS,
    TRAINING,
    label,
    list_obstacles,
    measured_jobs,
    read_measured,
)


def test_measurements_run_alone_and_take_at_most_12_minutes() -> None:
    assert all(job.alone for job in measured_jobs())
    assert sum(setting["patience"] for setting in SETTINGS) <= 720
    assert len({job.label for job in measured_jobs()}) == len(SETTINGS) + 1


def test_what_was_not_measured_is_listed_with_its_reason() -> None:
    refused = {label(setting): {CANNOT_RUN: "a local cluster cannot run here: no root"} for setting in SETTINGS}
    results = refused | {TRAINING: {CANNOT_RUN: "no torch"}}
    assert read_measured(results).settings == ()
    assert read_measured(results).training is None
    assert list_obstacles(results) == dict.fromkeys(refused, "no root")
