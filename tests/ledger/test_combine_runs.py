"""Runs and queries over the same clients add up: by key where clients are known, by the worst where they are not.

Runs and queries charged to the ledger of a data set share one budget, and no run starts that it cannot pay for.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dordis
from dordis.errors import BudgetExceeded, InputError, LedgerDamaged
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.ledger.combine_runs import combined_epsilon
from dordis.ledger.ledger import Ledger, read_ledger, verify_ledger
from dordis.privacy import gdp
from dordis.records.run_records import REGISTRY
from dordis.report.numbers import format_number
from dordis.report.page import write_overview
from dordis.simulation.run import prepare
from tests.cli.in_process import dordis as command
from tests.ledger.charged_rounds import forge
from tests.simulation.whole_runs import settings_of

DELTA = 1e-5
AGES = [20 + i % 50 for i in range(300)]


def asked(path: Path, epsilon: float, **options: object) -> dordis.Aggregate:
    return dordis.mean(AGES, epsilon=epsilon, bounds=(0, 100), delta=DELTA, ledger=path, **options)


def test_queries_add_up_in_their_ledger(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    asked(path, 1.0)
    once = verify_ledger(path)
    asked(path, 1.0)
    dordis.histogram(AGES, epsilon=1.0, edges=[30, 60], delta=DELTA, ledger=path)
    summary = verify_ledger(path)
    assert (once.completed, summary.completed, len(summary.clients)) == (1, 3, 300)
    theta = 3 * gdp.theta_budget(1.0, DELTA)
    assert summary.epsilon == pytest.approx(gdp.epsilon(theta, DELTA), rel=1e-3)
    assert combined_epsilon([path]).epsilon == pytest.approx(summary.epsilon)


def test_beyond_the_budget_nothing_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    asked(path, 1.0, budget=1.3)
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded):
        asked(path, 1.0)
    assert path.read_bytes() == before
    asked(path, 0.3)
    with pytest.raises(InputError, match="cannot be changed"):
        asked(path, 0.1, budget=2.0)
    asked(path, 0.1, budget=1.3)


def test_a_budget_without_a_ledger_is_refused() -> None:
    with pytest.raises(InputError, match="needs a ledger"):
        dordis.mean(AGES, epsilon=1, bounds=(0, 100), budget=2.0)


def simulated(root: Path, name: str) -> Path:
    under_way = prepare(settings_of("simulation.fidelity=ideal", "federation.rounds=2", f"name={name}")).start(root, "")
    under_way.complete()
    return under_way.records.path


def test_unknown_clients_are_all_taken_to_be_the_worst(tmp_path: Path) -> None:
    first, second, queries = simulated(tmp_path, "a"), simulated(tmp_path, "b"), tmp_path / "queries.jsonl"
    asked(queries, 1.0)
    alone = [combined_epsilon([path], DELTA).epsilon for path in (first, second, queries)]
    together = combined_epsilon([first, second, queries], DELTA)
    budgets = math.fsum(gdp.theta_budget(epsilon, DELTA) for epsilon in alone)
    assert together.epsilon == pytest.approx(gdp.epsilon(budgets, DELTA), rel=1e-4)
    shown = command("ledger", "sum", first, second, queries, "--delta", DELTA, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["epsilon"] == together.epsilon


def test_clients_are_joined_by_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = simulated(tmp_path, "a"), simulated(tmp_path, "b")
    everyone = verify_ledger(first / "ledger.jsonl").clients
    shared = {u: Keys.generate().identity() for u in everyone}
    strangers = {u: Keys.generate().identity() for u in everyone}
    for keys, grows in ((shared, True), (strangers, False)):
        for path, own in ((first, shared), (second, keys)):
            Registry(own).save(path / REGISTRY)
        monkeypatch.setattr("dordis.ledger.combine_runs.check_root", lambda *_: None)
        assert (combined_epsilon([first, second]).epsilon > combined_epsilon([first]).epsilon * 1.01) == grows


def test_noise_that_is_not_gaussian_cannot_be_added_up_beyond_what_was_spent(tmp_path: Path) -> None:
    keys = ("simulation.fidelity=ideal", "federation.rounds=2", "privacy.mechanism=ddgauss", "privacy.noise.kind=orig")
    under_way = prepare(settings_of(*keys)).start(tmp_path, "")
    next(under_way.rounds())
    under_way.close("interrupted")
    assert json.loads(command("ledger", "verify", under_way.records.path, "--json").stdout)["epsilon"] >= 6
    with pytest.raises(InputError, match="not Gaussian"):
        combined_epsilon([under_way.records.path])


def test_a_run_counts_once_and_its_registry_is_its_own(tmp_path: Path) -> None:
    first = simulated(tmp_path, "a")
    with pytest.raises(InputError, match="given twice"):
        combined_epsilon([first, first])
    Registry({1: Keys.generate().identity()}).save(first / REGISTRY)
    with pytest.raises(dordis.DordisError, match="not the registry"):
        combined_epsilon([first])


IDEAL = {"federation": {"rounds": 2, "clients": 20, "per_round": 20}, "simulation": {"fidelity": "ideal"}}


def settings(folder, epsilon):
    return IDEAL | {"output": str(folder), "privacy": {"epsilon": epsilon, "delta": 1e-5}}


def run(folder, epsilon, ledger, **options):
    return dordis.run(settings(folder, epsilon), ledger=ledger, accept_hopeless=True, **options)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "patients.jsonl"


def test_two_runs_and_a_query_add_up_and_a_third_run_is_refused_before_it_starts(tmp_path, ledger):
    first = run(tmp_path / "1", 2.0, ledger, budget=6.0)
    after_one = verify_ledger(ledger).epsilon
    assert after_one == pytest.approx(first.epsilon, rel=0.01)
    assert after_one <= 2.0
    second = run(tmp_path / "2", 3.0, ledger)
    after_two = verify_ledger(ledger).epsilon
    together = gdp.theta_budget(first.epsilon, 1e-5) + gdp.theta_budget(second.epsilon, 1e-5)
    assert after_two == pytest.approx(gdp.epsilon(together, 1e-5), rel=0.01)
    rows = np.arange(20.0)
    dordis.mean(rows, bounds=(0, 20), epsilon=1.0, delta=1e-5, ledger=ledger)
    after_query = verify_ledger(ledger).epsilon
    assert after_two < after_query < 6
    before = ledger.read_bytes()
    with pytest.raises(BudgetExceeded, match="plan the run for a smaller epsilon"):
        run(tmp_path / "3", 5.0, ledger)
    assert not (tmp_path / "3").exists()
    assert ledger.read_bytes() == before
    with pytest.raises(BudgetExceeded):
        dordis.mean(rows, bounds=(0, 20), epsilon=5.5, delta=1e-5, ledger=ledger)


def test_train_is_charged_to_the_same_ledger(tmp_path, ledger):
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(8, 3)), rng.integers(0, 2, 8)) for _ in range(20)]
    options = {"epsilon": 4.0, "rounds": 1, "output": tmp_path, "fidelity": "ideal", "accept_hopeless": True}
    dordis.train("softmax", clients, ledger=ledger, budget=5.0, **options)
    assert 0 < verify_ledger(ledger).epsilon <= 4.0
    with pytest.raises(BudgetExceeded):
        dordis.train("softmax", clients, ledger=ledger, **options)


def test_an_interrupted_run_stays_charged_at_its_planned_epsilon(tmp_path, ledger):
    def interrupt(finished):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 2.0, ledger, budget=3.0, on_round=interrupt)
    assert verify_ledger(ledger).epsilon == pytest.approx(2.0, rel=1e-6)


def test_a_run_named_beside_the_ledger_that_charges_it_counts_once(tmp_path, ledger):
    path = run(tmp_path, 2.0, ledger).path
    assert combined_epsilon([ledger, path]).epsilon == combined_epsilon([ledger]).epsilon > 0


def test_what_has_no_epsilon_cannot_be_charged_and_a_budget_needs_a_ledger(tmp_path, ledger):
    without = settings(tmp_path, 2.0) | {"privacy": {"noise": {"kind": "none"}}}
    with pytest.raises(InputError, match=r"leave the ledger out|no epsilon"):
        dordis.run(without, ledger=ledger)
    records = settings(tmp_path, 2.0)["privacy"] | {"unit": "record", "records": 100}
    with pytest.raises(InputError, match="protects records"):
        dordis.run(settings(tmp_path, 2.0) | {"privacy": records}, ledger=ledger)
    with pytest.raises(InputError, match="needs a ledger"):
        dordis.run(settings(tmp_path, 2.0), budget=3.0)
    assert not ledger.exists()


def test_the_charge_of_a_run_cannot_be_raised_or_lowered_by_hand(tmp_path, ledger):
    run(tmp_path, 2.0, ledger, budget=3.0)
    charged = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    assert [entry["kind"] for entry in charged] == ["opened", "run", "run"]
    forge(ledger, lambda entries: entries[2].update(theta_squared=100.0))
    with pytest.raises(LedgerDamaged, match="at a smaller cost"):
        Ledger.open(ledger)
    forge(ledger, lambda entries: entries.__setitem__(slice(1, None), [entries[1] | {"theta_squared": 100.0}]))
    with pytest.raises(LedgerDamaged, match="their ledger allows 3"):
        Ledger.open(ledger)


def test_a_successor_is_charged_to_the_ledger_of_its_predecessor_for_what_comes_on_top(tmp_path, ledger):
    arguments = ["-c", "simulation.fidelity=ideal", "-c", "federation.clients=20", "-c", "federation.per_round=20"]
    arguments += ["-c", "privacy.delta=1e-5", "--yes", "--rounds", "2", "--quiet"]
    first = command("run", *arguments, "--epsilon", "2", "--ledger", ledger, "--budget", "6", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (path,) = (tmp_path / "runs" / "digits").iterdir()
    assert verify_ledger(ledger).epsilon == pytest.approx(2.0, rel=0.01)
    refused = command("run", "--succeed", path, "--yes", "--rounds", "4", "--epsilon", "7", "--quiet", cwd=tmp_path)
    assert refused.returncode == 3
    done = command("run", "--succeed", path, "--yes", "--rounds", "4", "--epsilon", "4", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "runs" / "digits").iterdir())
    assert len(runs) == 2
    both = verify_ledger(runs[1] / "ledger.jsonl").epsilon  # the successor's own ledger has the rounds of both
    assert verify_ledger(ledger).epsilon == pytest.approx(both, rel=0.01)
    assert 2.5 < both <= 4
    assert combined_epsilon([ledger, *runs]).epsilon == combined_epsilon([ledger]).epsilon
    index = write_overview(tmp_path / "runs").read_text()
    assert f"ledger {ledger}" in index
    assert "2 runs" in index
    assert f"epsilon {format_number(verify_ledger(ledger).epsilon)} of 6 at delta 1e-05" in index
    ledger.unlink()
    missing = command("run", "--succeed", runs[-1], "--yes", "--epsilon", "5", cwd=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "restore it" in missing.stderr


def test_a_resumed_run_is_settled_in_its_ledger(tmp_path, ledger):
    def interrupt(finished):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 2.0, ledger, budget=3.0, on_round=interrupt)
    (path,) = (tmp_path / "digits").iterdir()
    done = command("run", "--resume", path, "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (charge,) = read_ledger(ledger)[0].runs.values()
    spent = verify_ledger(path / "ledger.jsonl").epsilon
    assert gdp.epsilon(charge.theta_squared, 1e-5) == pytest.approx(spent, rel=0.01)
