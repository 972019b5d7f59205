"""Adaptive clipping in whole runs: planned within the budget, charged, followed from round to round, and reported."""

import math
from itertools import pairwise

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.ledger.ledger import verify_ledger
from dordis.privacy.clipping import Quantile, next_bound
from dordis.records import run_records
from dordis.report.facts import read_facts
from dordis.report.figures import draw_figures
from dordis.report.statement import write_statement
from dordis.report.tables import settings_table
from dordis.simulation.run import prepare
from tests.ledger.charged_rounds import new_ledger
from tests.simulation.whole_runs import settings_of

QUANTILE = (
    "privacy.clip={kind='quantile', target=0.5, start=8.0, rate=0.5, share=0.2}",
    "federation.clients=24",
    "federation.per_round=24",
    "federation.rounds=16",
    "app.options.dim=16",
    "app.options.size=0.25",
    "privacy.epsilon=100.0",
    "simulation.fidelity=ideal",
)


def start(tmp_path, *keys):
    return prepare(settings_of(*QUANTILE, *keys)).start(tmp_path, "")


def design_of(config):
    return prepare(config).job.design


def test_the_bound_finds_the_median_of_the_norms(tmp_path):
    simulated = prepare(settings_of(*QUANTILE))
    done = [finished.record for finished in simulated.start(tmp_path, "").rounds()]
    norms = sorted(float(np.linalg.norm(simulated.client(u).prepare_data(0, None))) for u in simulated.ids)
    assert done[0].clip == 8.0
    # The noise moves the bound by about 0.03 of itself, and it would have to move it by more than ten times as much.
    assert norms[0] < done[-1].clip < norms[-1]
    for before, after in pairwise(done):
        assert after.clip == pytest.approx(next_bound(before.clip, before.below, Quantile(rate=0.5)))


@pytest.mark.parametrize("noise", ["xnoise", "orig", "early", "conservative"])
def test_update_and_bit_together_keep_the_budget_and_nearly_use_it_up(noise):
    rate = ("privacy.noise.rate=0.0",) if noise == "conservative" else ()
    keys = (f"privacy.noise.kind={noise}", "protocol.tolerance=0", *rate)
    design = design_of(settings_of(*QUANTILE, *keys, "privacy.epsilon=6.0"))
    ledger = new_ledger(bytes(32), design.budget)
    for index in range(design.cap):
        shrunk = design.for_clip(8.0 / (index + 1))
        parameters = shrunk.agree_on(run=bytes(32), index=index, clients=range(1, 25), rotation=bytes(32))
        assert len(design.charge(design.example()).releases) == 2
        ledger.reserve(shrunk.charge(parameters))
    assert 6.0 * 0.99 < ledger.summary().epsilon <= 6.0
    alone = design_of(settings_of(*QUANTILE, *keys, "privacy.epsilon=6.0", "privacy.clip=8.0"))
    assert design.plan.multiplier == pytest.approx(alone.plan.multiplier / math.sqrt(0.8), rel=0.01)


def test_another_bound_changes_the_scale_and_nothing_else():
    design = design_of(settings_of(*QUANTILE))
    other = design.for_clip(0.5)
    assert other.mechanism.clip == 0.5
    assert other.mechanism.grid.scale == pytest.approx(design.mechanism.grid.scale * 16)
    assert other.plan.sigma == pytest.approx(design.plan.sigma / 16)
    assert other.example().variances == design.example().variances
    assert other.mechanism.sensitivity == design.mechanism.sensitivity
    planned_anew = design_of(settings_of(*QUANTILE, "privacy.clip={kind='quantile', start=0.5, share=0.2}"))
    assert other.plan.scale == pytest.approx(planned_anew.plan.scale, rel=1e-6)


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_a_resumed_run_goes_on_with_its_bound_and_all_is_charged(tmp_path, fidelity):
    keys = (f"simulation.fidelity={fidelity}", "federation.rounds=3", "federation.clients=6", "federation.per_round=6")
    first = start(tmp_path, *keys)
    next(first.rounds())
    again = prepare(settings_of(*QUANTILE, *keys)).resume(first.records.path)
    assert [done.record.number for done in again.rounds()] == [2, 3]
    result = again.close("rounds")
    read = run_records.load_run(first.records.path)
    assert all(done.below is not None for done in read.rounds)
    for before, after in pairwise(read.rounds):
        assert after.clip == pytest.approx(next_bound(before.clip, before.below, Quantile(rate=0.5)))
    summary = verify_ledger(first.records.path / "ledger.jsonl")
    assert (summary.completed, summary.epsilon) == (3, result.epsilon)
    assert result.epsilon <= 100.0


def test_the_report_says_that_the_bound_is_followed(tmp_path):
    run = start(tmp_path)
    for _ in run.rounds():
        pass
    (facts,) = read_facts([run.records.path])
    said = " ".join(text for item in write_statement(facts).items for text in item.paragraphs)
    assert "begins at 8 and follows the 50 % quantile" in said
    assert "epsilon covers both together" in said
    assert {"clip", "below"} <= draw_figures([facts]).keys()
    assert "50 % quantile" in dict(settings_table(facts).rows)["clip"]


@pytest.mark.parametrize("noise", ["central", "local", "none"])
def test_where_the_protocol_adds_no_noise_the_bound_is_fixed(noise):
    with pytest.raises(InputError, match="give the clip bound as a number"):
        prepare(settings_of(*QUANTILE, f"privacy.noise.kind={noise}"))


@pytest.mark.parametrize("wrong", ["share=0.0", "share=1.0", "start=0.0", "target=1.5", "least=9.0"])
def test_a_quantile_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        settings_of(f"privacy.clip={{kind='quantile', start=8.0, {wrong}}}".replace("start=8.0, start", "start"))
