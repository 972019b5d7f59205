"""The server's steps, against their formulas by hand."""

import numpy as np
import pytest

from dordis.apps.learning.optim import FedAdam, FedAvg, RateSchedule, average_without_bias, update_average
from dordis.errors import InputError

MEANS = np.random.default_rng(4).normal(size=(5, 3))


def run(optimiser, means, parameters=None, memory=None):
    parameters, memory = np.zeros(3) if parameters is None else parameters, memory or {}
    for mean in means:
        parameters, memory = optimiser.step(parameters, mean, memory)
    return parameters, memory


def test_fedavg_adds_up_the_updates():
    found, memory = run(FedAvg(lr=0.5), MEANS)
    np.testing.assert_allclose(found, 0.5 * MEANS.sum(axis=0))
    assert not memory


def test_momentum_repeats_every_update_geometrically():
    found, _ = run(FedAvg(lr=0.5, momentum=0.9), MEANS)
    weights = [sum(0.9**k for k in range(5 - i)) for i in range(5)]
    np.testing.assert_allclose(found, 0.5 * np.array(weights) @ MEANS)


def test_fedadam_is_adam_with_tau():
    lr, b1, b2, tau = 0.1, 0.8, 0.95, 1e-2
    w, m, v = np.zeros(3), np.zeros(3), np.zeros(3)
    for t, g in enumerate(MEANS, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w + lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + tau)
    found, _ = run(FedAdam(lr, b1, b2, tau), MEANS)
    np.testing.assert_allclose(found, w)


@pytest.mark.parametrize(
    "optimiser",
    [
        FedAvg(),
        FedAvg(momentum=0.5),
        FedAdam(),
        FedAvg(schedule=RateSchedule(steps=4)),
        FedAdam(schedule=RateSchedule(steps=4, warmup=2)),
    ],
)
def test_steps_go_on_from_what_is_remembered(optimiser):
    whole, _ = run(optimiser, MEANS)
    half, memory = run(optimiser, MEANS[:2])
    np.testing.assert_array_equal(run(optimiser, MEANS[2:], half, memory)[0], whole)


def test_a_schedule_changes_the_rate_of_each_step():
    """With means of 1 and no momentum the parameters are the sum of the rates."""
    schedule = RateSchedule(steps=6, final=0.5, warmup=2)
    found = run(FedAvg(lr=2.0, schedule=schedule), np.ones((8, 1)))[0]
    cosine = [0.5 + 0.5 * (1 + np.cos(np.pi * step / 4)) / 2 for step in range(4)]
    assert found == pytest.approx(2.0 * (0.5 + 1.0 + sum(cosine) + 0.5 + 0.5))
    assert FedAvg(schedule=schedule).has_memory


def test_a_moving_average_of_a_constant_is_the_constant():
    memory = {}
    for _ in range(3):
        memory = update_average(memory, "x", np.array([2.0, 3.0]), 0.9)
        np.testing.assert_allclose(average_without_bias(memory, "x"), [2, 3])


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FedAvg, {"lr": 0.0}),
        (FedAvg, {"momentum": 1.0}),
        (FedAdam, {"lr": float("inf")}),
        (FedAdam, {"beta1": -0.1}),
        (FedAdam, {"beta2": 1.0}),
        (FedAdam, {"tau": 0.0}),
        (RateSchedule, {"steps": 0}),
        (RateSchedule, {"steps": 4, "warmup": 4}),
        (RateSchedule, {"steps": 4, "final": 1.5}),
    ],
)
def test_optimisers_without_a_meaning_are_refused(kind, wrong):
    with pytest.raises(InputError):
        kind(**wrong)
