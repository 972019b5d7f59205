"""The interface of mechanisms, and the releases that the ledger charges for each of them."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats

from dordis.errors import InputError, ParametersRefused
from dordis.privacy import scaling
from dordis.privacy.accounting import DiscreteGaussianSum, Gaussian, ParticipationSchedule, SkellamSum
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import (
    CentralGaussian,
    LocalGaussian,
    NoMechanism,
    gaussian_noise,
)
from dordis.privacy.mechanisms.skellam_and_ddgauss import (
    DDGauss,
    DSkellam,
    discrete_gaussian_masses,
    discrete_gaussian_noise,
)
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.privacy.xnoise_components import Scheme
from tests.contracts.mechanism import MechanismContract, entropy

SEED = bytes(range(32))
GRID = Grid(dim=3000, block=1024, scale=500.0, bits=24)
SMALL = Setting(ParticipationSchedule(40, 8, 10), dim=500, delta=1e-4, bits=18)


def bound(grid):
    return scaling.sensitivity(grid.scale, 1.0, grid.padded).squared


class TestDSkellam(MechanismContract):
    def make(self, grid):
        return DSkellam(grid, 1.0, bound(grid))

    def test_the_name_is_the_one_policies_know(self, mechanism):
        assert mechanism.name == "skellam"

    def test_a_release_has_the_sensitivity_of_the_whole_padded_vector(self, mechanism):
        l1 = math.sqrt(mechanism.sensitivity) * min(math.sqrt(3072), math.sqrt(mechanism.sensitivity))
        assert mechanism.release(Fraction(7, 2)) == SkellamSum(mechanism.sensitivity, pytest.approx(l1), 3.5)

    def test_it_follows_from_a_plan(self):
        result = plan(SMALL, 3.0)
        mechanism = DSkellam.from_plan(result)
        assert mechanism.grid == Grid(500, 512, result.scale, 18)
        assert (mechanism.clip, mechanism.sensitivity) == (1.0, result.sensitivity.squared)

    @pytest.mark.parametrize("squared", [0, 1, bound(GRID) - 1])
    def test_a_bound_that_rounding_cannot_keep_is_refused(self, squared):
        with pytest.raises(ParametersRefused, match="Delta2"):
            DSkellam(GRID, 1.0, squared)

    @pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
    def test_a_clip_that_bounds_nothing_is_refused(self, clip):
        with pytest.raises(ParametersRefused, match="clip"):
            DSkellam(GRID, clip, 10**12)


class TestDDGauss(MechanismContract):
    noise_of_one = 300 / 500

    def make(self, grid):
        return DDGauss(grid, 1.0, bound(grid), variance=Fraction(300**2))

    def test_the_protocol_adds_no_noise_to_it(self, mechanism):
        assert mechanism.schemes == {Scheme.NONE}

    def test_a_plan_for_xnoise_is_refused(self):
        for scheme in (Scheme.SINGLE, Scheme.EXACT, Scheme.CONSERVATIVE):
            with pytest.raises(ParametersRefused, match=f"must be 'orig', not '{scheme.value}'"):
                DDGauss.from_plan(plan(replace(SMALL, scheme=scheme), 3.0))

    def test_every_client_adds_an_even_share_of_the_plan(self):
        result = plan(replace(SMALL, scheme=Scheme.ORIG, colluders=2), 3.0)
        mechanism = DDGauss.from_plan(result)
        assert mechanism.variance == pytest.approx(float(result.variance) / 6, abs=2**-20)
        assert mechanism.noise == str(mechanism.variance)

    def test_a_release_counts_the_honest_survivors(self, mechanism):
        released = mechanism.release(8 * mechanism.share)
        assert isinstance(released, DiscreteGaussianSum)
        assert (released.clients, released.scale, released.dim) == (8, 300.0, 3072)
        assert released.l2 == pytest.approx(math.sqrt(mechanism.sensitivity))
        assert mechanism.noise_variances(10, 12, 2) == (10 * 300.0**2, 10 * 300.0**2, 8 * 300.0**2)
        assert mechanism.noise_variances(1, 12, 2).charged == 0

    @pytest.mark.parametrize("variance", [Fraction(0), Fraction(-5), Fraction(1, 5)])
    def test_a_share_that_nothing_is_proved_of_is_refused(self, variance):
        with pytest.raises(ParametersRefused, match="share"):
            DDGauss(GRID, 1.0, bound(GRID), variance=variance)

    @pytest.mark.parametrize("noise", ["", "0", "1/5", "2/8", "1/0", "x", "-5", "1e9", "9" * 65])
    def test_a_share_is_read_as_a_reduced_fraction(self, grid, noise):
        with pytest.raises(ParametersRefused):
            DDGauss.from_parameters(grid, 1.0, bound(grid), noise)


class TestCentralGaussian(MechanismContract):
    noise_of_sum = 2.5
    source = staticmethod(entropy(3))

    def make(self, grid):
        return CentralGaussian(grid, 1.0, bound(grid), sigma=2.5, entropy=self.source)

    def test_a_release_is_the_servers_noise_over_the_rounded_norm(self, mechanism):
        multiplier = 2.5 * 500 / math.sqrt(bound(GRID))
        assert mechanism.release(Fraction(0)) == Gaussian(pytest.approx(multiplier))


class TestLocalGaussian(MechanismContract):
    noise_of_one = 0.7

    def make(self, grid):
        return LocalGaussian(grid, 1.0, sigma=0.7)

    def test_a_release_is_one_clients_noise_over_the_clip(self, mechanism):
        assert mechanism.release(Fraction(0)) == Gaussian(0.7)


class TestNoMechanism(MechanismContract):
    clips = False
    private = False

    def make(self, grid):
        return NoMechanism(grid)

    def test_it_is_called_none(self, mechanism):
        assert mechanism.name == "none"


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan])
def test_baselines_need_noise(sigma):
    with pytest.raises(InputError, match="sigma"):
        CentralGaussian(GRID, 1.0, bound(GRID), sigma=sigma)
    with pytest.raises(InputError, match="sigma"):
        LocalGaussian(GRID, 1.0, sigma=sigma)


def test_gaussian_noise_is_gaussian():
    samples = gaussian_noise(SEED, 3.0, 200_001)
    assert samples.size == 200_001
    assert scipy.stats.kstest(samples / 3.0, "norm").pvalue > 1e-3
    assert np.array_equal(samples[:10], gaussian_noise(SEED, 3.0, 10))
    with pytest.raises(InputError, match="32 bytes"):
        gaussian_noise(bytes(31), 1.0, 1)


# Discrete Gaussians


def exact_mass(scale, x):
    """Return the mass of x out of 2^127, rounded; the normaliser is a theta function."""
    with mpmath.workdps(60):
        q = mpmath.exp(-1 / (2 * mpmath.mpf(scale) ** 2))
        return int(2**127 * q ** (x**2) / mpmath.jtheta(3, 0, q))


@pytest.mark.parametrize("scale", [0.5, 2, 100])
def test_the_masses_are_the_discrete_gaussian_to_36_digits(scale):
    result = discrete_gaussian_masses(Fraction(scale) ** 2)
    assert result[0] + 2 * sum(result[1:]) == 2**127
    assert result == sorted(result, reverse=True)
    for x in (0, 1, 2, len(result) // 3, len(result) - 1):
        assert abs(result[x] - exact_mass(scale, x)) <= (1 if x else 2 * len(result))
    assert exact_mass(scale, len(result)) == 0


@pytest.mark.parametrize("scale", [0.5, 2, 100, 10_000])
def test_samples_have_the_law_of_the_discrete_gaussian(scale):
    """Chi-square against the exact masses, in up to some 200 cells of about the same mass."""
    samples = discrete_gaussian_noise(SEED, Fraction(scale) ** 2, 400_000)
    p = np.array([float(mass) for mass in discrete_gaussian_masses(Fraction(scale) ** 2)]) / 2.0**127
    law = np.concatenate([p[:0:-1], p])
    cells = np.floor(np.cumsum(law) * 200 * (1 - 1e-9)).astype(int)
    expected = np.bincount(cells, law) * samples.size
    seen = np.bincount(cells[samples + p.size - 1], minlength=expected.size)
    large = expected > 20
    assert (
        scipy.stats.chisquare(
            [*seen[large], seen[~large].sum() + 1e-9],
            [*expected[large], expected[~large].sum() + 1e-9],
            sum_check=False,
        ).pvalue
        > 1e-3
    )
    assert large.sum() >= 3
    assert samples.mean() == pytest.approx(0, abs=4 * scale / math.sqrt(samples.size))


def test_samples_depend_on_the_seed_alone_and_a_prefix_is_a_prefix():
    whole = discrete_gaussian_noise(SEED, 4, 100_000)
    assert np.array_equal(whole[:33], discrete_gaussian_noise(SEED, 4, 33))
    assert not np.array_equal(whole, discrete_gaussian_noise(bytes(32), 4, 100_000))
    assert discrete_gaussian_noise(SEED, 4, 0).size == 0
    assert Counter((whole > 0).tolist())[True] == pytest.approx(Counter((whole < 0).tolist())[True], rel=0.03)


@pytest.mark.parametrize("variance", [Fraction(1, 5), Fraction(1, 3), 0, -1, 10**10 + 1, 4.0])
def test_variances_out_of_range_are_refused(variance):
    with pytest.raises(InputError):
        discrete_gaussian_noise(SEED, variance, 1)


def test_seeds_and_lengths_out_of_range_are_refused():
    with pytest.raises(InputError, match="32 bytes"):
        discrete_gaussian_noise(bytes(31), 4, 1)
    with pytest.raises(InputError, match="2\\^31"):
        discrete_gaussian_noise(SEED, 4, -1)
