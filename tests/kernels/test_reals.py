"""Rounding follows its definition in exact fractions and has no bias; sums and norms are exact or in float64.

Folding with random signs: every bucket is the sum of its signed coordinates, and unfolding copies it back.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.kernels import reals
from dordis.kernels.reals import add_weighted, fold, is_finite, sum_squares, unfold
from tests.references import transforms

WORDS = st.integers(0, 2**32 - 1)
REALS = st.floats(-1e6, 1e6)
INT32 = st.integers(-(2**31), 2**31 - 1)


def rounded(x, scale, words, dtype=np.float64) -> list[int]:
    out = np.full(len(x), 99, dtype=np.int32)
    reals.round_stochastically(np.array(x, dtype=dtype), scale, np.array(words, dtype=np.uint32), out)
    return out.tolist()


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(REALS, WORDS), max_size=40), st.floats(-1000, 1000))
def test_rounding_is_exact_in_float64(pairs, scale):
    x, words = [p[0] for p in pairs], [p[1] for p in pairs]
    assert rounded(x, scale, words) == transforms.round_stochastically(x, scale, words)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), WORDS), max_size=40), st.floats(-1000, 1000))
def test_float32_is_widened_before_it_is_scaled(pairs, scale):
    x, words = [p[0] for p in pairs], [p[1] for p in pairs]
    assert rounded(x, scale, words, np.float32) == transforms.round_stochastically(x, scale, words)


def test_rounding_goes_up_exactly_below_the_fraction():
    half = 2**31
    assert rounded([0.5, 0.5, -0.5, -0.5, 3.0, -3.0], 1.0, [half - 1, half, half - 1, half, 0, 0]) == [
        1,
        0,
        0,
        -1,
        3,
        -3,
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.25, -0.25, 0.9375, 1000.125])
def test_rounding_has_no_bias(value, dtype):
    count = 400_000
    words = np.random.default_rng(7).integers(0, 2**32, count, dtype=np.uint32)
    out = np.empty(count, dtype=np.int32)
    reals.round_stochastically(np.full(count, value / 8, dtype=dtype), 8.0, words, out)
    fraction = value - math.floor(value)
    deviation = math.sqrt(fraction * (1 - fraction) / count)
    assert abs(out.mean() - value) < 4 * deviation
    assert set(out.tolist()) == {math.floor(value), math.ceil(value)}


def test_the_ends_of_int32_are_reached():
    ends = [-(2.0**31), 2.0**31 - 1, 2.0**31 - 1.5]
    assert rounded(ends, 1.0, [0, 0, 0]) == [-(2**31), 2**31 - 1, 2**31 - 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [0, 37, 99])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**31, -(2.0**31) - 512, 1e30, -1e30])
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_left(bad, place, dtype):
    x = np.ones(100, dtype=dtype)
    x[place] = bad
    out = np.ones(100, dtype=np.int32)
    with pytest.raises(InputError, match="finite and must fit"):
        reals.round_stochastically(x, 1.0, np.zeros(100, dtype=np.uint32), out)
    assert not out.any()


def test_a_value_that_is_rounded_up_out_of_range_is_refused():
    with pytest.raises(InputError, match="finite and must fit"):
        rounded([2.0**31 - 0.5], 1.0, [0])
    assert rounded([2.0**31 - 0.5], 1.0, [2**31]) == [2**31 - 1]


def test_a_product_that_overflows_is_refused():
    with pytest.raises(InputError, match="finite and must fit"):
        rounded([1e200], 1e200, [0])


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused(scale):
    with pytest.raises(InputError, match="scale must be finite"):
        rounded([1.0], scale, [0])


def arguments(**changed):
    usual = {"x": np.zeros(4), "randomness": np.zeros(4, dtype=np.uint32), "out": np.zeros(4, dtype=np.int32)}
    return {"scale": 1.0, **usual, **changed}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros(4, dtype=np.int32)}, "x must be an array of float32 or float64"),
        ({"x": np.zeros(8)[::2]}, "contiguous"),
        ({"x": np.zeros(5)}, "equally long"),
        ({"randomness": np.zeros(4, dtype=np.uint64)}, "randomness must be an array of uint32"),
        ({"randomness": np.zeros(3, dtype=np.uint32)}, "equally long"),
        ({"out": np.zeros(4, dtype=np.int64)}, "out must be an array of int32"),
        ({"out": np.zeros(5, dtype=np.int32)}, "equally long"),
        ({"out": np.frombuffer(bytes(16), dtype=np.int32)}, "read-only"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        reals.round_stochastically(**arguments(**changed))


@settings(deadline=None, max_examples=100)
@given(st.lists(INT32, max_size=60))
def test_squared_norm_is_the_sum_of_squares(x):
    assert reals.sum_integer_squares(np.array(x, dtype=np.int32)) == transforms.squared_norm(x)


@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1])
def test_squared_norm_passes_64_bits(value):
    count = 100_003
    assert reals.sum_integer_squares(np.full(count, value, dtype=np.int32)) == count * value**2 > 2**64


@pytest.mark.parametrize("x", [np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.int32)[::2], [1, 2]])
def test_squared_norm_refuses_other_arrays(x):
    with pytest.raises(InputError, match="x must be"):
        reals.sum_integer_squares(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_nearest_integer_is_as_near_as_any(dtype):
    x = np.linspace(-3, 3, 1001).astype(dtype)
    out = np.empty(x.size, np.int32)
    reals.round_to_nearest(x, 2.5, out)
    assert (np.abs(out - 2.5 * x.astype(np.float64)) <= 0.5).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_the_nearest_integer_of_what_does_not_fit_is_refused(value):
    out = np.ones(3, np.int32)
    with pytest.raises(InputError, match="fit 32-bit integers"):
        reals.round_to_nearest(np.array([0.0, value, 1.0]), 10.0, out)
    assert not out.any()
    with pytest.raises(InputError, match="equally long"):
        reals.round_to_nearest(np.zeros(2), 1.0, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 10_000])
def test_squares_are_summed_in_double_precision(dtype, size):
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    assert sum_squares(x) == pytest.approx(math.fsum(float(value) ** 2 for value in x), rel=1e-14)


@pytest.mark.parametrize(("value", "place"), [(math.nan, 3), (math.inf, 40), (1e300, 5)])
def test_what_is_not_finite_shows_in_the_sum_of_squares(value, place):
    x = np.zeros(50)
    x[place] = value
    assert not math.isfinite(sum_squares(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_vectors_are_added_in_double_precision(dtype):
    total, x = np.arange(5.0), np.linspace(0, 1, 5).astype(dtype)
    expected = np.arange(5.0) + 0.1 * x.astype(np.float64)
    add_weighted(total, x, 0.1)
    assert (total == expected).all()


@pytest.mark.parametrize(("size", "weight"), [(4, 1.0), (5, math.inf)])
def test_other_lengths_and_infinite_weights_are_refused(size, weight):
    with pytest.raises(InputError):
        add_weighted(np.zeros(5), np.zeros(size), weight)


SHAPES = [(33, 32), (64, 32), (100, 32), (1000, 64), (997, 96), (5000, 4096), (4097, 2048)]


def drawn(size, dtype):
    rng = np.random.default_rng(size)
    return rng.standard_normal(size).astype(dtype), rng.integers(0, 256, (size + 7) // 8).astype(np.uint8)


def sign(signs, i):
    return -1.0 if signs[i // 8] >> (i % 8) & 1 else 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("size", "buckets"), SHAPES)
def test_every_bucket_is_the_sum_of_its_signed_coordinates(size, buckets, dtype):
    x, signs = drawn(size, dtype)
    expected = [0.0] * buckets
    for i, value in enumerate(x.tolist()):
        expected[i % buckets] += 0.5 * sign(signs, i) * value
    folded = fold(x, buckets, signs, 0.5)
    assert folded.dtype == dtype
    assert folded == pytest.approx(np.array(expected), abs=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("size", "buckets"), SHAPES)
def test_unfolding_copies_buckets_with_their_signs(size, buckets, dtype):
    _, signs = drawn(size, dtype)
    folded = np.arange(1, buckets + 1).astype(dtype)
    assert unfold(folded, size, signs).tolist() == [sign(signs, i) * (i % buckets + 1) for i in range(size)]


@pytest.mark.parametrize("buckets", [0, 1, 31, 48, -32, 32.0])
def test_buckets_are_whole_words(buckets):
    x, signs = drawn(100, np.float32)
    with pytest.raises(InputError, match="multiple of 32"):
        fold(x, buckets, signs)


def test_signs_are_as_many_as_coordinates():
    x, signs = drawn(100, np.float32)
    with pytest.raises(InputError, match="13 bytes of signs"):
        fold(x, 32, signs[:-1])
    with pytest.raises(InputError, match="13 bytes of signs"):
        unfold(np.zeros(32), 100, signs[:-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_numbers_and_nan_are_found_and_large_numbers_are_finite(dtype):
    x = np.full((2, 1000), np.finfo(dtype).max, dtype)  # its squares overflow
    assert is_finite(x)
    assert is_finite(x[:, ::7])
    for value in (np.nan, np.inf, -np.inf):
        x[1, 991] = value
        assert not is_finite(x)
        x[1, 991] = 0
    assert is_finite(x[:0])
