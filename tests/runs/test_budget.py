"""What the next round may cost: never more than owners have left, and larger noise instead of starving."""

import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import BudgetUsedUp, RoundFailed, TooFewClients
from dordis.ledger.ledger import verify_ledger
from dordis.ledger.round_charge import OwnerCharge
from dordis.rounds.engine import AgreedRound
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.runs.budget import LEAST, Allowances, check_able
from dordis.selection.selection import BalancedSelection, EveryClient, UniformSelection
from dordis.simulation import population as homes
from dordis.simulation.run import prepare
from tests.runs.cohorts import RUN, registry_of
from tests.simulation.whole_runs import settings_of

REGISTRY = registry_of(*range(1, 13))
BALANCED = BalancedSelection(REGISTRY, RUN, 5, 3)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40))
def test_the_turns_of_a_client_are_the_windows_that_it_is_in(index, rounds):
    for u in REGISTRY:
        expected = sum(u in BALANCED.window(i) for i in range(index, index + rounds))
        assert BALANCED.times_scheduled(u, index, rounds) == expected
    assert EveryClient(frozenset({1}), RUN).times_scheduled(1, index, rounds) == rounds
    assert BALANCED.times_scheduled(99, index, rounds) == 0


def counts(*spent):
    """Return what client 1 may have counted."""
    return {(RUN, index): OwnerCharge((1,), cost, 1e-25) for index, cost in enumerate(spent)}


def part(cap, turns, *spent, planned=0.5):
    allowances = Allowances(planned, cap, True, counts(*spent))
    return allowances.affordable_costs([1], EveryClient(frozenset({1}), RUN), 0, turns)[1] / planned


def test_as_long_as_nothing_fails_every_round_costs_what_was_planned():
    for done in range(10):
        assert part(10, 10 - done, *[0.5] * done) == 1.0


def test_a_failed_round_makes_the_others_cheaper():
    assert part(10, 10, 0.5) == pytest.approx(0.9)
    assert part(10, 10, *[0.5] * 3) == pytest.approx(0.7)


def test_what_was_saved_is_a_reserve_and_no_round_costs_more_than_planned():
    assert part(10, 3, 0.5) == 1.0


def test_whoever_cannot_pay_for_twice_the_noise_takes_part_no_more_and_others_do_so_less_often():
    assert part(10, 10, 0.5 * (10 - LEAST)) == pytest.approx(LEAST)
    assert part(10, 10, 0.5 * (10 - LEAST) + 1e-6) == 0.0
    assert part(10, 10, 0.5 * 9.4) == pytest.approx(0.3)  # two rounds at 0.3 instead of ten at 0.06


@settings(deadline=None)
@given(st.integers(1, 12), st.lists(st.booleans(), max_size=40))
def test_no_course_of_failures_takes_a_client_beyond_its_budget(cap, failing):
    """Rounds follow each other until all are done; a failed one costs as much as one that goes well."""
    spent, left = [], cap
    for fails in [*failing, *[False] * cap]:
        if not left or not (paid := part(cap, left, *spent)):
            break
        spent.append(paid * 0.5)
        left -= not fails
    assert math.fsum(spent) <= cap * 0.5 * (1 + 1e-9)
    if not any(failing):
        assert left == 0


def test_where_nobody_knows_who_is_due_rounds_cost_what_was_planned_while_they_can_be_paid():
    for spent, expected in ((0.0, 1.0), (9.0, 1.0), (9.1, 0.0)):
        allowances = Allowances(0.5, 10, True, counts(0.5 * spent) if spent else {})
        assert allowances.affordable_costs([1], UniformSelection(3, bytes(32)), 0, 5)[1] / 0.5 == expected


# Whole runs


class Failing:
    """Rounds of which some fail, each at another point."""

    def __init__(self, rounds, failures):
        self._rounds, self._failures = rounds, failures
        self.available, self.gather = rounds.available, rounds.gather
        self.still_ready = rounds.still_ready

    def sum(self, agreed, watch):
        where = self._failures.get(agreed.parameters.index)
        fail = TooFewClients("Unmask", 0, 1)
        if where == "before":
            raise fail

        def between(dropped):
            if where == "between":
                raise fail
            agreed.gate.admit_disclosure(lambda: dropped)

        gate = PrivacyGate(agreed.gate.admit_upload, between)
        given = AgreedRound(agreed.parameters, agreed.mechanism, agreed.proofs, gate)
        result = self._rounds.sum(given, watch)
        if where == "after":
            raise fail
        return result


def failing_run(monkeypatch, tmp_path, failures, *keys):
    """Return a run whose rounds fail, by index, and the clients that it makes."""
    run, made = prepare(settings_of(*keys)).start(tmp_path, ""), {}
    opening, rounds = run.home.open, homes.SimulatedClients

    def clients(*arguments):
        made["clients"] = rounds(*arguments)
        return made["clients"]

    monkeypatch.setattr(homes, "SimulatedClients", clients)
    object.__setattr__(run.home, "open", lambda *arguments: Failing(opening(*arguments), failures))
    return run, made


def owners_epsilon(made, delta):
    """Return the largest epsilon by an owner's own count, from dp-accounting's Gaussian."""
    participation = made["clients"]._participation
    worst = max(own.spent().theta_squared for own in participation.values())
    return dp_accounting.get_epsilon_gaussian(1 / math.sqrt(worst), delta)


@pytest.mark.parametrize("fidelity", ["ideal", pytest.param("full", marks=pytest.mark.slow)])
def test_a_run_with_three_failing_rounds_completes_within_the_budget_by_every_owners_own_count(
    tmp_path, fidelity, monkeypatch
):
    keys = ("federation.rounds=12", "federation.clients=12", "federation.per_round=6")
    failures = {1: "before", 3: "between", 6: "after"}
    run, made = failing_run(monkeypatch, tmp_path, failures, *keys, f"simulation.fidelity={fidelity}")
    result = run.complete()
    assert (result.stopped, result.rounds) == ("rounds", 12)
    delta = run.job.design.delta
    spent = owners_epsilon(made, delta)
    assert 0.9 * 6 < spent <= 6
    assert verify_ledger(run.records.path / "ledger.jsonl").epsilon <= 6


def test_after_failures_the_noise_is_larger_and_the_budget_is_still_spent(tmp_path, monkeypatch):
    keys = ("federation.rounds=12", "federation.clients=12", "federation.per_round=6")
    costs = {}
    for name, failures in {"none": {}, "some": {0: "between", 2: "after"}}.items():
        run, made = failing_run(monkeypatch, tmp_path / name, failures, *keys, "simulation.fidelity=ideal")
        run.complete()
        costs[name] = [count.cost / run.job.design.allowed for count in run._ledger.owner_charges().values()]
        assert 0.98 * 6 < owners_epsilon(made, run.job.design.delta) <= 6
    assert costs["none"] == pytest.approx([1.0] * 12, rel=1e-6)
    assert costs["some"][:2] == pytest.approx([1.0, 1.0], rel=1e-6)  # the other half of the clients has lost nothing
    assert costs["some"][2] == pytest.approx(5 / 6, rel=1e-6)  # one of six participations is lost, six are to come
    assert min(costs["some"]) == pytest.approx(5 / 6, rel=1e-6)


def test_a_run_whose_clients_have_no_budget_left_ends_short_and_says_so(tmp_path, monkeypatch):
    """Every round fails after the uploads: no owner is taken beyond its budget, and the run ends by itself."""
    keys = ("federation.rounds=3", "federation.tries=30", "simulation.fidelity=ideal")
    run, made = failing_run(monkeypatch, tmp_path, dict.fromkeys(range(100), "between"), *keys)
    result = run.complete()
    assert (result.stopped, result.rounds, result.spent, result.epsilon) == ("budget", 0, 0.0, 6.0)
    assert isinstance(run.over_budget, BudgetUsedUp)
    assert not isinstance(run.over_budget, RoundFailed)
    assert owners_epsilon(made, run.job.design.delta) <= 6


def test_a_run_ends_if_too_few_of_enough_available_clients_can_afford_a_round():
    check_able(available=5, able=3, least=3)
    check_able(available=2, able=2, least=3)  # too few are there: they may come
    with pytest.raises(BudgetUsedUp):
        check_able(available=5, able=2, least=3)
