"""SIGKILL at commits of server and client: the round is resumed, and its sum is right and disclosed once.

A sample of the commits is tested; with DORDIS_EVERY_CRASH set, every one, which takes many minutes.
"""

import os

import pytest

from dordis.ledger.ledger import verify_ledger
from dordis.records.run_records import LEDGER, RECEIPTS
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


@pytest.mark.parametrize("word", ["kill", "fail"])
def test_a_server_that_stops_in_an_evaluation_goes_on_with_the_same_sum_and_invites_under_a_new_index(
    processes, tmp_path, word
):
    """The clients of round 3 have been invited and have trained: nothing of it is charged before round 2 is on disk."""
    verdict, roles = tmp_path / "verdict", "tests.network.process_roles"
    verdict.write_text(f"{word} 2")
    keys = [f"app.server={roles}:Evaluated", f"app.client={roles}:EvaluatedConstant", f"app.options.verdict={verdict}"]
    fleet = DeployedRun(processes, tmp_path, CLIENTS, [*KEYS[1:], *keys, "federation.rounds=3"])
    fleet.serve()
    fleet.join_missing()
    assert fleet.end() == (-9 if word == "kill" else 1)
    assert fleet.log().count("the round begins") == 3
    assert [record.number for record in fleet.stored().rounds] == [1]
    assert sorted(path.name for path in (fleet.run / RECEIPTS).iterdir()) == ["000000.json", "000001.json"]
    assert verify_ledger(fleet.run / LEDGER).completed == 2
    receipt = fleet.receipt(1)
    verdict.unlink()
    fleet.serve(resume=fleet.run)
    assert fleet.end() == 0
    assert [(record.number, record.index) for record in fleet.stored().rounds] == [(1, 0), (2, 1), (3, 3)]
    assert fleet.receipt(1) == receipt
    assert fleet.check_sums() == 3
    assert fleet.check_ledger().reserved == 0
    assert len(fleet.check_disclosed_once()) == 3
