"""XNoise: the noise left in the sum is the target with any dropouts and any colluders.

The oracle computes the formulas of the schemes in exact rationals, without rounding, and chooses with hashlib the
survivors whose removable noise is removed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import ceil
from random import Random

import pytest

from dordis.errors import ParametersRefused
from dordis.privacy import xnoise_components
from dordis.privacy.xnoise_components import NoisePlan, Scheme

GRID = Fraction(1, 2**20)
TARGET = 12345677 * GRID
"""A central variance whose divisions fall off the grid."""
CONTEXT = b"a round, a chunk and its parameters"

BOTH = pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT], ids=["single", "exact"])

Components = tuple[list[Fraction], list[Fraction]]
"""The variances of one client's noise: what stays, what may be removed."""


def cases(scheme: Scheme, largest: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield every n up to `largest`, every T, every T_C up to 3 and every c up to 3 that the scheme allows."""
    for n in range(1, largest + 1):
        for T in range(n):
            for T_C in range(min(4, n - T)):
                most = min(3, n // T if T else n) if scheme is Scheme.SINGLE else 1
                for c in range(1, most + 1):
                    yield n, T, T_C, c


@cache
def clients(n: int) -> list[int]:
    """Return n ids in no particular order."""
    return Random(n).sample(range(2**62), n)


def ideal(scheme: Scheme, n: int, T: int, T_C: int, c: int) -> Components:
    """Return what each client adds, unrounded."""
    s = Fraction(n - T, n - T - T_C) * TARGET
    if scheme is Scheme.EXACT:
        return [s / n], [s / ((n - k + 1) * (n - k)) for k in range(1, T + 1)]
    v = s / (n - T)
    return ([v * (c - 1) / c], [v / c]) if T else ([v], [])


def lot(client: int, context: bytes = CONTEXT) -> bytes:
    return hashlib.sha256(b"dordis/v1/removal" + context + client.to_bytes(8, "big")).digest()


def removed(scheme: Scheme, T: int, D: int, c: int, survivors: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return the removable components, from 0, that each survivor loses after D <= T dropouts."""
    ranked = sorted(survivors, key=lot)
    if scheme is Scheme.EXACT:
        return dict.fromkeys(ranked, tuple(k - 1 for k in range(1, T + 1) if k > D))
    return {u: (0,) if place < c * (T - D) else () for place, u in enumerate(ranked)}


def kept(components: Components, lost: Mapping[int, tuple[int, ...]]) -> list[Fraction]:
    """Return what each survivor keeps, the least first."""
    base, removable = components
    after = {ks: sum(base) + sum(v for k, v in enumerate(removable) if k not in ks) for ks in set(lost.values())}
    return sorted(after[ks] for ks in lost.values())


def less_the_largest(amounts: list[Fraction], count: int) -> Fraction:
    """Return the sum without its `count` largest terms: what the worst colluders do not know."""
    return sum(amounts[: max(0, len(amounts) - count)], Fraction(0))


def plan_of(scheme: Scheme, n: int, T: int, T_C: int, c: int = 0, **others) -> NoisePlan:
    return NoisePlan(scheme, n, T, T_C, others.pop("variance", TARGET), c, **others)


# The identity


@BOTH
def test_the_noise_left_is_kappa_times_the_target_whoever_drops(scheme):
    for n, T, T_C, c in cases(scheme, largest=16):
        aim = Fraction(n - T, n - T - T_C) * TARGET
        plan, unrounded = plan_of(scheme, n, T, T_C, c), ideal(scheme, n, T, T_C, c)
        rounded = [*plan.base], [*plan.removable]
        for D in range(T + 1):
            survivors = clients(n)[D:]
            lost = removed(scheme, T, D, c, survivors)
            assert sum(kept(unrounded, lost)) == aim
            # Each number that is rounded up gains less than the grid; the base of `single` is c - 1 of them.
            pieces = (n - D) * (1 + D) if scheme is Scheme.EXACT else c * (n - T) if T else n
            left = plan.variance_left(survivors, CONTEXT)
            assert left == sum(kept(rounded, lost))
            assert aim <= left < aim + pieces * GRID


@BOTH
def test_the_charge_is_what_the_worst_colluders_leave_and_never_below_the_target(scheme):
    for n, T, T_C, c in cases(scheme, largest=16):
        plan = plan_of(scheme, n, T, T_C, c)
        charges = []
        for D in range(T + 1):
            survivors = clients(n)[D:]
            lost = removed(scheme, T, D, c, survivors)
            assert less_the_largest(kept(ideal(scheme, n, T, T_C, c), lost), T_C) >= TARGET
            charges.append(plan.charged_variance(survivors, CONTEXT))
            assert charges[-1] == less_the_largest(kept(([*plan.base], [*plan.removable]), lost), T_C)
        assert plan.reserved_variance() == min(charges) >= TARGET


@BOTH
def test_no_set_of_colluders_leaves_less_than_the_charge(scheme):
    for n, T, T_C, c in cases(scheme, largest=8):
        plan = plan_of(scheme, n, T, T_C, c)
        for D in range(T + 1):
            survivors = clients(n)[D:]
            amounts = kept(([*plan.base], [*plan.removable]), plan.due_components(survivors, CONTEXT))
            placements = combinations(range(n - D), T_C)
            assert plan.charged_variance(survivors, CONTEXT) == min(
                sum(amounts) - sum(amounts[i] for i in colluders) for colluders in placements
            )


@BOTH
def test_components_are_the_formulas_rounded_up_to_the_grid(scheme):
    for n, T, T_C, c in cases(scheme, largest=16):
        plan, (base, removable) = plan_of(scheme, n, T, T_C, c), ideal(scheme, n, T, T_C, c)
        assert plan.removable == tuple(ceil(v / GRID) * GRID for v in removable)
        whole = c - 1 if scheme is Scheme.SINGLE and T else 1  # the base of `single` is c - 1 removable ones
        expected = whole * ceil(base[0] / whole / GRID) * GRID if whole else Fraction(0)
        assert plan.base == ((expected,) if expected else ())
        assert plan.added_variance == sum(plan.base) + sum(plan.removable)
        assert plan.kappa == Fraction(n - T, n - T - T_C)


# Whose noise is removed


@BOTH
def test_what_is_due_follows_the_lots_and_not_the_order_of_survivors(scheme):
    for n, T, T_C, c in cases(scheme, largest=14):
        plan = plan_of(scheme, n, T, T_C, c)
        for D in range(T + 1):
            survivors = clients(n)[D:]
            expected = removed(scheme, T, D, c, survivors)
            assert plan.due_components(survivors, CONTEXT) == expected
            assert (
                plan.due_components(survivors[::-1], CONTEXT)
                == plan.due_components(frozenset(survivors), CONTEXT)
                == expected
            )


def test_single_removes_from_c_times_as_many_survivors_as_might_still_have_dropped():
    for n, T, T_C, c in cases(Scheme.SINGLE, largest=16):
        plan = plan_of(Scheme.SINGLE, n, T, T_C, c)
        for D in range(T + 1):
            due = plan.due_components(range(D, n), CONTEXT)
            assert sum(map(len, due.values())) == c * (T - D) <= n - D
            assert due.keys() == set(range(D, n))
            assert set(due.values()) <= {(), (0,)}


def test_another_context_chooses_others():
    plan = plan_of(Scheme.SINGLE, 40, 10, 1)
    contexts = [
        xnoise_components.removal_context(bytes([i]) * 40, chunk, bytes(32)) for i in range(2) for chunk in range(2)
    ]
    contexts.append(xnoise_components.removal_context(bytes(40), 0, bytes([1]) * 32))
    chosen = {frozenset(u for u, ks in plan.due_components(range(40), named).items() if ks) for named in contexts}
    assert len(chosen) == len(contexts)
    assert {len(clients) for clients in chosen} == {20}


def test_the_context_names_round_chunk_and_parameters_without_ambiguity():
    assert xnoise_components.removal_context(b"round", 3, b"hash") == bytes(7) + b"\5round" + bytes(7) + b"\3hash"


def test_lots_are_drawn_as_recorded():
    named = xnoise_components.removal_context(bytes(range(40)), 2, bytes(range(32)))
    digest = hashlib.sha256(b"dordis/v1/removal" + named + (11).to_bytes(8, "big")).hexdigest()
    assert digest == "62933d7b7c85246f3f9354499c78a48f8ffedbc6e14a8ff56b26d73e04121b0c"
    plan = NoisePlan(Scheme.SINGLE, clients=12, tolerance=5, colluders=1, variance=Fraction(100))
    due = plan.due_components(range(10, 20), named)
    assert [u for u in due if due[u]] == [11, 12, 13, 14, 17, 19]
    assert [u for u in due if due[u]] == sorted(sorted(due, key=lambda u: lot(u, named))[:6])


# At the edges


@BOTH
def test_nothing_is_due_and_the_target_is_missed_beyond_the_tolerance(scheme):
    for n, T, T_C, c in cases(scheme, largest=10):
        plan = plan_of(scheme, n, T, T_C, c)
        for D in range(T + 1, n + 1):
            survivors = clients(n)[D:]
            assert plan.due_components(survivors, CONTEXT) == dict.fromkeys(survivors, ())
            assert plan.variance_left(survivors, CONTEXT) == (n - D) * plan.added_variance
            assert plan.charged_variance(survivors, CONTEXT) == max(0, n - D - T_C) * plan.added_variance < TARGET


@BOTH
def test_without_tolerance_there_is_nothing_to_remove(scheme):
    plan = plan_of(scheme, n=7, T=0, T_C=2)
    assert plan.base == (ceil(TARGET / 5 / GRID) * GRID,)
    assert plan.removable == ()
    assert plan.due_components(range(7), CONTEXT) == dict.fromkeys(range(7), ())
    assert plan.variance_left(range(7), CONTEXT) == 7 * plan.added_variance
    assert plan.charged_variance(range(7), CONTEXT) == plan.reserved_variance() == 5 * plan.added_variance


def test_c_of_one_leaves_those_removed_without_noise_of_their_own():
    plan = plan_of(Scheme.SINGLE, n=9, T=5, T_C=1)
    assert plan.fraction == 1
    assert plan.base == ()
    assert plan.removable == (plan.added_variance,)
    due = plan.due_components(range(9), CONTEXT)
    assert sum(bool(ks) for ks in due.values()) == 5
    assert plan.variance_left(range(9), CONTEXT) == 4 * plan.added_variance


@pytest.mark.parametrize(("n", "T", "c"), [(10, 0, 1), (10, 3, 2), (10, 5, 2), (10, 6, 1), (10, 9, 1)])
def test_c_is_two_by_default_where_half_of_the_clients_may_be_asked(n, T, c):
    assert xnoise_components.default_fraction(n, T) == c
    assert plan_of(Scheme.SINGLE, n, T, 0).fraction == c


@BOTH
def test_noise_that_could_not_be_removed_is_left_but_not_counted_on(scheme):
    plan = plan_of(scheme, n=10, T=4, T_C=1)
    due = plan.due_components(range(1, 10), CONTEXT)
    owner = next(u for u, ks in due.items() if ks)
    stayed = {owner: due[owner]}
    more = sum(plan.removable[k] for k in due[owner])
    assert plan.variance_left(range(1, 10), CONTEXT, stayed) == plan.variance_left(range(1, 10), CONTEXT) + more
    assert plan.variance_left(range(1, 10), CONTEXT, {}) == plan.variance_left(range(1, 10), CONTEXT)
    assert plan.charged_variance(range(1, 10), CONTEXT) == less_the_largest(
        kept(([*plan.base], [*plan.removable]), due), 1
    )


# The other schemes


@pytest.mark.parametrize(
    ("scheme", "reserve", "sharers"),
    [(Scheme.ORIG, 0, 18), (Scheme.CONSERVATIVE, 0, 18), (Scheme.CONSERVATIVE, 6, 12), (Scheme.CONSERVATIVE, 17, 1)],
)
def test_baselines_add_an_even_share_and_remove_nothing(scheme, reserve, sharers):
    plan = plan_of(scheme, n=20, T=8, T_C=2, reserve=reserve)
    share = ceil(TARGET / sharers / GRID) * GRID
    assert (plan.base, plan.removable, plan.added_variance) == ((share,), (), share)
    for D in range(9):
        assert plan.due_components(range(D, 20), CONTEXT) == dict.fromkeys(range(D, 20), ())
        assert plan.variance_left(range(D, 20), CONTEXT) == (20 - D) * share
        assert plan.charged_variance(range(D, 20), CONTEXT) == (18 - D) * share
    assert plan.reserved_variance() == 10 * share


def test_baselines_meet_the_target_up_to_the_dropouts_that_they_provide_for():
    orig = plan_of(Scheme.ORIG, n=20, T=8, T_C=2)
    assert orig.charged_variance(range(20), CONTEXT) >= TARGET > orig.charged_variance(range(19), CONTEXT)
    conservative = plan_of(Scheme.CONSERVATIVE, n=20, T=8, T_C=2, reserve=6)
    assert (
        conservative.charged_variance(range(14), CONTEXT) >= TARGET > conservative.charged_variance(range(13), CONTEXT)
    )


def test_a_plan_without_noise_has_none():
    plan = plan_of(Scheme.NONE, n=10, T=4, T_C=1, variance=Fraction(0))
    assert (plan.base, plan.removable, plan.added_variance) == ((), (), 0)
    assert plan.due_components(range(8), CONTEXT) == dict.fromkeys(range(8), ())
    assert (
        plan.variance_left(range(8), CONTEXT)
        == plan.charged_variance(range(8), CONTEXT)
        == plan.reserved_variance()
        == 0
    )


# What is refused

VALID = {"scheme": Scheme.SINGLE, "clients": 10, "tolerance": 4, "colluders": 2, "variance": Fraction(9)}


@pytest.mark.parametrize(
    "change",
    [
        {"tolerance": -1},
        {"tolerance": 10, "colluders": 0},
        {"tolerance": 8},
        {"colluders": -1},
        {"colluders": 6},
        {"clients": 0, "tolerance": 0, "colluders": 0},
        {"fraction": -1},
        {"fraction": 3},
        {"tolerance": 0, "fraction": 11},
        {"reserve": -1},
        {"reserve": 8},
        {"variance": Fraction(0)},
        {"variance": Fraction(-1)},
        {"variance": Fraction(1, 3)},
        {"variance": Fraction(1, 2**21)},
        {"scheme": Scheme.NONE},
        {"scheme": Scheme.EXACT, "variance": Fraction(0)},
        {"scheme": Scheme.ORIG, "variance": Fraction(1, 3)},
    ],
    ids=lambda change: ", ".join(f"{name}={getattr(value, 'value', value)}" for name, value in change.items()),
)
def test_plans_that_break_a_rule_are_refused(change):
    NoisePlan(**VALID)
    with pytest.raises(ParametersRefused):
        NoisePlan(**{**VALID, **change})


@pytest.mark.parametrize(
    ("scheme", "times"),
    # n = 10, T = 4, T_C = 2: the largest component is v / c = 1/8 of sigma*^2; kappa / n = 3/20; 1 / (n - T_C) = 1/8.
    [(Scheme.SINGLE, 8), (Scheme.EXACT, Fraction(20, 3)), (Scheme.ORIG, 8), (Scheme.CONSERVATIVE, 8)],
)
def test_a_component_may_have_a_variance_of_10_to_the_10_and_no_more(scheme, times):
    largest = int(times * 10**10)
    assert max(*(plan := NoisePlan(scheme, 10, 4, 2, Fraction(largest))).base, *plan.removable, 0) <= 10**10
    with pytest.raises(ParametersRefused, match="lower the scale"):
        NoisePlan(scheme, 10, 4, 2, Fraction(largest + 8))


# What `single` is for, and what it gives up


def test_single_needs_one_seed_and_two_vectors_where_the_paper_needs_49_and_50():
    single, exact = (plan_of(scheme, n=100, T=49, T_C=5) for scheme in (Scheme.SINGLE, Scheme.EXACT))
    assert (len(single.removable), len(exact.removable)) == (1, 49)
    assert (len(single.base + single.removable), len(exact.base + exact.removable)) == (2, 50)
    for D in range(50):
        regenerated = [
            sum(len(ks) for ks in plan.due_components(range(D, 100), CONTEXT).values()) for plan in (single, exact)
        ]
        assert regenerated == [2 * (49 - D), (100 - D) * (49 - D)]


@pytest.mark.parametrize(
    ("D", "c", "single_keeps", "exact_keeps"),
    [
        (0, 1, 0.891, 0.998),  # 51 survivors keep v, 10 of them collude
        (0, 2, 0.978, 0.998),  # 2 survivors keep v and 98 keep v / 2: the worst ten are both kinds
        (8, 2, 0.891, 0.988),  # 10 survivors keep v, and just these collude
        (49, 2, 0.891, 0.891),  # nothing is removed: the schemes are the same
    ],
)
def test_more_colluders_than_tolerated_learn_more_of_single_than_of_exact(D, c, single_keeps, exact_keeps):
    n, T, T_C, colluders = 100, 49, 5, 10
    v = TARGET / (n - T - T_C)  # what a client adds
    lose = c * (T - D)
    single = sorted([v - v / c] * lose + [v] * (n - D - lose))
    exact = [v * (n - T) / (n - D)] * (n - D)
    assert sum(single) == sum(exact) == (n - T) * v
    for scheme, amounts, expected in ((Scheme.SINGLE, single, single_keeps), (Scheme.EXACT, exact, exact_keeps)):
        assert round(float(less_the_largest(amounts, colluders) / TARGET), 3) == expected
        assert less_the_largest(amounts, T_C) >= TARGET
        plan = plan_of(scheme, n, T, T_C, c)
        amounts = kept(([*plan.base], [*plan.removable]), plan.due_components(range(D, n), CONTEXT))
        assert round(float(less_the_largest(amounts, colluders) / TARGET), 3) == expected


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG, Scheme.CONSERVATIVE])
def test_what_is_reserved_is_the_least_that_any_number_of_dropouts_leaves(scheme):
    for n, T_C, variance in product(range(2, 12), range(3), (GRID, Fraction(7), Fraction(1000))):
        for T in range(n - T_C):
            plan = NoisePlan(scheme, n, T, T_C, variance, reserve=min(1, n - T_C - 1))
            assert plan.reserved_variance() == min(plan.charged_variance(range(n - D), b"") for D in range(T + 1))


def test_few_plans_stay_in_memory_whose_fields_a_server_chooses():
    assert xnoise_components.read_noise_plan.cache_info().maxsize <= 32
