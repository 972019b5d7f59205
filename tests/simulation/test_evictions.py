"""A run with a liar goes on without it, for good: also when it is resumed."""

import json

import pytest

from dordis.cli.commands.run import print_outcome
from dordis.protocols.secagg.client import SecAggClient
from dordis.protocols.secagg.messages import SharesDelivered
from dordis.records import run_records
from dordis.records.run_records import read_evictions
from dordis.report.facts import read_facts
from dordis.report.page import render_report
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
    assert {u for line in read_evictions(first.records.path / run_records.EVICTIONS) for u in line.clients} == gone
    del liar[1:]
    again = prepare(settings_of(*KEYS)).resume(first.records.path)
    later = list(again.rounds())
    assert [finished.record.number for finished in later] == [2, 3]
    assert all(gone.isdisjoint(finished.record.clients) for finished in later)
    assert not any(finished.record.failures for finished in later)


def test_evictions_are_told_and_a_successor_inherits_them(tmp_path, liar, capsys):
    first = prepare(settings_of(*KEYS)).start(tmp_path, "")
    result = first.complete()
    gone = sorted({liar[0][0], liar[0][-1]})
    print_outcome(first, result, as_json=True)
    assert json.loads(capsys.readouterr().out)["evicted"] == gone
    told = render_report(read_facts([first.records.path]))
    assert "Evicted clients (2)" in told
    assert f"<th scope=row>{gone[0]}, {gone[1]}</th><td>this run</td><td>0</td>" in told
    del liar[1:]
    more = settings_of(*KEYS, "federation.rounds=4", "privacy.epsilon=12")
    second = prepare(more).succeed(first.records.path, tmp_path, "")
    (done,) = second.rounds()
    assert done.record.failures == ()
    assert done.record.evicted == ()
    assert {*gone}.isdisjoint(done.record.clients)
    stored = run_records.load_run(second.records.path)
    assert list(stored.evicted) == gone
    assert first.records.id.hex()[:16] in render_report(read_facts([second.records.path]))
