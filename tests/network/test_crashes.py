"""SIGKILL at commits of the server and of a client: the round goes on, and its sum is right and opened once.

Some commits are tried; with DORDIS_EVERY_CRASH set, every one, which takes many minutes.
"""

import os

import pytest

from tests.network.deployed import Deployed, ports_in_a_row

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
STRIDE, WIDE = (1, 1) if EVERY else (6, 18)
RECEIVERS = 2


@pytest.fixture
def fleet(zygote, tmp_path):
    fleet = Deployed(zygote, tmp_path, CLIENTS, KEYS)
    yield fleet
    fleet.stop()


@pytest.fixture
def receiving(zygote, tmp_path):
    """A fleet whose server has processes that only receive, at the ports that follow its own."""
    fleet = Deployed(zygote, tmp_path, CLIENTS, [*KEYS, f"performance.receivers={RECEIVERS}"])
    fleet.port = ports_in_a_row(1 + RECEIVERS)
    yield fleet
    fleet.stop()


def kill_the_server(fleet, stride):
    """Kill a server at one place after the other, each in a run of its own."""
    places, died = 2 - stride, True
    while died:
        places += stride
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


def test_a_server_killed_at_any_commit_goes_on_with_the_same_sum(fleet):
    kill_the_server(fleet, STRIDE)


def test_so_does_one_with_processes_that_receive(receiving):
    kill_the_server(receiving, WIDE)


def test_a_receiver_killed_at_any_commit_costs_an_attempt_at_most_and_that_is_charged(receiving):
    """The round goes on without it, or is closed, charged if anything of it was opened, and tried again."""
    places, victim = 2 - WIDE, receiving.folder / "victim"
    tried_again = 0
    while True:
        places += WIDE
        victim.unlink(missing_ok=True)
        before = receiving.check_opened_once()
        receiving.serve(only=1, dies=places, victim=victim)
        receiving.join_missing()
        assert receiving.end() == 0
        (record,) = receiving.stored().rounds
        assert (record.number, record.index, record.dropped) == (1, len(record.failures), {})
        receiving.check_sums()
        opened = receiving.check_opened_once() - before
        assert len(opened) - 1 <= receiving.check_ledger().reserved <= len(record.failures) <= 1
        tried_again += len(record.failures)
        if not victim.exists():
            break
    assert places > 40
    assert tried_again or not EVERY


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
