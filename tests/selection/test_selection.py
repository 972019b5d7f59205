"""Uniform and balanced selection: draws, schedules and refusals; indices of all methods."""

import hmac
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import ceil, comb

import pytest
from Crypto.Cipher import AES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from dordis.crypto import prg
from dordis.crypto.prg import shuffle
from dordis.errors import (
    InputError,
    InvalidProof,
    ParametersRefused,
    ProtocolError,
    TooFewClients,
)
from dordis.protocols.parameters import SEMI_HONEST
from dordis.selection import selection as module
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import BalancedSelection, EveryClient, UniformSelection, draw_failure_probability
from dordis.selection.vrf_selection import VrfSelection
from tests.runs.cohorts import OTHER_RUN, RUN, a_round, an_invite, registry_of

REFUSALS = (ProtocolError, InvalidProof, ParametersRefused)
BEACON = SeedBeacon(b"beacon of tests/federation......")
EVERYONE = tuple(range(1, 31))
REGISTRY = registry_of(*EVERYONE)
METHODS = (
    UniformSelection(5, bytes(32)),
    BalancedSelection(REGISTRY, RUN, 12, 8),
    VrfSelection(REGISTRY, RUN, Fraction(30), 3, BEACON),
)


@pytest.mark.parametrize("index", [-1, 2**64])
def test_an_index_that_no_round_has_is_refused(index):
    for strategy in METHODS:
        with pytest.raises(InputError, match="index"):
            strategy.select(index, EVERYONE)


def test_a_bad_draw_has_a_chance_where_public_randomness_draws():
    chances = [draw_failure_probability(strategy) for strategy in (*METHODS, replace(METHODS[1], beacon=BEACON))]
    assert chances == [0, 0, Fraction(1, 2**40), Fraction(1, 2**40)]


def test_what_nobody_can_verify_is_for_semi_honest_servers_only(monkeypatch):
    strategy = UniformSelection(5, bytes(32))
    U = strategy.select(0, EVERYONE).clients
    strategy.verify(a_round(U, mode=SEMI_HONEST), {}, U[0])
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.verify(a_round(U), {}, U[0])
    with pytest.raises(ParametersRefused, match="not among"):
        strategy.verify(a_round(U, mode=SEMI_HONEST), {}, 99)
    assert strategy.claim(an_invite(0, mode=SEMI_HONEST), U[0], b"") == b""
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.claim(an_invite(0), U[0], b"")
    monkeypatch.setattr(module, "check_semi_honest", lambda *_: None)
    strategy.verify(a_round(U), {}, U[0])
    strategy.claim(an_invite(0), U[0], b"")


def test_uniform_invites_those_whom_it_would_select():
    strategy = UniformSelection(5, bytes(32))
    for index in range(5):
        invited = strategy.candidates(index, EVERYONE)
        assert invited == strategy.select(index, EVERYONE).clients
        assert strategy.select(index, invited[1:]).clients == invited[1:]


def test_uniform_takes_count_of_those_available_from_the_seed_and_the_index():
    draws = [UniformSelection(5, bytes(32)).select(index, EVERYONE[:20]).clients for index in range(50)]
    assert all(len(set(U)) == 5 and set(U) <= set(EVERYONE[:20]) and list(U) == sorted(U) for U in draws)
    assert draws[7] == UniformSelection(5, bytes(32)).select(7, EVERYONE[19::-1]).clients
    assert len(set(draws)) > 45
    assert draws[0] != UniformSelection(5, bytes([1] * 32)).select(0, EVERYONE[:20]).clients


def test_uniform_takes_everyone_if_there_are_fewer_and_fails_below_the_least():
    assert UniformSelection(5, bytes(32), least=2).select(0, [9, 3]).clients == (3, 9)
    with pytest.raises(TooFewClients):
        UniformSelection(5, bytes(32), least=2).select(0, [9])


def test_uniform_selects_every_set_equally_often():
    found = Counter(UniformSelection(2, bytes(32)).select(index, range(5)).clients for index in range(5000))
    assert len(found) == comb(5, 2)
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


PERMUTATION = (3, 2, 11, 4, 8, 6, 12, 9, 10, 7, 5, 1)


ALWAYS = EveryClient(frozenset({2, 3, 5, 7}), RUN, least=3)
ALWAYS_ATTACKS = {
    "check_all_scheduled": (a_round([2, 3, 4]), 2),
    "check_cohort": (a_round([2, 3]), 2),
    "check_member": (a_round([3, 5, 7]), 2),
    "check_run": (a_round([2, 3, 5], run=OTHER_RUN), 2),
}


@pytest.mark.parametrize("index", [0, 9])
def test_everyone_of_a_set_is_due_in_every_round_down_to_the_least(index):
    assert ALWAYS.candidates(index, EVERYONE) == ALWAYS.select(index, EVERYONE).clients == (2, 3, 5, 7)
    assert ALWAYS.candidates(index, [7, 8, 2]) == (2, 7)
    assert ALWAYS.select(index, [7, 3, 8, 2]).clients == (2, 3, 7)
    with pytest.raises(TooFewClients):
        ALWAYS.select(index, [7, 8, 2])
    ALWAYS.verify(a_round([2, 3, 7], index), {}, 2)
    assert ALWAYS.claim(an_invite(index), 7, b"") == b""


@pytest.mark.parametrize("check", ALWAYS_ATTACKS)
def test_everyone_each_attack_is_stopped_by_its_check_alone(check, monkeypatch):
    parameters, me = ALWAYS_ATTACKS[check]
    with pytest.raises(REFUSALS):
        ALWAYS.verify(parameters, {}, me)
    monkeypatch.setattr(module, check, lambda *_: None)
    ALWAYS.verify(parameters, {}, me)


def test_everyone_an_invitation_of_somebody_else_or_to_another_run_is_refused():
    with pytest.raises(ProtocolError, match="not scheduled"):
        ALWAYS.claim(an_invite(0), 4, b"")
    with pytest.raises(ProtocolError, match="another run"):
        ALWAYS.claim(an_invite(0, run=OTHER_RUN), 7, b"")


def balanced(N, count, least=1, run=RUN):
    return BalancedSelection(registry_of(*range(1, N + 1)), run, count, least)


sizes = st.integers(1, 25).flatmap(lambda N: st.tuples(st.just(N), st.integers(1, N)))


@given(sizes, st.integers(0, 2**64 - 100), st.integers(1, 99))
@settings(max_examples=60, deadline=None)
def test_everyone_is_due_at_most_ceil_of_the_average(size, first, rounds):
    N, count = size
    strategy = balanced(N, count)
    windows = [strategy.window(index) for index in range(first, first + rounds)]
    assert all(len(window) == count for window in windows)
    due = Counter(u for window in windows for u in window)
    assert max(due.values()) <= ceil(Fraction(rounds * count, N))
    assert min(due[u] for u in strategy.registry) >= rounds * count // N


@given(sizes, st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_of_the_window_verifies_down_to_the_least(size, index, data):
    N, count = size
    least = data.draw(st.integers(1, count))
    strategy = balanced(N, count, least)
    available = data.draw(st.sets(st.integers(1, N)))
    if len(strategy.window(index) & available) < least:
        with pytest.raises(TooFewClients):
            strategy.select(index, available)
        return
    U = strategy.select(index, available).clients
    assert set(U) == strategy.window(index) & available
    strategy.verify(a_round(U, index), {}, U[0])


@given(sizes, st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=60, deadline=None)
def test_anyone_outside_the_window_is_refused(size, index, data):
    N, count = size
    strategy = balanced(N, count)
    window = strategy.window(index)
    U = data.draw(st.sets(st.integers(1, N + 3), min_size=1))
    assume(not window >= U)
    with pytest.raises(ProtocolError, match="not scheduled"):
        strategy.verify(a_round(U, index), {}, min(U))


BALANCED = balanced(30, 12, least=8)
WINDOW = sorted(BALANCED.window(4))
OUTSIDE = next(u for u in EVERYONE if u not in WINDOW)
BALANCED_ATTACKS = {
    "check_all_scheduled": (a_round([*WINDOW[:-1], OUTSIDE], 4), WINDOW[0]),
    "check_cohort": (a_round(WINDOW[:7], 4), WINDOW[0]),
    "check_member": (a_round(WINDOW[1:], 4), WINDOW[0]),
    "check_run": (a_round(WINDOW, 4, run=OTHER_RUN), WINDOW[0]),
}


@pytest.mark.parametrize("check", BALANCED_ATTACKS)
def test_balanced_each_attack_is_stopped_by_its_check_alone(check, monkeypatch):
    parameters, me = BALANCED_ATTACKS[check]
    BALANCED.verify(a_round(WINDOW, 4), {}, me)
    BALANCED.verify(a_round(WINDOW[:8], 4), {}, me)
    with pytest.raises(REFUSALS):
        BALANCED.verify(parameters, {}, me)
    monkeypatch.setattr(module, check, lambda *_: None)
    BALANCED.verify(parameters, {}, me)


def test_balanced_the_window_of_another_round_is_refused():
    for index in (3, 5):
        with pytest.raises(ProtocolError, match="not scheduled"):
            BALANCED.verify(a_round(WINDOW, index), {}, WINDOW[0])


def test_balanced_those_due_are_invited_and_claim_their_place():
    assert BALANCED.candidates(4, EVERYONE) == tuple(WINDOW)
    assert BALANCED.candidates(4, [OUTSIDE, *WINDOW[3:]]) == tuple(WINDOW[3:])
    assert BALANCED.claim(an_invite(4), WINDOW[0], b"") == b""


@pytest.mark.parametrize(
    ("check", "invite", "me"),
    [("check_scheduled", an_invite(4), OUTSIDE), ("check_run", an_invite(4, run=OTHER_RUN), WINDOW[0])],
)
def test_balanced_an_invitation_that_is_not_due_is_refused_by_its_check_alone(check, invite, me, monkeypatch):
    with pytest.raises(REFUSALS):
        BALANCED.claim(invite, me, b"")
    monkeypatch.setattr(module, check, lambda *_: None)
    assert BALANCED.claim(invite, me, b"") == b""


def reference_permutation(run, registry):
    """Do what `Balanced` says, by other means: HKDF from HMAC, AES-CTR of pycryptodome."""
    extracted = hmac.digest(bytes(32), run + registry.root(), "sha256")
    derived = hmac.digest(extracted, b"dordis/v1/permutation\x01", "sha256")[:28]
    cipher = AES.new(derived[:16], AES.MODE_CTR, nonce=derived[16:], initial_value=2)
    order = sorted(registry)
    for last in reversed(range(1, len(order))):
        while (word := int.from_bytes(cipher.encrypt(bytes(8)), "little")) >= 2**64 // (last + 1) * (last + 1):
            pass
        other = word % (last + 1)
        order[last], order[other] = order[other], order[last]
    return tuple(order)


@pytest.mark.parametrize("N", [1, 2, 3, 30, 700])
def test_the_permutation_is_that_of_the_reference(N):
    registry = registry_of(*range(1, N + 1))
    for run in (RUN, OTHER_RUN):
        assert BalancedSelection(registry, run, 1, 1).permutation == reference_permutation(run, registry)


def test_the_permutation_never_changes_within_a_protocol_version():
    assert balanced(12, 1).permutation == PERMUTATION
    assert balanced(12, 1, run=OTHER_RUN).permutation != PERMUTATION


def test_the_permutation_follows_from_the_beacon_of_round_0_too():
    extracted = hmac.digest(bytes(32), RUN + REGISTRY.root() + BEACON.value(0), "sha256")
    derived = hmac.digest(extracted, b"dordis/v1/permutation\x01", "sha256")[:28]
    expected = tuple(shuffle(list(REGISTRY), prg.Stream.from_bytes(derived)))
    assert BalancedSelection(REGISTRY, RUN, 5, 1, BEACON).permutation == expected
    others = (BalancedSelection(REGISTRY, RUN, 5, 1), BalancedSelection(REGISTRY, RUN, 5, 1, SeedBeacon(bytes(32))))
    assert expected not in {other.permutation for other in others}


def test_every_permutation_is_equally_likely():
    registry = registry_of(1, 2, 3, 4)
    found = Counter(BalancedSelection(registry, i.to_bytes(32, "big"), 1, 1).permutation for i in range(4800))
    assert len(found) == 24
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


@pytest.mark.parametrize(
    ("run", "count", "least"), [(RUN[1:], 5, 1), (RUN, 31, 1), (RUN, 5, 6), (RUN, 5, 0), (RUN, 0, 0)]
)
def test_balanced_refuses_settings_that_make_no_sense(run, count, least):
    with pytest.raises(InputError):
        BalancedSelection(REGISTRY, run, count, least)
