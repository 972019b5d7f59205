"""Runs and queries over the same clients add up: by key where clients are known, by the worst where they are not."""

import json
import math
from pathlib import Path

import pytest

import dordis
from dordis.errors import BudgetExceeded, InputError
from dordis.identity.keys import Keys
from dordis.identity.registry import Registry
from dordis.ledger import ledger
from dordis.ledger.combine_runs import combined_epsilon
from dordis.privacy import gdp
from dordis.records.run_records import REGISTRY
from dordis.simulation.run import prepare
from tests.cli.in_process import dordis as command
from tests.simulation.whole_runs import settings_of

DELTA = 1e-5
AGES = [20 + i % 50 for i in range(300)]


def asked(path: Path, epsilon: float, **options: object) -> dordis.Aggregate:
    return dordis.mean(AGES, epsilon=epsilon, bounds=(0, 100), delta=DELTA, ledger=path, **options)


def test_queries_add_up_in_their_ledger(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    asked(path, 1.0)
    once = ledger.verify_ledger(path)
    asked(path, 1.0)
    dordis.histogram(AGES, epsilon=1.0, edges=[30, 60], delta=DELTA, ledger=path)
    summary = ledger.verify_ledger(path)
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
    everyone = ledger.verify_ledger(first / "ledger.jsonl").clients
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
