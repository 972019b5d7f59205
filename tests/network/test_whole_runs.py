"""Whole runs over loopback TLS: server and clients are processes, which are killed by SIGKILL."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from dordis.apps.tables.synthetic import draw_hospitals
from dordis.cli.commands.report import read_run_status
from dordis.identity.authority import Authority
from dordis.ledger.ledger import verify_ledger
from dordis.owner.directory import ClientDirectory
from dordis.privacy.record_accounting import epsilon
from dordis.records.run_records import LEDGER
from dordis.report.page import write_report
from dordis.runs.job import application, prepare
from tests.cli.in_process import dordis
from tests.network.deployed_run import DeployedRun
from tests.network.local_server import publish
from tests.network.process_roles import settings
from tests.network.proxies import FaultyProxy

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
CUT, LATE = 4, 12
EVALUATED = {"server": "Evaluated", "client": "EvaluatedConstant"}
"""The applications whose server evaluates a round when the clients of the next one have trained."""


def test_clients_may_be_killed_at_every_stage_or_come_late(processes, tmp_path):
    gate, keys = tmp_path / "gate", ["federation.rounds=3", "app.options.dim=200000", "performance.chunks=4"]
    keys += [f"app.options.gate={gate}", "protocol.threshold=7", "protocol.tolerance=5", "deployment.deadlines.grace=0"]
    fleet = DeployedRun(processes, tmp_path, 12, [*keys, "deployment.wait=0"])
    waiting, go = (fleet.pipe(name) for name in ("gate.out", "gate.in"))
    fleet.serve()
    for u in range(1, 12):
        fleet.join_and_wait(u, kill=KILLED.get(u))
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    for u in (1, 2, 3, 4, 5):
        assert processes.wait(fleet.clients[u]) == -9
        fleet.join_and_wait(u, kill=KILLED.get(u + 0.5))
    fleet.join_and_wait(LATE)
    go.write_text("on")
    waiting.read_text()
    for u in (6, 7, 8, 9):
        assert processes.wait(fleet.clients[u]) == -9
        fleet.join_and_wait(u)
    go.write_text("on")
    assert fleet.end() == 0
    first, second, third = fleet.stored().rounds
    assert first.clients == (4, 5, 6, 7, 8, 9, 10, 11)
    assert gone(first) == {4, 5}
    assert second.clients == third.clients == tuple(range(1, 13))
    assert gone(second) == {6, 7, 8, 9}
    assert gone(third) == {1, 2, 3}
    fleet.check_sums()
    assert fleet.check_ledger().reserved == 0


def test_a_client_that_is_cut_off_in_its_upload_reconnects_and_is_in_the_sum(processes, tmp_path):
    keys = ["federation.rounds=2", "app.options.dim=200000", "performance.chunks=4", "deployment.wait=600"]
    fleet = DeployedRun(processes, tmp_path, 4, [*keys, "deployment.deadlines.grace=600"])
    here, cut = (fleet.pipe(name) for name in ("here", "cut"))
    fleet.serve()
    proxy = FaultyProxy(fleet.port)
    fleet.join_and_wait(CUT, port=proxy.port, cut=[2, "CollectInput", str(here), str(cut)])
    fleet.join_missing()
    here.read_text()
    proxy.cut()
    cut.write_text("done")
    assert fleet.end() == 0
    proxy.close()
    for record in fleet.stored().rounds:
        assert not gone(record)
        assert all(CUT in chunk for chunk in fleet.receipt(record.index)["survivors"])
    fleet.check_sums()


def gone(record):
    return {u for clients in record.dropped.values() for u in clients}


def test_clients_that_missed_rounds_make_the_model_from_their_sums(processes, tmp_path):
    """Two of the six clients of a run are not due in a round; the digests see to it that all have the same model."""
    keys = ["federation.per_round=4", "federation.rounds=5", "privacy.projection=64", "privacy.epsilon=50"]
    learning = ["app.server=dordis.apps.learning:Server", "app.client=dordis.apps.learning:Client"]
    fleet = DeployedRun(processes, tmp_path, 6, [*keys, *learning, "app.options.model=softmax", "deployment.wait=600"])
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


PATIENTS = [
    "federation.rounds=4", "privacy.unit=record", "privacy.record=patient", "privacy.records=40",
    "privacy.sampling=0.5", "privacy.epsilon=8", "app.options.own_files=true", "app.options.model=softmax",
    "app.server=dordis.apps.learning:Server", "app.client=dordis.apps.learning:Client",
    "app.options.table.label=ill", "app.options.table.client=hospital", "app.options.table.ranges=[0, 300]",
    'app.options.table.features=["age", "pressure", "sugar"]', 'app.options.table.categories.ill=["no", "yes"]',
    "deployment.train_seconds=3", "deployment.wait=600", "deployment.deadlines.grace=1",
]  # fmt: skip


def test_hospitals_protect_patients_and_one_that_is_killed_changes_no_epsilon(processes, tmp_path):
    """Each of five clients has a file of its own; one is killed while it uploads, and stays away."""
    rows = draw_hospitals(5, 40, seed=1)
    fleet = DeployedRun(processes, tmp_path, 5, PATIENTS)
    planned = prepare(settings(fleet.keys), application(settings(fleet.keys), 0)[0]).design.sampled
    fleet.serve()
    for u in range(1, 6):
        held = [i for i, name in enumerate(rows["hospital"]) if name == f"hospital-{u:02}"]
        lines = [",".join(str(column[i]) for column in rows.values()) for i in held]
        (tmp_path / f"{u}.csv").write_text("\n".join([",".join(rows), *lines, ""]))
        fleet.join(u, kill=(2, "CollectInput") if u == 5 else None, more=[f"app.options.data={tmp_path / f'{u}.csv'}"])
    assert fleet.end() == 0
    records = fleet.stored().rounds
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert gone(records[1]) == {5}
    stated = fleet.check_ledger().stated.epsilon
    assert stated == epsilon(planned, fleet.stored().manifest.plan.delta)
    assert 7.9 < stated <= 8.0
    status = ClientDirectory(tmp_path / "c1.state").status.read().describe()
    assert (
        status == "status: no training is recorded here; with records as the unit of privacy none ever is"
    )  # nothing of a sample is written down
    page = write_report([fleet.run], tmp_path).read_text()
    assert "all rows with the same patient" in page


def test_updates_of_several_lengths_are_summed_by_a_server_that_is_started_again(processes, tmp_path):
    keys = ["federation.rounds=3", "app.server=tests.simulation.toys:Growing", "app.client=tests.simulation.toys:Half"]
    fleet = DeployedRun(processes, tmp_path, 5, [*keys, "deployment.wait=600"])
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


@pytest.mark.parametrize("gated", [True, False], ids=["with the gate", "without it"])
def test_a_server_killed_as_soon_as_it_has_a_sum_has_charged_it_if_requests_pass_the_gate(processes, tmp_path, gated):
    fleet = DeployedRun(processes, tmp_path, 5, ["federation.rounds=2", "deployment.wait=600"])
    fleet.serve(steals=True, gated=gated)
    fleet.join_missing()
    assert processes.wait(fleet.server) != 0
    fleet.stop()
    assert fleet.check_disclosed_once()  # clients have disclosed the secrets that unmask the sum
    assert (verify_ledger(fleet.run / LEDGER).epsilon > 0) is gated


def test_a_run_whose_tries_failed_while_gathering_is_resumed_under_new_indices(processes, tmp_path):
    """All clients decline every try, as long as the file exists; they remember the indices of these tries."""
    unready = tmp_path / "unready"
    unready.touch()
    keys = ["federation.rounds=1", "federation.tries=2", f"app.options.unready={unready}", "deployment.wait=600"]
    fleet = DeployedRun(processes, tmp_path, 5, [*keys, "deployment.deadlines.retry=0.01"])
    fleet.serve()
    for u in range(1, 6):
        fleet.join_and_wait(u)
    assert fleet.end() != 0
    assert [failed.index for failed in fleet.stored().failures] == [0, 1]
    assert "5 clients had no data for the round (is_ready): resume when their data is there" in fleet.log()
    assert fleet.log().count("the round is tried again in 0.01 s") == 1
    unready.unlink()
    fleet.kill_clients()
    fleet.serve(resume=fleet.run)
    fleet.join_missing()
    assert fleet.end() == 0
    (record,) = fleet.stored().rounds
    assert (record.number, record.index, record.dropped) == (1, 2, {})


def test_a_server_killed_while_it_gathers_does_not_use_the_index_again(processes, tmp_path):
    """No failed attempt is on its disk, but clients have seen the index in an invitation."""
    fleet = DeployedRun(processes, tmp_path, 5, ["federation.rounds=1", "deployment.wait=600"])
    here, go = fleet.pipe("here"), fleet.pipe("go")
    fleet.serve()
    fleet.join_and_wait(1, cut=[1, "Train", str(here), str(go)])
    fleet.join_missing()
    here.read_text()
    processes.kill(fleet.server)
    go.write_text("on")
    fleet.serve(resume=fleet.run)
    assert fleet.end() == 0
    (record,) = fleet.stored().rounds
    assert (record.number, record.index, len(record.clients), record.dropped) == (1, 1, 5, {})


def test_clients_restart_in_a_run_after_a_revocation_with_the_newest_registry(processes, tmp_path):
    """The registry on disk no longer lists a member of the run; one file serves the server and all clients."""
    gate = tmp_path / "gate"
    keys = ["federation.rounds=2", f"app.options.gate={gate}", "protocol.threshold=4", "protocol.tolerance=2"]
    fleet = DeployedRun(processes, tmp_path, 6, [*keys, "deployment.wait=600"])
    waiting, go = fleet.pipe("gate.out"), fleet.pipe("gate.in")
    fleet.serve()
    fleet.join_missing()
    waiting.read_text()
    go.write_text("on")
    waiting.read_text()
    shutil.copytree(tmp_path / "authority", tmp_path / "strict")
    Authority(tmp_path / "authority", datetime.now(UTC)).revoke("c3", "lost its machine")
    Authority(tmp_path / "strict", datetime.now(UTC) - timedelta(days=1)).revoke("c3", "before the run began")
    publish(tmp_path)
    processes.kill(fleet.clients[1])
    fleet.join_and_wait(1)
    go.write_text("on")
    assert fleet.end() == 0
    first, second = fleet.stored().rounds
    assert (first.clients, second.clients) == ((1, 2, 3, 4, 5, 6), (1, 2, 4, 5, 6))
    assert second.dropped == {}
    assert "revoked" in (tmp_path / "c3.log").read_text()
    assert fleet.check_ledger().reserved == 0
    known, strict = (
        dordis("verify", fleet.run, "--registry", folder / "registry.json", "--authority", folder / "ca.pem")
        for folder in (tmp_path / "authority", tmp_path / "strict")
    )
    assert (known.returncode, strict.returncode) == (0, 2)
    assert "2 of 2, with the keys of the given registry" in known.stdout
    assert "began on" in strict.stderr
    assert "with keys of client 3 ('c3') that were revoked on" in strict.stderr


def test_a_client_revoked_while_the_server_evaluates_is_not_in_the_round_it_has_trained_for(processes, tmp_path):
    """The second round's clients have trained when one of them is revoked, in the evaluation of the first round."""
    verdict = tmp_path / "verdict"
    verdict.write_text("wait 1")
    apps = [f"app.{side}=tests.network.process_roles:{name}" for side, name in EVALUATED.items()]
    keys = [*apps, f"app.options.verdict={verdict}", "app.options.dim=100000", "protocol.threshold=4"]
    fleet = DeployedRun(
        processes, tmp_path, 6, [*keys, "federation.rounds=2", "protocol.tolerance=1", "deployment.wait=600"]
    )
    evaluating, go = fleet.pipe("verdict.out"), fleet.pipe("verdict.in")
    fleet.serve()
    fleet.join_missing()
    evaluating.read_text()
    Authority(tmp_path / "authority", datetime.now(UTC)).revoke("c3", "lost its machine")
    publish(tmp_path)
    go.write_text("on")
    assert fleet.end() == 0
    first, second = fleet.stored().rounds
    assert (first.clients, second.clients) == ((1, 2, 3, 4, 5, 6), (1, 2, 4, 5, 6))
    assert (second.invited, second.dropped) == (6, {})
    assert "revoked" in (tmp_path / "c3.log").read_text()
    fleet.check_sums()
    assert fleet.check_ledger().reserved == 0


def test_a_silent_member_is_shown_and_invited_last_and_the_next_round_does_not_wait_for_it(processes, tmp_path):
    """It hangs in the training of the first round, until after the run."""
    keys = ["federation.rounds=2", "deployment.wait=600", "deployment.deadlines.stages.Train=6"]
    fleet = DeployedRun(processes, tmp_path, 6, keys)
    here, go = fleet.pipe("here"), fleet.pipe("go")
    fleet.serve()
    fleet.join_and_wait(1, cut=[1, "Train", str(here), str(go)])
    fleet.join_missing()
    here.read_text()
    assert processes.wait(fleet.server) == 0
    assert processes.is_running(fleet.clients[1])
    fleet.kill_clients()
    first, second = fleet.stored().rounds
    assert (first.invited, second.invited) == (6, 5)
    assert first.clients == second.clients == (2, 3, 4, 5, 6)
    assert "client 1 leaves the round: no reply to Train" in fleet.log()
    assert "client 1 missed a deadline" in fleet.log()
    assert read_run_status(fleet.run)["missed_deadlines"] == {1: {"Train": 1}}
