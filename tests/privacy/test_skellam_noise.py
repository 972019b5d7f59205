"""Skellam noise: the documented function of its seed, its law, and its exact removal by subtraction."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import kdf, prg
from dordis.errors import InputError
from dordis.kernels import table_sampling as kernel
from dordis.privacy.skellam_noise import CELLS, GRID, LONGEST, PAGE, add_noise, build_table, noise, round_up_variance
from tests.references import cell_noise

SEED = bytes(range(32))
SLICED = [Fraction(1, GRID), round_up_variance(Fraction(3, 10)), Fraction(100), Fraction(131_071), Fraction(131_072)]
LAWS = [
    round_up_variance(Fraction(1, 10)),
    round_up_variance(Fraction(3, 10)),
    *map(Fraction, (4, 100, 10**3, 10**5, 10**7)),
]
EVERY_LAW = pytest.mark.parametrize("variance", LAWS, ids=lambda v: f"{float(v):g}")

variances = st.sampled_from([*SLICED, Fraction(3 * 10**6)])


def part(seed, variance, first, count, **options):
    acc = np.zeros(count, np.uint32)
    add_noise(acc, seed, variance, first=first, **options)
    return acc.view(np.int32).tolist()


# The format


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=32, max_size=32), variances, st.integers(0, 3000), st.integers(0, 2000), st.integers(1, 3))
def test_samples_are_the_documented_ones(seed, variance, first, count, threads):
    assert part(seed, variance, first, count, threads=threads) == cell_noise.samples(seed, variance, first, count)


@settings(deadline=None, max_examples=15)
@given(variances, st.integers(-400, 100), st.integers(1, 400), st.sampled_from([1, 2, 3, 2**15 - 1]))
def test_slices_across_pages_are_the_documented_ones(variance, start, count, page):
    first = page * PAGE + start
    assert part(SEED, variance, first, count) == cell_noise.samples(SEED, variance, first, count)


@pytest.mark.parametrize("variance", SLICED, ids=str)
def test_the_last_samples_of_the_longest_vector_are_the_documented_ones(variance):
    assert part(SEED, variance, LONGEST - 50, 50) == cell_noise.samples(SEED, variance, LONGEST - 50, 50)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [round_up_variance(Fraction(3, 10)), Fraction(10**7), Fraction(10**8)], ids=str)
def test_whole_pages_are_the_documented_ones(variance):
    assert noise(SEED, variance, 3 * PAGE + 99).tolist() == cell_noise.samples(SEED, variance, 0, 3 * PAGE + 99)


@pytest.mark.parametrize("variance", SLICED, ids=str)
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 400_000), st.integers(0, 400_000), st.integers(1, 3), st.booleans())
def test_a_slice_is_the_part_of_the_whole(variance, first, end, threads, subtract):
    first, end = sorted((first, end))
    whole = noise(SEED, variance, 400_000)
    sign = -1 if subtract else 1
    sliced = part(SEED, variance, first, end - first, threads=threads, subtract=subtract)
    assert sliced == (sign * whole[first:end]).tolist()


@pytest.mark.parametrize("variance", SLICED, ids=str)
@pytest.mark.parametrize("count", [0, 1, 17, PAGE, 2 * PAGE, 2 * PAGE + 1, 300_007])
def test_threads_do_not_change_the_samples(variance, count):
    results = [part(SEED, variance, 5, count, threads=threads) for threads in (1, 2, 3, 8)]
    assert all(other == results[0] for other in results)


def test_a_vector_of_no_samples_is_empty():
    assert noise(SEED, 4, 0).shape == (0,)
    add_noise(np.zeros(0, np.uint32), SEED, 4, first=LONGEST)


def test_samples_are_int32():
    assert noise(SEED, 4, 3).dtype == np.int32


def test_another_seed_or_variance_gives_other_samples():
    here = noise(SEED, 100, 1000)
    assert (here != noise(SEED[::-1], 100, 1000)).sum() > 900
    assert (here != noise(SEED, 101, 1000)).any()


# Adding and subtracting


@pytest.mark.parametrize("variance", SLICED, ids=str)
@pytest.mark.parametrize("first", [0, 7, PAGE - 1, 3 * PAGE + 11])
def test_noise_added_and_subtracted_is_gone(variance, first):
    before = np.random.default_rng(first).integers(0, 2**32, 200_003, dtype=np.uint32)
    acc = before.copy()
    add_noise(acc, SEED, variance, first=first, threads=2)
    assert (acc != before).any() or variance < Fraction(1, 1000)
    add_noise(acc, SEED, variance, first=first, subtract=True)
    assert np.array_equal(acc, before)


@pytest.mark.parametrize("variance", [4, 131_072])
@pytest.mark.parametrize("start", [0, 1, 2**31, 2**32 - 1])
def test_sums_wrap_modulo_2_to_the_32(variance, start):
    acc = np.full(5000, start, np.uint32)
    add_noise(acc, SEED, variance)
    samples = cell_noise.samples(SEED, Fraction(variance), 0, 5000)
    assert acc.tolist() == [(start + x) % 2**32 for x in samples]
    acc.fill(start)
    add_noise(acc, SEED, variance, subtract=True)
    assert acc.tolist() == [(start - x) % 2**32 for x in samples]


def test_nothing_is_written_beside_the_vector():
    memory = np.full(PAGE + 200, 9, np.uint32)
    add_noise(memory[100:-100], SEED, 131_072, first=77)
    assert set(memory[:100].tolist()) == set(memory[-100:].tolist()) == {9}


# The law


def binned(values, chances, offset, bins=200):
    """Return the p-value of a chi-square test, neighbours put together into bins of about equal chance."""
    least = max(1 / bins, 10 / len(values))
    starts, total = [0], 0.0
    for i, chance in enumerate(chances):
        if total >= least:
            starts.append(i)
            total = 0.0
        total += chance
    if total < least:
        starts.pop()
    expected = np.add.reduceat(chances, starts) * len(values)
    observed = np.bincount(np.searchsorted(starts, values + offset, side="right") - 1, minlength=len(starts))
    return scipy.stats.chisquare(observed, expected).pvalue


def chances(masses, total):
    """Return the symmetric masses at -X .. X as probabilities."""
    half = np.array([mass / total for mass in masses])
    return np.concatenate([half[:0:-1], half])


def test_the_chi_square_test_sees_a_wrong_variance():
    masses = cell_noise.table(Fraction(100)).P
    assert binned(noise(SEED, Fraction(103), 1_000_000), chances(masses, 2**128), len(masses) - 1) < 1e-9


@EVERY_LAW
def test_samples_have_the_exact_law(variance):
    masses = cell_noise.table(variance).P
    assert binned(noise(SEED, variance, 1_000_000), chances(masses, 2**128), len(masses) - 1) > 1e-4


@pytest.mark.parametrize("variance", LAWS[3:], ids=lambda v: f"{float(v):g}")
@pytest.mark.parametrize("modulus", [2, 3, 16, 256])
def test_samples_have_the_exact_law_modulo_small_numbers(variance, modulus):
    masses = cell_noise.table(variance).P
    places = np.arange(1 - len(masses), len(masses)) % modulus
    expected = np.bincount(places, chances(masses, 2**128), modulus)
    observed = np.bincount(noise(SEED, variance, 1_000_000) % modulus, minlength=modulus)
    assert scipy.stats.chisquare(observed, expected * 1_000_000).pvalue > 1e-4


@pytest.mark.slow
@EVERY_LAW
def test_many_samples_have_the_exact_law(variance):
    masses = cell_noise.table(variance).P
    for seed in (b"\1" * 32, b"\2" * 32):
        assert binned(noise(seed, variance, 8_000_000), chances(masses, 2**128), len(masses) - 1, 1000) > 1e-4


@EVERY_LAW
def test_inverted_escapes_have_the_law_of_the_residual(variance):
    table, reference = build_table(variance), cell_noise.table(variance)
    count, escaping = 400_000, CELLS - reference.F
    stream = prg.Stream(b"0123456789abcdef", b"the escapes.")
    blocks = prg.read_keystream(stream, 0, 16 * count).view("<u8").reshape(-1, 2)
    # 32 bits scaled to the number of cells that escape: the bias, below 2^-16, is far below what can be seen here.
    words = prg.read_keystream(stream, 16 * count, 4 * count).view("<u4").astype(np.uint64)
    tops = (words * np.uint64(escaping) >> np.uint64(32)).astype(np.uint16)
    acc = np.zeros(count, np.uint32)
    places = np.arange(count, dtype=np.uint32)
    kernel.resolve_escapes(acc, np.uint32(0), places, tops, blocks, table.residual, table.index, table.index_shift)
    law = chances(reference.left, escaping * 2**112)
    assert binned(acc.view(np.int32), law, reference.X) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("variance", LAWS[3:], ids=lambda v: f"{float(v):g}")
def test_the_escapes_of_a_long_vector_have_the_law_of_the_residual(variance):
    reference, count = cell_noise.table(variance), 10_000_000
    stream = prg.Stream.from_bytes(kdf.expand(SEED, b"dordis/v1/noise/cells", 28))
    escaped = noise(SEED, variance, count)[prg.read_keystream(stream, 0, 2 * count).view("<u2") >= reference.F]
    share = (CELLS - reference.F) / CELLS
    assert abs(escaped.size - share * count) < 5 * (share * count) ** 0.5
    law = chances(reference.left, (CELLS - reference.F) * 2**112)
    assert binned(escaped, law, reference.X, 50) > 1e-4


@EVERY_LAW
def test_mean_variance_and_excess_kurtosis_are_right(variance):
    count, v = 2_000_000, float(variance)
    samples = noise(SEED, variance, count).astype(np.float64)
    masses = cell_noise.table(variance).P
    law, places = chances(masses, 2**128), np.arange(1 - len(masses), len(masses), dtype=np.float64)
    fourth, eighth = law @ places**4, law @ places**8
    assert law @ places**2 == pytest.approx(v)
    assert fourth / v**2 - 3 == pytest.approx(1 / v, abs=1e-9)
    assert abs(samples.mean()) < 5 * (v / count) ** 0.5
    assert abs((samples**2).mean() - v) < 5 * ((fourth - v**2) / count) ** 0.5
    assert abs((samples**4).mean() / v**2 - 3 - 1 / v) < 5 * ((eighth - fourth**2) / count) ** 0.5 / v**2


def test_neighbouring_samples_are_uncorrelated():
    samples = noise(SEED, 1000, 2_000_000).astype(np.float64) / 1000**0.5
    for lag in (1, 2, 16, PAGE):
        assert abs((samples[lag:] * samples[:-lag]).mean()) < 5 / 1_900_000**0.5


# What is refused


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_seed_of_other_than_32_bytes_is_refused(length):
    with pytest.raises(InputError, match="32 bytes"):
        noise(bytes(length), 4, 8)
    with pytest.raises(InputError, match="32 bytes"):
        add_noise(np.zeros(8, np.uint32), bytes(length), 4)


@pytest.mark.parametrize("dim", [-1, 2**31 + 1, 2**40])
def test_a_vector_that_is_too_long_or_negative_is_refused(dim):
    with pytest.raises(InputError, match="0 to 2\\^31 samples"):
        noise(SEED, 4, dim)


@pytest.mark.parametrize("first", [-1, LONGEST - 7, LONGEST + 1, 2**60])
def test_samples_outside_the_vector_are_refused(first):
    with pytest.raises(InputError, match="samples 0 to 2\\^31 - 1"):
        add_noise(np.zeros(8, np.uint32), SEED, 4, first=first)


@pytest.mark.parametrize(
    "variance",
    [4.0, float("nan"), True, "4", None, 0, Fraction(0), -4, 10**10 + 1, 10**400, Fraction(1, 3), Fraction(1, 2**21)],
    ids=lambda v: str(v)[:20],
)
@pytest.mark.parametrize("dim", [0, 8])
def test_a_variance_that_has_no_table_is_refused(variance, dim):
    with pytest.raises(InputError, match="a noise variance"):
        noise(SEED, variance, dim)


def read_only():
    acc = np.zeros(8, np.uint32)
    acc.flags.writeable = False
    return acc


@pytest.mark.parametrize(
    "acc",
    [
        np.zeros(8, np.int32),
        np.zeros(8, np.int64),
        np.zeros(8, np.float32),
        np.zeros((2, 4), np.uint32),
        np.zeros(16, np.uint32)[::2],
        read_only(),
        [0] * 8,
    ],
    ids=["int32", "int64", "float32", "matrix", "strided", "read-only", "list"],
)
def test_anything_but_a_writable_vector_of_uint32_is_refused(acc):
    with pytest.raises(InputError, match="acc"):
        add_noise(acc, SEED, 4)
