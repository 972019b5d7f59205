"""DSkellam in numbers: padding, sensitivity and the scale that a ring leaves."""

import math
from dataclasses import replace

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.privacy import scaling
from dordis.privacy.scaling import Ring, Sensitivity

RING = Ring(bits=20, clients=100, clip=1.0, dim=2**20, block=2**16, kappa=1.02)


def multiplier(z: float) -> scaling.Enough:
    """Ask for noise of z times the sensitivity."""
    return lambda bound, variance: variance > 0 and variance >= z**2 * bound.squared


@settings(deadline=None)
@given(st.integers(1, 2**31))
def test_padding_is_at_most_4_percent_and_no_larger_block_would_do(length: int) -> None:
    block = scaling.block_size(length)
    padded = scaling.padded_length(length, block)
    assert block & (block - 1) == 0
    assert padded % block == 0
    assert padded - block < length <= padded
    if length < 2**14:
        assert padded == block
    else:
        assert padded <= 1.04 * length
        assert block == 2**16 or scaling.padded_length(length, 2 * block) > 1.04 * length


@pytest.mark.parametrize(
    ("length", "block", "padded"),
    [
        *((1, 1, 1), (1000, 1024, 1024), (16383, 16384, 16384), (16384, 16384, 16384), (16385, 512, 16896)),
        *((1_018_174, 65536, 1_048_576), (11_183_562, 65536, 11_206_656), (15_091_680, 65536, 15_138_816)),
    ],
)
def test_blocks_of_known_models(length: int, block: int, padded: int) -> None:
    assert (scaling.block_size(length), scaling.padded_length(length, block)) == (block, padded)


def test_one_block_is_the_next_power_of_two() -> None:
    assert [scaling.single_block_size(length) for length in (1, 2, 3, 1_018_174)] == [1, 2, 4, 2**20]


@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_vector_has_no_blocks(length: int) -> None:
    with pytest.raises(InputError, match="at least one coordinate"):
        scaling.block_size(length)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.integers(0, 24))
def test_the_sensitivity_is_the_whole_part_of_the_bound(scaled: float, log_dim: int) -> None:
    d = mpmath.mpf(2) ** log_dim
    sc = mpmath.mpf(scaled)
    bound = min(sc**2 + d / 4 + (sc + mpmath.sqrt(d) / 2), (sc + mpmath.sqrt(d)) ** 2)
    result = scaling.sensitivity(scaled, 1.0, 2**log_dim)
    assert result.squared == max(1, math.floor(bound)) or abs(result.squared - bound) < 1e-14 * bound
    assert result.l1 <= result.l2 * math.sqrt(result.dim) * (1 + 1e-15)
    assert result.l1 <= result.squared * (1 + 1e-15)


@settings(deadline=None)
@given(st.integers(14, 32), st.floats(0.3, 8), st.floats(0.1, 10), st.sampled_from([1, 16, 100]))
def test_at_the_largest_scale_the_ring_is_full(bits: int, z: float, clip: float, clients: int) -> None:
    ring = replace(RING, bits=bits, clip=clip, clients=clients, dim=2**14, block=2**14)
    scale = scaling.largest_scale(ring, multiplier(z))
    bound = scaling.sensitivity(scale, clip, ring.dim).squared

    def taken(squared: int) -> float:
        inside = (scale * clip * clients) ** 2 / ring.block + clients / 4 + ring.kappa * z**2 * squared
        return 2 * ring.headroom * math.sqrt(inside)

    assert taken(bound) <= 2.0**bits * (1 + 1e-12)
    assert taken(bound + 1) >= 2.0**bits * (1 - 1e-12)
    assert scaling.scale_for_sigma(ring, math.sqrt(ring.room(scale)) / scale) == pytest.approx(scale, rel=1e-9)


@settings(deadline=None)
@given(st.integers(1, 32), st.floats(0.3, 100), st.integers(0, 30), st.integers(1, 1000))
def test_feasible_means_what_the_closed_form_says(bits: int, z: float, log_dim: int, clients: int) -> None:
    d, k = 2**log_dim, RING.headroom
    ring = replace(RING, bits=bits, clients=clients, dim=d, block=d)
    closed = mpmath.mpf(4) ** bits - k**2 * (clients + ring.kappa * z**2 * (d + 2 * mpmath.sqrt(d)))
    if abs(closed) > 1e-9 * 4.0**bits:
        assert (ring.room(0) > z**2 * scaling.rounded_norm(0, d)) == (closed > 0)


def test_too_few_bits_are_refused_with_the_fewest_that_work() -> None:
    enough = multiplier(5.0)
    fewest = next(b for b in range(1, 33) if replace(RING, bits=b).room(0) > 25 * scaling.rounded_norm(0, RING.dim))
    assert scaling.fewest_bits(RING, enough) == fewest
    with pytest.raises(InputError, match=f"the fewest bits that work are {fewest}"):
        scaling.largest_scale(replace(RING, bits=fewest - 1), enough)
    assert scaling.largest_scale(replace(RING, bits=fewest), enough) > 0
    with pytest.raises(InputError, match="no number of bits"):
        scaling.largest_scale(RING, multiplier(1e9))
    with pytest.raises(InputError, match="the fewest bits that work are 6"):
        scaling.scale_for_sigma(replace(RING, bits=4), 1.0)


def test_components_keep_within_the_bound_of_the_sampler() -> None:
    free = scaling.largest_scale(RING, multiplier(2.0))
    bounded = replace(RING, largest=RING.room(free) / 100)
    scale = scaling.largest_scale(bounded, multiplier(2.0))
    assert 4 * scaling.sensitivity(scale, RING.clip, RING.dim).squared == pytest.approx(bounded.largest, rel=1e-6)
    assert scale < free
    assert (scaling.scale_for_sigma(bounded, 2.0) * 2.0) ** 2 == pytest.approx(bounded.largest)


@pytest.mark.parametrize("z", [0.5, 2.0, 20.0])
def test_the_bits_chosen_are_the_fewest_within_1_percent(z: float) -> None:
    def noise(ring: Ring, scale: float) -> float:
        return math.sqrt(ring.room(scale)) / scale

    def sigma(bits: int) -> float:
        ring = replace(RING, bits=bits)
        return noise(ring, scaling.largest_scale(ring, multiplier(z)))

    chosen = scaling.enough_bits(RING, lambda ring: scaling.largest_scale(ring, multiplier(z)), noise).bits
    assert sigma(chosen) <= 1.01 * sigma(32) < sigma(chosen - 1)
    assert sigma(32) == pytest.approx(z * RING.clip, rel=1e-3)


def test_a_sensitivity_is_a_value() -> None:
    assert Sensitivity(9, 100) == Sensitivity(9, 100)
    assert (Sensitivity(9, 100).l2, Sensitivity(9, 100).l1, Sensitivity(9, 4).l1) == (3.0, 9.0, 6.0)
