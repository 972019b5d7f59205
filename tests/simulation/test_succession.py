"""Successor runs: members change, and model, ledger and participations go on; what was spent is never forgotten."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import dordis
from dordis.config.reading import config_to_toml
from dordis.errors import InputError, LedgerDamaged
from dordis.ledger import ledger
from dordis.ledger.combine_runs import combined_epsilon
from dordis.ledger.ledger import Ledger, verify_ledger
from dordis.ledger.stated_epsilon import Basis
from dordis.ledger.verification import check_evidence
from dordis.privacy import gdp
from dordis.records import run_records
from dordis.records.run_records import LEDGER
from dordis.report.facts import read_facts
from dordis.report.page import write_report
from dordis.report.statement import write_statement
from dordis.runs.run import Run
from dordis.simulation.run import SimulatedJob, prepare
from tests.cli.in_process import dordis as command
from tests.ledger.charged_rounds import forge
from tests.simulation.toys import Server
from tests.simulation.whole_runs import settings_of

IDEAL = "simulation.fidelity=ideal"


@lru_cache
def planned(*keys: str) -> SimulatedJob:
    return prepare(settings_of(IDEAL, *keys))


def prepared(*keys: str) -> SimulatedJob:
    """Return a job with an application of its own; the noise is planned once."""
    job = planned(*keys)
    return replace(job, job=replace(job.job, app=Server(job.job.app.dim)))


def start(root: Path, *keys: str) -> Run:
    job = prepared(*keys)
    return job.start(root, config_to_toml(job.config))


def succeed(root: Path, before: Path, *keys: str) -> Run:
    job = prepared(*keys)
    return job.succeed(before, root, config_to_toml(job.config))


def ended(run: Run, rounds: int) -> Path:
    """Run some rounds, and stop there."""
    going = run.rounds()
    for _ in range(rounds):
        next(going)
    run.close("interrupted")
    return run.records.path


ALL = ("federation.clients=6", "federation.per_round=6", "federation.rounds=4")


def test_epsilon_of_two_runs_is_that_of_one_run_of_all_rounds(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", *ALL)
    whole.complete()
    first = ended(start(tmp_path / "parts", *ALL), 2)
    second = succeed(tmp_path / "parts", first, *ALL)
    result = second.complete()
    assert result.spent == verify_ledger(whole.records.path / LEDGER).epsilon > verify_ledger(first / LEDGER).epsilon
    assert result.epsilon == 6.0


def test_a_smaller_budget_does_not_hide_that_a_run_before_was_stopped(tmp_path: Path) -> None:
    """Three runs, the first two stopped by hand: the last one finishes, and still states the largest budget."""
    first = ended(start(tmp_path, *ALL, "privacy.epsilon=20"), 1)
    second = ended(succeed(tmp_path, first, *ALL, "privacy.epsilon=18"), 1)
    third = succeed(tmp_path, second, *ALL, "privacy.epsilon=16", "federation.rounds=3")
    result = third.complete()
    assert (result.stopped, result.rounds, result.epsilon) == ("rounds", 3, 20.0)
    assert result.spent < 16
    (facts,) = read_facts([third.records.path])
    assert (facts.reportable_epsilon, facts.stated_epsilon.basis) == (20.0, Basis.BEFORE)
    assert combined_epsilon([third.records.path]).epsilon == 20.0


def test_a_budget_at_another_delta_is_stated_at_that_of_the_successor(tmp_path: Path) -> None:
    first = ended(start(tmp_path, *ALL, "privacy.epsilon=20", "privacy.delta=1e-4"), 1)
    second = succeed(tmp_path, first, *ALL, "privacy.epsilon=16", "privacy.delta=1e-6", "federation.rounds=2")
    assert second.complete().epsilon == gdp.epsilon(gdp.theta_budget(20, 1e-4), 1e-6) > 20


def test_the_model_goes_on_and_rounds_are_counted_on(tmp_path: Path) -> None:
    first = start(tmp_path, *ALL)
    path = ended(first, 2)
    second = succeed(tmp_path, path, *ALL)
    assert second.done == 2
    np.testing.assert_array_equal(second.job.app.mean, first.job.app.mean)
    assert [done.record.number for done in second.rounds()] == [3, 4]
    assert second.job.app.rounds == 4
    stored = run_records.load_run(second.records.path)
    assert [(done.number, done.index) for done in stored.rounds] == [(3, 0), (4, 1)]


def test_members_join_and_leave_and_each_pays_for_its_own_rounds(tmp_path: Path) -> None:
    keys = ("simulation.fidelity=full", "federation.rounds=8", "privacy.epsilon=20")
    path = ended(start(tmp_path, *keys), 2)
    smaller = ("federation.clients=6", "federation.per_round=6")
    second = succeed(tmp_path, path, *keys, *smaller)
    next(second.rounds())
    before, after = verify_ledger(path / LEDGER, run=first_id(path)), verify_ledger(second.records.path / LEDGER)
    assert set(before.clients) == set(range(1, 13)) == set(after.clients)
    for u in range(1, 13):
        assert (after.clients[u] > before.clients[u]) == (u <= 6)  # who left has what it had
    third = succeed(tmp_path, ended(second, 0), *keys, "federation.clients=14", "federation.per_round=14")
    next(third.rounds())
    last = verify_ledger(third.records.path / LEDGER)
    assert set(last.clients) == set(range(1, 15))
    assert last.clients[13] == last.clients[14] < last.clients[12] < last.clients[1]
    assert last.predecessors == (after.run, before.run)
    roots = [run_records.load_run(run).manifest.registry for run in (path, second.records.path, third.records.path)]
    assert len(set(roots)) == 3


def test_clients_that_stay_keep_their_keys(tmp_path: Path) -> None:
    first = start(tmp_path, *ALL)
    second = succeed(tmp_path, ended(first, 1), *ALL, "federation.clients=7", "federation.per_round=7")
    assert {u: second.home.registry[u] for u in first.home.registry} == dict(first.home.registry)


def test_participations_count_over_both_runs(tmp_path: Path) -> None:
    """12 clients, 6 a round, 4 rounds: a client takes part twice, and no more because of the second run."""
    keys = ("federation.rounds=4",)
    path = ended(start(tmp_path, *keys), 2)
    second = succeed(tmp_path, path, *keys, "federation.clients=13")
    assert second.job.design.cap == 2
    second.complete()
    rounds = [*run_records.load_run(path).rounds, *run_records.load_run(second.records.path).rounds]
    assert max(Counter(u for done in rounds for u in done.clients).values()) == 2
    counted = second._ledger.owner_charges()
    assert sum(len(count.clients) for count in counted.values()) == sum(len(done.clients) for done in rounds)
    assert {run for run, _ in counted} == {first_id(path), second.records.id}


def first_id(path: Path) -> bytes:
    return run_records.load_run(path).id


def test_whoever_cannot_pay_is_left_out_and_new_members_go_on(tmp_path: Path) -> None:
    """Six clients have spent more than the budget of the second run, in which they have not taken part too often."""
    path = ended(start(tmp_path, *ALL, "privacy.epsilon=20"), 2)
    wide = ("federation.clients=12", "federation.per_round=12", "federation.rounds=6")
    second = succeed(tmp_path, path, *wide, "protocol.mode=semi-honest", "protocol.threshold=5")
    assert second.job.design.cap > 2
    assert next(second.rounds()).record.clients == tuple(range(7, 13))
    summary = verify_ledger(second.records.path / LEDGER)
    assert summary.clients[7] < 6 < summary.clients[1] == verify_ledger(path / LEDGER, run=first_id(path)).clients[1]


def test_the_run_before_is_closed(tmp_path: Path) -> None:
    first = start(tmp_path, *ALL)
    going = first.rounds()
    next(going)
    first.close("interrupted")
    second = succeed(tmp_path, first.records.path, *ALL)
    named = second.records.id.hex()[:16]
    with pytest.raises(LedgerDamaged, match=f"succeeded by the run {named}"):
        next(going)  # a process that still runs it charges nothing more
    with pytest.raises(LedgerDamaged, match=f"succeeded by the run {named}"):
        prepared(*ALL).resume(first.records.path)
    count = len(list(tmp_path.glob("*/*")))
    with pytest.raises(LedgerDamaged, match=f"succeeded by the run {named}"):
        succeed(tmp_path, first.records.path, *ALL)
    assert len(list(tmp_path.glob("*/*"))) == count


def test_reports_of_both_runs_are_borne_out_and_the_second_says_that_epsilon_adds_up(tmp_path: Path) -> None:
    path = ended(start(tmp_path, *ALL), 2)
    alone = check_evidence(run_records.load_run(path))
    more = (*ALL, "federation.clients=7", "federation.per_round=7")
    second = succeed(tmp_path, path, *more)
    second.complete()
    assert check_evidence(run_records.load_run(path)).epsilon == alone.epsilon
    first_facts, facts = read_facts([path, second.records.path])
    text = " ".join(paragraph for item in write_statement(facts).items for paragraph in item.paragraphs)
    assert f"continues, with other members, the run {first_id(path).hex()[:16]} after 2 rounds" in text
    assert "adds up" in text
    assert facts.ending == "finished, all 4 rounds"
    assert "This run continues" not in str(write_statement(first_facts))
    assert "2 of them in this run" in write_report([second.records.path]).read_text()
    assert dordis.load(second.records.path).epsilon == facts.reportable_epsilon >= 6


def test_a_successor_that_was_stopped_before_its_first_round_goes_on(tmp_path: Path) -> None:
    first = start(tmp_path, *ALL)
    second = succeed(tmp_path, ended(first, 2), *ALL)
    again = prepared(*ALL).resume(second.records.path)
    assert again.done == 2
    np.testing.assert_array_equal(again.job.app.mean, first.job.app.mean)
    assert [done.record.number for done in again.rounds()] == [3, 4]


def test_a_stop_between_the_two_ledgers_is_made_good_by_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ended(start(tmp_path, *ALL), 2)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "write_new", stop)
        with pytest.raises(KeyboardInterrupt):
            succeed(tmp_path, path, *ALL)
    (made,) = set(tmp_path.glob("*/*")) - {path}
    job = prepared(*ALL)
    with pytest.raises(LedgerDamaged, match="no ledger"):
        job.resume(made)
    with pytest.raises(LedgerDamaged, match="copy this one into its directory"):
        job.resume(path)
    shutil.copy(path / LEDGER, made / LEDGER)
    assert [done.record.number for done in job.resume(made).rounds()] == [3, 4]


def test_a_ledger_without_the_rounds_before_is_damage(tmp_path: Path) -> None:
    second = succeed(tmp_path, ended(start(tmp_path, *ALL), 2), *ALL)
    path = second.records.path
    (path / LEDGER).unlink()
    Ledger.create(path / LEDGER, second.records.id, second.job.design.budget)
    with pytest.raises(LedgerDamaged, match="lacks the rounds of the predecessor"):
        check_evidence(run_records.load_run(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries[7].update(run="ab" * 31),
        lambda entries: entries[7].update(run=entries[0]["previous"]),
        lambda entries: entries[7].update(delta=2.0),
    ],
    ids=["no run id", "succeeds itself", "no delta"],
)
def test_a_line_of_succession_that_cannot_be_is_damage(tmp_path: Path, change) -> None:
    second = succeed(tmp_path, ended(start(tmp_path, *ALL), 2), *ALL)
    path = second.records.path / LEDGER
    assert json.loads(path.read_text().splitlines()[7])["kind"] == "succeeded"
    forge(path, change)
    with pytest.raises(LedgerDamaged, match="line 8 of the privacy ledger is invalid"):
        verify_ledger(path)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (("app.options.dim=41",), "computed something else"),
        (("federation.rounds=2",), "counts all of them"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_is_written(tmp_path: Path, keys, reason: str) -> None:
    path = ended(start(tmp_path, *ALL), 2)
    with pytest.raises(InputError, match=reason):
        succeed(tmp_path, path, *ALL, *keys)
    assert len(list(tmp_path.glob("*/*"))) == 1
    prepared(*ALL).resume(path)


def test_a_run_that_counted_nothing_has_no_successor_that_does(tmp_path: Path) -> None:
    path = ended(start(tmp_path, *ALL, "privacy.noise.kind=none"), 1)
    with pytest.raises(InputError, match="counted no privacy"):
        succeed(tmp_path, path, *ALL)
    assert succeed(tmp_path, path, *ALL, "privacy.noise.kind=none").done == 1


def test_an_adaptive_clip_bound_goes_on(tmp_path: Path) -> None:
    adaptive = (*ALL, 'privacy.clip={kind="quantile",target=0.5,start=1.0}')
    first = ended(start(tmp_path, *adaptive), 2)
    bounds = [done.clip for done in run_records.load_run(first).rounds]
    second = succeed(tmp_path, first, *adaptive)
    done = next(second.rounds()).record
    assert done.clip == second.records.manifest.predecessor.clip not in (1.0, *bounds)


def test_the_command_takes_the_configuration_of_the_run_before(tmp_path: Path) -> None:
    path = ended(start(tmp_path, *ALL), 2)
    shown = command("run", "--succeed", path, "-c", f"output={tmp_path}", "-c", "federation.clients=7", "--json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told["rounds"] == 4
    assert run_records.load_run(Path(told["path"])).manifest.clients == 7
    verified = command("ledger", "verify", told["path"], "--json")
    assert json.loads(verified.stdout)["predecessors"] == [first_id(path).hex()]
    for arguments in (("--succeed", path, "--resume", path), ("--succeed", tmp_path / "nowhere"), ("--succeed", path)):
        refused = command("run", *arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_the_combined_epsilon_of_a_run_and_its_successor_is_that_of_the_successor(tmp_path: Path) -> None:
    path = ended(start(tmp_path, *ALL), 2)
    second = succeed(tmp_path, path, *ALL)
    second.complete()
    alone = combined_epsilon([second.records.path])
    both = combined_epsilon([path, second.records.path])
    assert (both.epsilon, len(both.parts)) == (alone.epsilon, 1)
