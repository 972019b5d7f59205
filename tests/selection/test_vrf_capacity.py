"""Participation caps with VRF selection: the clients left for later rounds, compared with sampled runs."""

import numpy as np
import pytest

from dordis.config.reading import read_config
from dordis.runs.job import Job
from dordis.selection.vrf_capacity import (
    chance_below,
    describe_starvation,
    expected_cohort,
    is_starved,
    working_cap,
    working_cohort,
)
from dordis.simulation.run import prepare


def sampled_cohorts(clients: int, per_round: int, rounds: int, cap: int) -> np.ndarray:
    """Return the cohorts of the last round of 4,000 runs in which every client draws lots until its cap."""
    rng = np.random.default_rng(7)
    lots = rng.random((4000, rounds, clients)) < per_round / clients
    before = lots[:, :-1].sum(axis=1)
    return (lots[:, -1] & (before < cap)).sum(axis=1)


@pytest.mark.parametrize(("clients", "per_round", "rounds", "cap"), [(60, 30, 2, 1), (100, 16, 30, 5), (40, 10, 8, 2)])
def test_the_last_cohort_is_that_of_sampled_runs(clients: int, per_round: int, rounds: int, cap: int) -> None:
    cohorts = sampled_cohorts(clients, per_round, rounds, cap)
    mean = expected_cohort(clients, per_round, cap, rounds)
    assert cohorts.mean() == pytest.approx(mean, abs=0.3)
    assert (cohorts < 8).mean() == pytest.approx(chance_below(clients, mean / clients, 8), abs=0.04)


def test_the_proposed_cap_and_cohort_work() -> None:
    assert is_starved(60, 30, 2, 1, 16, 5)
    assert working_cap(60, 30, 2, 1, 16, 5) == 2
    n = working_cohort(60, 30, 2, 16, 5)
    assert n is not None
    assert not is_starved(60, n, 2, -(-2 * n // 60), -(-16 * n // 30), 5)
    assert describe_starvation(60, 30, 2, 2, 16, 5) == ""


def lots(*keys: str) -> Job:
    cohort = ("federation.clients=60", "federation.per_round=30", "federation.rounds=2", "federation.selection=vrf")
    return prepare(read_config(keys=[*cohort, *keys])).job


def test_a_job_warns_of_starved_rounds_until_the_proposed_cap_is_set() -> None:
    (warning,) = lots().warnings
    assert "federation.participations = 2" in warning
    capped = lots("federation.participations=2")
    assert (capped.warnings, capped.design.cap) == ((), 2)
