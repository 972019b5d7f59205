"""A run with a liar goes on without it, for good: also when it is resumed."""

import pytest

from dordis.federation import records
from dordis.federation.evictions import read_evictions
from dordis.protocols.secagg.client import SecAggClient
from dordis.protocols.secagg.messages import SharesDelivered
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of

KEYS = ("federation.clients=8", "federation.per_round=8", "federation.rounds=3")
"""Everyone is in every round, as far as it was not evicted."""


@pytest.fixture
def liar(monkeypatch):
    """Make the first client of every round accuse the last, for as long as both are there."""
    honest = SecAggClient.open_shares
    began = []

    def accuse(client, request):
        reply, everyone = honest(client, request), client.state.parameters.clients
        began.append(everyone)
        if (client.me, everyone[-1]) != pair(everyone):
            return reply
        return SharesDelivered(accused=client.state.parameters.pack(everyone[-1:]))

    def pair(everyone):
        return began[0][0], began[0][-1]

    monkeypatch.setattr(SecAggClient, "open_shares", accuse)
    return began


def test_a_liar_and_whom_it_accuses_are_evicted_for_the_run_and_after_a_resumption(tmp_path, liar):
    first = prepare(settings_of(*KEYS)).start(tmp_path, "")
    done = next(first.rounds())
    gone = {liar[0][0], liar[0][-1]}
    (failed,) = done.record.failures
    assert {*failed.evicted} == gone
    assert "cannot use the shares" in failed.reason
    assert len(done.record.clients) == 6
    assert {u for line in read_evictions(first.records.path / records.EVICTIONS) for u in line.clients} == gone
    del liar[1:]
    again = prepare(settings_of(*KEYS)).resume(first.records.path)
    later = list(again.rounds())
    assert [finished.record.number for finished in later] == [2, 3]
    assert all(gone.isdisjoint(finished.record.clients) for finished in later)
    assert not any(finished.record.failures for finished in later)
