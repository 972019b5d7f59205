"""Assisted rounds over HTTPS, by whole processes: clients that visit, helpers, and kills of each of them."""

import pytest

from tests.network.assisted_run import AssistedRun, assisted_keys

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLIENTS, N_MAX, N_MIN = 6, 5, 3
KEYS = [
    "federation.rounds=2",
    "app.options.dim=100000",
    "federation.participations=2",
    "deployment.wait=600",
    "deployment.runs_a_day=1000",
]


@pytest.fixture
def fleet(processes, tmp_path):
    fleet = AssistedRun(processes, tmp_path, CLIENTS, [*KEYS, *assisted_keys(CLIENTS, N_MAX, N_MIN)])
    yield fleet
    fleet.stop()


def test_a_run_of_visiting_clients_has_the_sums_of_those_who_came(fleet):
    fleet.serve()
    fleet.assist_missing()
    fleet.join_missing()
    assert fleet.end() == 0
    assert fleet.check_sums() == 2
    assert all(len(record.clients) == N_MAX for record in fleet.stored().rounds)
