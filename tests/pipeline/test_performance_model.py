"""The performance model: the true coefficients are found, with stragglers too, and memory is bounded."""

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.pipeline.performance_model import (
    KEPT,
    POINTS,
    PerformanceModel,
    Profile,
    Sample,
    SetupModel,
    StageModel,
    fit_setup,
    fit_stage,
)

POINTS_TIMED = [(d, m) for d in (10**4, 10**5, 10**6) for m in (1, 2, 4, 8, 16)]
TRUE = StageModel(partition=3e-6, intervention=0.02, constant=0.3)


def timed(model, points=POINTS_TIMED, times=1):
    return [Sample(d, m, model.seconds(d, m)) for d, m in points for _ in range(times)]


def worst(model, true, points=POINTS_TIMED):
    return max(abs(model.seconds(d, m) / true.seconds(d, m) - 1) for d, m in points)


magnitudes = st.sampled_from([0.0, 1.0]).flatmap(lambda on: st.floats(on * 0.01, on * 10.0))


@settings(max_examples=50)
@given(magnitudes, magnitudes, magnitudes)
def test_the_coefficients_are_found(b1, b2, b3):
    assume(b1 + b2 + b3 > 0)
    true = StageModel(b1 * 1e-6, b2 * 0.1, b3)
    model = fit_stage(timed(true))
    assert worst(model, true) < 1e-3
    assert model.error < 1e-3


@settings(max_examples=50)
@given(st.floats(0, 10), st.floats(0, 10))
def test_the_set_up_is_found(a, b):
    assume(a + b > 0.01)
    model = fit_setup([Sample(5, m, a + b * m) for m in (1, 2, 4, 8)])
    assert [model.seconds(m) for m in (1, 3, 20)] == pytest.approx([a + b * m for m in (1, 3, 20)], rel=1e-3)


def test_noise_of_ten_percent_is_averaged_out_and_reported():
    rng = np.random.default_rng(1)
    noisy = [Sample(x.dim, x.chunks, x.seconds * rng.uniform(0.9, 1.1)) for x in timed(TRUE, times=9)]
    model = fit_stage(noisy)
    assert worst(model, TRUE) < 0.06
    assert 0.001 < model.error < 0.06


def test_stragglers_among_the_timings_of_a_point_count_for_nothing():
    rng = np.random.default_rng(2)
    samples = timed(TRUE, times=5)
    slow = {place for place in range(len(samples)) if place % 5 < 2}  # two of five, everywhere
    delayed = [Sample(x.dim, x.chunks, x.seconds * rng.uniform(2, 20)) for x in samples]
    assert worst(fit_stage([delayed[i] if i in slow else samples[i] for i in range(len(samples))]), TRUE) < 0.01


@pytest.mark.parametrize("place", range(0, len(POINTS_TIMED), 4))
def test_a_point_timed_only_by_a_straggler_counts_for_little(place):
    samples = timed(TRUE)
    samples[place] = Sample(samples[place].dim, samples[place].chunks, samples[place].seconds * 20)
    assert worst(fit_stage(samples), TRUE) < 0.01


def test_no_coefficient_is_negative_though_more_chunks_seem_to_be_faster():
    model = fit_stage([Sample(d, m, 1e-6 * d / m**2) for d, m in POINTS_TIMED])
    assert min(model.partition, model.intervention, model.constant) >= 0
    assert model.error > 0.1


def test_a_stage_that_takes_no_time_is_fitted():
    assert fit_stage(timed(StageModel(0.0, 0.0, 0.0))) == StageModel(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("points", [[], [(10**5, 1)], [(10**5, 1), (10**5, 4)], [(10, 1), (20, 2), (30, 3), (40, 4)]])
def test_too_few_points_to_tell_the_terms_apart_are_refused(points):
    with pytest.raises(InputError, match="more different"):
        fit_stage(timed(TRUE, points))


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be_are_refused(seconds):
    with pytest.raises(InputError, match="finite"):
        fit_stage([*timed(TRUE), Sample(7, 1, seconds)])


STAGES = (StageModel(1e-6, 0.0, 0.1), StageModel(3e-6, 0.01, 0.0))
SETUP = SetupModel(0.5, 0.25)


def round_of(d, m, slower=1.0):
    return SETUP.seconds(m), [[slower * stage.seconds(d, m)] * m for stage in STAGES]


def profiled():
    profile = Profile()
    for m in (1, 2, 4, 8):
        profile = profile.observe(10**6, *round_of(10**6, m))
    return profile


def test_a_profile_learns_the_model_from_whole_rounds():
    performance = profiled().fit()
    assert performance.setup.seconds(16) == pytest.approx(SETUP.seconds(16), rel=1e-3)
    expected = [stage.seconds(10**6, 16) for stage in STAGES]
    assert performance.stage_seconds(10**6, 16) == pytest.approx(expected, rel=1e-3)
    assert performance.error < 1e-3


def test_a_profile_cannot_be_fitted_before_it_has_seen_enough():
    with pytest.raises(InputError):
        Profile().fit()
    with pytest.raises(InputError):
        Profile().observe(10**6, *round_of(10**6, 1)).fit()


def test_a_profile_follows_devices_that_change():
    profile = profiled()
    for _ in range(KEPT):
        for m in (1, 2, 4, 8):
            profile = profile.observe(10**6, *round_of(10**6, m, slower=3.0))
    expected = [3 * stage.seconds(10**6, 4) for stage in STAGES]
    assert profile.fit().stage_seconds(10**6, 4) == pytest.approx(expected, rel=1e-3)


def test_a_profile_is_bounded_and_keeps_the_latest():
    profile = Profile()
    for d in range(1, 2 * POINTS + 1):
        for place in range(3):
            profile = profile.observe(d, float(place), [[float(place)] * 20])
    assert {sample.dim for sample in profile.stages[0]} == set(range(POINTS + 1, 2 * POINTS + 1))
    assert len(profile.stages[0]) == POINTS * KEPT
    assert len(profile.setup) == POINTS * 3
    assert [sample.seconds for sample in profile.stages[0][-KEPT:]] == [1.0] * (KEPT - 20) + [2.0] * 20


@pytest.mark.parametrize("stages", [[], [[]], [[1.0], [1.0, 2.0]], [[1.0]] * 3])
def test_a_round_of_other_stages_is_refused(stages):
    with pytest.raises(InputError):
        profiled().observe(10**6, 1.0, stages)


def test_profiles_and_models_survive_being_saved():
    profile = profiled()
    assert msgspec.json.decode(msgspec.json.encode(profile), type=Profile) == profile
    performance = profile.fit()
    assert msgspec.json.decode(msgspec.json.encode(performance), type=PerformanceModel) == performance
