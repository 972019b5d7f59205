"""Whole runs over loopback with TLS: the server and every client is a process of its own, and kills are SIGKILL."""

import pytest

from dordis.federation.client_directory import ClientDirectory
from tests.network.deployed import Deployed
from tests.network.relay import Relay

pytestmark = [pytest.mark.network, pytest.mark.slow]

KILLED = {
    1: (1, "Invite"),
    2: (1, "SendModel"),
    3: (1, "Train"),
    4: (1, "AdvertiseKeys"),
    5: (1, "ShareKeys"),
    6: (2, "DeliverShares"),
    7: (2, "PrepareInput"),
    8: (2, "CollectInput"),
    9: (2, "Agree"),
    1.5: (3, "Unmask"),
    2.5: (3, "Dispatch"),
    3.5: (3, "Store"),
}
"""The round and the request at which a client is killed; with a fraction: one that was killed before, again."""
CUT, LATE = 10, 12


def test_clients_may_be_killed_at_every_stage_be_cut_off_or_come_late(zygote, tmp_path):
    gate, keys = tmp_path / "gate", ["federation.rounds=3", "app.options.dim=200000", "performance.chunks=4"]
    keys += ["performance.receivers=2"]
    keys += [f"app.options.gate={gate}", "protocol.threshold=7", "protocol.tolerance=5", "deployment.deadlines.grace=1"]
    fleet = Deployed(zygote, tmp_path, 12, [*keys, "deployment.wait=0"])
    waiting, go, here, cut = (fleet.pipe(name) for name in ("gate.out", "gate.in", "here", "cut"))
    fleet.serve()
    relay = Relay(fleet.port)
    fleet.join_and_wait(CUT, port=relay.port, cut=[2, "CollectInput", str(here), str(cut)])
    for u in {*range(1, 12)} - {CUT}:
        fleet.join_and_wait(u, kill=KILLED.get(u))
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    for u in (1, 2, 3, 4, 5):
        assert zygote.wait(fleet.clients[u]) == -9
        fleet.join_and_wait(u, kill=KILLED.get(u + 0.5))
    fleet.join_and_wait(LATE)
    go.write_text("on")
    here.read_text()
    relay.cut()
    cut.write_text("done")
    waiting.read_text()
    for u in (6, 7, 8, 9):
        assert zygote.wait(fleet.clients[u]) == -9
        fleet.join_and_wait(u)
    go.write_text("on")
    assert fleet.end() == 0
    relay.close()
    first, second, third = fleet.stored().rounds
    assert first.clients == (4, 5, 6, 7, 8, 9, 10, 11)
    assert gone(first) == {4, 5}
    assert second.clients == third.clients == tuple(range(1, 13))
    assert gone(second) == {6, 7, 8, 9}
    assert gone(third) == {1, 2, 3}
    assert all(CUT in chunk for chunk in fleet.receipt(second.index)["survivors"])
    fleet.check_sums()
    assert fleet.check_ledger().reserved == 0


def gone(record):
    return {u for clients in record.dropped.values() for u in clients}


def test_clients_that_missed_rounds_make_the_model_from_their_sums(zygote, tmp_path):
    """Two of the six clients of a run are not due in a round; the digests see to it that all have the same model."""
    keys = ["federation.per_round=4", "federation.rounds=5", "privacy.projection=64", "privacy.epsilon=50"]
    learning = ["app.server=dordis.apps.learning:Server", "app.client=dordis.apps.learning:Client"]
    fleet = Deployed(zygote, tmp_path, 6, [*keys, *learning, "app.options.model=softmax", "deployment.wait=600"])
    fleet.serve()
    fleet.join_missing()
    assert fleet.end() == 0
    first, *others = fleet.stored().rounds
    seen, last = set(first.clients), dict.fromkeys(first.clients, 1)
    missed = 0
    for record in others:
        away = [record.number - last[u] - 1 for u in record.clients if u in seen]
        missed += sum(away)
        assert (record.replay_bytes > 0) == any(away)
        assert record.model_bytes == len({*record.clients} - seen) * first.model_bytes // 4
        assert not record.dropped
        seen |= {*record.clients}
        last |= dict.fromkeys(record.clients, record.number)
    assert missed == 6  # two who missed one round, in each of the last three
    assert fleet.check_ledger().reserved == 0


def test_updates_of_several_lengths_are_summed_by_a_server_that_is_started_again(zygote, tmp_path):
    keys = ["federation.rounds=3", "app.server=tests.simulation.toys:Growing", "app.client=tests.simulation.toys:Half"]
    fleet = Deployed(zygote, tmp_path, 5, [*keys, "deployment.wait=600"])
    fleet.serve(only=1)
    fleet.join_missing()
    assert fleet.end() == 0
    fleet.serve(resume=fleet.run)
    fleet.join_missing()
    assert fleet.end() == 0
    assert [(record.number, record.dim) for record in fleet.stored().rounds] == [(1, 40), (2, 3000), (3, 3000)]
    assert fleet.check_ledger().reserved == 0
    for u in range(1, 6):
        told = ClientDirectory(tmp_path / f"c{u}.state").status.read().describe()
        assert told == f"status: no zero updates; the last was the training of client {u} in round 3"
