"""T_C: how many colluders of a registry are drawn into a round, even if the server tries 10,000 manifests."""

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dordis.config.schema import Deployment, Federation, RunConfig
from dordis.config.schema import Protocol as ProtocolSection
from dordis.errors import InputError
from dordis.records.manifest import encode_manifest
from dordis.runs.job import prepare
from dordis.runs.run import manifest_of
from dordis.selection.colluders import round_colluders, vrf_quantile, window_quantile
from dordis.selection.selection import BalancedSelection
from tests.adversary.directories import LastMean
from tests.runs.cohorts import registry_of

BITS = {"semi-honest": 40, "malicious": 104}
MANIFESTS = 10_000


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 60), st.sampled_from(sorted(BITS)))
@settings(max_examples=150, deadline=None)
def test_the_quantile_of_lots_is_the_least_that_is_exceeded_rarely_enough(N, expected, K, mode):
    expected, K, tail = min(expected, N), min(K, N), Fraction(1, 2 ** BITS[mode])
    p = Fraction(expected, N)
    exact = [comb(K, k) * p**k * (1 - p) ** (K - k) for k in range(K + 1)]
    c = vrf_quantile(N, expected, K, mode)
    assert sum(exact[c + 1 :]) <= tail
    assert c == 0 or sum(exact[c:]) > tail


@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 150), st.sampled_from(sorted(BITS)))
@settings(max_examples=150, deadline=None)
def test_the_quantile_of_windows_is_the_least_that_is_exceeded_rarely_enough(N, count, K, mode):
    count, K, tail = min(count, N), min(K, N), Fraction(1, 2 ** BITS[mode])
    exact = [Fraction(comb(K, k) * comb(N - K, count - k), comb(N, count)) for k in range(min(K, count) + 1)]
    c = window_quantile(N, count, K, mode)
    assert sum(exact[c + 1 :]) <= tail
    assert c == 0 or sum(exact[c:]) > tail


@pytest.mark.parametrize(("N", "expected", "K"), [(10**4, 100, 1000), (10**5, 1000, 50_000), (10**6, 50, 10**4)])
@pytest.mark.parametrize("mode", BITS)
def test_the_quantiles_of_large_registries_are_those_of_scipy(N, expected, K, mode):
    tail = 2.0 ** -BITS[mode]
    c = vrf_quantile(N, expected, K, mode)
    assert stats.binom.sf(c, K, expected / N) <= tail < stats.binom.sf(c - 1, K, expected / N)
    if N < 10**5:
        c = window_quantile(N, expected, K, mode)
        assert stats.hypergeom.sf(c, N, K, expected) <= tail < stats.hypergeom.sf(c - 1, N, K, expected)


@pytest.mark.parametrize(("N", "expected", "K"), [(10, 0, 0), (10, 11, 0), (10, 5, 11), (10, 5, -1)])
def test_the_quantiles_refuse_what_is_no_probability(N, expected, K):
    for quantile in (vrf_quantile, window_quantile):
        with pytest.raises(InputError, match="0 <= colluders <= clients"):
            quantile(N, expected, K, "malicious")


def test_without_a_beacon_a_round_may_have_all_colluders_of_the_registry():
    assert round_colluders("balanced", False, 1000, 100, 60, "malicious") == 60
    assert round_colluders("balanced", True, 1000, 100, 60, "malicious") == window_quantile(1000, 100, 60, "malicious")
    assert round_colluders("vrf", True, 1000, 100, 60, "malicious") == vrf_quantile(1000, 100, 60, "malicious")
    assert round_colluders("uniform", True, 1000, 100, 60, "semi-honest") == 60


# Manifests that a server tries

N, PER_ROUND = 300, 60
REGISTRY = registry_of(*range(1, N + 1))
LINE = hashlib.sha256(b"what was published").digest()


@dataclass(frozen=True)
class Published:
    """A beacon with one value."""

    line: bytes
    first = None
    source = "a test"

    def value(self, index):
        return self.line


@dataclass(frozen=True)
class Here:
    """What a manifest says of where the clients are."""

    beacon: Published
    registry = REGISTRY
    fidelity, where, consents = "deployed", "here", ()


def job_of(colluders, beacon):
    return prepare(
        RunConfig(
            federation=Federation(clients=N, per_round=PER_ROUND, rounds=5),
            protocol=ProtocolSection(colluders=colluders),
            deployment=Deployment(beacon="published.txt" if beacon else ""),
        ),
        LastMean(),
    )


@cache
def run_ids():
    """Return the run ids of 10,000 manifests that differ in their dates: all that a server needs to try them."""
    dated = "2026-01-31T12:00:00.%06dZ"
    file = encode_manifest(manifest_of(job_of(60, True), Here(Published(LINE)), dated % 0))
    return [hashlib.sha256(file.replace((dated % 0).encode(), (dated % i).encode())).digest() for i in range(MANIFESTS)]


def most_together(run, colluders, beacon):
    """Return how many colluders are in the window that has most of them."""
    order = [u <= colluders for u in BalancedSelection(REGISTRY, run, PER_ROUND, 1, beacon).permutation]
    return max(sum(order[start : start + PER_ROUND]) for start in range(0, N, PER_ROUND))


@pytest.mark.slow
def test_no_cohort_of_10000_manifests_goes_beyond_the_bound_even_if_they_are_tried_when_the_line_is_known():
    colluders, planned = 60, job_of(60, beacon=True).design.setting.colluders
    assert len(set(run_ids())) == MANIFESTS
    assert planned == window_quantile(N, PER_ROUND, colluders, "malicious") == 47 < colluders
    best = max(most_together(run, colluders, Published(LINE)) for run in run_ids())
    assert PER_ROUND * colluders / N + 8 < best <= planned


def test_the_old_rule_was_beaten_by_a_few_manifests_and_the_new_one_is_not():
    # Two colluders, of whom a round was to have one: the run id alone decided, and a few tries bring them together.
    tries = next(i for i, run in enumerate(run_ids(), 1) if most_together(run, 2, None) > 1)
    assert tries < 50
    # Now T_C bounds those of the registry, with a beacon or without.
    for beacon in (False, True):
        assert job_of(2, beacon).design.setting.colluders == 2
    # A fifth of all collude, and a round was planned for twelve on average and half as many again.
    assert next(i for i, run in enumerate(run_ids(), 1) if most_together(run, 60, None) > 18) < MANIFESTS


def test_a_manifest_that_is_chosen_before_the_line_is_known_gains_nothing():
    guessed, some = Published(bytes(32)), run_ids()[:500]
    counts = {run: most_together(run, 60, guessed) for run in some}
    best = max(counts, key=counts.__getitem__)
    later = [most_together(best, 60, Published(hashlib.sha256(b"%d" % i).digest())) for i in range(200)]
    average = sum(counts.values()) / len(some)
    assert counts[best] >= average + 4
    assert abs(sum(later) / len(later) - average) < 0.5
