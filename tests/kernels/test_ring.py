"""Lanes of every width are added and subtracted as integers are.

Packing agrees with strings of bits and refuses what it would not have written.
"""

import json
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.kernels import ring
from tests.case_samples import sample_cases
from tests.references import transforms

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


VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "packing.json").read_text())
EVERY_WIDTH = pytest.mark.parametrize("bits", range(1, 33))


def uniform(bits: int, count: int) -> np.ndarray:
    return np.random.default_rng([bits, count]).integers(0, 1 << bits, count, dtype=np.uint32)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['bits']}x{len(v['values'])}")
def test_packing_meets_the_known_answers(vector):
    values = np.array(vector["values"], dtype=np.uint32)
    assert ring.pack(values, vector["bits"]).tobytes().hex() == vector["packed"]
    assert ring.unpack(bytes.fromhex(vector["packed"]), vector["bits"], values.size).tolist() == vector["values"]


@EVERY_WIDTH
@pytest.mark.parametrize("count", sample_cases([257, 0, 1, 7, 8, 9, 63, 64, 65], one_in=4))
def test_packing_is_the_string_of_bits(bits, count):
    values = uniform(bits, count)
    packed = ring.pack(values, bits)
    assert packed.tobytes() == transforms.pack(values.tolist(), bits)
    assert packed.size == ring.packed_size(count, bits)
    assert ring.unpack(packed, bits, count).tolist() == values.tolist()


@EVERY_WIDTH
def test_the_largest_values_survive(bits):
    values = np.full(101, (1 << bits) - 1, dtype=np.uint32)
    packed = ring.pack(values, bits)
    assert packed.tobytes() == transforms.pack(values.tolist(), bits)
    assert np.array_equal(ring.unpack(packed, bits, 101), values)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 32).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1), max_size=70))))
def test_packing_any_values_is_the_string_of_bits(case):
    bits, values = case
    packed = ring.pack(np.array(values, dtype=np.uint32), bits).tobytes()
    assert packed == transforms.pack(values, bits)
    assert ring.unpack(packed, bits, len(values)).tolist() == transforms.unpack(packed, bits, len(values)) == values


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60), st.integers(1, 32), st.integers(0, 200))
def test_bytes_from_a_peer_unpack_to_what_packs_to_them_or_are_refused(data, bits, count):
    try:
        values = ring.unpack(data, bits, count)
    except InputError:
        return
    assert ring.pack(values, bits).tobytes() == data


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b"?" + b, np.uint8)[1:]])
def test_any_bytes_at_any_alignment_unpack(wrap):
    values = uniform(20, 333)
    assert np.array_equal(ring.unpack(wrap(ring.pack(values, 20).tobytes()), 20, 333), values)


@pytest.mark.parametrize("bits", [1, 20, 31])
def test_output_goes_to_the_memory_given_and_not_past_it(bits):
    values = uniform(bits, 99)
    size = ring.packed_size(99, bits)
    memory = np.full(size + 16, 0xA5, dtype=np.uint8)
    assert ring.pack(values, bits, out=memory[8:-8]).base is memory
    assert memory[8:-8].tobytes() == transforms.pack(values.tolist(), bits)
    assert set(memory[:8]) == set(memory[-8:]) == {0xA5}
    elements = np.full(99 + 2, 7, dtype=np.uint32)
    ring.unpack(memory[8:-8], bits, 99, out=elements[1:-1])
    assert elements.tolist() == [7, *values.tolist(), 7]


@pytest.mark.parametrize("bits", range(1, 32))
@pytest.mark.parametrize("place", [0, 50, 100])
def test_a_value_too_wide_is_refused_and_nothing_is_left(bits, place):
    values = np.zeros(101, dtype=np.uint32)
    values[place] = 1 << bits
    out = np.ones(ring.packed_size(101, bits), dtype=np.uint8)
    with pytest.raises(InputError, match=f"below 2\\^{bits}"):
        ring.pack(values, bits, out=out)
    assert not out.any()


@pytest.mark.parametrize("wrong", [b"", bytes(24), bytes(26)])
def test_bytes_of_the_wrong_length_are_refused(wrong):
    with pytest.raises(InputError, match="take 25 bytes"):
        ring.unpack(wrong, 20, 10)


@pytest.mark.parametrize("bit", range(4, 8))
def test_padding_that_is_not_zero_is_refused(bit):
    data = bytearray(ring.packed_size(3, 4))
    data[-1] = 1 << bit
    with pytest.raises(InputError, match="padding"):
        ring.unpack(data, 4, 3)


@pytest.mark.parametrize("bits", [0, -1, 33, 8.0, True, None])
def test_a_width_outside_1_to_32_is_refused(bits):
    for call in (
        lambda: ring.packed_size(1, bits),
        lambda: ring.pack(np.zeros(1, dtype=np.uint32), bits),
        lambda: ring.unpack(b"0", bits, 1),
    ):
        with pytest.raises(InputError, match="bits must be an integer from 1 to 32"):
            call()


@pytest.mark.parametrize("count", [-1, 1.0, None])
def test_a_count_that_is_not_one_is_refused(count):
    with pytest.raises(InputError, match="count must be"):
        ring.unpack(b"0", 8, count)


READ_ONLY = np.zeros(4, dtype=np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring.pack(np.zeros(4, dtype=np.int32), 8), "values must be an array of uint32: got int32"),
        (lambda: ring.pack([1, 2], 8), "values must be an array of uint32: got list"),
        (lambda: ring.pack(np.zeros(8, dtype=np.uint32)[::2], 8), "contiguous"),
        (lambda: ring.pack(np.zeros((2, 2), dtype=np.uint32), 8), "one-dimensional"),
        (lambda: ring.pack(np.zeros(4, dtype=np.uint32), 8, out=np.zeros(5, dtype=np.uint8)), "4 elements: got 5"),
        (lambda: ring.pack(np.zeros(4, dtype=np.uint32), 8, out=np.zeros(4, dtype=np.int8)), "out must be an array"),
        (lambda: ring.pack(np.zeros(4, dtype=np.uint32), 8, out=READ_ONLY), "read-only"),
        (lambda: ring.unpack(np.zeros(4, dtype=np.int8), 8, 4), "data must be an array of uint8"),
        (lambda: ring.unpack(memoryview(bytes(8))[::2], 8, 4), "contiguous"),
        (lambda: ring.unpack(bytes(4), 8, 4, out=np.zeros(3, dtype=np.uint32)), "4 elements: got 3"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


@EVERY_WIDTH
@pytest.mark.parametrize("count", sample_cases([257, 0, 1, 7, 8, 9, 64], one_in=4))
def test_adding_packed_elements_is_adding_them_modulo_two_to_the_32(bits, count):
    total, values = uniform(32, count), uniform(bits, count)
    expected = [(a + b) % 2**32 for a, b in zip(total.tolist(), values.tolist(), strict=True)]
    ring.add_packed(total, transforms.pack(values.tolist(), bits), bits)
    assert total.tolist() == expected


@pytest.mark.parametrize("data", [b"", bytes(2), bytes(4), b"\0\0\x80"], ids=["none", "short", "long", "padding"])
def test_bytes_that_are_refused_add_nothing(data):
    total = np.ones(3, np.uint32)
    with pytest.raises(InputError):
        ring.add_packed(total, data, 7)
    assert total.tolist() == [1, 1, 1]
