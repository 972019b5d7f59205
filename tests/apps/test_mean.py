"""The mean of clients' vectors, from their clipped differences to a public centre."""

import numpy as np
import pytest

from dordis.apps.mean import Client, Server, Settings, clip_to_norm
from dordis.errors import InputError
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import Task
from tests.apps.aggregates import summed


def updates(task, places, server):
    return [Client.from_task(task, place).prepare_data(0, server.model()) for place in places]


def test_the_estimate_is_the_mean_of_those_who_took_part(tmp_path):
    vectors = np.random.default_rng(1).normal(5, 0.1, (6, 4))
    np.save(tmp_path / "vectors.npy", vectors)
    task = Task({"data": str(tmp_path / "vectors.npy"), "centre": 5.0, "bound": 2.0}, population=6)
    server = Server.from_task(task)
    server.use_output(0, summed(updates(task, [0, 1, 2], server)))
    np.testing.assert_allclose(server.result(), vectors[:3].mean(axis=0))
    server.use_output(1, summed(updates(task, [5], server)))
    np.testing.assert_allclose(server.result(), vectors[[0, 1, 2, 5]].mean(axis=0))
    assert server.evaluate() == {"mean": pytest.approx(server.result().mean())}


def test_coordinates_with_fewer_clients_count_fewer():
    server = Server(dim=4)
    server.use_output(0, Aggregate(np.array([2.0, 3.0, 4.0, 6.0]), (2, 3), np.array([2, 3])))
    assert server.result().tolist() == [1, 1, 2, 2]


def test_before_the_first_round_the_estimate_is_the_centre():
    assert Server(dim=2, centre=3.0).result().tolist() == [3, 3]


def test_vectors_are_clipped_around_the_centre():
    update = Client(np.array([13.0, 14.0]), centre=10.0, bound=1.0).prepare_data(0, np.zeros(0))
    np.testing.assert_allclose(update, [0.6, 0.8])
    short = np.array([0.1, 0.2])
    assert clip_to_norm(short, 1.0) is short


def test_made_up_vectors_follow_the_seed_and_keep_the_bound():
    task = Task({"dim": 8, "bound": 0.5}, population=50, seed=3)
    server = Server.from_task(task)
    first = np.array(updates(task, range(50), server))
    assert first.shape == (50, 8)
    assert np.linalg.norm(first, axis=1).max() <= 0.5
    other = Task({"dim": 8, "bound": 0.5}, population=50, seed=4)
    assert not np.array_equal(first, updates(other, range(50), server))
    np.testing.assert_array_equal(first, updates(task, range(50), server))


def test_a_restored_server_goes_on():
    server, other = Server(dim=2), Server(dim=2)
    server.use_output(0, summed([[1.0, 2.0]]))
    other.restore(server.state())
    for each in (server, other):
        each.use_output(1, summed([[3.0, 3.0]]))
    assert other.result().tolist() == server.result().tolist() == [2, 2.5]


@pytest.mark.parametrize(
    "options", [{"bound": 0.0}, {"bound": float("inf")}, {"dim": 0}, {"centre": float("nan")}, {"bound": -1.0}]
)
def test_settings_without_a_meaning_are_refused(options):
    with pytest.raises(InputError):
        Settings(**options)


def test_unknown_options_and_places_are_refused():
    with pytest.raises(InputError, match="bund"):
        Server.from_task(Task({"bund": 1.0}, population=3))
    for place in (-1, 3):
        with pytest.raises(InputError, match="0 to 2"):
            Client.from_task(Task({}, population=3), place)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (np.zeros((2, 3)), "2 rows"),
        (np.array([[np.nan], [1], [1]]), "finite"),
        (np.array(["a", "b", "c"]), "numbers"),
        (np.zeros((3, 2, 2)), "numbers"),
        (np.zeros((3, 0)), "rows"),
    ],
)
def test_files_that_do_not_hold_a_row_for_each_client_are_refused(tmp_path, stored, reason):
    np.save(tmp_path / "v.npy", stored)
    with pytest.raises(InputError, match=reason):
        Server.from_task(Task({"data": str(tmp_path / "v.npy")}, population=3))


def test_files_that_are_missing_or_no_arrays_are_refused(tmp_path):
    (tmp_path / "text").write_text("1 2 3")
    for name in ("none.npy", "text"):
        with pytest.raises(InputError, match="cannot read"):
            Server.from_task(Task({"data": str(tmp_path / name)}, population=3))
