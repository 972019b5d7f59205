"""Chaos in short: every event once, in eleven rounds with six clients."""

import pytest

from tests.network.chaos import Chaos

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_a_run_survives_every_event(processes, tmp_path):
    chaos = Chaos(processes, tmp_path, clients=6, rounds=11, seed=2)
    try:
        figures = chaos.run()
    finally:
        chaos.stop()
    assert len(chaos.events) == 9
    assert figures["rounds finished"] == "11 of 11"
    assert figures["clients home with exit code 0"] == "5 of 5"
    assert (figures["revoked clients"], figures["tracebacks"]) == (1, 0)
    # An event may fail a try after its charge; then the charge stays, and nothing else may leave a reservation.
    assert figures["reserved rounds left in the ledger"] <= figures["failed tries"]
