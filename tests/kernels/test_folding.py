"""Folding with random signs: every bucket is the sum of its signed coordinates, and unfolding copies it back."""

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.kernels.folding import fold, unfold

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
