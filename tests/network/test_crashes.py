"""SIGKILL at commits of server and client: the round is resumed, and its sum is right and disclosed once.

A sample of the commits is tested; with DORDIS_EVERY_CRASH set, every one, which takes many minutes.
"""

import os

import pytest

from tests.network.deployed_run import DeployedRun

pytestmark = [pytest.mark.network, pytest.mark.slow]

KEYS = [
    "federation.rounds=200",  # a client's journal counts its rounds over all runs
    "app.options.dim=100000",
    "performance.chunks=2",
    "deployment.wait=600",
    "deployment.deadlines.grace=600",
    "deployment.runs_a_day=1000",  # every kill is in a run of its own
]
CLIENTS = 5
EVERY = bool(os.environ.get("DORDIS_EVERY_CRASH"))
STRIDE = 1 if EVERY else 6


@pytest.fixture
def fleet(processes, tmp_path):
    fleet = DeployedRun(processes, tmp_path, CLIENTS, KEYS)
    yield fleet
    fleet.stop()


def kill_the_server(fleet):
    """Kill a server at one place after the other, each in a run of its own."""
    places, died = 2 - STRIDE, True
    while died:
        places += STRIDE
        fleet.serve(only=1, dies=places)
        fleet.join_missing()
        died = fleet.end() != 0
        if died:
            fleet.serve(only=1, resume=fleet.run)
            assert fleet.end() == 0
        (record,) = fleet.stored().rounds
        # A kill between the invitations and the agreed parameters uses the index up: clients may have accepted it.
        assert (record.number, record.dropped) == (1, {})
        assert record.index in ((0, 1) if died else (0,))
        assert [len(chunk) for chunk in fleet.receipt(record.index)["survivors"]] == [CLIENTS, CLIENTS]
        fleet.check_sums()
        assert fleet.check_ledger().reserved == 0
        fleet.check_disclosed_once()
    assert places > 40


def test_a_server_killed_at_any_commit_goes_on_with_the_same_sum(fleet):
    kill_the_server(fleet)


def test_a_client_killed_at_any_commit_goes_on_in_the_same_round(fleet):
    places, died = 2 - STRIDE, True
    while died:
        places += STRIDE
        fleet.serve(only=1)
        fleet.join(1, dies=places)
        fleet.join_missing()
        died = fleet.processes.wait_any(fleet.server, fleet.clients[1]) == fleet.clients[1]
        if died:
            fleet.join(1)
        assert fleet.end() == 0
        (record,) = fleet.stored().rounds
        # Killed when it has closed the round, a client cannot answer its last message, sent again: it is lost.
        assert record.dropped in ({}, {"Store": (1,)})
        assert [len(chunk) for chunk in fleet.receipt(0)["survivors"]] == [CLIENTS, CLIENTS]
        fleet.check_sums()
        fleet.check_disclosed_once()
    assert places > 20
