"""An application whose updates change their length from round to round: planned, run, charged, resumed, rehearsed."""

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.ledger.ledger import verify_ledger
from dordis.records import run_records
from dordis.report.page import write_report
from dordis.simulation.profiling import rehearse
from dordis.simulation.run import prepare
from tests.simulation.whole_runs import settings_of

GROWING = ("app.server=tests.simulation.toys:Growing", "app.client=tests.simulation.toys:Half")
SHORT, LONG = 40, 3000


def job(*keys):
    return prepare(settings_of(*GROWING, *keys))


def check_means(job, means):
    """Every mean is half the bound, spread over its coordinates, but for the noise that was planned for any length."""
    assert [mean.size for mean in means] == [SHORT, LONG, LONG]
    for mean in means:
        design, n = job.design.for_dim(mean.size), job.design.setting.clients
        # All of the mean lies along one direction, in which noise and rounding have the deviation of one coordinate.
        rounding = 0.5 * n**0.5 / design.mechanism.grid.scale
        along = float(mean.sum()) / mean.size**0.5
        assert abs(along - 0.5) < 8 * (1.5 * design.sigma + rounding) / n


@pytest.mark.parametrize("fidelity", ["full", "ideal"])
def test_updates_of_two_lengths_are_summed_charged_and_recorded(tmp_path, fidelity):
    run = job(f"simulation.fidelity={fidelity}").start(tmp_path, "")
    list(run.rounds())
    result = run.close("rounds")
    check_means(run.job, run.job.app.means)
    stored = run_records.load_run(run.records.path)
    assert stored.manifest.plan.dim == LONG
    assert [done.dim for done in stored.rounds] == [SHORT, LONG, LONG]
    told = verify_ledger(run.records.path / "ledger.jsonl", run=run.records.id)
    assert (told.completed, told.epsilon) == (3, result.epsilon)
    assert 0 < result.epsilon <= 6
    assert "at most 3,000; in turn 40, 3,000" in write_report([run.records.path]).read_text()


def test_the_server_is_told_how_much_noise_is_in_a_sum(tmp_path):
    run = job("simulation.fidelity=ideal", "federation.rounds=2").start(tmp_path, "")
    list(run.rounds())
    app, n = run.job.app, run.job.design.setting.clients
    error = n * (app.means[1] - 0.5 / LONG**0.5)
    variance, rounding = app.deviations[1] ** 2, n / 4 / run.job.design.mechanism.grid.scale**2
    # The mean square of 3,000 samples is within 22 % of its expectation but for a chance below 1e-9.
    assert 0.78 * variance < float(np.mean(error**2)) < 1.22 * (variance + rounding)


def test_rounds_of_every_length_cost_what_is_planned():
    design = job().job.design
    short = design.for_dim(SHORT)
    assert short is design.for_dim(SHORT)
    assert design.for_dim(LONG) is design
    assert short.promise(short.least).cost == design.promise(design.least).cost == design.allowed
    assert short.plan.bits == design.plan.bits
    assert abs(short.sigma / design.sigma - 1) < 0.02


def test_a_resumed_run_goes_on_with_the_length_that_is_next(tmp_path):
    first = job("simulation.fidelity=ideal").start(tmp_path, "")
    next(first.rounds())
    again = job("simulation.fidelity=ideal").resume(first.records.path)
    assert again.job.app.dim == LONG
    assert [done.record.dim for done in again.rounds()] == [LONG, LONG]
    check_means(again.job, again.job.app.means)


def test_as_many_chunks_as_the_longest_updates_have_are_cut_where_there_are_blocks(tmp_path):
    run = job("app.options.long=40000", "performance.chunks=2", "federation.rounds=2").start(tmp_path, "")
    assert [len(done.record.survivors) for done in run.rounds()] == [1, 2]


def test_a_rehearsal_has_the_longest_updates():
    short, long = (rehearse(job("simulation.fidelity=full", f"app.options.long={dim}")).up for dim in (SHORT, LONG))
    assert long > short + 1.5 * (LONG - SHORT)


def test_a_length_that_no_bits_hold_is_refused_before_anything_is_written():
    with pytest.raises(InputError, match="coordinates"):
        job("app.options.short=0")


def test_a_length_that_was_not_planned_ends_the_run(tmp_path):
    run = job("app.options.more=1", "simulation.fidelity=ideal").start(tmp_path, "")
    rounds = run.rounds()
    next(rounds)
    with pytest.raises(InputError, match="next update has 3001 coordinates, and its `dims` are 40, 3000"):
        next(rounds)
    assert np.isfinite(run.job.app.means[0]).all()
