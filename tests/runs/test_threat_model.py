"""What rounds withstand: the chance of a bad graph or draw is in delta, and T and t are enough for a dropout rate."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import dordis
from dordis.config.reading import config_to_toml, read_config
from dordis.errors import BudgetExceeded, InputError, TooFewClients, TooManyDropouts
from dordis.ledger.client_spending import Account
from dordis.ledger.ledger import Budget, Charge, Ledger, verify_ledger
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.sparse_graph import failure, solve
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel, describe_rates, describe_remedy, find_needs
from dordis.simulation.run import prepare
from tests.ledger.charged_rounds import DELTA, DIM, SQUARED, charge_of, new_ledger, parameters_of, spent
from tests.runs.cohorts import OTHER_RUN, RUN
from tests.simulation.whole_runs import settings_of

UNIT = Fraction(1, 2**40)
SETTING = Setting(ParticipationSchedule(population=400, per_round=100, rounds=8), dim=100, delta=1e-5, tolerance=10)
LIKELY = Fraction(1, 2**20)
"""A chance that shows in epsilon; real ones are a million times smaller."""


def charged(index, failure=LIKELY):
    return Charge.from_parameters(parameters_of(index), draw_failure=failure)


# How likely a failure is


@pytest.mark.parametrize("colluders", [1, 10, 30])
@pytest.mark.parametrize(("mode", "redraws"), [("malicious", 64), ("semi-honest", 0)])
def test_a_solved_graph_fails_no_more_often_than_is_charged(mode, redraws, colluders):
    graph = solve(2000, 200, colluders, mode)
    assert not graph.complete
    assert 2 ** (graph.p_colluders + redraws) + 2**graph.p_split <= failure(mode) <= 2 * UNIT


@pytest.mark.parametrize(
    ("kind", "units"),
    [
        (ThreatModel(), 0),
        (ThreatModel(sparse=True), 1),
        (ThreatModel(drawn=True), 1),
        (ThreatModel(sparse=True, drawn=True), 2),
        (ThreatModel("semi-honest", sparse=True), 2),
    ],
)
def test_a_design_provides_for_every_index_that_its_rounds_may_be_tried_under(kind, units):
    design = RoundPlan(XNoise(), SETTING, 6.0, kind)
    assert design.setting.failure == pytest.approx(float(5 * 8 * units * UNIT))
    assert design.for_clients(90).setting.failure == design.setting.failure
    charge = design.charge(design.example())
    assert charge.failure == units * UNIT


def test_more_tries_are_more_indices_and_lots_are_shown_under_all_of_them():
    keys = ("federation.selection=vrf", "simulation.fidelity=ideal", "privacy.delta=1e-10")
    with pytest.raises(InputError, match="not above"):
        prepare(settings_of(*keys, "federation.tries=50"))
    job = prepare(settings_of(*keys, "federation.tries=9"))
    assert job.job.design.setting.failure == pytest.approx(float(9 * 3 * UNIT))
    assert job.job.selection_rule.indices == 27


# What the planner does with it


def test_noise_has_to_do_with_what_failures_leave_of_delta():
    planned = plan(replace(SETTING, failure=9e-6), 6.0)
    assert planned.variance == plan(replace(SETTING, delta=1e-5 - 9e-6), 6.0).variance
    assert planned.variance > plan(SETTING, 6.0).variance
    assert planned.setting.given_delta == 1e-5


@pytest.mark.parametrize("failure", [1e-5, 2e-5, -1e-9])
def test_a_delta_that_is_not_above_the_failures_is_refused(failure):
    with pytest.raises(InputError, match="not above"):
        replace(SETTING, failure=failure)
    with pytest.raises(InputError, match="not above"):
        RoundPlan(XNoise(), replace(SETTING, delta=1e-11), 6.0, ThreatModel(sparse=True))


# What the ledger does with it


def test_epsilon_is_stated_at_what_failures_leave_of_delta():
    ledger = new_ledger(RUN, Budget(None, 1e-3))
    ledger.reserve(charged(0))
    summary, least = ledger.summary(), charge_of().releases[0].variance
    assert summary.failure == float(LIKELY)
    assert summary.delta == 1e-3
    assert summary.epsilon == pytest.approx(spent([(SQUARED, DIM, least)], 1e-3 - float(LIKELY)), rel=1e-7)


def test_indices_count_under_which_no_round_took_place():
    account = Account(RUN, Budget(None, DELTA))
    for index in (2, 0, 6):
        account.reserve(charged(index))
    assert account.failure() == 7 * LIKELY
    assert account.failure(charged(9)) == 10 * LIKELY
    assert account.failure(charged(1, 3 * LIKELY)) == 21 * LIKELY
    assert account.failure() == 7 * LIKELY


def test_failures_of_runs_before_are_counted_too():
    account = Account(RUN, Budget(None, DELTA))
    account.reserve(charged(3))
    following = account.start_successor(OTHER_RUN, Budget(None, DELTA))
    assert following.failure() == 4 * LIKELY
    following.reserve(charged(0, LIKELY / 2))
    assert following.failure() == 4 * LIKELY + LIKELY / 2
    assert account.failure() == 4 * LIKELY


def test_where_failures_take_all_of_delta_no_epsilon_is_stated():
    ledger = new_ledger(RUN, Budget(None, DELTA))
    for index in (0, 9):
        ledger.reserve(charged(index))
    assert 10 * LIKELY < DELTA < 11 * LIKELY
    assert ledger.summary().epsilon < math.inf
    ledger.reserve(charged(10))
    assert ledger.summary().epsilon == math.inf
    limited = new_ledger(RUN, Budget(1000.0, DELTA))
    with pytest.raises(BudgetExceeded):
        limited.reserve(charged(10))


def test_a_charge_without_failures_is_written_as_before_and_one_with_them_is_verified(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, RUN, Budget(None, DELTA))
    ledger.reserve(charge_of(0))
    ledger.reserve(charged(1))
    _, without, with_failure = (json.loads(line) for line in path.read_bytes().splitlines())
    assert "failure" not in without["charge"]
    assert with_failure["charge"]["failure"] == "1/1048576"
    assert verify_ledger(path, run=RUN) == ledger.summary()
    assert verify_ledger(path).failure == float(2 * LIKELY)


@pytest.mark.parametrize("chance", [Fraction(-1, 2), Fraction(1)])
def test_a_chance_that_is_none_is_refused(chance):
    with pytest.raises(InputError, match="lies in"):
        charged(0, chance)


def test_a_run_on_a_sparse_graph_with_lots_keeps_its_budget_to_the_last_round(tmp_path):
    result = dordis.run(
        {
            "output": str(tmp_path),
            "federation": {"clients": 100, "per_round": 60, "rounds": 3, "selection": "vrf"},
            "privacy": {"epsilon": 6.0},
            "protocol": {"use": "secagg+", "tolerance": 4},
            "simulation": {"fidelity": "ideal", "dropout": {"kind": "none"}},
        }
    )
    summary = verify_ledger(next(tmp_path.rglob("ledger.jsonl")))
    assert summary.completed == 3
    assert summary.failure >= float(3 * 2 * UNIT)
    assert 0 < result.epsilon <= 6.0


BEFORE = ("simulation.dropout.kind=rate", "simulation.dropout.rate=0.4", 'simulation.dropout.stages=["CollectInput"]')
SMALL = ("simulation.fidelity=ideal", "federation.rounds=1")


def setting(n: int) -> Setting:
    return Setting(ParticipationSchedule(10 * n, n, 10), dim=100, colluders=1)


@pytest.mark.parametrize(("n", "T", "t"), [(100, 40, 51), (16, 6, 9), (20, 8, 11)])
def test_the_papers_cohorts_need_more_than_the_default_tolerance_at_40_percent(n: int, T: int, t: int) -> None:
    assert setting(n).T == T - 1
    needs = find_needs(setting(n), MALICIOUS, T)
    assert (needs.dropped, needs.threshold) == (T, t)


def test_more_than_half_can_drop_out_of_semi_honest_rounds_only() -> None:
    assert find_needs(setting(100), SEMI_HONEST, 60).threshold == 40
    needs = find_needs(setting(100), MALICIOUS, 60)
    assert needs.threshold is None
    assert "semi-honest" in str(needs)
    for mode in (MALICIOUS, SEMI_HONEST):  # one would be left, who may be the one colluder
        assert "1 would be left and 1 may collude" in str(find_needs(setting(100), mode, 99))
    assert describe_rates(setting(10), MALICIOUS).endswith("40%: tolerance 4, threshold 6")


def test_a_failed_round_is_told_the_settings_that_it_lacked() -> None:
    assert "protocol.tolerance = 40" in describe_remedy(setting(100), MALICIOUS, TooManyDropouts(40, 39))
    assert "protocol.threshold = 45" in describe_remedy(setting(100), SEMI_HONEST, TooFewClients("Unmask", 45, 51))


def test_a_dropout_rate_that_no_round_survives_is_refused_and_runs_with_the_proposed_settings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"protocol\.tolerance = 20 and protocol\.threshold = 26"):
        prepare(read_config(keys=[*SMALL, *BEFORE]))
    config = read_config(keys=[*SMALL, *BEFORE, "protocol.tolerance=20", "protocol.threshold=26"])
    result = prepare(config).start(tmp_path, config_to_toml(config)).complete()
    assert result.rounds == 1
