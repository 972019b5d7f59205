"""Plans: noise for a budget, epsilon for given noise, and the error for a budget that is out of reach."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from dp_accounting import get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.privacy import gdp, scaling
from dordis.privacy.accounting import ALL_ROUNDS, ORDERS, Composed, ParticipationSchedule, Repeated, SkellamSum, epsilon
from dordis.privacy.advice import forecast_dropout
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.planning import account, plan, plan_for_cost
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import LARGEST_VARIANCE
from dordis.privacy.xnoise_components import Scheme
from reproduce.epsilon import TASKS, LearningTask

FEMNIST = Setting(ParticipationSchedule(1000, 100, 50), dim=1_018_174, delta=1e-3, bits=20)
CIFAR = Setting(ParticipationSchedule(100, 16, 150), dim=11_183_562, clip=3.0, delta=1e-2, bits=20)
SMALL = Setting(ParticipationSchedule(40, 8, 10), dim=500, delta=1e-4, bits=18)

ORIG = {
    "FEMNIST": (6.00, 6.39, 6.88, 7.50, 8.33),
    "CIFAR-10": (6.00, 6.31, 7.04, 7.35, 8.18),
    "Reddit": (6.00, 6.48, 7.08, 7.85, 8.70),
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_papers_epsilon_under_dropout(task: LearningTask) -> None:
    outlook = forecast_dropout(plan(task.setting(), 6.0))
    assert [row.orig for row in outlook] == pytest.approx(ORIG[task.name], abs=0.01)
    assert [row.xnoise for row in outlook] == pytest.approx([6.0] * 5, abs=1e-6)
    assert round(outlook[-1].orig or 0.0, 1) == task.paper


@pytest.mark.parametrize(("setting", "all_rounds", "cap"), [(CIFAR, 6.98, 2.78), (FEMNIST, 4.63, 1.46)])
@pytest.mark.parametrize("orders", [ORDERS, None])
def test_counting_a_clients_own_rounds_saves_noise(
    setting: Setting, all_rounds: float, cap: float, orders: tuple[int, ...] | None
) -> None:
    """The figures are published for Renyi orders; exact accounting needs 6 to 12 % less noise."""
    for participation, expected in (
        (replace(setting.participation, accounting=ALL_ROUNDS), all_rounds),
        (setting.participation, cap),
    ):
        planned = plan(replace(setting, participation=participation, orders=orders), 6.0)
        if orders is None:
            assert 0.87 < planned.sigma / setting.clip / expected < 0.95
        else:
            assert planned.sigma / setting.clip == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    budget=st.floats(0.2, 12),
    clip=st.floats(0.01, 100),
    dim=st.integers(1, 40_000),
    bits=st.sampled_from([None, 18, 20, 24, 32]),
    scheme=st.sampled_from([Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.CONSERVATIVE]),
)
def test_what_is_planned_is_what_is_accounted(
    budget: float, clip: float, dim: int, bits: int | None, scheme: Scheme
) -> None:
    setting = replace(SMALL, clip=clip, dim=dim, bits=bits, scheme=scheme)
    planned = plan(setting, budget)
    bound = planned.sensitivity
    release = SkellamSum(bound.squared, bound.l1, float(planned.noise.reserved_variance()))
    if scheme in (Scheme.SINGLE, Scheme.EXACT):
        assert epsilon(Repeated(release, planned.cap), setting.given_delta) <= budget
    assert budget * (1 - 1e-3) < planned.epsilon <= budget
    back = account(replace(setting, bits=planned.bits), planned.sigma)
    assert back.scale == pytest.approx(planned.scale, rel=1e-3)
    assert back.epsilon == pytest.approx(planned.epsilon, rel=1e-3)


@settings(deadline=None, max_examples=25)
@given(budget=st.floats(0.3, 9), bits=st.sampled_from([16, 20, 28, 32]), clients=st.integers(4, 60))
def test_a_plan_fits_the_ring_and_the_sampler(budget: float, bits: int, clients: int) -> None:
    setting = Setting(ParticipationSchedule(100, clients, 20), dim=20_000, delta=1e-4, bits=bits)
    planned = plan(setting, budget)
    left = float(planned.noise.variance_left(range(clients), b""))
    signal = (planned.scale * clients) ** 2 / setting.block
    assert 2 * 4 * math.sqrt(signal + clients / 4 + left) <= 2.0**bits * (1 + 1e-9)
    assert max((*planned.noise.base, *planned.noise.removable)) <= LARGEST_VARIANCE
    assert 2**20 % planned.variance.denominator == 0
    assert planned.sensitivity == scaling.sensitivity(planned.scale, 1.0, setting.padded)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("budget", [0.5, 1.0, 3.0, 6.0, 10.0])
def test_without_colluders_the_noise_is_that_of_a_trusted_server(budget: float, delta: float) -> None:
    """The oracle is dp-accounting's exact Gaussian; 24 bits, 1 to 50 participations."""
    for cap in (1, 3, 50):
        setting = Setting(ParticipationSchedule(100, 50, 2 * cap), dim=1000, delta=delta, bits=24, colluders=0)
        planned = plan(setting, budget)
        assert planned.cap == cap
        assert planned.multiplier == pytest.approx(get_sigma_gaussian(budget, delta) * math.sqrt(cap), rel=1e-6)
        assert planned.times_trusted == pytest.approx(1.0, abs=1e-3)


def test_no_smaller_variance_on_the_grid_would_do() -> None:
    allowance = SMALL.allowance(2.0)
    planned = plan_for_cost(SMALL, allowance)
    assert planned.epsilon <= 2.0 < planned.epsilon * (1 + 1e-6)
    assert gdp.theta_squared(planned.sensitivity.squared, planned.variance) <= allowance
    assert gdp.theta_squared(planned.sensitivity.squared, planned.variance - Fraction(1, 2**20)) > allowance


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.floats(0.5, 8), st.floats(1.05, 2), st.integers(1, 30))
def test_a_larger_budget_or_fewer_rounds_need_less_noise(budget: float, factor: float, rounds: int) -> None:
    setting = replace(SMALL, participation=ParticipationSchedule(20, 10, rounds, ALL_ROUNDS))
    longer = replace(SMALL, participation=ParticipationSchedule(20, 10, rounds + 1, ALL_ROUNDS))
    sigma = plan(setting, budget).sigma
    assert plan(setting, budget * factor).sigma < sigma < plan(longer, budget).sigma
    assert account(setting, sigma * factor).epsilon < account(setting, sigma).epsilon


def test_noise_is_in_real_units_whatever_the_scale() -> None:
    for bits in (18, 20, 24, 32):
        for clip in (0.01, 1.0, 50.0):
            planned = plan(replace(SMALL, bits=bits, clip=clip), 3.0)
            assert planned.sigma_int == pytest.approx(planned.sigma * planned.scale)
            assert planned.sigma / clip == pytest.approx(plan(SMALL, 3.0).sigma, rel=0.01)


def test_bits_are_chosen_within_1_percent_of_many() -> None:
    chosen, many = plan(replace(FEMNIST, bits=None), 6.0), plan(replace(FEMNIST, bits=32), 6.0)
    fewer = plan(replace(FEMNIST, bits=chosen.bits - 1), 6.0)
    assert chosen.sigma <= 1.01 * many.sigma < fewer.sigma
    assert chosen.bytes_per_client == chosen.setting.padded * chosen.bits // 8


def test_the_paper_layout_is_one_block() -> None:
    assert (FEMNIST.block, FEMNIST.padded) == (2**16, 2**20)
    assert (CIFAR.block, CIFAR.padded) == (2**16, 11_206_656)
    whole = replace(CIFAR, one_block=True)
    assert (whole.block, whole.padded) == (2**24, 2**24)


def test_only_xnoise_keeps_epsilon_and_only_up_to_its_tolerance() -> None:
    planned = plan(FEMNIST, 6.0)
    rows = forecast_dropout(planned)
    assert [row.dropped for row in rows] == [0, 10, 20, 30, 40]
    assert [row.xnoise for row in rows[:-1]] == pytest.approx([6.0] * 4, abs=1e-7)
    assert (FEMNIST.T, rows[-1].xnoise) == (39, None)
    orig, conservative = [row.orig or 0 for row in rows], [row.conservative or 0 for row in rows]
    assert orig == sorted(orig)
    assert orig[0] == pytest.approx(6.0)
    assert conservative == sorted(conservative)
    assert planned.epsilon_with_dropout(39, Scheme.CONSERVATIVE) == pytest.approx(6.0)
    assert planned.epsilon_with_dropout(100, Scheme.ORIG) == math.inf


def test_signal_to_noise_compares_norms() -> None:
    planned = account(SMALL, 2.0)
    left = 2.0**2 * float(planned.noise.kappa)
    assert planned.signal_to_noise == pytest.approx(8 / math.sqrt(500 * left), rel=1e-3)
    coarse = account(replace(SMALL, bits=10), 2.0)
    rounding = 8 / 4 / coarse.scale**2
    assert rounding > 1e-4 * left
    assert coarse.signal_to_noise == pytest.approx(8 / math.sqrt(500 * (left + rounding)), rel=1e-6)


def test_too_few_bits_are_explained_with_what_would_work() -> None:
    with pytest.raises(InputError) as refused:
        plan(replace(FEMNIST, bits=12), 6.0)
    reason = str(refused.value)
    assert "the fewest bits that work are 13" in reason
    assert plan(replace(FEMNIST, bits=13), 6.0).epsilon <= 6.0
    least = float(reason.split("12 bits give epsilon ")[1].split()[0])
    assert plan(replace(FEMNIST, bits=12), least + 0.1).epsilon <= least + 0.1
    with pytest.raises(InputError):
        plan(replace(FEMNIST, bits=12), least - 0.1)
    coordinates = int(reason.split(" hold about ")[1].split()[0])
    assert plan(replace(FEMNIST, bits=12, dim=int(coordinates / 1.04)), 6.0).epsilon <= 6.0


@pytest.mark.parametrize("value", [0.0, -6.0, math.nan, math.inf])
def test_budgets_and_noise_are_positive(value: float) -> None:
    with pytest.raises(InputError, match="epsilon is a number above 0"):
        plan(FEMNIST, value)
    with pytest.raises(InputError, match="sigma is a number above 0"):
        account(FEMNIST, value)


@pytest.mark.parametrize("dropped", [-1, 101])
def test_nobody_drops_out_who_is_not_there(dropped: int) -> None:
    with pytest.raises(InputError, match="drop out"):
        plan(FEMNIST, 6.0).epsilon_with_dropout(dropped, Scheme.ORIG)


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.CONSERVATIVE])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_update_and_clipping_bit_together_keep_the_budget(scheme: Scheme, share: float) -> None:
    setting = replace(SMALL, scheme=scheme, further=(FurtherValue(CLIPPING_BIT, share),))
    planned = plan(setting, 3.0)
    (bit,) = planned.further
    update = SkellamSum(planned.sensitivity.squared, planned.sensitivity.l1, float(planned.variance))
    together = Repeated(Composed((update, bit.event())), planned.cap)
    assert 2.99 < epsilon(together, setting.given_delta) <= 3.0
    alone = plan(replace(setting, further=()), 3.0)
    assert bit.multiplier == pytest.approx(alone.multiplier / math.sqrt(share), rel=1e-3)
    assert planned.multiplier == pytest.approx(alone.multiplier / math.sqrt(1 - share), rel=0.02)
    assert account(replace(setting, bits=planned.bits), planned.sigma).epsilon == pytest.approx(3.0, rel=0.02)


def test_dropout_costs_the_clipping_bit_its_noise_too() -> None:
    planned = plan(replace(SMALL, further=(FurtherValue(CLIPPING_BIT, 0.3),)), 3.0)
    assert planned.epsilon_with_dropout(4, Scheme.ORIG) > plan(SMALL, 3.0).epsilon_with_dropout(4, Scheme.ORIG) * 0.99
    assert planned.epsilon_with_dropout(2, Scheme.SINGLE) == pytest.approx(3.0, rel=1e-3)
