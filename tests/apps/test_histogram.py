"""Shares of clients in public bins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.apps.histogram import Client, Server, Settings, project_to_simplex
from dordis.errors import InputError
from dordis.rounds.app import Task
from tests.apps.aggregates import summed

EMPTY = np.zeros(0)


def test_the_frequencies_are_those_of_numpys_histogram(tmp_path):
    values = np.random.default_rng(2).normal(size=200)
    np.save(tmp_path / "values.npy", values)
    task = Task({"data": str(tmp_path / "values.npy"), "edges": [-1.0, 0.0, 0.5]}, population=200)
    server = Server.from_task(task)
    server.use_output(0, summed([Client.from_task(task, place).prepare_data(0, EMPTY) for place in range(200)]))
    counts, _ = np.histogram(values, bins=[-np.inf, -1, 0, 0.5, np.inf])
    np.testing.assert_allclose(server.result(), counts / 200)
    assert list(server.evaluate()) == ["bin 0", "bin 1", "bin 2", "bin 3"]


@pytest.mark.parametrize(("value", "bin"), [(-9.0, 0), (0.0, 1), (0.5, 1), (1.0, 2), (float("inf"), 2)])
def test_a_value_is_in_one_bin_and_on_an_edge_in_the_upper(value, bin):
    assert Client(value, (0.0, 1.0)).prepare_data(0, EMPTY).tolist() == np.eye(3)[bin].tolist()


def test_a_value_that_is_not_a_number_is_refused():
    with pytest.raises(InputError):
        Client(float("nan"), (0.0,))


def test_negative_shares_are_kept_if_wanted():
    noisy = np.array([0.75, 0.5, -0.25])
    shares = {}
    for cut in (True, False):
        server = Server(bins=3, nonnegative=cut)
        assert server.result().tolist() == [0, 0, 0]
        server.use_output(0, summed([noisy]))
        shares[cut] = server.result().tolist()
    assert shares == {True: [0.625, 0.375, 0.0], False: noisy.tolist()}


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.integers(0, 2**32))
def test_the_projection_is_the_nearest_point_of_the_simplex(shares, seed):
    shares = np.array(shares)
    found = project_to_simplex(shares)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    others = np.random.default_rng(seed).dirichlet(np.full(shares.size, 0.5), size=50)
    assert np.linalg.norm(found - shares) <= np.linalg.norm(others - shares, axis=1).min() + 1e-9


@pytest.mark.parametrize("edges", [(), (1.0, 1.0), (2.0, 1.0), (float("nan"),)])
def test_edges_that_make_no_bins_are_refused(edges):
    with pytest.raises(InputError):
        Settings(edges=edges)


def test_made_up_values_follow_the_seed():
    first, again, other = (
        [
            Client.from_task(Task({}, population=40, seed=seed), place).prepare_data(0, EMPTY).tolist()
            for place in range(40)
        ]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_table_with_several_columns_is_refused(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((3, 2)))
    with pytest.raises(InputError, match="2 columns"):
        Server.from_task(Task({"data": str(tmp_path / "v.npy")}, population=3))
