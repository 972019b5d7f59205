"""Garbage is told from sums, and sums are hardly ever taken for garbage: the exact law of small sums is the oracle."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import binom, skellam

from dordis.errors import ImpossibleSum
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.clipping import clipping_bit
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian, LocalGaussian, NoMechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss, DSkellam
from dordis.privacy.planning import plan
from dordis.privacy.scaling import sensitivity
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import NoiseLaw, add_noise
from dordis.protocols.cohort import agree_on
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG, masking
from dordis.rounds.impossible_sums import (
    NOT_CHECKED,
    PASSED,
    VACUOUS,
    SumLaw,
    check_possible,
    chunk_law,
    describe_check,
    further_threshold,
    plan_margin,
    plan_warnings,
    signal_bound,
    threshold,
)
from tests.privacy.clipping_bits import planned_bit
from tests.rounds.parties import BLOCK, DIM, IDS, SCALE, Federation, agreed, invite_to
from tests.rounds.parties import skellam as usual

CHANCE = 1e-9
PADDED = 32


def skellam_law(variance):
    """Return the values of Skellam noise up to 12 sigma + 40, and their exact chances."""
    most = math.ceil(12 * math.sqrt(variance) + 40)
    values = np.arange(-most, most + 1)
    return values, ive(np.abs(values), variance)


def exceeds(parts, bound):
    """Return P(sum of independent whole numbers > bound), to about 1e-15: distributions convolved, nothing bounded."""
    top = sum(times * int(values.max()) for values, _, times in parts)
    size = 1 << top.bit_length()
    product = 1
    for values, chances, times in parts:
        law = np.bincount(values, chances, minlength=size)
        product = product * np.fft.rfft(law) ** times
    return max(0.0, float(np.fft.irfft(product, size)[math.floor(bound) + 1 : top + 1].sum()))


# The bound


@pytest.mark.parametrize(
    ("law", "expected"),
    [  # the formula typed into mpmath, 50 digits
        (SumLaw(100, 1024, 1e4, 120.0, 100.0), 131873487.6),
        (SumLaw(100, 1024, 1e4, 120.0), 173807064.9),
        (SumLaw(10, 8, 64.0, 50.0, 45.0), 275028.943),
    ],
)
def test_the_bound_is_that_of_the_specification(law, expected):
    assert threshold(law) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("variance", [0.3, 1, 16, 63, 64, 100])
@pytest.mark.parametrize("length", [1, 8, 16])
@pytest.mark.parametrize(("survivors", "longest"), [(2, 5.0), (10, 20.0)])
def test_an_honest_sum_exceeds_the_bound_with_a_chance_below_1e_9(variance, length, survivors, longest):
    """Whether the updates are all in one coordinate or even; both are as long as they can be."""
    law = SumLaw(survivors, length, variance, longest)
    tau, reach = threshold(law), int(survivors * longest)
    z, p = skellam_law(variance)
    even = int(reach / math.sqrt(length))
    assert exceeds([((z + reach) ** 2, p, 1), (z**2, p, length - 1)], tau) < CHANCE
    assert exceeds([((z + even) ** 2, p, length)], tau) < CHANCE


@pytest.mark.parametrize("variance", [4, 30, 64])
def test_the_bound_is_not_much_beyond_what_it_has_to_be(variance):
    """A bound with half the excess over the longest sum without noise would raise false alarms."""
    law = SumLaw(4, 8, variance, 10.0)
    z, p = skellam_law(variance)
    lower = 40.0**2 + (threshold(law) - 40.0**2) / 2
    assert exceeds([((z + 40) ** 2, p, 1), (z**2, p, 7)], lower) > CHANCE


@pytest.mark.parametrize(("survivors", "length"), [(2, 8), (5, 32), (12, 16)])
def test_rounding_exceeds_its_part_of_the_bound_with_a_smaller_chance_still(survivors, length):
    """Every fraction is one half, so that rounding errs most; one rounding of 0.39 may be kept, or fewer be drawn."""
    exact = SumLaw(survivors, length, 1.0, math.inf, 7.0)
    error = signal_bound(exact) - 7.0 * survivors
    ups = np.arange(survivors + 1)
    chance = exceeds([((2 * ups - survivors) ** 2, binom.pmf(ups, survivors, 0.5), length)], (2 * error) ** 2)
    assert chance <= CHANCE / 2 * (1 - math.exp(-0.5)) ** survivors


def test_where_clients_round_to_the_nearest_nothing_but_the_sensitivity_bounds_the_sum():
    law = SumLaw(50, 4096, 100.0, 110.0, 100.0)
    assert signal_bound(replace(law, scaled_clip=None)) == 50 * 110 > signal_bound(law) > 50 * 100


@pytest.mark.parametrize("variance", [0.5, 4, 100, 1e4])
def test_the_clipping_bit_has_a_bound_of_its_own(variance):
    reach = math.sqrt(further_threshold(10, clipping_bit(30), variance))
    beyond = skellam.sf(math.ceil(reach - 300) - 1, variance / 2, variance / 2)
    assert beyond < CHANCE
    assert reach < 300 + 8 * math.sqrt(variance) + 12


def test_more_tests_in_a_round_leave_each_a_smaller_chance():
    law = SumLaw(2, 8, 64.0, 10.0)
    z, p = skellam_law(64.0)
    assert exceeds([((z + 20) ** 2, p, 1), (z**2, p, 7)], threshold(law, 1000)) < CHANCE / 1000
    assert threshold(law) < threshold(law, 1000) < 1.3 * threshold(law)


# Sums


def output_of(parameters, total, chunk=0, survivors=IDS, stayed=None):
    size = parameters.chunks[chunk]
    vector = (np.resize(np.asarray(total, np.int64), size.stop - size.start) % 2**parameters.bits).astype(np.uint32)
    return ChunkOutput.from_plan(parameters, chunk, vector, survivors, stayed or {})


def round_of(grid, variance):
    """Return a round of updates in one chunk, of norm 1 at most."""
    mechanism = DSkellam(grid, 1.0, sensitivity(grid.scale, 1.0, grid.padded).squared)
    parameters = agree_on(
        run=bytes(32),
        index=0,
        clients=IDS,
        threshold=5,
        tolerance=2,
        bits=grid.bits,
        ends=[grid.padded],
        variances=[variance],
        encoding=encoding_of(mechanism, bytes(32)),
    )
    return DistributedDP(parameters, mechanism)


def whole_number_of_norm(squared, length):
    """Return whole numbers whose squares add up to exactly this."""
    numbers = []
    while squared:
        numbers.append(math.isqrt(squared))
        squared -= numbers[-1] ** 2
    return np.array(numbers + [0] * (length - len(numbers)))


def test_a_sum_passes_up_to_tau_and_no_further():
    private = round_of(Grid(8, 8, SCALE, 20), 50)
    parameters = private.parameters
    tau = math.floor(threshold(chunk_law(private, 0, len(IDS), output_of(parameters, 0).left)))
    check_possible(private, 0, output_of(parameters, whole_number_of_norm(tau, 8)))
    with pytest.raises(ImpossibleSum, match="over 7 clients is garbage") as refused:
        check_possible(private, 0, output_of(parameters, whole_number_of_norm(tau + 1, 8)))
    assert refused.value.survivors == IDS
    assert not refused.value.named


def test_garbage_in_one_block_of_many_is_noticed_although_the_whole_is_not_too_long():
    """The noise of 255 blocks is longer than one block of garbage."""
    grid = Grid(255 * 64, 64, 16.0, 13)
    private, rng = round_of(grid, 2**18), np.random.default_rng(1)
    parameters = private.parameters
    left = float(output_of(parameters, 0).left)
    noise = rng.poisson(left / 2, grid.padded) - rng.poisson(left / 2, grid.padded)
    check_possible(private, 0, output_of(parameters, noise))
    spoilt = noise.copy()
    spoilt[640:704] = rng.integers(-(2**12), 2**12, 64)
    assert (spoilt**2).sum() < threshold(chunk_law(private, 0, len(IDS), Fraction(left)))
    with pytest.raises(ImpossibleSum):
        check_possible(private, 0, output_of(parameters, spoilt))


def test_noise_that_could_not_be_removed_counts():
    parameters = agreed()
    private = DistributedDP.from_parameters(parameters, DIM)
    stayed = {u: ks for u, ks in parameters.due(0, IDS).items() if ks}
    assert stayed
    less, more = (output_of(parameters, 0, stayed=due) for due in ({}, stayed))
    assert more.left > less.left
    bounds = [threshold(chunk_law(private, 0, len(IDS), output.left)) for output in (less, more)]
    assert bounds[0] < bounds[1]


def test_fewer_survivors_make_shorter_sums():
    parameters = agreed(chunks=2)
    private = DistributedDP.from_parameters(parameters, DIM)
    laws = [chunk_law(private, 0, len(u3), output_of(parameters, 0, 0, u3).left) for u3 in (IDS, IDS[1:])]
    assert laws[0].length == PADDED // 2
    assert threshold(laws[0]) > threshold(laws[1])


# Rounds


def spoil(monkeypatch, liar, chunk):
    """Have one client mask one chunk with another seed than the one it shared."""
    honest = masking.add_masks

    def add_masks(suite, y, parameters, place, me, own, peers):
        used = msgspec.structs.replace(own, self_mask=bytes(32)) if (me, place) == (liar, chunk) else own
        honest(suite, y, parameters, place, me, used, peers)

    monkeypatch.setattr(masking, "add_masks", add_masks)


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_wrong_mask_seed_in_any_chunk_ends_the_round_before_the_sum_is_used(monkeypatch, chunk):
    spoil(monkeypatch, IDS[2], chunk)
    parameters, home = agreed(chunks=2), Federation.of(SECAGG)
    home.gather(invite_to(parameters))
    with pytest.raises(ImpossibleSum) as refused:
        home.sum(parameters)
    assert (refused.value.chunk, refused.value.survivors) == (chunk, IDS)
    assert all("use_output" not in member.diary for member in home.members.values())


def test_a_hundred_wrong_mask_seeds_are_noticed_and_no_right_one_is():
    parameters = agreed()
    private, rng = DistributedDP.from_parameters(parameters, DIM), np.random.default_rng(5)
    for _ in range(100):
        check_possible(private, 0, output_of(parameters, rng.integers(-60, 60, PADDED)))
        with pytest.raises(ImpossibleSum):
            check_possible(private, 0, output_of(parameters, rng.integers(0, 2**20, PADDED)))


@pytest.mark.parametrize("protocol", [SECAGG, PLAINTEXT], ids=["secagg", "plaintext"])
def test_a_round_says_that_its_sum_was_checked(protocol):
    parameters, home = agreed(bit=planned_bit(1000, 4)), Federation.of(protocol)
    home.gather(invite_to(parameters))
    assert home.sum(parameters).sum_check == PASSED


def test_a_bit_that_more_clients_than_there_are_would_make_is_noticed():
    parameters = agreed(bit=planned_bit(1000, 4))
    private = DistributedDP.from_parameters(parameters, DIM)
    check_possible(private, 1, output_of(parameters, [-7010], chunk=1))
    with pytest.raises(ImpossibleSum):
        check_possible(private, 1, output_of(parameters, [7200], chunk=1))


GRID = Grid(DIM, BLOCK, SCALE, 24)


class OtherLaw(DSkellam, frozen=True, tag="other-law"):
    law: ClassVar[NoiseLaw] = NoiseLaw(add_noise, lambda variance: bytes(32))


@pytest.mark.parametrize(
    "mechanism",
    [
        NoMechanism(GRID),
        CentralGaussian(GRID, 1.0, usual().sensitivity, sigma=1.0),
        LocalGaussian(GRID, 1.0, sigma=1.0),
        DDGauss(GRID, 1.0, usual().sensitivity, variance=Fraction(4)),
        OtherLaw(GRID, 1.0, usual().sensitivity),
    ],
    ids=["none", "central", "local", "ddgauss", "another law"],
)
def test_sums_whose_law_is_not_known_are_not_checked_and_say_so(mechanism):
    parameters = agreed(mechanism=mechanism)
    private, garbage = DistributedDP(parameters, mechanism), output_of(parameters, [2**23 - 1])
    check_possible(private, 0, garbage)
    assert describe_check(private, [garbage]) == NOT_CHECKED


def test_a_check_that_garbage_would_pass_is_called_vacuous():
    parameters = agreed(bits=9)
    private = DistributedDP.from_parameters(parameters, DIM)
    assert describe_check(private, [output_of(parameters, 0)]) == VACUOUS


# Plans


def test_a_plan_warns_where_garbage_would_pass():
    run = ParticipationSchedule(100, 20, 50)
    short, long = (plan(Setting(run, dim=dim, delta=1e-5), 2.0) for dim in (4, 5000))
    assert plan_margin(short) < 1.5 < plan_margin(long)
    assert "a spoilt sum may go unnoticed" in plan_warnings(short)[0]
    assert plan_warnings(long) == ()
