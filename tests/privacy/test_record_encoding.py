"""Encoding of records: one record changes a sum by at most the bound, for any records, dither and rotation."""

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.hadamard import rotate_integers
from dordis.kernels.reals import LEAST_LENGTH, MOST_LENGTH, add_records
from dordis.privacy.encoding import Grid, centre, draw_signs
from dordis.privacy.record_encoding import (
    RecordEncoding,
    batch_cap,
    draw_sample,
    encode_sum,
    fine_scaled_clip,
    scale_for,
    sensitivity,
)

CASES = int(os.environ.get("DORDIS_HOSTILE_CASES", "2000"))
"""Hostile pairs of neighbouring data that are encoded; set the variable to 100000 for the full number."""
PUBLIC = b"\1" * 32


def quantised(rows: np.ndarray, clip: float = 1.0, length: int = LEAST_LENGTH) -> np.ndarray:
    total = np.zeros(rows.shape[1], np.int64)
    add_records(np.ascontiguousarray(rows), np.ones(len(rows), bool), clip, length, total)
    return total


def hostile_rows(rng: np.random.Generator, dim: int, kind: int) -> np.ndarray:
    """Return records that strain the encoder: spikes, equal signs, huge and tiny norms, cancelling ones."""
    count = int(rng.integers(1, 6))
    rows = rng.normal(size=(count, dim))
    match kind % 7:
        case 0:
            rows = np.zeros((count, dim))
            rows[:, rng.integers(dim)] = 10.0 ** rng.integers(-6, 30)
        case 1:
            rows = np.sign(rows)
        case 2:
            rows *= 10.0 ** rng.integers(-12, 12, (count, 1))
        case 3:
            rows = np.repeat(rows[:1], count, 0) * rng.choice([-1.0, 1.0], (count, 1))
        case 4:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)  # at the clip bound
        case 5:
            rows[0, 0] = rng.choice([np.nan, np.inf, -np.inf])
        case 6:  # the rotation makes one spike of it
            bits = np.unpackbits(draw_signs(PUBLIC, 0, dim), bitorder="little")[:dim]
            rows[-1] = np.where(bits, -1.0, 1.0) / math.sqrt(dim)
    return rows.astype(rng.choice([np.float32, np.float64]))


def difference(rows: np.ndarray, out: int, grid: Grid, shift: int, seed: bytes) -> np.ndarray:
    """Return how the encoded sum changes when a record is left out, in the integers."""
    with_all, without = quantised(rows), quantised(np.delete(rows, out, 0))
    encoded = [encode_sum(total, grid, shift, PUBLIC, seed) for total in (with_all, without)]
    return centre(encoded[0] - encoded[1] & np.uint32(2**grid.bits - 1), grid.bits).astype(np.int64)


@pytest.mark.parametrize("dim", [1, 8, 64, 1024])
def test_no_hostile_record_exceeds_the_sensitivity(dim: int) -> None:
    rng = np.random.default_rng(dim)
    for case in range(CASES // 4):
        scaled = fine_scaled_clip(dim) if case % 2 else 4.0
        _, shift = scale_for(scaled, dim)
        # the length is fixed by `quantised`: s c follows from it
        s_c = math.sqrt(dim) * LEAST_LENGTH / 2**shift
        rows = hostile_rows(rng, dim, case)
        grid = Grid(dim, dim, s_c, 32)
        changed = difference(rows, int(rng.integers(len(rows))), grid, shift, rng.bytes(32))
        assert int(changed @ changed) <= sensitivity(s_c, dim)


def test_the_bound_is_nearly_met() -> None:
    """A bound of a tenth less would be exceeded: the test above could fail."""
    dim, rng = 64, np.random.default_rng(0)
    _, shift = scale_for(fine_scaled_clip(dim), dim)
    s_c = math.sqrt(dim) * LEAST_LENGTH / 2**shift
    row = rng.normal(size=(1, dim))
    changed = difference(1e3 * row, 0, Grid(dim, dim, s_c, 32), shift, rng.bytes(32))
    assert int(changed @ changed) > 0.9 * sensitivity(s_c, dim)


def test_a_sum_in_float32_is_caught() -> None:
    """Mutant: with the last of 4,096 equal records the sum passes 2^31, and small ones are then rounded up further."""
    dim, length = 64, LEAST_LENGTH
    large, small = (quantised(np.full((1, dim), value))[0] for value in (1.0, 132 / 2**19 / 8))
    assert (large, small) == (2**19, 132)

    def added(count: int) -> np.float32:
        total = np.float32(count * large)
        for _ in range(4000):
            total += np.float32(small)
        return total

    changed = float(added(4096)) - float(added(4095))
    assert dim * changed**2 > 1.5 * length**2  # the same in all coordinates
    assert dim * int(large) ** 2 <= length**2


def test_a_refusal_of_sums_beyond_32_bits_is_caught() -> None:
    """Mutant: if a client sends zeros where its sum does not fit 32 bits, one record decides over all others."""
    dim = 16
    length, shift = scale_for(fine_scaled_clip(dim), dim)
    s_c = math.sqrt(dim) * length / 2**shift
    grid, one = Grid(dim, dim, s_c, 32), quantised(np.ones((1, dim)), 1.0, length)
    most = 2**31 // int(one[0])

    def refusing(total: np.ndarray) -> np.ndarray:
        return total if np.abs(total).max() < 2**31 else np.zeros_like(total)

    def changed(count: int, treat: Callable[[np.ndarray], np.ndarray]) -> int:
        encoded = [encode_sum(treat(k * one), grid, shift, PUBLIC, b"7" * 32) for k in (count, count + 1)]
        difference = centre(encoded[1] - encoded[0], 32).astype(np.int64)
        return int(difference @ difference)

    assert most * int(one[0]) < 2**31 <= (most + 1) * int(one[0])
    assert changed(most, refusing) > 1000 * sensitivity(s_c, dim)
    assert changed(most, lambda total: total) <= sensitivity(s_c, dim)


@pytest.mark.slow
def test_rounding_drawn_again_by_the_norm_is_caught() -> None:
    """Mutant: if the dither is drawn again until the whole sum is short, neighbouring sums get different dithers."""
    rng, dim, shift = np.random.default_rng(2), 16384, 27  # coarse: rounding matters
    s_c = math.sqrt(dim) * LEAST_LENGTH / 2**shift
    grid, bound = Grid(dim, dim, s_c, 32), sensitivity(s_c, dim)
    rows = np.repeat(rng.normal(size=(1, dim)), 60, 0)  # so that coordinates lie anywhere between two integers
    squared = [int(r @ r) for r in (_encoded(rows, grid, shift, seed) for seed in range(40))]
    accepted = sorted(squared)[4]

    def drawn_again(rows: np.ndarray) -> np.ndarray:
        return next(r for seed in range(400) if int((r := _encoded(rows, grid, shift, seed)) @ r) <= accepted)

    changed = [drawn_again(rows) - drawn_again(np.delete(rows, i, 0)) for i in range(8)]
    assert max(int(change @ change) for change in changed) > bound
    drawn_once = [_encoded(rows, grid, shift, 7) - _encoded(np.delete(rows, i, 0), grid, shift, 7) for i in range(8)]
    assert max(int(change @ change) for change in drawn_once) <= bound


def _encoded(rows: np.ndarray, grid: Grid, shift: int, seed: int) -> np.ndarray:
    vector = encode_sum(quantised(rows), grid, shift, PUBLIC, seed.to_bytes(32, "big"))
    return centre(vector, grid.bits).astype(np.int64)


@pytest.mark.parametrize("dim", [1, 2, 100, 5000])
def test_quantised_records_keep_to_their_length_in_integers(dim: int) -> None:
    rng = np.random.default_rng(dim)
    for kind in range(140):
        for row in hostile_rows(rng, dim, kind):
            for length in (LEAST_LENGTH, MOST_LENGTH - 1):
                q = quantised(row[None], 1.0, length)
                assert int(q @ q) <= length**2
                if np.isfinite(row).all() and np.linalg.norm(row.astype(float)) >= 1:
                    assert math.sqrt(int(q @ q)) >= (1 - 2**-8) * length


def test_records_that_are_not_finite_add_nothing() -> None:
    rows = np.array([[1.0, 2.0], [np.nan, 0.0], [np.inf, 1.0], [0.1, 0.1]])
    total = np.zeros(2, np.int64)
    below = add_records(rows, np.array([True, True, True, True]), 1.0, LEAST_LENGTH, total)
    assert below == 0  # one above the bound, one below it
    assert np.array_equal(total, quantised(rows[[0, 3]]))
    assert np.array_equal(quantised(rows[1:3]), [0, 0])


def test_a_row_that_is_not_used_adds_nothing() -> None:
    rows = np.array([[1.0, 2.0], [5.0, 6.0]])
    total = np.zeros(2, np.int64)
    add_records(rows, np.array([True, False]), 1.0, LEAST_LENGTH, total)
    assert np.array_equal(total, quantised(rows[:1]))


def test_quantised_records_are_right_in_real_units() -> None:
    rows = np.random.default_rng(3).normal(size=(50, 300)).astype(np.float32)
    norms = np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    expected = (rows * np.minimum(1, 5.0 / norms)).sum(0)
    found = quantised(rows, clip=5.0) * (5.0 / LEAST_LENGTH)
    assert np.abs(found - expected).max() < 50 * 5.0 * 2**-10


def test_integers_are_rotated_exactly() -> None:
    rng = np.random.default_rng(4)
    for block in (1, 2, 64, 4096, 8192):
        x = rng.integers(-(2**40), 2**40, 2 * block)
        flips = draw_signs(PUBLIC, 0, 2 * block)
        turned = x.copy()
        rotate_integers(turned, block, flips)
        bits = np.unpackbits(flips, bitorder="little")[: 2 * block].astype(bool)
        flipped = np.where(bits, -x, x).reshape(2, block)
        assert int(turned.sum() - block * (flipped[0, 0] + flipped[1, 0])) == 0
        again = turned.copy()
        rotate_integers(again, block, np.zeros(-(-2 * block // 8), np.uint8))
        assert np.array_equal(again, block * flipped.reshape(-1))


def test_the_encoded_sum_has_the_right_mean() -> None:
    rng, dim = np.random.default_rng(5), 64
    length, shift = scale_for(fine_scaled_clip(dim), dim)
    rows = rng.normal(size=(20, dim))
    total = quantised(rows, 1.0, length)
    s_c = math.sqrt(dim) * length / 2**shift
    grid = Grid(dim, dim, s_c, 32)
    encoded = [centre(encode_sum(total, grid, shift, PUBLIC, rng.bytes(32)), 32) for _ in range(4000)]
    exact = total.copy()
    rotate_integers(exact, dim, draw_signs(PUBLIC, 0, dim))
    assert np.abs(np.mean(encoded, axis=0) - exact / 2**shift).max() < 5 * 0.5 / math.sqrt(4000)


def test_the_cap_on_batches_is_passed_with_a_chance_of_2_to_the_minus_60() -> None:
    for records, sampling in [(10, 2**31), (1000, 2**28), (100_000, 2**26), (50, 1), (200, 2**32)]:
        cap = batch_cap(records, sampling)
        assert binom.sf(cap, records, sampling / 2**32) <= 2.0**-60
        assert cap <= records


def test_each_record_is_sampled_by_its_own_coin() -> None:
    counts = np.zeros(40)
    for i in range(4000):
        chosen = draw_sample(i.to_bytes(32, "big"), 2**30, 40, 40)
        counts[chosen] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 4000)
    assert draw_sample(b"x" * 32, 2**32, 7, 7).tolist() == list(range(7))
    few, many = (draw_sample(b"y" * 32, 2**31, n, n) for n in (30, 31))
    assert few.tolist() == [i for i in many.tolist() if i < 30]  # one record more changes no other coin


def test_a_batch_beyond_the_cap_is_a_random_subset() -> None:
    seen = np.zeros(8)
    for i in range(2000):
        chosen = draw_sample(i.to_bytes(32, "big"), 2**32, 8, 3)
        assert chosen.size == 3
        seen[chosen] += 1
    assert np.abs(seen / 2000 - 3 / 8).max() < 5 * math.sqrt(3 / 8 * 5 / 8 / 2000)


def test_values_that_the_accounting_does_not_hold_for_are_refused() -> None:
    good = RecordEncoding(2**28, LEAST_LENGTH, 20, 1000, 102)
    good.check(1024)
    for bad in (
        RecordEncoding(0, LEAST_LENGTH, 20, 1000, 102),
        RecordEncoding(2**28, MOST_LENGTH, 20, 1000, 102),
        RecordEncoding(2**28, LEAST_LENGTH, 33, 1000, 102),
        RecordEncoding(2**32, LEAST_LENGTH, 20, 2**40, 102),
    ):
        with pytest.raises(ParametersRefused):
            bad.check(1024)
    with pytest.raises(InputError, match="never folded"):
        encode_sum(np.zeros(3), Grid(3, 4, 1.0, 16), 20, PUBLIC, PUBLIC)
