"""Encoding: decoded updates have no bias, errors of rounding are bounded, and so are the norms of encoded vectors.

Quantised sums: the levels are those of Lloyd and Max, and dequantised sums have no bias.
"""

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.crypto import prg
from dordis.errors import InputError
from dordis.privacy import encoding, scaling
from dordis.privacy.encoding import (
    DELIVERED_BITS,
    DISTORTION,
    EDGES,
    LEVELS,
    Grid,
    chunk_ends,
    delivered_size,
    dequantise,
    quantise,
)
from tests.references.encoding import Reference

PUBLIC = bytes(range(32))
SECRET = bytes(range(32, 64))
FLOATS = [np.float32, np.float64]
EVERY_TYPE = pytest.mark.parametrize("kind", FLOATS)


def entropy(tag=0):
    """Return a source of bytes that are the same in every run, and different for every tag and call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


def known(secret):
    return lambda size: secret


def bound_of(grid, clip):
    return scaling.sensitivity(grid.scale, clip, grid.padded).squared


def integers(vector, bits):
    return encoding.centre(vector, bits).astype(np.int64)


def squared(vector, bits):
    return int((integers(vector, bits) ** 2).sum())


updates = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=70)


@settings(deadline=None, max_examples=150)
@given(
    update=updates,
    block=st.sampled_from([1, 2, 4, 8, 16, 32]),
    scale=st.floats(1e-3, 1e4),
    clip=st.floats(1e-3, 1e3),
    bits=st.integers(1, 32),
    public=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=32, max_size=32),
)
def test_it_is_the_documented_function(update, block, scale, clip, bits, public, secret):
    grid = Grid(len(update), block, scale, bits)
    bound = bound_of(grid, clip)
    reference = Reference(len(update), block, scale, bits, clip, bound, public)
    vector = encoding.encode(np.array(update), grid, public, known(secret), clip, bound)
    # Where rounding is a close call, the order of floating-point operations may decide: one time in 10^8.
    assert (vector != reference.encode(update, secret)).sum() <= 1
    assert encoding.decode(vector, grid, public) == pytest.approx(
        reference.decode(vector.tolist()), abs=1e-9 * 2**bits / scale
    )


@settings(deadline=None, max_examples=150)
@given(update=updates, block=st.sampled_from([1, 2, 8, 64]), kind=st.sampled_from(FLOATS), scale=st.floats(1, 1e4))
def test_what_is_encoded_is_decoded_within_the_error_of_rounding(update, block, kind, scale):
    x = np.array(update, kind)
    grid = Grid(x.size, block, scale, 32)
    back = encoding.decode(encoding.encode(x, grid, PUBLIC), grid, PUBLIC)
    assert back.dtype == np.float64
    # Every coordinate of the padded vector moves by less than 1 / s, and the rotation keeps the norm of that.
    slack = 1e-5 * (1 + np.linalg.norm(x))
    assert np.linalg.norm(back - x) <= math.sqrt(grid.padded) / scale + slack


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.sampled_from([1, 2, 4, 16, 128]))
def test_every_coordinate_is_dealt_once_and_collected_again(dim, block):
    grid = Grid(dim, block, 1.0, 8)
    x = np.arange(1.0, dim + 1)
    dealt = grid.deal(x)
    assert dealt.size == grid.padded < dim + block
    assert sorted(dealt[dealt != 0]) == x.tolist()
    assert np.array_equal(grid.collect(dealt), x)
    for block_number, row in enumerate(dealt.reshape(grid.blocks, grid.block)):
        taken = row[row != 0] - 1
        assert (taken % grid.blocks == block_number).all()
        assert (np.diff(taken) == grid.blocks).all()
        assert abs(taken.size - dim / grid.blocks) < 1


@pytest.mark.slow
@EVERY_TYPE
def test_rounding_has_no_bias(kind):
    grid = Grid(96, 32, scale=2.3, bits=16)
    x = np.random.default_rng(5).normal(size=96).astype(kind)
    clip = float(np.linalg.norm(x.astype(np.float64))) * 2
    source, draws = entropy(), 20_000
    total = np.zeros(grid.padded)
    for _ in range(draws):
        total += integers(encoding.encode(x, grid, PUBLIC, source, clip, bound_of(grid, 2 * clip)), 16)
    y = encoding.rotate_update(x, grid, PUBLIC).astype(np.float64) * grid.scale
    frac = y - np.floor(y)
    error = (total / draws - y) / np.sqrt(np.maximum(frac * (1 - frac), 1e-3) / draws)
    assert np.abs(error).max() < 4.5
    assert 0.6 < np.mean(error**2) < 1.5


@EVERY_TYPE
@pytest.mark.parametrize(("dim", "scale"), [(5, 3.0), (1000, 0.5), (3000, 40.0), (20_000, 1e3), (2**14, 1e9)])
def test_the_norm_is_never_exceeded(kind, dim, scale):
    grid = Grid(dim, scaling.block_size(dim), scale, 32)
    rng, source = np.random.default_rng(1), entropy()
    bound = bound_of(grid, 1.0)
    shapes = [
        rng.normal(size=dim),
        np.eye(1, dim)[0],
        np.ones(dim),
        encoding.decode((np.arange(grid.padded) % 2).astype(np.uint32), grid, PUBLIC),  # one on the grid itself
    ]
    for shape in shapes:
        for norm in (0.999, 1.0, 3.0, 1e6):
            x = (shape / np.linalg.norm(shape) * norm).astype(kind)
            assert squared(encoding.encode(x, grid, PUBLIC, source, 1.0, bound), 32) <= bound


def test_a_draw_beyond_the_norm_is_thrown_away_as_a_whole():
    x = encoding.decode(np.ones(4, np.uint32), Grid(4, 4, 1.0, 8), PUBLIC)
    grid, source = Grid(4, 4, 0.5, 8), entropy()  # 1/2 everywhere: all 16 roundings are equally likely
    seen = Counter(tuple(encoding.encode(x, grid, PUBLIC, source, 2.0, 2).tolist()) for _ in range(2200))
    kept = [vector for vector in itertools.product((0, 1), repeat=4) if sum(vector) <= 2]
    assert sorted(seen) == kept
    assert scipy.stats.chisquare(list(seen.values())).pvalue > 1e-3


@EVERY_TYPE
def test_a_redraw_of_the_rounding_starts_from_the_unrounded_update(kind, monkeypatch):
    """A float32 vector is rounded in place, so that rounding it a second time would encode its integers instead."""
    grid, x = Grid(64, 64, 3.0, 20), np.linspace(-1, 1, 64).astype(kind)
    rotated = encoding.rotate_update(x, grid, PUBLIC)
    vectors, squares = zip(
        *(
            encoding._round_to_ring(
                rotated.copy(), grid.scale, prg.from_seed(SECRET, b"dordis/v1/rounding/%d" % draw), 20
            )
            for draw in range(3)
        ),
        strict=True,
    )
    answers = iter([False, False, True])
    seen = []
    monkeypatch.setattr(encoding, "is_bounded", lambda squared, bound: seen.append(squared) or next(answers))
    encoded = encoding.encode(x, grid, PUBLIC, known(SECRET), bound=1)
    assert seen == [*squares]
    assert np.array_equal(encoded, vectors[2])
    assert not np.array_equal(vectors[0], vectors[2])


def test_a_bound_that_does_not_suit_scale_and_clip_is_an_error_and_no_endless_loop():
    grid = Grid(64, 64, 10.0, 16)
    with pytest.raises(InputError, match="no rounding keeps to a squared norm of 50"):
        encoding.encode(np.ones(64), grid, PUBLIC, clip=8.0, bound=50)


@EVERY_TYPE
def test_updates_are_clipped_and_short_ones_left_alone(kind):
    grid = Grid(3000, 4096, 1e5, 32)
    x = np.random.default_rng(2).normal(size=3000)
    x /= np.linalg.norm(x)
    for norm, expected in ((0.5, 0.5), (1.0, 1.0), (3.0, 1.0), (1e30, 1.0)):
        back = encoding.decode(encoding.encode((x * norm).astype(kind), grid, PUBLIC, clip=1.0), grid, PUBLIC)
        assert back == pytest.approx(x * expected, abs=2e-4)


@pytest.mark.parametrize("update", [np.full(8, 1.7e308), np.full(8, 3.4e38, np.float32), np.full(8, 1e-320)])
def test_the_largest_and_the_smallest_numbers_are_clipped_without_overflow(update):
    grid = Grid(8, 8, 1e4, 20)
    back = encoding.decode(encoding.encode(update, grid, PUBLIC, clip=1.0), grid, PUBLIC)
    expected = 0.0 if update[0] < 1 else 8**-0.5
    assert back == pytest.approx([expected] * 8, abs=1e-3)


@EVERY_TYPE
def test_a_zero_vector_stays_zero(kind):
    grid = Grid(1000, 256, 1e3, 20)
    vector = encoding.encode(np.zeros(1000, kind), grid, PUBLIC, clip=1.0, bound=bound_of(grid, 1.0))
    assert vector.dtype == np.uint32
    assert not vector.any()
    assert not encoding.decode(vector, grid, PUBLIC).any()


@pytest.mark.parametrize("where", ["one coordinate", "in the last block", "one run"])
def test_rotation_spreads_the_energy(where):
    grid = Grid(65_000, 2**14, 1.0, 32)
    x = np.zeros(65_000)
    if where == "one run":
        x[1000:1100] = 1.0
    else:
        x[123 if where == "one coordinate" else -1] = 10.0
    y = encoding.rotate_update(x, grid, PUBLIC)
    assert np.linalg.norm(y) == pytest.approx(10.0)
    energy = (y.reshape(grid.blocks, -1) ** 2).sum(axis=1)
    if where == "one run":  # stripes: neighbours are in different blocks
        assert energy == pytest.approx([25.0] * 4)
    assert np.abs(y).max() <= 10 * 6 / math.sqrt(grid.block)


def test_signs_depend_on_the_public_seed_and_rounding_does_not():
    grid = Grid(500, 512, 7.7, 16)
    x = np.random.default_rng(3).normal(size=500)
    one, same, other, rotated = (
        encoding.encode(x, grid, public, known(secret))
        for public, secret in ((PUBLIC, SECRET), (PUBLIC, SECRET), (PUBLIC, PUBLIC), (SECRET, SECRET))
    )
    assert np.array_equal(one, same)
    assert 0 < np.abs(integers(one, 16) - integers(other, 16)).max() <= 1
    assert np.abs(integers(one, 16) - integers(rotated, 16)).max() > 5
    bits = np.unpackbits(encoding.draw_signs(PUBLIC, 0, 2**16))
    assert abs(bits.mean() - 0.5) < 0.01


def test_encoding_leaves_the_update_as_it_was():
    x = np.linspace(-5, 5, 100)
    before = x.copy()
    x.flags.writeable = False
    encoding.encode(x, Grid(100, 128, 3.0, 12), PUBLIC, clip=1.0)
    assert np.array_equal(x, before)


def test_sums_wrap_around_and_come_back_centred():
    assert encoding.centre(np.array([0, 1, 7, 8, 9, 15], np.uint32), 4).tolist() == [0, 1, 7, -8, -7, -1]
    assert encoding.centre(np.array([2**31 - 1, 2**31, 2**32 - 1], np.uint32), 32).tolist() == [
        2**31 - 1,
        -(2**31),
        -1,
    ]
    grid = Grid(50, 64, 100.0, 14)
    x = np.random.default_rng(4).normal(size=(20, 50))
    total = sum(encoding.encode(row, grid, PUBLIC) for row in x) & np.uint32(2**14 - 1)
    assert encoding.decode(total, grid, PUBLIC) == pytest.approx(x.sum(axis=0), abs=0.2)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 5000), st.sampled_from([1, 4, 8, 64, 1024]), st.data())
def test_chunks_are_runs_of_whole_blocks(dim, block, data):
    padded = scaling.padded_length(dim, block)
    chunks = data.draw(st.integers(1, min(50, padded // block)))
    ends = chunk_ends(dim, block, chunks)
    sizes = np.diff([0, *ends])
    assert len(ends) == chunks
    assert ends[-1] == padded
    assert (sizes % block == 0).all()
    assert 0 < sizes.min() <= sizes.max() <= sizes.min() + block


@pytest.mark.parametrize("chunks", [0, -1, 4])
def test_there_are_no_more_chunks_than_blocks(chunks):
    with pytest.raises(InputError, match="1 to 3 chunks"):
        chunk_ends(20, 8, chunks)


@pytest.mark.parametrize("block", [2, 4, 8, 64])
def test_a_chunk_is_decoded_by_itself(block):
    grid = Grid(1000, block, 9.0, 16)
    vector = encoding.encode(np.random.default_rng(6).normal(size=1000), grid, PUBLIC)
    whole = encoding.unrotate_sum(vector, grid, PUBLIC)
    start = 0
    for end in chunk_ends(1000, block, 5):
        assert np.array_equal(encoding.unrotate_sum(vector[start:end], grid, PUBLIC, start), whole[start:end])
        start = end


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (np.zeros(99), "100 coordinates, not 99"),
        (np.zeros(101), "100 coordinates, not 101"),
        (np.zeros(0), "100 coordinates, not 0"),
        (np.zeros((10, 10)), "one-dimensional"),
        (np.zeros(200)[::2], "contiguous"),
        (np.zeros(100, np.int64), "float32 or float64"),
        (np.zeros(100, np.float16), "float32 or float64"),
        ([0.0] * 100, "float32 or float64"),
        (np.array([math.nan] + [0.0] * 99), "NaN or infinite"),
        (np.array([0.0] * 99 + [math.inf], np.float32), "NaN or infinite"),
        (np.array([-math.inf] + [1.7e308] * 99), "NaN or infinite"),
    ],
)
def test_an_update_that_is_none_is_refused(update, reason):
    with pytest.raises(InputError, match=reason):
        encoding.encode(update, Grid(100, 128, 1.0, 20), PUBLIC, clip=1.0)


@pytest.mark.parametrize("clip", [math.inf, 1e20])
def test_what_does_not_fit_the_integers_is_refused(clip):
    with pytest.raises(InputError, match="fit 32-bit integers"):
        encoding.encode(np.full(8, 1e15), Grid(8, 8, 1.0, 32), PUBLIC, clip=clip)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_seeds_have_32_bytes(seed):
    grid = Grid(8, 8, 1.0, 8)
    with pytest.raises(InputError, match="seed has 32 bytes"):
        encoding.encode(np.zeros(8), grid, seed)
    with pytest.raises(InputError, match="seed has 32 bytes"):
        encoding.encode(np.zeros(8), grid, PUBLIC, known(seed))


@pytest.mark.parametrize(
    ("total", "first"),
    [(np.zeros(12, np.uint32), 0), (np.zeros(16, np.uint32), 4), (np.zeros(16, np.uint32), 24), (np.zeros(8), 0)],
)
def test_a_sum_of_another_shape_is_refused(total, first):
    with pytest.raises(InputError):
        encoding.unrotate_sum(total, Grid(30, 8, 1.0, 8), PUBLIC, first)
    with pytest.raises(InputError):
        encoding.decode(total, Grid(30, 8, 1.0, 8), PUBLIC)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dim": 0}, "at least one"),
        ({"block": 0}, "power of two"),
        ({"block": 12}, "power of two"),
        ({"scale": 0.0}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"scale": math.inf}, "scale"),
        ({"bits": 0}, "bits"),
        ({"bits": 33}, "bits"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(change, reason):
    with pytest.raises(InputError, match=reason):
        Grid(**({"dim": 10, "block": 4, "scale": 1.0, "bits": 8} | change))


GRID = Grid(100_000, 4096, 1.0, 24, 32_768)


def drawn(count, deviation=1000.0):
    values = np.rint(np.random.default_rng(count).normal(0, deviation, count)).astype(np.int32)
    return values, values.view(np.uint32) % np.uint32(2**GRID.bits)


def test_levels_are_the_means_of_their_cells_and_edges_lie_between_them():
    """What Lloyd and Max ask of the quantiser of least error, for a standard Gaussian."""
    edges = np.array([-np.inf, *EDGES, np.inf])
    masses = np.diff(scipy.stats.norm.cdf(edges))
    assert LEVELS.size == 2**DELIVERED_BITS
    assert pytest.approx(-np.diff(scipy.stats.norm.pdf(edges)) / masses, abs=1e-8) == LEVELS
    assert 1 - masses @ LEVELS**2 == pytest.approx(DISTORTION, abs=1e-8)


def test_what_is_delivered_has_the_error_of_the_quantiser_and_no_bias():
    values, total = drawn(32_768)
    read = dequantise(quantise(total, GRID), total.size, GRID)
    error = read - values
    assert np.mean(error**2) == pytest.approx(DISTORTION / (1 - DISTORTION) * np.mean(values**2.0), rel=0.05)
    assert read @ values / (values @ values.astype(float)) == pytest.approx(1, abs=0.003)


def test_blocks_have_scales_of_their_own():
    small, large = drawn(4096, 10.0), drawn(4096, 10_000.0)
    read = dequantise(quantise(np.concatenate([small[1], large[1]]), GRID), 8192, GRID)
    for part, (values, _) in zip((read[:4096], read[4096:]), (small, large), strict=True):
        assert np.mean((part - values) ** 2) < 0.015 * np.mean(values**2.0)
    assert not dequantise(quantise(np.zeros(4096, np.uint32), GRID), 4096, GRID).any()


def test_a_delivery_of_another_form_is_refused():
    _, total = drawn(8192)
    data = quantise(total, GRID)
    assert len(data) == delivered_size(8192, 4096) == 8 + 4096
    for changed in (data[:-1], data + b"\0", b""):
        with pytest.raises(InputError, match="delivered coordinates take 4104 bytes"):
            dequantise(changed, 8192, GRID)
    for scale in (np.nan, np.inf, -1.0, 1e30):
        with pytest.raises(InputError, match="too large for the round's ring"):
            dequantise(np.array([scale], "<f4").tobytes() + data[4:], 8192, GRID)
