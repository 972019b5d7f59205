"""Adaptive clipping: the bound converges to its quantile, noise does not bias it, and the cost of the bit is right."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.ledger.ledger import Budget, Charge
from dordis.privacy import accounting
from dordis.privacy.accounting import Composed, SkellamSum
from dordis.privacy.clipping import Quantile, next_bound
from dordis.privacy.further_releases import LARGEST_SCALE
from dordis.privacy.scaling import Sensitivity
from dordis.privacy.skellam_noise import add_noise
from dordis.protocols.cohort import agree_on
from dordis.protocols.parameters import Encoding
from tests.ledger.charged_rounds import new_ledger
from tests.privacy.clipping_bits import encode_bit, plan_bit, planned_bit, read_fraction

BITS = 20
NORMS = np.exp(np.linspace(-2, 2, 401))


def summed(norms, bound, bit, seed=None):
    """Add up the bits of all clients, with noise if there is a seed for it."""
    total = np.zeros(1, np.uint32)
    for norm in norms:
        total += encode_bit(float(norm), bound, bit.release.scale, BITS)
    if seed is not None:
        add_noise(total, seed, bit.variance)
    return total & np.uint32(2**BITS - 1)


@pytest.mark.parametrize("target", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.05, 20.0])
@pytest.mark.slow
def test_without_noise_the_bound_converges_to_the_quantile(target, start):
    bit, bound, quantile = planned_bit(10, Fraction(1)), start, Quantile(target)
    for _ in range(200):
        below = read_fraction(summed(NORMS, bound, bit), NORMS.size, bit.release.scale, BITS)
        assert below == pytest.approx(np.mean(bound >= NORMS))
        bound = next_bound(bound, below, quantile)
    assert np.mean(bound >= NORMS) == pytest.approx(target, abs=0.02)


def test_the_step_is_the_geometric_one():
    assert next_bound(3.0, 0.75, Quantile(0.5, rate=0.2)) == pytest.approx(3 * math.exp(-0.2 * 0.25))
    assert next_bound(3.0, 0.5, Quantile(0.5)) == pytest.approx(3.0)


@pytest.mark.slow
def test_with_noise_the_fraction_is_unbiased_and_as_noisy_as_planned():
    bit, norms, runs = plan_bit(multiplier=3.0, clients=100, bits=BITS), NORMS[::8], 2000
    seen = [
        read_fraction(summed(norms, 1.5, bit, run.to_bytes(32, "big")), norms.size, bit.release.scale, BITS)
        for run in range(runs)
    ]
    spread = 3.0 / (2 * norms.size)  # sigma = 3 s, and a bit is worth 2 s
    assert np.mean(seen) == pytest.approx(np.mean(norms <= 1.5), abs=4 * spread / math.sqrt(runs))
    assert np.std(seen) == pytest.approx(spread, rel=4 / math.sqrt(2 * runs))


def test_with_noise_the_bound_stays_about_the_quantile():
    bit, bound, seen = plan_bit(multiplier=2.0, clients=100, bits=BITS), 50.0, []
    for step in range(300):
        total = summed(NORMS[::8], bound, bit, step.to_bytes(32, "little"))
        bound = next_bound(bound, read_fraction(total, 51, bit.release.scale, BITS), Quantile(0.5))
        seen.append(math.log(bound))
    assert abs(np.mean(seen[100:])) < 0.1  # the median norm is 1


@given(
    bound=st.floats(1e-6, 1e6),
    below=st.floats(allow_nan=False),
    target=st.floats(0, 1),
    rate=st.floats(1e-3, 100),
)
def test_the_bound_stays_within_its_limits_whatever_the_noise(bound, below, target, rate):
    after = next_bound(bound, below, Quantile(target, rate, least=1e-3, most=1e3))
    assert 1e-3 <= after <= 1e3
    if math.isfinite(below) and 1e-3 < bound < 1e3:
        assert after <= bound * 1.000001 if below >= target else after >= bound * 0.999999


def test_limits_are_what_keeps_the_bound_positive():
    assert next_bound(1.0, math.inf, Quantile(least=0.25)) == 0.25
    assert next_bound(1.0, -math.inf, Quantile(most=4.0)) == 4.0


@pytest.mark.parametrize("bits", [8, 16, 20, 32])
@pytest.mark.parametrize("norm", [0.0, 1.0, 1.0000001, math.inf])
def test_a_bit_is_the_scale_or_its_negative(bits, norm):
    vector = encode_bit(norm, 1.0, 5, bits)
    assert (vector.dtype, vector.shape) == (np.uint32, (1,))
    assert int(vector[0]) == (5 if norm <= 1 else 2**bits - 5)


def test_all_and_none_below_fit_the_ring_and_come_back():
    bit = plan_bit(multiplier=1.0, clients=50, bits=BITS)
    for norm, expected in ((0.5, 1.0), (2.0, 0.0)):
        assert read_fraction(summed([norm] * 50, 1.0, bit), 50, bit.release.scale, BITS) == expected


@given(st.floats(0.1, 1e3), st.integers(1, 5000), st.integers(8, 32), st.integers(1, 9))
def test_a_planned_bit_fits_the_ring_and_keeps_its_multiplier(multiplier, clients, bits, inflated):
    kappa = Fraction(inflated)
    try:
        bit = plan_bit(multiplier, clients, bits, kappa=kappa)
    except InputError:
        assert clients + 4 * multiplier * math.sqrt(kappa) > 0.99 * (2 ** (bits - 1) - 1)
        return
    sigma = math.sqrt(bit.variance)
    assert multiplier <= sigma / bit.release.scale * (1 + 1e-12)
    assert sigma / bit.release.scale < multiplier * (1 + 1e-3)
    assert bit.release.scale * clients + 4 * sigma * math.sqrt(kappa) < 2 ** (bits - 1) * (1 + 1e-3)
    assert kappa * bit.variance <= 10**10 * (1 + Fraction(1, 1000))
    assert bit.release.scale <= LARGEST_SCALE


def test_the_bit_is_charged_for_its_own_sensitivity_and_noise():
    bit = planned_bit(20, Fraction(40_000))
    assert (bit.release.sensitivity.squared, bit.release.sensitivity.l1) == (400, 20.0)
    assert bit.event() == SkellamSum(400, 20.0, 40_000.0)
    assert bit.event(Fraction(50_000)).variance == 50_000.0
    largest = max(
        abs(int(np.int32(encode_bit(norm, 1.0, bit.release.scale, 32).view(np.int32)[0]))) for norm in (0.0, 1.0, 2.0)
    )
    assert largest**2 == bit.release.sensitivity.squared


def test_the_bit_costs_what_gaussian_noise_of_its_multiplier_does():
    bit = plan_bit(multiplier=10.0, clients=100, bits=24)
    assert accounting.epsilon(bit.event(), 1e-5) == pytest.approx(
        accounting.epsilon(accounting.Gaussian(10.0), 1e-5), rel=1e-3
    )


def test_the_bit_is_composed_with_the_update_also_in_the_ledger():
    update, bit = SkellamSum(900, Sensitivity(900, 64).l1, 20_000.0), planned_bit(20, Fraction(40_000))
    together = Composed((update, bit.event()))
    alone, both = (accounting.epsilon(event, 1e-5) for event in (update, together))
    assert both > alone * 1.05
    parameters = agree_on(
        run=bytes(32),
        index=0,
        clients=range(8),
        threshold=6,
        tolerance=0,
        colluders=0,
        bits=BITS,
        ends=[64, 65],
        variances=[20_000, bit.variance],
        encoding=Encoding("skellam", 1.0, 900, 30.0),
    )
    ledger = new_ledger(bytes(32), Budget(None, 1e-5))
    ledger.reserve(Charge.from_parameters(parameters, [(Sensitivity(900, 64), [0]), (bit.release.sensitivity, [1])]))
    assert ledger.summary().epsilon == pytest.approx(both, rel=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Quantile(target=1.5),
        lambda: Quantile(target=math.nan),
        lambda: Quantile(rate=0),
        lambda: Quantile(least=0),
        lambda: Quantile(least=2, most=1),
        lambda: Quantile(most=math.inf),
        lambda: planned_bit(0, Fraction(1)),
        lambda: planned_bit(1, Fraction(0)),
        lambda: planned_bit(1, Fraction(1, 3)),
        lambda: plan_bit(0.0, 10, 16),
        lambda: plan_bit(1.0, 0, 16),
        lambda: plan_bit(1.0, 10, 33),
        lambda: plan_bit(1.0, 200, 8),
        lambda: encode_bit(math.nan, 1.0, 1, 16),
        lambda: encode_bit(-1.0, 1.0, 1, 16),
        lambda: encode_bit(1.0, 0.0, 1, 16),
        lambda: encode_bit(1.0, math.nan, 1, 16),
        lambda: read_fraction(np.zeros(1, np.uint32), 0, 1, 16),
        lambda: read_fraction(np.zeros(2, np.uint32), 1, 1, 16),
        lambda: next_bound(0.0, 0.5, Quantile()),
        lambda: next_bound(math.nan, 0.5, Quantile()),
        lambda: next_bound(1.0, math.nan, Quantile()),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
