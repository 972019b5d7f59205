"""Weights by the number of samples: bounded, so that the sensitivity is the clip bound as without them."""

import numpy as np
import pytest

from dordis.apps.learning import Client, Server, Settings
from dordis.apps.learning.models import Softmax
from dordis.apps.learning.optim import SampleWeights
from dordis.errors import InputError
from dordis.rounds.app import RoundInfo, Task
from tests.apps.aggregates import summed

WEIGHTS = {"kind": "samples", "most": 20, "typical": 10.0}


def client(samples, weights, seed=5):
    rng = np.random.default_rng(seed)
    held = rng.normal(size=(samples, 3)), rng.integers(0, 2, samples)
    settings = Settings(weights=None if weights is None else SampleWeights(20, 10.0), lr=50.0)
    return Client(Softmax(3, 2), held, 2, settings, (0,))


@pytest.mark.parametrize("samples", [1, 7, 20, 500])
def test_an_update_is_as_long_as_the_clip_bound_times_its_weight(samples):
    info, start = RoundInfo(1, 0, clip=0.5), np.zeros(8)
    plain = client(samples, None).prepare_data(info, start)
    weighted = client(samples, WEIGHTS).prepare_data(info, start)
    weight = min(samples, 20) / 20
    assert np.linalg.norm(plain) > 0.5  # so that clipping is at work
    assert np.linalg.norm(weighted) == pytest.approx(0.5 * weight)
    np.testing.assert_allclose(weighted, plain / np.linalg.norm(plain) * 0.5 * weight)


def test_clients_count_by_their_samples_and_a_typical_one_as_it_is():
    server = Server.from_task(
        Task({"weights": WEIGHTS, "average": 0.0, "optimiser": {"kind": "fedavg", "lr": 1.0}}, 10)
    )
    weights = SampleWeights(20, 10.0)
    updates = [np.full(650, 0.3) * weights.weight(10), np.full(650, 0.6) * weights.weight(10)]
    server.use_output(RoundInfo(1, 0), summed(updates))
    np.testing.assert_allclose(server.model(), 0.45, rtol=1e-6)
    assert weights.weight(5) == weights.weight(10) / 2


def test_a_client_follows_the_step_of_the_server():
    task = Task({"weights": WEIGHTS}, 10)
    server, aggregate = Server.from_task(task), summed([np.linspace(0, 1, 650)])
    following = Client.from_task(task, 0).next_model(RoundInfo(1, 0), server.model(), aggregate)
    server.use_output(RoundInfo(1, 0), aggregate)
    np.testing.assert_allclose(following, server.model(), rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"typical": 0.0}, {"typical": float("inf")}])
def test_weights_without_a_meaning_are_refused(wrong):
    with pytest.raises(InputError):
        SampleWeights(**({"most": 3, "typical": 1.0} | wrong))
