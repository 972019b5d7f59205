"""Cell tables: the documented integers, which together with the residual are exactly the Skellam law."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import DordisError, InputError
from dordis.kernels import table_sampling
from dordis.kernels import table_sampling as kernel
from dordis.privacy.skellam_noise import (
    CELLS,
    GRID,
    TableCache,
    build_table,
    check_variance,
    round_up_variance,
    skellam_masses,
)
from tests.references import cell_noise

ON_GRID = Fraction(1, GRID)
THREE_TENTHS = round_up_variance(Fraction(3, 10))
BELOW_HATS = 2**17 - ON_GRID
VARIANCES = [
    ON_GRID,
    3 * ON_GRID,
    THREE_TENTHS,
    Fraction(1),
    Fraction(4),
    Fraction(100),
    Fraction(1999, 2),
    Fraction(10**5),
    Fraction(131_071),
    BELOW_HATS,
    Fraction(131_072),
    2**18 - ON_GRID,
    Fraction(2**18),
    Fraction(2**20 + 1) + ON_GRID,
    pytest.param(Fraction(10**7), marks=pytest.mark.slow),
    pytest.param(Fraction(10**8), marks=pytest.mark.slow),
]
EVERY_VARIANCE = pytest.mark.parametrize("variance", VARIANCES, ids=str)


def wide(rows):
    """Return rows (high word, low word) as integers."""
    return [(high << 64) | low for high, low in rows.tolist()]


def climbed(stairs):
    """Return H of each cell: 16 cells a word, the first's H in the upper half, then a bit for each step up."""
    steps = stairs[:, None] >> np.arange(16, dtype=np.uint32) & np.uint32(1)
    firsts = stairs.view(np.int32) >> 16
    return (firsts[:, None] + np.cumsum(steps, axis=1, dtype=np.int32)).ravel()


def assert_same_table(variance):
    table, reference = build_table(variance), cell_noise.table(variance)
    assert (table.log_width, table.width, table.largest) == (reference.k, reference.w, reference.X)
    assert wide(table.pmf) == reference.P
    assert table.counts.tolist() == [reference.n.get(H, 0) for H in range(reference.Hmax + 1)]
    assert table.first_escape == reference.F
    nodes = climbed(table.stairs)
    assert nodes[: table.first_escape].tolist() == list(reference.cells)
    assert nodes[table.first_escape :].tolist() == [reference.Hmax] * (CELLS - reference.F)
    assert wide(table.residual) == reference.C
    assert table.digest == reference.digest()


@EVERY_VARIANCE
def test_a_table_is_the_documented_one(variance):
    assert_same_table(variance)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 2**24) | st.integers(1, 10**6 * GRID))
def test_the_table_of_any_variance_is_the_documented_one(multiple):
    assert_same_table(Fraction(multiple, GRID))


@EVERY_VARIANCE
def test_masses_sum_to_one_exactly_and_fall(variance):
    masses = skellam_masses(variance)
    assert masses[0] + 2 * sum(masses[1:]) == 2**128
    assert all(left >= right > 0 for left, right in pairwise(masses))


def test_a_table_that_would_leave_out_a_node_is_refused(monkeypatch):
    def with_a_gap(pmf, width):
        counts = node_cells(pmf, width)
        counts[7] = 0
        return counts

    node_cells = table_sampling.count_node_cells
    monkeypatch.setattr(table_sampling, "count_node_cells", with_a_gap)
    with pytest.raises(DordisError, match="leaves out a node"):
        build_table(131_072)


@pytest.mark.parametrize("variance", [THREE_TENTHS, Fraction(1000), Fraction(131_072)], ids=str)
def test_nothing_is_read_beyond_the_counts(variance):
    table = build_table(variance)
    beyond = np.full(table.largest + 2, 0xFFFFFFFF, np.uint32)
    beyond[: table.counts.size] = table.counts
    masses = table_sampling.subtract_cells(table.pmf, beyond[: table.counts.size], table.log_width)
    assert np.array_equal(table_sampling.accumulate_masses(masses), table.residual)


def with_one_more(rows, place):
    rows[place, 1] += np.uint64(1)
    return rows


def with_one_moved_below_zero(rows):
    rows[3] = rows[2]
    rows[3, 1] -= np.uint64(1)
    return rows


WRONG_RESIDUALS = {
    "a mass too large": ("subtract_cells", lambda rows: with_one_more(rows, 5), "does not sum"),
    "the middle too large": ("subtract_cells", lambda rows: with_one_more(rows, 0), "does not sum"),
    "a sum that falls": ("accumulate_masses", with_one_moved_below_zero, "negative mass"),
    "a last sum too large": ("accumulate_masses", lambda rows: with_one_more(rows, -1), "do not end at the mass"),
}


@pytest.mark.parametrize(("made", "wrong", "why"), WRONG_RESIDUALS.values(), ids=WRONG_RESIDUALS)
def test_a_residual_made_wrongly_is_refused(made, wrong, why, monkeypatch):
    right = getattr(table_sampling, made)
    monkeypatch.setattr(table_sampling, made, lambda *arguments: wrong(right(*arguments)))
    with pytest.raises(DordisError, match=why):
        build_table(1000)


# The law, by enumeration of everything a cell and its hats can be


def enumerate_cells(table):
    """Return the mass that the sampler's cells put on each x, from all cells with all pairs of hats."""
    places, tops = np.empty(CELLS, np.uint32), np.empty(CELLS, np.uint16)
    blocks, origin = np.empty((CELLS, 4), np.uint32), np.arange(4, dtype=np.uint32)
    cells, middle = np.arange(CELLS, dtype=np.uint16), table.largest
    counts = np.zeros(2 * middle + 1, np.int64)
    for hats in range(table.width**2):
        left, right = hats % table.width, hats // table.width
        noise = 0xFF & ~(table.width - 1)  # the bits of a hat byte that must not matter
        pair = np.full(CELLS, left | noise | right << 8, np.uint16)
        acc = np.zeros(CELLS, np.uint32)
        step = (table.stairs, table.log_width, table.first_escape, 0, origin, places, tops, blocks)
        escapes = kernel.draw_samples(acc, np.uint32(0), cells, pair, *step)
        assert escapes == CELLS - table.first_escape
        assert places[:escapes].tolist() == list(range(table.first_escape, CELLS))
        assert not acc[table.first_escape :].any()
        counts += np.bincount(acc.view(np.int32)[: table.first_escape] + middle, minlength=counts.size)
    return [int(count) << (112 - 2 * table.log_width) for count in counts]


@pytest.mark.parametrize(
    "variance", [ON_GRID, THREE_TENTHS, Fraction(4), Fraction(1000), BELOW_HATS, Fraction(131_072)], ids=str
)
def test_cells_and_residual_are_the_law_exactly(variance):
    table, reference = build_table(variance), cell_noise.table(variance)
    sums = wide(table.residual)
    residual = [here - before for here, before in zip(sums, [0, *sums[:-1]], strict=True)]
    assert min(residual) >= 0
    law = [covered + left for covered, left in zip(enumerate_cells(table), residual, strict=True)]
    assert law == [reference.mass(x) for x in range(-table.largest, table.largest + 1)]


def test_reference_hats_cover_what_enumeration_says():
    reference = cell_noise.table(Fraction(131_072))
    hats = Counter(L1 - L2 for L1 in range(reference.w) for L2 in range(reference.w))
    covered: Counter[int] = Counter()
    for H, cells in Counter(reference.cells).items():
        for offset, pairs in hats.items():
            covered[H * reference.w + offset] += cells * pairs << (112 - 2 * reference.k)
    assert all(covered[x] == reference.covered(x) for x in range(-reference.X, reference.X + 1))


def resolve(table, us, *, subtract=False):
    """Invert the residual at integers u = top 2^112 + t, as the sampler does."""
    acc = np.zeros(len(us), np.uint32)
    places = np.arange(len(us), dtype=np.uint32)
    tops = np.array([u >> 112 for u in us], np.uint16)
    garbage = 0xA5A5 << 112  # bytes 14 and 15 of a block are not used
    data = b"".join((u % 2**112 | garbage).to_bytes(16, "little") for u in us)
    blocks = np.frombuffer(data, "<u8").reshape(-1, 2).copy()
    flip = np.uint32(2**32 - 1 if subtract else 0)
    kernel.resolve_escapes(acc, flip, places, tops, blocks, table.residual, table.index, table.index_shift)
    return acc.view(np.int32).tolist()


@EVERY_VARIANCE
def test_inversion_is_right_on_both_sides_of_a_step(variance):
    table, reference = build_table(variance), cell_noise.table(variance)
    steps = reference.C[:: 1 + len(reference.C) // 20_000]  # all of them, unless there are very many
    us = {u for total in steps for u in (total - 1, total, total + 1) if 0 <= u < reference.C[-1]}
    us |= {top << 112 for top in range(CELLS - reference.F)}  # where rows of the index begin
    us |= {(top + 1 << 112) - 1 for top in range(CELLS - reference.F)}
    ordered = sorted(us)
    expected = [reference.invert(u) for u in ordered]
    assert resolve(table, ordered) == expected
    assert resolve(table, ordered, subtract=True) == [-x for x in expected]


# The pmf, against Bessel functions


@pytest.mark.parametrize(
    "variance", [ON_GRID, THREE_TENTHS, Fraction(1), Fraction(4), Fraction(100), Fraction(1000)], ids=str
)
def test_masses_are_as_near_to_the_skellam_law_as_documented(variance):
    masses = wide(build_table(variance).pmf)
    with mpmath.workdps(60):
        v = mpmath.mpf(variance.numerator) / variance.denominator
        law = [mpmath.exp(-v) * mpmath.besseli(x, v) for x in range(len(masses))]
        gaps = [abs(p - mpmath.mpf(mass) / 2**128) for p, mass in zip(law, masses, strict=True)]
        beyond = 1 - (law[0] + 2 * sum(law[1:]))
        distance = (gaps[0] + 2 * sum(gaps[1:]) + abs(beyond)) / 2
        bound = (2 * cell_noise.steps(variance) + 1) * mpmath.mpf(2) ** -128 + mpmath.mpf(2) ** -172
        assert 0 < distance <= bound


def skellam(x, variance):
    """Return exp(-v) I_x(v) as the mean of exp(v (cos a - 1)) cos(x a) over enough even angles a.

    The sum is exact but for I_(M - x), I_(M + x), .. of the M angles, and only angles near 0 count.
    """
    angles = 2 * x + 60 * int(variance**0.5)
    step = 2 * mpmath.pi / angles
    total = mpmath.mpf(1)
    for j in range(1, angles // 2):
        weight = variance * (mpmath.cos(j * step) - 1)
        if weight < -160:
            break
        total += 2 * mpmath.exp(weight) * mpmath.cos(x * j * step)
    return total / angles


@pytest.mark.slow
@pytest.mark.parametrize("variance", [10**5, 131_072, 10**7, 10**9])
def test_masses_of_large_variances_are_the_skellam_law_rounded_down(variance):
    masses = build_table(variance).pmf
    deviation = int(variance**0.5)
    with mpmath.workdps(60):
        for x in [1, 2, 3, *range(deviation // 7, 6 * deviation, deviation // 7)]:
            law = skellam(x, variance)
            (mass,) = wide(masses[x : x + 1])
            assert -1e-9 < law * 2**128 - mass < 1 + 1e-9


# Variances


@pytest.mark.parametrize(
    "variance", [1.0, 0.25, float("nan"), float("inf"), True, "4", None, 4 + 0j, np.float64(4), np.int64(4)]
)
def test_a_variance_that_is_not_an_int_or_a_fraction_is_refused(variance):
    with pytest.raises(InputError, match="is an int or a Fraction"):
        build_table(variance)


@pytest.mark.parametrize("variance", [0, Fraction(0), -1, -ON_GRID, 10**10 + 1, 10**10 + ON_GRID, 10**400, -(10**400)])
def test_a_variance_outside_the_domain_is_refused(variance):
    with pytest.raises(InputError, match="above 0 and at most at 10\\^10"):
        build_table(variance)


@pytest.mark.parametrize("variance", [Fraction(1, 3), ON_GRID / 2, 10**10 - ON_GRID / 2, Fraction(1, 10**400)])
def test_a_variance_off_the_grid_is_refused(variance):
    with pytest.raises(InputError, match="multiple of 2\\^-20"):
        build_table(variance)


@pytest.mark.parametrize("variance", [ON_GRID, 10**10, 10**10 - ON_GRID, 1, Fraction(1, 2)])
def test_the_ends_of_the_domain_are_in_it(variance):
    assert check_variance(variance) == variance


@given(st.fractions(min_value=0, max_value=10**10))
def test_rounding_up_gives_the_next_multiple(variance):
    rounded = round_up_variance(variance)
    assert (rounded * GRID).denominator == 1
    assert 0 <= rounded - variance < ON_GRID
    assert round_up_variance(rounded) == rounded


# The cache


def test_the_cache_returns_the_same_table():
    cache = TableCache()
    assert cache.get_table(4) is cache.get_table(Fraction(8, 2))
    assert cache.get_table(4) is not cache.get_table(5)
    assert cache.get_table(4).variance == 4


def test_the_cache_drops_what_was_used_longest_ago():
    cache = TableCache(limit=sum(build_table(v).nbytes for v in (4, 5, 6)) - 1)
    first, second = cache.get_table(4), cache.get_table(5)
    assert cache.get_table(4) is first  # used again, so that 5 is now the oldest
    cache.get_table(6)
    assert cache.get_table(4) is first
    assert cache.get_table(5) is not second


def test_a_table_larger_than_the_cache_is_still_had():
    cache = TableCache(limit=1)
    only = cache.get_table(4)
    assert cache.get_table(4) is only
    cache.get_table(5)
    assert cache.get_table(4) is not only


def test_the_cache_never_holds_more_than_its_limit():
    limit = 5 * build_table(4).nbytes
    cache = TableCache(limit)
    tables = {v: cache.get_table(v) for v in range(1, 12)}
    held = [
        v for v in reversed(tables) if cache.get_table(v) is tables[v]
    ]  # the newest first, or asking would evict them
    assert sum(tables[v].nbytes for v in held) <= limit
    assert held == list(range(11, 11 - len(held), -1))
    assert len(held) >= 3


def test_the_cache_refuses_what_a_table_refuses():
    with pytest.raises(InputError, match="int or a Fraction"):
        TableCache().get_table(4.0)
