"""Impossible sums: how often a wrong mask seed is noticed, and how near honest sums come to the bound.

Honest sums are sampled without the project's own rounding and noise: numpy draws binomial and Poisson variables.  All
clients have the same update, of the norm of the clip bound, so that their sum is as long as it can be.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.planning import Plan, plan
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting
from dordis.rounds.impossible_sums import SumLaw, plan_law, threshold
from tests.adversary.noise import mask_with_another_seed

Family = Callable[[bool], dict[str, float]]

SEEDS, HONEST, UNIFORM = 1_000, 100_000, 1_000
PIECE = 1 << 22
"""Coordinates that are drawn at a time."""
NORMAL_QUANTILE = 3.09
"""The normal distribution exceeds its mean by this number of standard deviations with probability 0.001."""
LAWS = {
    "n5_k8_v0.5": SumLaw(5, 8, 0.5, 6.0, 4.0),
    "n10_k64_v4": SumLaw(10, 64, 4.0, 12.0, 10.0),
    "n2_k8_v64": SumLaw(2, 8, 64.0, 32.0, 30.0),
    "n16_k256_v100": SumLaw(16, 256, 100.0, 32.0, 30.0),
    "n50_k128_v1e4": SumLaw(50, 128, 1e4, 81.0, 80.0),
    "n1000_k32_v64": SumLaw(1000, 32, 64.0, 21.0, 20.0),
    "n100_k1024_v1e6": SumLaw(100, 1024, 1e6, 501.0, 500.0),
}
"""(n, k, V), with update lengths of the order of the noise."""
PLANS = {
    "n16_k256": Setting(ParticipationSchedule(100, 16, 30), dim=250, delta=1e-5),
    "n20_k8192": Setting(ParticipationSchedule(100, 20, 50), dim=7_850, delta=1e-5),
    "n100_k1M": Setting(ParticipationSchedule(1000, 100, 50), dim=1_018_174, delta=1e-3, bits=20),
    "n100_k1M_folded": Setting(ParticipationSchedule(1000, 100, 50), dim=1_018_174, delta=1e-3, buckets=65_536),
    "n1000_k16384": Setting(ParticipationSchedule(10_000, 1000, 20), dim=16_000, delta=1e-5),
}
"""Runs with epsilon = 6, planned as `dordis plan` does."""

_PASSES = "the check passes 999 of 1,000 such sums, by a normal approximation"
FIGURES: dict[str, Figure] = {
    "seeds_tried": Figure("rounds", note="SecAgg with 8 real clients, one of which masks with another seed"),
    "seeds_noticed": Figure("rounds", at_least=1, note="of these, refused by check_possible; all must be"),
    "seeds_noticed_share": Figure("", at_least=1),
    "honest_sums": Figure("sums", note="sampled in each of the settings (n, k, V) below; none may exceed 1"),
    **{f"honest_{name}": Figure("of tau", at_most=1, note="the longest of the honest sums") for name in LAWS},
    "uniform_sums": Figure("sums", note="sampled in each of the plans below"),
    **{f"uniform_{name}": Figure("of tau", at_least=1.5, note="the shortest uniform block") for name in PLANS},
    **{f"poison_{name}": Figure("n clips", note=f"how far one liar moves a sum; {_PASSES}") for name in PLANS},
}


def seeds(quick: bool) -> dict[str, float]:
    """Run rounds in which one client masks with a seed other than the one it shared, and count what was noticed."""
    tried = 4 if quick else SEEDS
    graphs = mask_with_another_seed.graphs
    outcomes = [mask_with_another_seed.run(graphs[i % len(graphs)]) for i in range(tried)]
    noticed = sum(outcome.refused_by == "check_possible (ImpossibleSum)" for outcome in outcomes)
    return {
        "seeds_tried": float(tried),
        "seeds_noticed": float(noticed),
        "seeds_noticed_share": noticed / tried,
    }


def honest_norms(law: SumLaw, count: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Sample the squared norms of honest sums, some at a time; half of the updates are in one coordinate."""
    assert law.scaled_clip is not None
    n, k, at_once = law.survivors, law.length, max(1, PIECE // law.length)
    for done in range(0, count, at_once):
        rows = min(at_once, count - done)
        update = rng.standard_normal((rows, k))
        update[: rows // 2, 1:] = 0
        update *= law.scaled_clip / np.linalg.norm(update, axis=1, keepdims=True)
        down = np.floor(update)
        sums = n * down + rng.binomial(n, update - down)
        sums += rng.poisson(law.variance / 2, (rows, k)) - rng.poisson(law.variance / 2, (rows, k))
        yield (sums**2).sum(axis=1)


def honest(quick: bool) -> dict[str, float]:
    """Return how long the longest honest sums are."""
    rng, count = np.random.default_rng(24), 1_000 if quick else HONEST
    longest = {
        f"honest_{name}": max(float(norms.max()) for norms in honest_norms(law, count, rng)) / threshold(law)
        for name, law in LAWS.items()
    }
    return {"honest_sums": float(count)} | longest


def uniform(quick: bool) -> dict[str, float]:
    """Return how short the shortest blocks of uniform numbers are, and what a liar can do to a sum."""
    rng, count = np.random.default_rng(24), 10 if quick else UNIFORM
    values = {"uniform_sums": float(count)}
    for name, setting in PLANS.items():
        planned = plan(setting, 6.0)
        law, bits, blocks = plan_law(planned), planned.bits, setting.padded // setting.block
        tau = threshold(law, blocks + (blocks > 1))
        drawn = (rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), law.length) for _ in range(count))
        values[f"uniform_{name}"] = min(float((block.astype(np.float64) ** 2).sum()) for block in drawn) / tau
        values[f"poison_{name}"] = poison(planned, law)
    return values


def poison(planned: Plan, law: SumLaw) -> float:
    """Return how far one liar can move a sum so that the check passes it with probability 0.999, over n clip bounds.

    The honest updates are zero, so that only the noise and the liar's shift lengthen the sum.  With a shift of squared
    norm a the squared norm of the sum has the mean k V + a and about the variance 2 k V^2 + 4 a V.
    """
    whole = replace(law, length=planned.setting.padded)
    k, v, z = whole.length, whole.variance, NORMAL_QUANTILE
    room = threshold(whole) - k * v
    half = room + 2 * z**2 * v  # (room - a)^2 = z^2 (2 k V^2 + 4 a V), solved for a
    shift = half - math.sqrt(half**2 - room**2 + 2 * z**2 * k * v**2)
    return math.sqrt(max(shift, 0.0)) / (law.survivors * planned.scale * planned.setting.clip)


FAMILIES: tuple[Family, ...] = (seeds, honest, uniform)


def run(quick: bool) -> dict[str, float]:
    """Measure everything."""
    values: dict[str, float] = {}
    for family in FAMILIES:
        values |= family(quick)
    return values
