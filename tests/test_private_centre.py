"""A private mean as the centre of features: one charged release, then training without it."""

import numpy as np
import pytest

from dordis.config.reading import read_config
from dordis.ledger.ledger import verify_ledger
from dordis.records import run_records
from dordis.rounds.app import RoundInfo, Task
from dordis.simulation.run import prepare
from examples.private_centre.centred import CentredClient, CentredServer, directions, shrink_mean, subtract_centre
from tests.apps.aggregates import summed

OPTIONS = {"data": "digits", "centred": False}
CLIENTS = 30
KEYS = [
    "app.server=examples.private_centre.centred:CentredServer",
    "app.client=examples.private_centre.centred:CentredClient",
    "app.options.centred=false",
    "app.options.average=0.5",
    "federation.clients=60",
    "federation.per_round=40",
    "federation.rounds=4",
    "simulation.fidelity=ideal",
]


def parties():
    task = Task(OPTIONS, population=CLIENTS, seed=1)
    return CentredServer.from_task(task), [CentredClient.from_task(task, place) for place in range(CLIENTS)]


def test_the_first_round_finds_the_mean_direction_of_the_clients_whatever_the_clip():
    server, clients = parties()
    assert server._has_input_steps
    assert (server.dim, server.dims, server.model().size) == (64, (64, 650), 0)
    for clip in (1.0, 0.25):
        server._centre = None
        info = RoundInfo(1, 0, clip=clip, deviation=0.0)
        updates = [client.prepare_data(info, server.model()) for client in clients]
        assert max(np.linalg.norm(update) for update in updates) <= clip * (1 + 1e-12)
        server.use_output(info, summed(updates))
        expected = np.mean([directions(client._samples[0])[0].mean(axis=0) for client in clients], axis=0)
        np.testing.assert_allclose(server._centre, expected, atol=1e-6)
    assert (server.dim, server.model().size) == (650, 650 + 64)


def test_clients_train_on_features_without_the_centre_and_follow_the_server():
    server, clients = parties()
    first = RoundInfo(1, 0, clip=1.0)
    server.use_output(first, summed([client.prepare_data(first, server.model()) for client in clients]))
    second, model = RoundInfo(2, 1, clip=1.0), server.model()
    updates = [client.prepare_data(second, model) for client in clients]
    rows = np.concatenate([client.work(second).samples[0] for client in clients]).reshape(-1, 64)
    whole = np.concatenate([client._samples[0] for client in clients]).reshape(-1, 64)
    assert np.linalg.norm(rows.mean(axis=0)) < 0.1 * np.linalg.norm(whole.mean(axis=0))
    aggregate = summed(updates)
    following = clients[0].next_model(second, model, aggregate)
    server.use_output(second, aggregate)
    np.testing.assert_allclose(following, server.model(), atol=1e-6)


def test_noise_is_taken_off_by_shrinking():
    rng = np.random.default_rng(0)
    true = np.full(400, 0.02)
    noisy = true + rng.normal(0.0, 0.02, 400)
    assert np.linalg.norm(shrink_mean(noisy, 0.02) - true) < 0.9 * np.linalg.norm(noisy - true)
    assert not shrink_mean(rng.normal(0.0, 0.02, 400), 0.05).any()


def test_rows_of_zeros_have_no_direction():
    x, _ = subtract_centre((np.zeros((2, 3), np.float32), np.zeros(2)), np.ones(3))
    assert not x.any()


@pytest.mark.parametrize("fidelity", ["ideal", pytest.param("full", marks=pytest.mark.slow)])
def test_the_centre_is_charged_once_and_kept_over_a_restart(tmp_path, fidelity):
    keys = [*KEYS, f"simulation.fidelity={fidelity}"]
    run = prepare(read_config(keys=keys)).start(tmp_path, "")
    next(run.rounds())
    path, centre = run.records.path, run.job.app._centre
    del run
    again = prepare(read_config(keys=keys)).resume(path)
    np.testing.assert_array_equal(again.job.app._centre, centre)
    result = again.complete()
    assert [record.dim for record in run_records.load_run(path).rounds] == [64, 650, 650, 650]
    told = verify_ledger(path / "ledger.jsonl")
    assert (told.completed, told.epsilon) == (4, result.epsilon)
    assert result.epsilon <= 6
    np.testing.assert_array_equal(np.load(path / "centre.npy"), centre)
    assert "accuracy" in result.metrics
