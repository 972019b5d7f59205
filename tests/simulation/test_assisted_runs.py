"""Whole simulated runs over the assisted protocol: arrivals, noise, charges, policies and the statement."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

import dordis
from dordis.config.reading import read_config
from dordis.errors import InputError, ParametersRefused, ParticipationRefused, ProtocolError
from dordis.ledger import ledger as ledgers
from dordis.owner.policy import Policy
from dordis.protocols.assisted import AssistedHelper
from dordis.protocols.assisted.disputes import Complaints
from dordis.protocols.assisted.messages import BoxesOpened, Introduce
from dordis.protocols.assisted.server import AssistedSetup
from dordis.protocols.parameters import Assistance, pack_words
from dordis.records import run_records
from dordis.records.run_records import LEDGER
from dordis.report.page import write_report
from dordis.simulation.run import prepare
from tests.protocols.assisted.parties import lie_about_all

SETTINGS = (
    "app.server=tests.simulation.toys:Server",
    "app.client=tests.simulation.toys:Client",
    "federation.clients=30",
    "federation.per_round=14",
    "federation.rounds=2",
    "federation.arrival=open",
    "privacy.delta=1e-5",
    "protocol.use=assisted",
    "protocol.colluders=2",
    "performance.threads=1",
)


def simulated(*more):
    return prepare(read_config(keys=[*SETTINGS, *more]))


@pytest.fixture
def run(tmp_path):
    def complete_run(*more):
        run = simulated(*more).start(tmp_path, "")
        run.complete()
        return run

    return complete_run


@pytest.mark.parametrize("mode", ["malicious", "semi-honest"])
@pytest.mark.parametrize("scheme", ["single", "exact"])
def test_full_and_ideal_runs_have_the_same_arrivals_noise_and_charges(run, mode, scheme):
    dropout = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.6", "simulation.seed=5")
    found = []
    for fidelity in ("full", "ideal"):
        keys = (f"simulation.fidelity={fidelity}", f"protocol.mode={mode}", f"privacy.noise.scheme={scheme}")
        done = run(*keys, *dropout)
        stored = run_records.load_run(done.records.path)
        summary = ledgers.verify_ledger(done.records.path / LEDGER, run=done.records.id)
        rounds = [(one.index, one.clients, one.survivors, one.left, one.charged) for one in stored.rounds]
        found.append((rounds, summary.clients, summary.completed))
        assert all(one.charged >= one.wanted for one in stored.rounds)
    assert found[0] == found[1]
    assert found[0][2] == 2
    assert all(7 <= len(clients) <= 14 for _, clients, *_ in found[0][0])


@pytest.mark.parametrize("noise", ["orig", "none"])
def test_baselines_run_too(run, noise):
    done = run(f"privacy.noise.kind={noise}", "federation.rounds=1", "simulation.fidelity=full")
    assert len(run_records.load_run(done.records.path).rounds) == 1


def test_folded_updates_chunks_and_a_clip_bound_that_follows_a_quantile(run):
    """The clipping bit has seeds of its own, and every chunk has."""
    keys = ("app.options.dim=40000", "privacy.projection=20000", "performance.chunks=2", "federation.rounds=1")
    found = []
    for fidelity in ("full", "ideal"):
        done = run(*keys, 'privacy.clip={kind="quantile"}', f"simulation.fidelity={fidelity}")
        (round,) = run_records.load_run(done.records.path).rounds
        assert len(set(round.survivors)) == 1
        assert len(round.survivors) == 3  # two chunks of the update, and the bit
        assert (0 < round.buckets < 40000, round.below is not None) == (True, True)
        found.append((round.clients, round.left, round.charged))
    assert found[0] == found[1]


@pytest.mark.parametrize("noise", ["early", "conservative", "rebasing", "central", "local"])
def test_other_strategies_are_refused(noise):
    with pytest.raises(InputError, match="cannot be run with the noise"):
        simulated(f"privacy.noise.kind={noise}", "simulation.fidelity=ideal")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("protocol.options.helpers=3",), "m >= 3 f"),
        (("protocol.options.helper=3",), r"protocol\.options of 'assisted'"),
        (("protocol.tolerance=8",), "below half"),
        (("protocol.use=secagg", "federation.arrival=invited", "protocol.options.x=1"), "has no options"),
        (("protocol.use=secagg", "federation.arrival=invited", "federation.participations=1"), "participations is for"),
        (("federation.participations=0",), "participations"),
        (("privacy.noise.scheme=exact", "federation.clients=200", "federation.per_round=140"), "at most 64, not 70"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_anything_is_written(settings, said, tmp_path):
    with pytest.raises(InputError, match=said):
        simulated(*settings).start(tmp_path, "").complete()


def test_colluders_of_the_registry_have_to_be_stated_against_a_malicious_server():
    keys = [key for key in SETTINGS if not key.startswith("protocol.colluders")]
    with pytest.raises(InputError, match=r"set protocol\.colluders"):
        prepare(read_config(keys=keys))
    assert prepare(read_config(keys=[*keys, "protocol.mode=semi-honest"])).job.design.setting.colluders == 1
    assert simulated().job.design.setting.colluders == 2  # all of them, whatever the window


def test_the_statement_says_whom_one_trusts(run):
    done = run("federation.rounds=1")
    assert done.records.manifest.assistance == Assistance((1, 2, 3, 4), 1)
    page = write_report([done.records.path], None).read_text()
    assert re.search(r"up to 2 colluding clients of the 30 registered ones and 1 of 4 helpers", page)
    assert "2 helpers together with the server could see every single update" in page
    bare = run("federation.rounds=1", "protocol.tolerance=9", "protocol.options.no_base=true")
    assert "no noise at all" in write_report([bare.records.path], None).read_text()


def test_the_noise_is_planned_for_the_participations_that_every_client_keeps_to(tmp_path):
    once, twice = (simulated(f"federation.participations={count}") for count in (1, 2))
    assert [job.job.design.cap for job in (once, twice)] == [1, 2]
    assert twice.job.design.plan.variance > once.job.design.plan.variance
    run = once.start(tmp_path, "")
    run.complete()
    first, second = run_records.load_run(run.records.path).rounds
    assert set(first.clients).isdisjoint(second.clients)
    job = twice.job
    owner = twice.home().create_clients(bytes(32), job.selection_rule.selection(None, bytes(32), None))[1].owner
    parameters = job.design.example()
    assert parameters.participations == 2
    for index in (0, 1):
        owner.attend(_at(parameters, index), bytes(32))
    owner.attend(_at(parameters, 1), bytes(32))  # the same round once more
    with pytest.raises(ParticipationRefused):
        owner.attend(_at(parameters, 2), bytes(32))


def _at(parameters, index):
    return replace(parameters, round=bytes(32) + index.to_bytes(8, "big"))


def test_owners_name_the_helpers(tmp_path):
    job = simulated()
    policy = job.home().policy
    parameters = _agreed(job)
    policy.check(parameters)
    for change, line in (
        ({"helpers": frozenset({1, 2, 3})}, "helpers"),
        ({"honest_helpers": 4}, "honest_helpers"),
        ({"faulty_helpers": 2}, "faulty_helpers"),
    ):
        with pytest.raises(ParametersRefused, match=f"line '{line}'"):
            replace(policy, **change).check(parameters)
    with pytest.raises(ParametersRefused, match="line 'no_base'"):
        policy.check(replace(parameters, no_base=True))
    assert "assisted" not in Policy().protocols
    assert not Policy().helpers


def _agreed(job):
    round = bytes(40)
    answers = {h: helper.handle(Introduce(round)) for h, helper in job.home().create_helpers().items()}
    design = job.job.design
    return design.agree_on(run=round[:32], index=0, clients=(), rotation=bytes(32), introductions=answers)


def test_train_takes_the_protocol_by_its_name(tmp_path):
    inputs = np.random.default_rng(1).normal(size=(41, 20, 4))
    *clients, public = [(x, (x[:, 0] > x[:, 1]).astype(int)) for x in inputs]
    common = {"test": public, "epsilon": 6, "rounds": 2, "protocol": "assisted", "output": tmp_path}
    for fidelity in ("full", "ideal"):
        result = dordis.train("softmax", clients, colluders=1, dropout=0.2, fidelity=fidelity, **common)
        assert result.epsilon <= 6
        assert len(result.history) == 2
    with pytest.raises(InputError, match=r"protocol\.colluders"):
        dordis.train("softmax", clients, **common)


@pytest.mark.parametrize("lies", [False, True])
def test_a_run_goes_on_without_a_helper_that_was_killed_or_lied(run, monkeypatch, lies):
    """A liar is named and asked for nothing any more; a helper that is only lost is asked again."""
    asked, found, reveal, unmask = [], [], AssistedHelper.reveal, AssistedSetup.unmask

    def fail(self, request):
        if self.me != 2:
            return reveal(self, request)
        asked.append(self.me)
        if not lies:
            raise ProtocolError("this helper was killed")
        return lie_about_all(reveal(self, request))

    monkeypatch.setattr(AssistedHelper, "reveal", fail)
    monkeypatch.setattr(AssistedSetup, "unmask", lambda self: (found.append(self.standing), unmask(self))[1])
    done = run("simulation.fidelity=full")
    rounds = run_records.load_run(done.records.path).rounds
    assert [one.sum_check for one in rounds] == ["passed", "passed"]
    assert not any(one.evicted or one.failures for one in rounds)
    assert found == [Complaints(helpers=frozenset({2}) if lies else frozenset())] * 2
    assert len(asked) == (1 if lies else 2)


def test_a_resumed_run_goes_on_without_the_helper_and_the_client_that_complaints_exclude(tmp_path, monkeypatch):
    """Helper 2 lies once, and helper 3 names a client once, before the server is restarted."""
    asked, reveal, opening = [], AssistedHelper.reveal, AssistedHelper.open
    accused, is_first = [], True

    def lie(self, request):
        asked.append(int(self.me))
        return lie_about_all(reveal(self, request)) if is_first and self.me == 2 else reveal(self, request)

    def accuse(self, request):
        reply = opening(self, request)
        if not is_first or self.me != 3:
            return reply
        accused.append(min(request.entries))
        return BoxesOpened(pack_words(accused))

    monkeypatch.setattr(AssistedHelper, "reveal", lie)
    monkeypatch.setattr(AssistedHelper, "open", accuse)
    keys = ("simulation.fidelity=full", "federation.clients=14", "federation.rounds=3")
    keys += ("protocol.options.helpers=7", "protocol.options.faulty=2")
    first = simulated(*keys).start(tmp_path, "")
    record = next(first.rounds()).record
    assert accused[0] in record.clients  # it came, and is counted; its input is in no sum
    assert set(record.survivors) == {len(record.clients) - 1}
    path, is_first = first.records.path, False
    del first
    asked.clear()
    again = simulated(*keys).resume(path)
    assert again.complete().rounds == 3
    later = run_records.load_run(path).rounds[1:]
    assert len(later) == 2
    assert set(asked) == {1, 3, 4, 5, 6, 7}
    assert all(accused[0] not in one.clients for one in later)
    page = write_report([path], None).read_text()
    assert "Evicted helpers and left-out clients (2)" in page
    assert re.search(rf"helper 2.*evicted: it was proved wrong.*client {accused[0]}\D.*named by helper 3", page, re.S)
