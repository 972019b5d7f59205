"""SIGKILL at commits of the server and of a client: the round goes on, and its sum is right and opened once.

Every sixth commit is tried; with DORDIS_EVERY_CRASH set, every one, which takes many minutes.
"""

import os

import pytest

from tests.network.deployed import Deployed

pytestmark = [pytest.mark.network, pytest.mark.slow]

KEYS = [
    "federation.rounds=200",  # a client's journal counts its rounds over all runs
    "app.options.dim=100000",
    "performance.chunks=2",
    "deployment.wait=600",
    "deployment.deadlines.grace=600",
]
CLIENTS = 5
STRIDE = 1 if os.environ.get("DORDIS_EVERY_CRASH") else 6


@pytest.fixture
def fleet(zygote, tmp_path):
    fleet = Deployed(zygote, tmp_path, CLIENTS, KEYS)
    yield fleet
    fleet.stop()


def test_a_server_killed_at_any_commit_goes_on_with_the_same_sum(fleet):
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
        assert (record.number, record.index, record.dropped) == (1, 0, {})
        assert [len(chunk) for chunk in fleet.receipt(0)["survivors"]] == [CLIENTS, CLIENTS]
        fleet.check_sums()
        assert fleet.check_ledger().reserved == 0
        fleet.check_opened_once()
    assert places > 40


def test_a_client_killed_at_any_commit_goes_on_in_the_same_round(fleet):
    places, died = 2 - STRIDE, True
    while died:
        places += STRIDE
        fleet.serve(only=1)
        fleet.join(1, dies=places)
        fleet.join_missing()
        died = fleet.zygote.wait_any(fleet.server, fleet.clients[1]) == fleet.clients[1]
        if died:
            fleet.join(1)
        assert fleet.end() == 0
        (record,) = fleet.stored().rounds
        # Killed when it has closed the round, a client cannot answer its last message, sent again: it is lost.
        assert record.dropped in ({}, {"Store": (1,)})
        assert [len(chunk) for chunk in fleet.receipt(0)["survivors"]] == [CLIENTS, CLIENTS]
        fleet.check_sums()
        fleet.check_opened_once()
    assert places > 20
