"""The paper's learning tasks at a small scale: utility, curves and dynamics, with the paper's figures beside ours."""

from dataclasses import replace

import numpy as np
import pytest

from dordis.config.reading import read_config
from dordis.errors import InputError
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.noise_strategies import Conservative
from dordis.privacy.setting import Setting
from dordis.runs.plan import RoundPlan
from reproduce import dynamics, training_runs, utility
from reproduce.training_runs import DIGITS, TASKS, choose_tasks


def silent(what):
    """Progress nobody."""


@pytest.fixture
def short(monkeypatch):
    """Let the digits have two rounds of few clients."""
    task = replace(DIGITS, keys=("federation.rounds=2", "federation.per_round=20"))
    monkeypatch.setattr(training_runs, "DIGITS", task)
    monkeypatch.setattr(dynamics, "DIGITS", task)


def test_utility_has_both_noises_at_every_rate_and_orig_spends_too_much(short):
    experiment = utility.compare_utility("small", (), (0.0, 0.4), 0, None, silent)
    found = {(row["rate"], row["noise"]): row for row in experiment.data}
    assert set(found) == {(rate, noise) for rate in (0.0, 0.4) for noise in ("orig", "xnoise")}
    assert all(0 < row["ours"] < 1 and row["paper"] is None for row in experiment.data)
    assert found[0.4, "orig"]["epsilon"] > 6 >= found[0.4, "xnoise"]["epsilon"]
    assert max(found[0.0, noise]["epsilon"] for noise in ("orig", "xnoise")) <= 6


def test_curves_have_a_value_for_every_round_and_a_chart(short):
    experiment = utility.compare_curves("small", ("digits",), 0, None, silent)
    assert [(row["noise"], len(row["rounds"])) for row in experiment.data] == [("orig", 2), ("xnoise", 2)]
    ((name, chart),) = experiment.charts
    assert (name, [len(series.values) for series in chart.series]) == ("curve-digits", [2, 2])


def test_the_papers_figures_and_the_reason_stand_beside_ours():
    cifar = TASKS[1]
    assert utility.paper_value(cifar, 0.3, "orig") == 64.3
    assert utility.paper_value(cifar, 0.2, "xnoise") == 65.7
    assert utility.paper_value(cifar, 0.25, "orig") is None
    run = training_runs.TrainingRun((0.5, 0.625), (3.0, 6.0), (0.2, 0.2), "rounds")
    found = {(cifar.name, 0.2, noise): run for noise in utility.NOISES}
    chart = utility.curve(cifar, "small", found)
    assert [mark.level for mark in chart.marks] == [65.7]
    assert chart.series[0].values == ((1, 50.0), (2, 62.5))
    assert 0.0003 < cifar.signal_to_noise < 0.003  # eleven million parameters of sixteen clients
    assert "cannot have the noise of epsilon = 6" in utility._reason([cifar])


def test_every_task_has_presets_that_can_be_read_at_both_scales():
    for task in (*TASKS, DIGITS, dynamics.CIFAR100):
        for scale in training_runs.SCALES:
            preset, keys = task.settings(scale)
            assert read_config(preset=preset, keys=[*keys, *dynamics.cohort_keys(scale)]).simulation.fidelity in (
                "ideal",
                "full",
            )


@pytest.mark.slow
def test_a_trace_makes_orig_spend_more_and_early_and_conservative_keep_to_the_budget(short, tmp_path):
    there = np.random.default_rng(3).random((30, 100)) < 0.7
    np.savez(tmp_path / "trace.npz", avail=there.astype(np.int8))
    experiment = dynamics.compare_dynamics("small", tmp_path / "trace.npz", 0, None, silent)
    found = {row["noise"]: row for row in experiment.data}
    assert list(found) == ["orig", "early", "con-2", "con-5", "con-8", "xnoise"]
    spent = [found[f"con-{rate}"]["epsilon"] for rate in (2, 5, 8)]
    assert spent == sorted(spent, reverse=True)
    assert max(spent) <= 6 >= found["xnoise"]["epsilon"]
    assert all(0 <= part < 1 for part in found["orig"]["dropped"])
    assert max(found["orig"]["dropped"]) > 0
    assert [name for name, _ in experiment.charts] == [
        f"dynamics-digits-{what}" for what in ("dropped", "epsilon", "accuracy")
    ]


def test_wrong_tasks_scales_rates_and_traces_are_refused(tmp_path):
    with pytest.raises(InputError, match="small, paper"):
        choose_tasks("large", (), None)
    with pytest.raises(InputError, match="no task 'mnist'"):
        choose_tasks("small", ("mnist",), None)
    with pytest.raises(InputError, match="below 1"):
        utility.compare_utility("small", (), (1.0,), 0, None, silent)
    with pytest.raises(InputError, match=r"FedScale's \.json"):
        dynamics.compare_dynamics("small", tmp_path / "trace.csv", 0, None, silent)
    assert choose_tasks("small", (), None) == [DIGITS]
    assert choose_tasks("small", (), tmp_path) == list(TASKS) == choose_tasks("paper", (), None)


def test_a_cohort_that_shrinks_provides_for_its_own_part_of_dropouts():
    setting = Setting(ParticipationSchedule(100, 30, 10), dim=100, threshold=6, tolerance=24)
    design = RoundPlan(Conservative(0.8), setting, 6.0)
    assert [design.for_clients(n).setting.reserve for n in (30, 10, 6)] == [24, 8, 4]
