"""Lanes of every width are added and subtracted as integers are."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.kernels import ring

MINUS = 2**32 - 1


def rows_of_bytes(count, size, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)


def expected(acc, rows, width, signs):
    """Return the sums modulo 2^(8 width), lane by lane."""
    sums = acc.tolist()
    for row, sign in zip(rows, signs, strict=True):
        data = row.tobytes()
        for i in range(len(sums)):
            sums[i] += sign * int.from_bytes(data[width * i : width * (i + 1)], "little")
    return [total % 2 ** (8 * width) for total in sums]


def flips(signs):
    return np.array([0 if sign > 0 else MINUS for sign in signs], np.uint32)


def add(acc, rows, width, signs, three=ring.add_three_byte_lanes):
    if width == 3:
        three(acc, rows.view(np.uint32), flips(signs))
    else:
        ring.add_lanes(acc, rows.view(f"u{width}"), flips(signs))
    ring.reduce_modulo(acc, np.uint32(2 ** (8 * width) - 1))


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([1, 2, 3, 4]),
    st.integers(0, 70),
    st.lists(st.sampled_from([1, -1]), max_size=9),
    st.integers(0, 99),
)
def test_lanes_are_added_and_subtracted(width, count, signs, seed):
    rows = rows_of_bytes(len(signs), -(-count // 16) * 16 * width, seed)
    acc = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    answer = expected(acc, rows, width, signs)
    add(acc, rows, width, signs)
    assert acc.tolist() == answer


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("fill", [0, 255])
def test_the_largest_and_smallest_lanes_carry_nothing_over(width, fill):
    signs = [1, -1, 1, 1, -1, 1]
    rows = np.full((6, 32 * width), fill, np.uint8)
    acc = np.full(31, MINUS, np.uint32)
    answer = expected(acc, rows, width, signs)
    add(acc, rows, width, signs)
    assert acc.tolist() == answer


@pytest.mark.slow
def test_three_byte_lanes_are_not_read_past_the_last():
    checked = numba.njit(boundscheck=True)(ring.add_three_byte_lanes.py_func)
    for count in (1, 4, 5):
        signs = [1, -1, 1, 1, -1][:count]
        rows = rows_of_bytes(count, 48, count)
        acc = np.zeros(16, np.uint32)
        add(acc, rows, 3, signs, three=checked)
        assert acc.tolist() == expected(np.zeros(16, np.uint32), rows, 3, signs)


@pytest.mark.parametrize("bits", range(1, 33))
def test_a_cut_is_a_remainder(bits):
    values = np.random.default_rng(bits).integers(0, 2**32, 33, dtype=np.uint32)
    acc = values.copy()
    ring.reduce_modulo(acc, np.uint32(2**bits - 1))
    assert acc.tolist() == [value % 2**bits for value in values.tolist()]
