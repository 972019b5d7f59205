"""Whole simulated runs: they end as planned, go on after a stop, and refuse what cannot be before writing anything."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from dordis.errors import BudgetExceeded, BudgetUsedUp, InputError, TooManyDropouts
from dordis.ledger.ledger import Ledger, verify_ledger
from dordis.protocols.secagg.server import ChunkServer
from dordis.records import run_records
from dordis.records.run_records import RunRecords
from dordis.report.page import write_report
from dordis.rounds.app import RoundInfo
from dordis.simulation.run import prepare
from tests.paused_processes import HANG, start_paused
from tests.simulation.whole_runs import TOY, settings_of


def start(tmp_path, *keys):
    return prepare(settings_of(*keys)).start(tmp_path, "")


def test_a_run_finishes_its_rounds_and_keeps_to_the_budget(tmp_path):
    run = start(tmp_path, "simulation.dropout.kind=rate", "simulation.dropout.rate=0.34")
    finished = list(run.rounds())
    result = run.close("rounds")
    assert [done.record.number for done in finished] == [1, 2, 3]
    assert 0 < result.epsilon <= 6
    read = run_records.load_run(run.records.path)
    assert [done.number for done in read.rounds] == [1, 2, 3]
    summary = verify_ledger(run.records.path / "ledger.jsonl", run=run.records.id)
    assert (summary.completed, summary.epsilon) == (3, result.epsilon)
    assert sorted(path.name for path in (run.records.path / "receipts").iterdir()) == [
        f"{done.record.index:06d}.json" for done in finished
    ]


def test_dropouts_are_recorded_where_they_happen(tmp_path):
    run = start(tmp_path, "simulation.dropout.kind=rate", "simulation.dropout.rate=0.34", "federation.rounds=6")
    for done in run.rounds():
        assert sum(map(len, done.record.dropped.values())) <= 2
        early = {"AdvertiseKeys", "ShareKeys", "DeliverShares", "CollectInput"}
        lost = sum(len(clients) for stage, clients in done.record.dropped.items() if stage in early)
        assert done.record.survivors == (6 - lost,)
        assert done.record.left >= done.record.wanted


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_resumed_run_goes_on_after_its_last_finished_round(tmp_path, fidelity):
    keys = (f"simulation.fidelity={fidelity}",)
    first = start(tmp_path, *keys)
    rounds = first.rounds()
    next(rounds)
    mean = first.job.app.mean
    again = prepare(settings_of(*keys)).resume(first.records.path)
    assert again.done == 1
    np.testing.assert_array_equal(again.job.app.mean, mean)
    assert again.job.app.rounds == 1
    assert [done.record.number for done in again.rounds()] == [2, 3]
    indices = [done.index for done in run_records.load_run(first.records.path).rounds]
    assert len(set(indices)) == 3
    assert verify_ledger(first.records.path / "ledger.jsonl").completed == 3


def test_a_round_that_was_charged_and_not_finished_stays_charged_and_its_index_used(tmp_path):
    first = start(tmp_path)
    job = first.job
    rounds = first.rounds()
    next(rounds)
    charged = {index for _, index in first._ledger.owner_charges()}
    job.app.use_output = lambda *_: (_ for _ in ()).throw(RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        next(rounds)
    again = prepare(settings_of()).resume(first.records.path)
    assert [done.record.index for done in again.rounds()] == [2, 3]
    assert sorted(index for _, index in again._ledger.owner_charges()) == [0, 1, 2, 3]
    assert charged == {0}


def test_a_chunk_that_fails_after_another_was_unmasked_leaves_the_round_charged(tmp_path, monkeypatch):
    run = start(tmp_path, "performance.chunks=2", "app.options.dim=40000", "federation.rounds=1")
    collect, reserve, charged = ChunkServer.collect_inputs, Ledger.reserve, threading.Event()

    def reserving(*arguments):
        reserve(*arguments)
        charged.set()

    def late(chunk):
        if chunk.chunk == 1 and chunk.parameters.index == 0:
            assert charged.wait(HANG)  # the other chunk is about to ask
            raise TooManyDropouts(5, 2)
        return collect(chunk)

    monkeypatch.setattr(Ledger, "reserve", reserving)
    monkeypatch.setattr(ChunkServer, "collect_inputs", late)
    (done,) = run.rounds()
    assert [failure.index for failure in done.record.failures] == [0]
    assert run._ledger.round(0).state == "reserved"
    assert run._ledger.round(0).payers == run._ledger.round(0).charge.clients
    assert run._ledger.round(1).state == "completed"


def test_a_run_does_not_go_on_under_another_configuration(tmp_path):
    first = start(tmp_path)
    next(first.rounds())
    first.close("interrupted")
    for name, key in {"privacy": "privacy.delta=1e-3", "federation": "federation.rounds=30"}.items():
        with pytest.raises(InputError, match=f"another '{name}'"):
            prepare(settings_of(key)).resume(first.records.path)
    with pytest.raises(InputError, match="another 'privacy'"):  # it would go on without its ledger
        prepare(settings_of("privacy.noise.kind=none")).resume(first.records.path)
    assert run_records.load_run(first.records.path).result.stopped == "interrupted"
    assert prepare(settings_of("performance.chunks=auto")).resume(first.records.path).done == 1


def test_a_run_that_goes_on_has_not_ended(tmp_path):
    first = start(tmp_path)
    next(first.rounds())
    first.close("interrupted")
    again = prepare(settings_of()).resume(first.records.path)
    assert run_records.load_run(first.records.path).result is None  # its epsilon would soon be too small
    next(again.rounds())
    assert again.close("interrupted").rounds == 2


def test_a_run_does_not_go_on_with_other_keys(tmp_path):
    first = start(tmp_path)
    (first.records.path / "simulation.key").write_bytes(bytes(32))
    with pytest.raises(InputError, match="other keys than when it began"):
        prepare(settings_of()).resume(first.records.path)
    (first.records.path / "simulation.key").unlink()
    with pytest.raises(InputError, match="missing"):
        prepare(settings_of()).resume(first.records.path)


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
@pytest.mark.parametrize("keys", [(), ("privacy.noise.kind=orig", "privacy.mechanism=ddgauss")])
def test_clients_that_select_themselves_make_rounds_of_any_size(tmp_path, fidelity, keys):
    run = start(tmp_path, "federation.selection=vrf", f"simulation.fidelity={fidelity}", "federation.tries=50", *keys)
    done = list(run.rounds())
    assert [len(one.record.clients) for one in done] == [one.record.survivors[0] for one in done]
    assert all("the selection" in failure.reason for one in done for failure in one.record.failures)
    assert 0 < run.close("rounds").epsilon <= 6


@pytest.mark.slow
def test_failed_rounds_use_up_participations_in_both_fidelities(tmp_path):
    keys = ("federation.rounds=20", "federation.clients=24", "federation.per_round=12", "federation.tries=40",
            "simulation.dropout.kind=stages", "simulation.dropout.rates={CollectInput=0.3}",
            "federation.selection=uniform", "protocol.mode=semi-honest", "app.options.dim=8")  # fmt: skip

    def told_by(fidelity):
        run = start(tmp_path / fidelity, *keys, f"simulation.fidelity={fidelity}")
        told = []
        try:
            told.extend((r.index, r.clients, r.survivors, r.dropped) for r in (done.record for done in run.rounds()))
        except BudgetUsedUp as error:
            told.append(str(error))
        return told

    full, ideal = map(told_by, ("full", "ideal"))
    assert full == ideal
    assert not any("refused" in dropped for *_, dropped in full[:-1])


def test_where_nothing_is_proved_nobody_is_spent(tmp_path):
    keys = ("privacy.noise.kind=none", "federation.selection=uniform", "protocol.mode=semi-honest")
    run = start(tmp_path, *keys, "federation.rounds=8")
    assert not any(done.record.dropped for done in run.rounds())


def test_orig_overspends_early_stops_and_xnoise_does_neither(tmp_path):
    keys = ("simulation.fidelity=ideal", "simulation.dropout.kind=rate", "simulation.dropout.rate=0.34",
            "federation.per_round=12", "federation.rounds=12", "app.options.dim=8",
            "simulation.dropout.stages=['CollectInput']")  # fmt: skip

    def run_of(noise):
        run = start(tmp_path, *keys, f"privacy.noise.kind={noise}", "name=" + noise)
        try:
            for _ in run.rounds():
                pass
        except BudgetExceeded:
            return run.close("budget")
        return run.close("rounds")

    orig, early, xnoise = map(run_of, ("orig", "early", "xnoise"))
    assert (orig.rounds, orig.epsilon > 6) == (12, True)
    assert early.stopped == "budget"
    assert early.rounds < 12
    assert early.epsilon == early.spent <= 6  # its budget rule ended it, and the ledger shows that
    assert (xnoise.stopped, xnoise.rounds, xnoise.epsilon <= 6) == ("rounds", 12, True)


@pytest.mark.parametrize("noise", ["none", "central", "local", "orig", "early", "conservative", "xnoise"])
def test_every_strategy_gives_the_mean_and_what_it_proves(tmp_path, noise):
    keys = ("federation.rounds=1", "privacy.epsilon=100.0", "protocol.tolerance=0", "privacy.clip=4.0")
    run = start(tmp_path, f"privacy.noise.kind={noise}", "app.options.dim=4", *keys)
    (done,) = run.rounds()
    truth = np.mean([run.home.clients(u).prepare_data(RoundInfo(1, 0), None) for u in done.record.clients], axis=0)
    sigma = {"none": 1e-6, "local": 4.0}.get(noise, 1.0)
    assert np.abs(done.result.aggregate.mean - truth).max() < 6 * sigma
    assert (done.record.epsilon is None) == (noise == "none")
    assert (done.record.wanted is None) == (noise == "none")


def test_rebasing_costs_and_proves_nothing(tmp_path):
    with pytest.raises(InputError, match="fidelity"):
        start(tmp_path, "privacy.noise.kind=rebasing")
    run = start(tmp_path, "privacy.noise.kind=rebasing", "simulation.fidelity=ideal")
    done = next(run.rounds())
    assert done.record.epsilon is None
    assert done.metrics.values["rebasing_bytes"] == 6 * run.records.manifest.plan.upload_bytes


def test_protocol_suite_and_mechanism_can_be_ones_own(tmp_path):
    run = start(
        tmp_path,
        "protocol.use=dordis.protocols.secagg:SECAGG",
        "protocol.suite=tests.crypto.suites:TWISTED",
        "privacy.mechanism=tests.simulation.toys:Own",
    )
    assert run.job.design.mechanism.made_here
    assert [done.record.number for done in run.rounds()] == [1, 2, 3]


PLAINTEXT = ("protocol.use=plaintext", "protocol.mode=semi-honest")


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_plaintext_runs_drops_out_and_reports_like_the_others(tmp_path, fidelity):
    keys = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.3", "federation.rounds=5",
            "federation.per_round=10", "federation.clients=20", "protocol.tolerance=3")  # fmt: skip
    run = start(tmp_path, *PLAINTEXT, *keys, f"simulation.fidelity={fidelity}")
    done = [finished.record for finished in run.rounds()]
    result = run.close("rounds")
    assert [record.number for record in done] == [1, 2, 3, 4, 5]
    assert 0 < result.epsilon <= 6
    assert {stage for record in done for stage in record.dropped} == {"Begin", "Contribute", "Disclose"}
    for record in done:
        early = [u for stage in ("Begin", "Contribute") for u in record.dropped.get(stage, ())]
        assert record.survivors == (10 - len(early),)
        assert record.left >= record.wanted
    manifest = run_records.load_run(run.records.path).manifest
    assert (manifest.stages, manifest.trust.hides_updates) == (("Begin", "Contribute", "Disclose"), False)
    page = write_report([run.records.path]).read_text()
    assert "protects nobody" in page
    assert verify_ledger(run.records.path / "ledger.jsonl").completed == 5


def test_plaintext_does_not_stand_up_to_a_malicious_server(tmp_path):
    with pytest.raises(InputError, match=r"^the protocol 'plaintext' does not withstand a malicious server") as said:
        start(tmp_path, "protocol.use=plaintext")
    assert "\n" not in str(said.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_whoever_is_lost_before_the_round_is_not_in_it(tmp_path, fidelity):
    keys = ("simulation.dropout.kind=stages", "simulation.dropout.rates={Invite=0.15, Train=0.15}",
            "federation.tries=9", "federation.per_round=10", "federation.clients=20",
            "protocol.tolerance=0")  # fmt: skip
    run = start(tmp_path, *keys, f"simulation.fidelity={fidelity}")
    done = [finished.record for finished in run.rounds()]
    assert any(len(record.clients) < record.invited for record in done)
    for record in done:
        assert record.invited == 10
        assert (record.survivors, record.dropped) == ((len(record.clients),), {})


def test_the_bytes_of_the_model_are_counted_where_messages_are_sent(tmp_path):
    full, ideal = (
        next(start(tmp_path / kind, f"simulation.fidelity={kind}").rounds()).record for kind in ("full", "ideal")
    )
    assert 6 * 4 * 40 < full.model_bytes < 6 * (4 * 40 + 100) < full.down
    assert (ideal.up, ideal.down, ideal.model_bytes) == (None, None, None)


def test_a_failed_round_is_tried_again_with_other_clients(tmp_path):
    run = start(tmp_path, "simulation.dropout.kind=none")
    coordinator = run._coordinator(lambda _: None)
    whole = coordinator._rounds.sum
    failed = []

    def fail_once(agreed, watch):
        if not failed:
            failed.append(agreed.parameters)
            raise TooManyDropouts(5, 2)
        return whole(agreed, watch)

    coordinator._rounds.sum = fail_once
    done = coordinator.round(1, 0)
    assert done.record.index == 1
    assert [failure.index for failure in done.record.failures] == [0]
    assert set(done.record.clients) != set(failed[0].clients)


def test_a_round_that_always_fails_ends_the_run(tmp_path):
    run = start(tmp_path, "simulation.dropout.kind=rate", "simulation.dropout.rate=1.0", "federation.tries=2")
    with pytest.raises(TooManyDropouts):
        list(run.rounds())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["protocol.threshold=2"], "quorum"),
        (["protocol.tolerance=5"], "tolerance"),
        (["protocol.threshold=7"], "threshold"),
        (["federation.per_round=13"], "more than federation.clients"),
        (["federation.selection=uniform"], "balanced"),
        (["app.server=nowhere:Server"], "no module 'nowhere'"),
        (["app.server=tests.simulation.toys:Client"], "AppServer"),
        (["app.client=tests.simulation.toys:Missing"], "has no 'Missing'"),
        (["app.options.wrong=3"], "do not fit"),
        (["privacy.bits=4"], "out of reach"),
        (["privacy.mechanism=loud"], "package.module:NAME"),
        (["performance.chunks=50"], "chunks"),
        (["protocol.use=secag"], "package.module:NAME"),
        (["protocol.use=dordis.crypto.suite:DEFAULT"], "no SummingProtocol"),
        (["protocol.suite=dordis.crypto.suite:Suite"], "no Suite"),
        (["privacy.mechanism=ddgauss"], "cannot be removed"),
        (["privacy.noise.kind=conservative", "privacy.noise.rate=nan"], "rate"),
        (["simulation.dropout.kind=fedscale", "simulation.dropout.path=absent.json"], "absent.json"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, keys, said):
    with pytest.raises(InputError, match=said):
        start(tmp_path, *keys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("poison", "said"), [("long", "vectors of 40 coordinates"), ("infinite", "finite")])
@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_an_update_that_cannot_be_used_names_the_client(tmp_path, poison, said, fidelity):
    run = start(tmp_path, f"app.options.poison={poison}", "federation.per_round=12", f"simulation.fidelity={fidelity}")
    with pytest.raises(InputError, match=f"client 1 in round 1 .*{said}"):
        list(run.rounds())


def test_the_same_seed_gives_the_same_clients_and_dropouts_and_other_secrets(tmp_path):
    keys = ("simulation.fidelity=ideal", "federation.selection=uniform", "protocol.mode=semi-honest",
            "simulation.dropout.kind=rate")  # fmt: skip
    one, other = (list(start(tmp_path / name, *keys).rounds()) for name in "ab")
    assert [(d.record.clients, d.record.dropped) for d in one] == [(d.record.clients, d.record.dropped) for d in other]
    assert not np.array_equal(one[0].result.aggregate.mean, other[0].result.aggregate.mean)


@pytest.mark.slow
def test_kill_leaves_a_run_that_goes_on_with_its_ledger_intact(tmp_path):
    """Kill a real process in the middle of three rounds, each at another point, and let it go on until it is done."""
    keys = [f"-c{key}" for key in (*TOY, "app.server=tests.simulation.paused_toys:Server", "federation.clients=48",
                                   "federation.rounds=4", f"output={tmp_path}")]  # fmt: skip
    command, arguments = [sys.executable, "-m", "dordis", "run", "--json"], keys
    for finished, point in enumerate(["use_output 0", "evaluate 2", "state 3"]):
        process = start_paused([*command, *arguments], point, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process.kill()
        process.communicate()
        (path,) = (manifest.parent for manifest in tmp_path.glob("*/*/manifest.json"))
        arguments = ["--resume", str(path)]
        assert len(run_records.load_run(path).rounds) == finished
    done = subprocess.run([*command, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    told, read = json.loads(done.stdout), run_records.load_run(path)
    assert (told["rounds"], told["stopped"]) == (4, "rounds")
    assert [done.number for done in read.rounds] == [1, 2, 3, 4]
    assert [done.index for done in read.rounds] == [1, 3, 5, 6]  # the others were charged, and stay so
    ledger = verify_ledger(path / "ledger.jsonl", run=RunRecords.open(path).id)
    assert ledger.completed == 7
    assert ledger.epsilon == pytest.approx(told["epsilon"])


def test_the_number_of_chunks_is_found_while_the_run_goes_on(tmp_path):
    run = start(tmp_path, "performance.chunks=auto", "app.options.dim=40000", "federation.rounds=6")
    used = [len(done.record.survivors) for done in run.rounds()]
    assert used[0] == 1
    assert len(set(used)) > 1  # it tries
    assert max(used) <= run.job.design.mechanism.grid.blocks


def test_chunks_are_summed_as_the_whole_is(tmp_path):
    keys = ("app.options.dim=40000", "federation.rounds=1", "privacy.noise.kind=none", "federation.clients=6")
    whole, cut = (next(start(tmp_path / str(m), *keys, f"performance.chunks={m}").rounds()) for m in (1, 3))
    assert (len(whole.record.survivors), len(cut.record.survivors)) == (1, 3)
    np.testing.assert_allclose(whole.result.aggregate.mean, cut.result.aggregate.mean, atol=1e-6)


def test_central_noise_is_said_to_trust_the_server(tmp_path):
    central, local = (start(tmp_path, f"privacy.noise.kind={kind}").records.manifest for kind in ("central", "local"))
    assert any("but the server" in term for term in central.terms)
    assert not any("against the server" in term for term in central.terms)
    assert any("against the server" in term for term in local.terms)
