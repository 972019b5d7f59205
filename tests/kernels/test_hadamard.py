"""Rotation is the product with the Hadamard matrix, and its inverse undoes it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.kernels import hadamard
from tests.references import transforms

DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
SHAPES = st.tuples(st.integers(0, 8).map(lambda level: 1 << level), st.integers(1, 5))


def gaussian(length: int, dtype=np.float64) -> np.ndarray:
    return np.random.default_rng(length).standard_normal(length).astype(dtype)


def signs_of(length: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (length + 7) // 8, dtype=np.uint8)


@DTYPES
@settings(deadline=None, max_examples=40)
@given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_rotation_is_the_matrix_product(dtype, tolerance, shape, seed):
    block, blocks = shape
    x, signs = gaussian(block * blocks, dtype), signs_of(block * blocks, seed)
    wide = x.astype(np.float64)
    forwards, backwards = x.copy(), x.copy()
    hadamard.rotate(forwards, block, signs)
    hadamard.unrotate(backwards, block, signs)
    assert np.allclose(forwards, transforms.rotate(wide, block, signs.tobytes()), rtol=0, atol=10 * tolerance)
    assert np.allclose(backwards, transforms.unrotate(wide, block, signs.tobytes()), rtol=0, atol=10 * tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("block", "blocks"), [(512, 9), (1024, 5), (2048, 3), (4096, 3)])
def test_long_blocks_are_the_matrix_product(block, blocks):
    x, signs = gaussian(block * blocks), signs_of(block * blocks)
    expected = transforms.rotate(x, block, signs.tobytes())
    hadamard.rotate(x, block, signs)
    assert np.allclose(x, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [*range(13, 19), 20, 21, 22])
def test_unit_vectors_become_rows_of_the_sylvester_matrix(level):
    length = 1 << level
    x, expected = np.zeros(length, dtype=np.float32), np.zeros(length)
    for place in np.random.default_rng(level).integers(0, length, 4, dtype=np.uint32):
        x[place] += place + 1
        parity = np.bitwise_count(np.arange(length, dtype=np.uint32) & place) & 1
        expected += np.where(parity, -1.0, 1.0) * (int(place) + 1) / np.sqrt(length)
    hadamard.rotate(x, length, np.zeros(length // 8, dtype=np.uint8))
    assert np.allclose(x, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@DTYPES
@pytest.mark.parametrize(("length", "block"), [(1, 1), (6, 2), (100, 4), (3 << 14, 1 << 14), (1 << 18, 1 << 18)])
def test_unrotating_gives_the_vector_back_and_the_norm_is_kept(length, block, dtype, tolerance):
    x, signs = gaussian(length, dtype), signs_of(length)
    rotated = x.copy()
    hadamard.rotate(rotated, block, signs)
    norms = np.linalg.norm(x.astype(np.float64)), np.linalg.norm(rotated.astype(np.float64))
    assert norms[1] == pytest.approx(norms[0], rel=tolerance)
    hadamard.unrotate(rotated, block, signs)
    assert np.allclose(rotated, x, rtol=0, atol=10 * tolerance)


def test_bit_i_of_the_signs_flips_coordinate_i():
    for i in range(40):
        x, signs = np.ones(40), np.zeros(5, dtype=np.uint8)
        signs[i // 8] = 1 << (i % 8)
        hadamard.rotate(x, 1, signs)
        assert np.flatnonzero(x < 0).tolist() == [i]


def test_an_empty_vector_stays_empty():
    x = np.zeros(0, dtype=np.float32)
    hadamard.rotate(x, 8, np.zeros(0, dtype=np.uint8))
    assert x.size == 0


@pytest.mark.parametrize("block", [0, -4, 3, 24, 2.0, True])
def test_a_block_that_is_not_a_power_of_two_is_refused(block):
    with pytest.raises(InputError, match="power of two"):
        hadamard.rotate(np.zeros(24), block, np.zeros(3, dtype=np.uint8))


def arguments(**changed):
    return {"x": np.zeros(24), "block": 8, "signs": np.zeros(3, dtype=np.uint8), **changed}


@pytest.mark.parametrize("function", [hadamard.rotate, hadamard.unrotate])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block": 16}, "divide the length"),
        ({"x": np.zeros(24, dtype=np.float16)}, "x must be an array of float32 or float64: got float16"),
        ({"x": [1.0] * 24}, "x must be an array"),
        ({"x": np.zeros(48)[::2]}, "contiguous"),
        ({"x": np.zeros((3, 8))}, "one-dimensional"),
        ({"x": np.frombuffer(bytes(192))}, "read-only"),
        ({"signs": np.zeros(3, dtype=np.int8)}, "signs must be an array of uint8"),
        ({"signs": np.zeros(2, dtype=np.uint8)}, "3 bytes of signs: got 2"),
        ({"signs": np.zeros(4, dtype=np.uint8)}, "3 bytes of signs: got 4"),
    ],
)
def test_other_arguments_are_refused(function, changed, message):
    with pytest.raises(InputError, match=message):
        function(**arguments(**changed))


@pytest.mark.parametrize(("dtype", "factor"), [(np.float32, 0.3), (np.float64, 0.3), (np.int64, 1)])
@pytest.mark.parametrize(("size", "block"), [(1, 1), (10, 4), (12, 4), (1000, 1), (1000, 1024), (5000, 64), (4099, 8)])
def test_coordinates_are_dealt_to_blocks_in_turn(dtype, factor, size, block):
    x = (100 * np.random.default_rng(size).standard_normal(size)).astype(dtype)
    blocks = -(-size // block)
    expected = np.zeros((blocks, block), dtype)
    for i in range(size):
        expected[i % blocks, i // blocks] = x[i] * dtype(factor)
    assert (hadamard.deal_to_blocks(x, block, factor) == expected.ravel()).all()
