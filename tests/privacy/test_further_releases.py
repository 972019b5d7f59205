"""Values released beside an update: clipped to their bound, summed exactly, planned within their share."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.privacy import accounting
from dordis.privacy.accounting import ParticipationSchedule, SkellamSum
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.further_releases import (
    LARGEST_SCALE,
    FurtherRelease,
    FurtherSum,
    FurtherValue,
    PlannedRelease,
    plan_release,
)
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting

BITS = 24
numbers = st.floats(allow_nan=False, allow_infinity=False)


def signed(vector: np.ndarray, bits: int = BITS) -> list[int]:
    """Read ring numbers as signed integers, by hand."""
    return [int(x) - 2**bits if int(x) >= 2 ** (bits - 1) else int(x) for x in vector]


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 50), st.integers(1, LARGEST_SCALE))
def test_no_value_exceeds_the_sensitivity_that_is_charged(values, bound, scale):
    release = FurtherRelease("value", scale, len(values), bound)
    units = signed(release.encode(values, 32), 32)
    assert sum(x * x for x in units) <= release.sensitivity.squared == (scale * bound) ** 2


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=40), st.integers(1, LARGEST_SCALE))
def test_whole_numbers_within_the_bound_are_summed_exactly(values, scale):
    release = FurtherRelease("value", scale, bound=20)
    total = np.zeros(1, np.uint32)
    for value in values:
        total += release.encode(value, BITS)
    summed = FurtherSum.from_total(release, total & np.uint32(2**BITS - 1), len(values), BITS)
    assert summed.total.tolist() == [sum(values)]
    assert summed.mean[0] == pytest.approx(sum(values) / len(values))


@given(st.lists(numbers, min_size=2, max_size=2))
def test_a_value_that_is_too_long_keeps_its_direction(values):
    release = FurtherRelease("value", LARGEST_SCALE, 2, bound=3)
    units = np.array(signed(release.encode(values, BITS)), np.float64) / LARGEST_SCALE
    if math.hypot(*values) > 3:
        longest = max(map(abs, values))
        unit = np.array(values) / longest / math.hypot(*(np.array(values) / longest))
        assert np.abs(units - 3 * unit).max() < 2 / LARGEST_SCALE
    else:
        assert np.abs(units - values).max() <= 0.5 / LARGEST_SCALE


def test_several_further_releases_together_keep_the_budget():
    values = (FurtherValue(CLIPPING_BIT, 0.1), FurtherValue("right", 0.2, bound=30), FurtherValue("by class", 0.3, 10))
    setting = Setting(ParticipationSchedule(40, 40, rounds=6), 500, further=values)
    planned = plan(setting, 4.0)
    update = SkellamSum(planned.sensitivity.squared, planned.sensitivity.l1, float(planned.variance))
    events = [update]
    for value, one in zip(values, planned.further, strict=True):
        most = one.release.scale * value.bound
        events.append(SkellamSum(most**2, min(most**2, math.sqrt(value.length) * most), float(one.variance)))
        share = accounting.theta_squared(events[-1]) / accounting.theta_squared(accounting.Composed(tuple(events[:1])))
        assert share == pytest.approx(value.share / (1 - setting.share), rel=0.01)
    run = accounting.Repeated(accounting.Composed(tuple(events)), planned.cap)
    assert 3.99 < accounting.epsilon(run, setting.given_delta) <= 4.0


@given(st.floats(0.1, 1e3), st.integers(1, 5000), st.integers(8, 32), st.integers(1, 9), st.integers(1, 100))
def test_a_planned_value_fits_the_ring_and_keeps_its_multiplier(multiplier, clients, bits, inflated, bound):
    kappa = Fraction(inflated)
    try:
        planned = plan_release(FurtherValue("value", 0.1, bound=bound), multiplier, clients, bits, kappa=kappa)
    except InputError:
        sigma = bound * multiplier * math.sqrt(kappa)  # at a scale of 1: beyond the ring, or beyond the noise tables
        assert bound * clients + 4 * sigma > 0.99 * (2 ** (bits - 1) - 1) or sigma**2 > 0.99 * 10**10
        return
    sigma, most = math.sqrt(planned.variance), planned.release.scale * bound
    assert multiplier <= sigma / most * (1 + 1e-12)
    assert sigma / most < multiplier * (1 + 1e-3)
    assert most * clients + 4 * sigma * math.sqrt(kappa) < 2 ** (bits - 1) * (1 + 1e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FurtherValue("value", 0.0),
        lambda: FurtherValue("value", 1.0),
        lambda: FurtherValue("", 0.1),
        lambda: FurtherValue("value", 0.1, length=0),
        lambda: FurtherValue("value", 0.1, bound=0),
        lambda: FurtherRelease("value", 1).encode([1.0, 2.0], 16),
        lambda: FurtherRelease("value", 1).encode(math.nan, 16),
        lambda: FurtherRelease("value", 1).encode(math.inf, 16),
        lambda: FurtherSum.from_total(FurtherRelease("value", 1), np.zeros(1, np.uint32), 0, 16),
        lambda: FurtherSum.from_total(FurtherRelease("value", 1), np.zeros(2, np.uint32), 1, 16),
        lambda: PlannedRelease(FurtherRelease("value", 0), Fraction(1)),
        lambda: PlannedRelease(FurtherRelease("value", 1), Fraction(1, 3)),
        lambda: Setting(ParticipationSchedule(9, 9, 1), 8, further=(FurtherValue("a", 0.1),) * 2),
        lambda: Setting(ParticipationSchedule(9, 9, 1), 8, further=(FurtherValue("a", 0.5), FurtherValue("b", 0.5))),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
