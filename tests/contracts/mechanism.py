"""What every mechanism keeps to: inherit `MechanismContract` and say how one is made."""

import hashlib
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.privacy.accounting import renyi_divergences
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms import TABLE, load_mechanism
from dordis.privacy.xnoise_components import Scheme

PUBLIC = bytes(range(32))


def entropy(tag=0):
    """Return a source of bytes that are the same in every run, and different for every tag and call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


def released(mechanism):
    return mechanism.release(Fraction(10**6))


class MechanismContract:
    """Tests of any mechanism, on updates of norm 1 at most."""

    noise_of_one = 0.0
    """Standard deviation, in real units, of the noise that one client's `encode` adds to a coordinate."""
    noise_of_sum = 0.0
    """The same for the noise that `decode` adds to a sum."""
    clips = True
    private = True

    def make(self, grid: Grid):
        """Return the mechanism on this grid, with updates clipped at 1."""
        raise NotImplementedError

    @pytest.fixture
    def grid(self):
        return Grid(dim=3000, block=1024, scale=500.0, bits=24)

    @pytest.fixture
    def mechanism(self, grid):
        return self.make(grid)

    @staticmethod
    def updates(count, dim, norm=1.0):
        x = np.random.default_rng(8).normal(size=(count, dim))
        return x / np.linalg.norm(x, axis=1, keepdims=True) * norm

    def test_it_is_a_value(self, grid, mechanism):
        assert mechanism == self.make(grid)
        assert hash(mechanism) == hash(self.make(grid))
        assert mechanism.grid == grid
        with pytest.raises(AttributeError):
            mechanism.grid = grid

    def test_it_can_be_written_down(self, mechanism):
        assert mechanism.name in TABLE
        assert load_mechanism(mechanism.name) is type(mechanism)
        assert mechanism.description
        assert 0 <= mechanism.clip < math.inf
        assert type(mechanism.sensitivity) is int
        assert mechanism.schemes <= set(Scheme)
        assert mechanism.schemes
        again = type(mechanism).from_parameters(mechanism.grid, mechanism.clip, mechanism.sensitivity, mechanism.noise)
        assert (again.name, again.noise, again.clip) == (mechanism.name, mechanism.noise, mechanism.clip)
        assert not self.private or released(again) == released(mechanism)

    def test_the_noise_it_brings_is_what_is_measured(self, grid, mechanism):
        kept = mechanism.noise_variances(survivors=9, clients=12, colluders=2)
        assert kept.left == pytest.approx((9 * self.noise_of_one**2 + self.noise_of_sum**2) * grid.scale**2)
        assert kept.charged <= kept.left

    def test_chunks_are_decoded_one_by_one_unless_the_whole_sum_gets_noise(self, mechanism):
        assert mechanism.is_decoded_by_chunk == (not self.noise_of_sum)

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_an_encoding_is_a_vector_over_the_ring(self, grid, mechanism, kind):
        (x,) = self.updates(1, grid.dim)
        vector = mechanism.encode(x.astype(kind), PUBLIC, entropy())
        assert vector.dtype == np.uint32
        assert vector.shape == (grid.padded,)
        assert vector.max() < 2**grid.bits

    def test_the_client_is_random_and_nothing_else_is(self, grid, mechanism):
        (x,) = self.updates(1, grid.dim)
        one, same, other = (mechanism.encode(x, PUBLIC, entropy(tag)) for tag in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        assert not np.array_equal(mechanism.encode(x, PUBLIC), mechanism.encode(x, PUBLIC))

    def test_the_mean_comes_back_within_the_noise_and_the_rounding(self, grid, mechanism):
        n = 20
        x = self.updates(n, grid.dim)
        source = entropy()
        total = sum(mechanism.encode(row, PUBLIC, source) for row in x) & np.uint32(2**grid.bits - 1)
        error = (mechanism.decode(total, n, PUBLIC) - x.mean(axis=0)) * n
        rounding = n / 6 / grid.scale**2
        expected = n * self.noise_of_one**2 + self.noise_of_sum**2 + rounding
        # 3000 coordinates: the standard deviation of the estimate is 2.6 %, and rounding is not known to be n/6.
        assert np.mean(error**2) == pytest.approx(expected, rel=0.12)
        assert abs(error.mean()) < 5 * math.sqrt(expected / grid.dim)

    def test_zero_updates_leave_only_the_noise_in_real_units(self, grid, mechanism):
        source = entropy()
        total = sum(mechanism.encode(np.zeros(grid.dim), PUBLIC, source) for _ in range(9))
        decoded = mechanism.decode(total & np.uint32(2**grid.bits - 1), 1, PUBLIC)
        rounding = 9 / 6 / grid.scale**2 if self.noise_of_one and not mechanism.sensitivity else 0.0
        expected = 9 * self.noise_of_one**2 + self.noise_of_sum**2 + rounding
        assert np.mean(decoded**2) == pytest.approx(expected, rel=0.12)

    def test_large_updates_are_clipped(self, grid, mechanism):
        (x,) = self.updates(1, grid.dim, norm=10.0)
        source = entropy()
        total = sum(mechanism.encode(x, PUBLIC, source) for _ in range(50)) & np.uint32(2**grid.bits - 1)
        kept = mechanism.decode(total, 50, PUBLIC) @ x / (x @ x)
        assert kept == pytest.approx(0.1 if self.clips else 1.0, abs=0.03)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_updates_that_are_not_finite_are_refused(self, grid, mechanism, bad):
        x = np.zeros(grid.dim)
        x[-1] = bad
        with pytest.raises(InputError):
            mechanism.encode(x, PUBLIC, entropy())

    def test_wrong_lengths_are_refused(self, grid, mechanism):
        for size in (0, grid.dim - 1, grid.padded):
            with pytest.raises(InputError):
                mechanism.encode(np.zeros(size), PUBLIC, entropy())
        for size in (0, grid.dim, grid.padded + grid.block):
            with pytest.raises(InputError):
                mechanism.decode(np.zeros(size, np.uint32), 1, PUBLIC)

    @pytest.mark.parametrize("count", [0, -1])
    def test_a_mean_is_over_somebody(self, grid, mechanism, count):
        with pytest.raises(InputError, match="at least one client"):
            mechanism.decode(np.zeros(grid.padded, np.uint32), count, PUBLIC)

    def test_a_release_is_an_event_that_accounting_knows_or_nothing_is_claimed(self, mechanism):
        if self.private:
            assert (renyi_divergences(released(mechanism)) > 0).all()
        else:
            with pytest.raises(InputError, match="proves nothing"):
                released(mechanism)
