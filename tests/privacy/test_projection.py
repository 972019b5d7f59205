"""Projection: the sensitivity is bounded for all choices of the server, and the folding error is as predicted."""

import hashlib
import itertools
import math

import numpy as np
import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.reals import sum_integer_squares
from dordis.privacy import encoding, projection, scaling
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import PROJECTION, Grid, centre, decode, draw_signs
from dordis.privacy.mechanisms import check_folding
from dordis.privacy.mechanisms.central_and_local_noise import NoMechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.noise_strategies import Central, XNoise
from dordis.privacy.planning import plan
from dordis.privacy.projection import Alignment
from dordis.privacy.setting import Setting
from dordis.runs.plan import RoundPlan
from tests.references import encoding as reference
from tests.references import masks


def entropy(tag):
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"%d/%d" % (tag, next(calls))).digest(size)


def seed(tag):
    return hashlib.sha256(b"seed %d" % tag).digest()


def mechanism(dim, buckets, scale=100.0, clip=1.0, bits=24):
    grid = Grid(dim, scaling.block_size(buckets), scale, bits, buckets)
    return DSkellam(grid, clip, scaling.sensitivity(scale, clip, grid.padded, folded=True).squared)


def aligned(public_seed, dim, buckets):
    """Return the unit vector whose folding is longest: one bucket, every coordinate with its own sign."""
    negative = np.unpackbits(draw_signs(public_seed, 0, dim, PROJECTION), bitorder="little")[:dim].astype(np.float64)
    update = np.zeros(dim)
    update[::buckets] = 1 - 2 * negative[::buckets]
    return update / np.linalg.norm(update)


# Sensitivity


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0, 1e6])
@pytest.mark.parametrize(("dim", "buckets"), [(1000, 32), (5000, 64), (5000, 4096), (100_000, 1024)])
def test_no_seed_and_no_k_make_a_client_count_for_more(dim, buckets, scale):
    for tag in range(3):
        folding = mechanism(dim, buckets, scale, bits=32)
        rng = np.random.default_rng(tag)
        for update in (aligned(seed(tag), dim, buckets), 1e3 * rng.standard_normal(dim), np.full(dim, 1e30)):
            vector = folding.encode(update, seed(tag), entropy(tag))
            assert sum_integer_squares(centre(vector, 32)) <= folding.sensitivity


def test_the_worst_update_would_be_longer_without_the_second_clip():
    """What the test above is about: folding alone makes this update eight times as long."""
    grid = Grid(64 * 64, 64, 1000.0, 24, 64)
    vector = NoMechanism(grid).encode(aligned(seed(0), grid.dim, 64), seed(0), entropy(0))
    assert sum_integer_squares(centre(vector, 24)) == pytest.approx(64 * 1000.0**2, rel=0.01)


# The signs


def test_signs_come_from_the_public_seed_under_a_label_of_their_own():
    stream = reference._stream(seed(1), b"dordis/v1/projection")
    assert draw_signs(seed(1), 0, 1000, PROJECTION).tobytes() == masks.keystream(stream, 0, 125)
    assert draw_signs(seed(1), 0, 1000).tobytes() != draw_signs(seed(1), 0, 1000, PROJECTION).tobytes()


# What comes out


@pytest.mark.parametrize(("dim", "buckets"), [(4096, 1024), (10_000, 512), (50_000, 96)])
def test_the_error_of_a_sum_is_what_theory_says(dim, buckets):
    """||x||^2 (d/k - 1), within 5 %, on average over seeds; no single coordinate is off on average.

    Where k does not divide d, a bucket has one coordinate more than another.
    """
    folding = NoMechanism(Grid(dim, scaling.block_size(buckets), 1e5, 32, buckets))
    x = np.random.default_rng(0).standard_normal(dim) * np.geomspace(1, 0.1, dim)
    errors, total, count = [], np.zeros(dim), 60
    for tag in range(count):
        decoded = folding.decode(folding.encode(x, seed(tag), entropy(tag)), 1, seed(tag))
        errors.append(float(np.sum((decoded - x) ** 2)))
        total += decoded - x
    shared = np.bincount(np.arange(dim) % buckets)[np.arange(dim) % buckets]
    assert np.mean(errors) == pytest.approx(np.sum(x**2 * (shared - 1)), rel=0.05)
    deviation = math.sqrt(x @ x / buckets / count)
    assert np.abs(total / count).max() < 7 * deviation


def test_decoding_copies_a_bucket_to_all_its_coordinates():
    grid = Grid(100, 32, 10.0, 20, 32)
    folding = NoMechanism(grid)
    decoded = folding.decode(folding.encode(np.eye(100)[3], seed(5), entropy(5)), 1, seed(5))
    assert np.flatnonzero(np.abs(decoded) > 0.5).tolist() == [3, 35, 67, 99]
    assert decoded[3] == pytest.approx(1.0, abs=0.3)
    assert decode(np.zeros(32, np.uint32), grid, seed(5)).tolist() == [0.0] * 100


def test_a_grid_refuses_other_buckets():
    for buckets in (-32, 16, 31, 33, 100, 128):
        with pytest.raises(InputError, match="folded into fewer"):
            Grid(100, 1, 1.0, 16, buckets)


@pytest.mark.parametrize("norm", [0.9, 1.0, 5.0])
def test_folding_rounding_and_decoding_are_those_of_the_definition(norm):
    dim, buckets, scale = 300, 64, 200.0
    folding = mechanism(dim, buckets, scale)
    inner = reference.Reference(buckets, 64, scale, 24, 1.0, 2 * folding.sensitivity, seed(3))
    definition = reference.Folding(dim, buckets, inner)
    compared = 0
    for tag in range(6):
        update = norm * unit(dim, tag)
        expected = definition.encode(update.tolist())
        found = folding.encode(update, seed(3), entropy(tag))
        if sum_integer_squares(centre(np.array(expected, np.uint32), 24)) > folding.sensitivity:
            continue  # it is shrunk: by how much is for the client to say
        compared += 1
        assert found.tolist() == expected
        assert folding.decode(found, 1, seed(3)) == pytest.approx(np.array(definition.decode(expected)), abs=1e-9)
    assert compared >= 3


# Which k


def setting(dim, clients=100, **options):
    return Setting(ParticipationSchedule(10 * clients, clients, 50), dim=dim, delta=1e-5, **options)


def test_auto_takes_the_formula_in_whole_blocks():
    for dim in (100_000, 1_000_000, 11_200_000):
        for multiplier in (0.8, 1.7, 5.0):
            exact = dim / (1 + 0.04 * dim * multiplier**2 / 100**2)
            chosen = projection.choose_buckets_automatically(dim, 100, multiplier)
            assert exact <= chosen <= max(1024, 1.08 * exact if exact > 2**14 else 2 * exact)
            assert chosen % scaling.block_size(chosen) == 0


def test_auto_leaves_what_saves_next_to_nothing():
    assert projection.choose_buckets_automatically(650, 50, 2.0) == 0
    assert projection.choose_buckets_automatically(1024, 10, 100.0) == 0
    assert projection.choose_buckets_automatically(20_000, 10_000, 1.0) == 0


def test_a_plan_says_what_folding_saves_and_costs():
    folded = plan(setting(1_000_000, buckets=81_920), 6.0)
    unfolded = plan(setting(1_000_000), 6.0)
    saving = projection.estimate_saving(folded)
    assert projection.estimate_saving(unfolded) is None
    assert folded.sigma == pytest.approx(unfolded.sigma, rel=0.015)
    assert saving.upload_bytes == folded.bytes_per_client < unfolded.bytes_per_client / 8
    added = 100**2 * (1_000_000 / 81_920 - 1) / (1_000_000 * folded.sigma**2 * float(folded.setting.kappa))
    assert saving.error == pytest.approx(math.sqrt(1 + added) - 1)
    assert saving.error < 0.02


def test_a_design_follows_its_rule_for_every_length():
    design = RoundPlan(XNoise(), setting(1_000_000), 6.0)
    assert design.with_projection("off").setting.buckets == 0
    automatic = design.with_projection("auto")
    assert 70_000 < automatic.setting.buckets < 90_000
    assert automatic.for_dim(650).setting.buckets == 0
    assert 70_000 < automatic.for_dim(11_000_000).setting.buckets < 90_000
    assert automatic.for_clients(80).setting.buckets == automatic.setting.buckets
    assert design.with_projection(1000).setting.buckets == 1024
    assert design.with_projection(1000).for_dim(900).setting.buckets == 0
    assert design.with_projection(1000).example().dim == 1024


def test_noise_that_is_not_on_the_folded_sum_is_not_copied():
    """A trusted server's noise is drawn for every coordinate: over copies of one bucket it would average out."""
    design = RoundPlan(Central(), setting(1_000_000), 6.0)
    assert design.with_projection("auto").setting.buckets == 0
    with pytest.raises(ParametersRefused, match="does not fold"):
        design.with_projection(1024)
    with pytest.raises(ParametersRefused, match="does not fold"):
        check_folding(NoMechanism, 32)


# Rounding


def rounded(folding, update, tag=0):
    """Return the integers of a client."""
    return centre(folding.encode(update, seed(tag), entropy(tag)), folding.grid.bits)


def unit(dim, tag=0):
    x = np.random.default_rng(tag).standard_normal(dim)
    return x / np.linalg.norm(x)


def test_folded_updates_are_rounded_to_the_nearest_where_the_scale_is_fine():
    fine, coarse = (mechanism(4096, 1024, ratio * math.sqrt(1024)) for ratio in (1.21, 1.19))
    assert (fine.rounding, coarse.rounding) == ("nearest", "stochastic")
    assert fine.sensitivity < coarse.sensitivity  # though its scale is larger
    once, again = rounded(fine, unit(4096)), centre(fine.encode(unit(4096), seed(0), entropy(9)), 24)
    assert np.array_equal(once, again)
    assert not np.array_equal(rounded(coarse, unit(4096)), centre(coarse.encode(unit(4096), seed(0), entropy(9)), 24))


@pytest.mark.parametrize("ratio", [1.2, 1.5, 3.0, 30.0])
def test_rounding_to_the_nearest_needs_little_shrinking(ratio):
    """The bound has one standard deviation of room: what is cut off is less than rounding at random would add."""
    scale = ratio * math.sqrt(1024)
    for tag in range(20):
        folding = mechanism(4096, 1024, scale)
        x = encoding.rotate_update(unit(4096, tag), folding.grid, seed(tag))
        exact = scale * x * min(1.0, 1 / np.linalg.norm(x))
        error = np.sum((rounded(folding, unit(4096, tag), tag) - exact) ** 2)
        assert error < 1024 / 6


def test_small_updates_are_not_swallowed():
    """Their coordinates are all below one half: to the nearest they would be zeros."""
    folding = mechanism(4096, 1024, 2 * math.sqrt(1024))
    update = 0.05 * unit(4096)
    x = encoding.rotate_update(update, folding.grid, seed(0)) * folding.grid.scale
    assert np.abs(x).max() < 0.5
    mean = np.mean([centre(folding.encode(update, seed(0), entropy(tag)), 24) for tag in range(400)], axis=0)
    assert mean @ x / (x @ x) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("dim", "buckets", "bits"), [(10_000, 1024, 11), pytest.param(40_000, 4096, None, marks=pytest.mark.slow)]
)
def test_rounding_adds_less_than_two_per_cent_to_the_noise(dim, buckets, bits):
    """The error of a sum before unfolding, for updates of the full norm, is at most 1.02 times the planned noise."""
    planned = plan(setting(dim, buckets=buckets, bits=bits), 6.0)
    folding, n = DSkellam.from_plan(planned), 100
    assert folding.rounding == "nearest"
    error = np.zeros(folding.grid.padded)
    for u in range(n):
        x = encoding.rotate_update(unit(dim, u), folding.grid, seed(0), 1.0)
        error += rounded(folding, unit(dim, u), 0) - folding.grid.scale * x * min(1.0, 1 / np.linalg.norm(x))
    rounding = float(np.mean(error**2)) / folding.grid.scale**2
    # What a trusted server would add has neither a grid nor rounding.
    assert math.sqrt(planned.sigma**2 + rounding) <= 1.02 * planned.trusted_multiplier


def test_nearest_rounding_saves_bits():
    folded = plan(setting(11_200_000, buckets=86_016), 6.0)
    unfolded = plan(setting(86_016), 6.0)
    assert (folded.bits, unfolded.bits) == (14, 15)
    assert folded.sigma <= 1.01 * unfolded.sigma


def test_the_scale_that_is_found_is_the_largest_that_leaves_enough_noise():
    """Also across the edge at which rounding changes, where less noise is enough for a larger scale."""
    for bits in range(8, 16):
        for buckets in (1024, 16_384):
            given = setting(100_000, buckets=buckets, bits=bits)
            try:
                found = plan(given, 6.0)
            except InputError:
                continue
            ring, allowance = given.ring(bits), given.allowance(6.0)
            for times in (1.001, 1.02, 1.1, 1.5, 2.0):
                larger = found.scale * times
                room, needed = ring.room(larger), ring.sensitivity(larger).squared / allowance + 0.5
                assert room < needed * (1 + 1e-6)


# How far updates agree


@pytest.mark.parametrize("gamma", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("dim", "buckets"), [(50_000, 4096), (50_000, 50_000)])
def test_the_agreement_of_updates_is_estimated_from_noisy_sums(dim, buckets, gamma):
    """Without bias, and within its own deviations: the bound that is used is above the truth."""
    rng, noise, reach = np.random.default_rng(5), 0.3, 100.0
    known = None
    for _ in range(12):
        folded = rng.standard_normal(buckets)
        folded *= gamma * reach / np.linalg.norm(folded)
        sums = folded + math.sqrt(noise) * rng.standard_normal(buckets)
        observed = Alignment.from_sum(np.resize(sums, dim // buckets * buckets), buckets, noise, reach)
        assert abs(observed.squared - gamma**2) < 6.5 * observed.deviation
        known = observed if known is None else known.average_with(observed)
        assert known.gamma(10_000) >= min(1.0, gamma) * (1 - 1e-9)
    assert known.rounds == 10
    assert known.deviation < observed.deviation / 2
    assert known.gamma(4) >= 0.5  # never below that of updates that have nothing in common


def test_adaptive_is_auto_until_something_is_known():
    design = RoundPlan(XNoise(), setting(1_000_000), 6.0)
    before = design.with_projection("adaptive")
    assert before.setting.buckets == design.with_projection("auto").setting.buckets
    assert before.for_alignment(None) is before
    after = before.for_alignment(Alignment(0.01, 0.0))
    exact = 1_000_000 / (1 + 0.2 * 1_000_000 * before.plan.multiplier**2 / (0.1 * 100) ** 2)
    assert after.setting.buckets == projection.round_up_to_blocks(max(1024, math.ceil(exact)))
    assert after.allowed == before.allowed
    assert design.with_projection("auto").for_alignment(Alignment(0.01, 0.0)).setting.buckets == before.setting.buckets
