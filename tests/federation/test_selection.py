"""Selection: what each strategy selects, that clients accept it, and that they refuse everything else."""

import hashlib
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

from dordis.crypto import prg, vrf
from dordis.crypto.shuffle import shuffled
from dordis.errors import (
    InputError,
    InvalidProof,
    MalformedMessage,
    ParametersRefused,
    ProtocolError,
    RoundFailed,
    TooFewClients,
)
from dordis.federation import beacon
from dordis.federation import selection as module
from dordis.federation.beacon import SeedBeacon
from dordis.federation.selection import Balanced, Everyone, Uniform, Verifiable, lot
from dordis.protocols.parameters import SEMI_HONEST
from tests.federation.cohorts import OTHER_RUN, RUN, a_round, an_invite, keys_of, registry_of

REFUSALS = (ProtocolError, InvalidProof, ParametersRefused)
BEACON = SeedBeacon(b"beacon of tests/federation......")
EVERYONE = tuple(range(1, 31))
REGISTRY = registry_of(*EVERYONE)
PERMUTATION = (3, 2, 11, 4, 8, 6, 12, 9, 10, 7, 5, 1)
ALPHA = "c063f1bd0138dea59f2277f0a3d5638839da9e260651d21753c7b8fb357acc22"


def off(monkeypatch, check):
    home = beacon if check == "check_beacon" else module
    monkeypatch.setattr(home, check, lambda *_: None)


# Uniform


def test_what_nobody_can_verify_is_for_semi_honest_servers_only(monkeypatch):
    strategy = Uniform(5, bytes(32))
    U = strategy.select(0, EVERYONE).clients
    strategy.verify(a_round(U, mode=SEMI_HONEST), {}, U[0])
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.verify(a_round(U), {}, U[0])
    with pytest.raises(ParametersRefused, match="not among"):
        strategy.verify(a_round(U, mode=SEMI_HONEST), {}, 99)
    assert strategy.claim(an_invite(0, mode=SEMI_HONEST), U[0], b"") == b""
    with pytest.raises(ParametersRefused, match="malicious"):
        strategy.claim(an_invite(0), U[0], b"")
    off(monkeypatch, "check_semi_honest")
    strategy.verify(a_round(U), {}, U[0])
    strategy.claim(an_invite(0), U[0], b"")


def test_uniform_invites_those_whom_it_would_select():
    strategy = Uniform(5, bytes(32))
    for index in range(5):
        invited = strategy.candidates(index, EVERYONE)
        assert invited == strategy.select(index, EVERYONE).clients
        assert strategy.select(index, invited[1:]).clients == invited[1:]


def test_uniform_takes_count_of_those_available_from_the_seed_and_the_index():
    draws = [Uniform(5, bytes(32)).select(index, EVERYONE[:20]).clients for index in range(50)]
    assert all(len(set(U)) == 5 and set(U) <= set(EVERYONE[:20]) and list(U) == sorted(U) for U in draws)
    assert draws[7] == Uniform(5, bytes(32)).select(7, EVERYONE[19::-1]).clients
    assert len(set(draws)) > 45
    assert draws[0] != Uniform(5, bytes([1] * 32)).select(0, EVERYONE[:20]).clients


def test_uniform_takes_everyone_if_there_are_fewer_and_fails_below_the_least():
    assert Uniform(5, bytes(32), least=2).select(0, [9, 3]).clients == (3, 9)
    with pytest.raises(TooFewClients):
        Uniform(5, bytes(32), least=2).select(0, [9])


def test_uniform_selects_every_set_equally_often():
    found = Counter(Uniform(2, bytes(32)).select(index, range(5)).clients for index in range(5000))
    assert len(found) == comb(5, 2)
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


# Everyone


ALWAYS = Everyone(frozenset({2, 3, 5, 7}), RUN, least=3)
ALWAYS_ATTACKS = {
    "check_window": (a_round([2, 3, 4]), 2),
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
    off(monkeypatch, check)
    ALWAYS.verify(parameters, {}, me)


def test_everyone_an_invitation_of_somebody_else_or_to_another_run_is_refused():
    with pytest.raises(ProtocolError, match="not due"):
        ALWAYS.claim(an_invite(0), 4, b"")
    with pytest.raises(ProtocolError, match="another run"):
        ALWAYS.claim(an_invite(0, run=OTHER_RUN), 7, b"")


# Balanced


def balanced(N, count, least=1, run=RUN):
    return Balanced(registry_of(*range(1, N + 1)), run, count, least)


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
    with pytest.raises(ProtocolError, match="not due"):
        strategy.verify(a_round(U, index), {}, min(U))


BALANCED = balanced(30, 12, least=8)
WINDOW = sorted(BALANCED.window(4))
OUTSIDE = next(u for u in EVERYONE if u not in WINDOW)
BALANCED_ATTACKS = {
    "check_window": (a_round([*WINDOW[:-1], OUTSIDE], 4), WINDOW[0]),
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
    off(monkeypatch, check)
    BALANCED.verify(parameters, {}, me)


def test_balanced_the_window_of_another_round_is_refused():
    for index in (3, 5):
        with pytest.raises(ProtocolError, match="not due"):
            BALANCED.verify(a_round(WINDOW, index), {}, WINDOW[0])


def test_balanced_those_due_are_invited_and_claim_their_place():
    assert BALANCED.candidates(4, EVERYONE) == tuple(WINDOW)
    assert BALANCED.candidates(4, [OUTSIDE, *WINDOW[3:]]) == tuple(WINDOW[3:])
    assert BALANCED.claim(an_invite(4), WINDOW[0], b"") == b""


@pytest.mark.parametrize(
    ("check", "invite", "me"),
    [("check_due", an_invite(4), OUTSIDE), ("check_run", an_invite(4, run=OTHER_RUN), WINDOW[0])],
)
def test_balanced_an_invitation_that_is_not_due_is_refused_by_its_check_alone(check, invite, me, monkeypatch):
    with pytest.raises(REFUSALS):
        BALANCED.claim(invite, me, b"")
    off(monkeypatch, check)
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
        assert Balanced(registry, run, 1, 1).permutation == reference_permutation(run, registry)


def test_the_permutation_never_changes_within_a_protocol_version():
    assert balanced(12, 1).permutation == PERMUTATION
    assert balanced(12, 1, run=OTHER_RUN).permutation != PERMUTATION


def test_the_permutation_follows_from_the_beacon_of_round_0_too():
    extracted = hmac.digest(bytes(32), RUN + REGISTRY.root() + BEACON.value(0), "sha256")
    derived = hmac.digest(extracted, b"dordis/v1/permutation\x01", "sha256")[:28]
    expected = tuple(shuffled(list(REGISTRY), prg.Stream.of(derived)))
    assert Balanced(REGISTRY, RUN, 5, 1, BEACON).permutation == expected
    others = (Balanced(REGISTRY, RUN, 5, 1), Balanced(REGISTRY, RUN, 5, 1, SeedBeacon(bytes(32))))
    assert expected not in {other.permutation for other in others}


def test_every_permutation_is_equally_likely():
    registry = registry_of(1, 2, 3, 4)
    found = Counter(Balanced(registry, i.to_bytes(32, "big"), 1, 1).permutation for i in range(4800))
    assert len(found) == 24
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


@pytest.mark.parametrize(
    ("run", "count", "least"), [(RUN[1:], 5, 1), (RUN, 31, 1), (RUN, 5, 6), (RUN, 5, 0), (RUN, 0, 0)]
)
def test_balanced_refuses_settings_that_make_no_sense(run, count, least):
    with pytest.raises(InputError):
        Balanced(REGISTRY, run, count, least)


# VRF


def verifiable(expected=10, least=1, run=RUN, beacon=BEACON, registry=REGISTRY):
    return Verifiable(registry, run, Fraction(expected), least, beacon)


def drawn(strategy, index, clients=EVERYONE):
    proofs = {u: strategy.draw(keys_of(u).vrf, index) for u in clients}
    return {u: proof for u, proof in proofs.items() if proof is not None}


def prove(strategy, index, clients):
    """Prove whatever lots there are, below the threshold or not."""
    return {u: vrf.prove(keys_of(u).vrf, strategy.alpha(index)) for u in clients}


def vrf_round(clients, index=0, run=RUN, beacon=BEACON):
    return a_round(clients, index, run, beacon=beacon.value(index))


def test_vrf_whoever_draws_is_selected_and_every_member_accepts_it():
    strategy = verifiable()
    for index in range(5):
        proofs = drawn(strategy, index)
        selected = strategy.select(index, EVERYONE, proofs)
        assert selected.clients == tuple(sorted(proofs))
        assert selected.proofs == proofs
        for me in selected.clients[:2]:
            strategy.verify(vrf_round(selected.clients, index), selected.proofs, me)


def test_vrf_everyone_is_invited_and_whoever_draws_a_low_lot_claims_with_the_proof():
    assert HALF.candidates(7, EVERYONE[5:]) == EVERYONE[5:]
    for u in EVERYONE:
        assert HALF.claim(an_invite(7), u, keys_of(u).vrf) == drawn(HALF, 7).get(u)
    with pytest.raises(ProtocolError, match="another run"):
        HALF.claim(an_invite(7, run=OTHER_RUN), 1, keys_of(1).vrf)


def test_vrf_unavailable_clients_may_be_left_out():
    strategy = verifiable(expected=20)
    proofs = drawn(strategy, 0)
    selected = strategy.select(0, EVERYONE[::2], proofs)
    assert set(selected.clients) == set(proofs) & set(EVERYONE[::2]) == set(selected.proofs)
    strategy.verify(vrf_round(selected.clients), selected.proofs, selected.clients[0])


@pytest.mark.slow
def test_vrf_cohorts_are_binomial_around_the_expected_size():
    strategy, rounds, N, p = verifiable(expected=10), 60, 30, 1 / 3
    lots = [lot(proof) / 2**128 for index in range(rounds) for proof in prove(strategy, index, EVERYONE).values()]
    assert stats.kstest(lots, "uniform").pvalue > 1e-4
    cohorts = [sum(value < p for value in lots[N * i : N * (i + 1)]) for i in range(rounds)]
    assert abs(sum(cohorts) - rounds * N * p) < 4 * (rounds * N * p * (1 - p)) ** 0.5
    assert [len(drawn(strategy, index)) for index in range(3)] == cohorts[:3]
    dispersion = sum((cohort - N * p) ** 2 for cohort in cohorts) / (N * p * (1 - p))
    assert 1e-4 < stats.chi2.cdf(dispersion, rounds) < 1 - 1e-4


def test_vrf_the_threshold_is_exact():
    assert verifiable(expected=10).threshold == 2**128 // 3
    assert verifiable(expected=30).threshold == 2**128
    assert len(drawn(verifiable(expected=30), 0)) == 30


def test_vrf_the_server_takes_no_proof_that_members_would_refuse():
    strategy = verifiable(expected=10)
    proofs = drawn(strategy, 0)
    good = sorted(proofs)
    too_high = next(u for u in EVERYONE if u not in proofs)
    bad = prove(strategy, 0, [too_high]) | prove(strategy, 1, good[:1]) | {good[1]: b"", 99: proofs[good[2]]}
    assert strategy.select(0, [*EVERYONE, 99], proofs | bad).clients == tuple(good[2:])


def test_vrf_a_round_with_too_few_is_skipped():
    strategy = verifiable(expected=5, least=20)
    with pytest.raises(TooFewClients, match="selection, 20 are needed") as skipped:
        strategy.select(0, EVERYONE, drawn(strategy, 0))
    assert isinstance(skipped.value, RoundFailed)


ALL = verifiable(expected=30, least=3)
"""Everyone's lot is below the threshold: what is refused is refused for another reason."""
HALF = verifiable(expected=15, least=3)
U = (1, 2, 3, 4)
PROOFS = prove(ALL, 7, U)
GOOD = vrf_round(U, 7)
LUCKY = tuple(sorted(drawn(HALF, 7)))
UNLUCKY = next(u for u in EVERYONE if u not in LUCKY)
OTHER_BEACON = SeedBeacon(bytes(32))
LARGER = registry_of(*EVERYONE, 31)
ANOTHER_RUN = verifiable(run=OTHER_RUN)
ANOTHER_BEACON = verifiable(beacon=OTHER_BEACON)
ANOTHER_REGISTRY = verifiable(registry=LARGER)


def test_vrf_the_honest_case_of_the_attacks_is_accepted():
    ALL.verify(GOOD, PROOFS, 1)
    HALF.verify(vrf_round(LUCKY, 7), drawn(HALF, 7), LUCKY[0])


VRF_ATTACKS = {
    "a proof of another round": ("check_proof", ALL, GOOD, PROOFS | prove(ALL, 8, [2]), 1),
    "a proof under another key": ("check_proof", ALL, GOOD, PROOFS | {2: PROOFS[3]}, 1),
    "a proof of another run": ("check_proof", ALL, GOOD, PROOFS | prove(ANOTHER_RUN, 7, [2]), 1),
    "a proof for another beacon": (
        "check_proof",
        ALL,
        GOOD,
        PROOFS | prove(ANOTHER_BEACON, 7, [2]),
        1,
    ),
    "a proof for another registry": ("check_proof", ALL, GOOD, PROOFS | prove(ANOTHER_REGISTRY, 7, [2]), 1),
    "my own proof altered": ("check_proof", ALL, GOOD, PROOFS | {1: PROOFS[1][:-1] + bytes([PROOFS[1][-1] ^ 1])}, 1),
    "a lot above the threshold": (
        "check_threshold",
        HALF,
        vrf_round([*LUCKY, UNLUCKY], 7),
        prove(HALF, 7, [*LUCKY, UNLUCKY]),
        LUCKY[0],
    ),
    "a proof too many": ("check_complete", ALL, GOOD, PROOFS | prove(ALL, 7, [5]), 1),
    "a beacon of the server's own": ("check_beacon", ALL, vrf_round(U, 7, beacon=OTHER_BEACON), PROOFS, 1),
    "another run": ("check_run", ALL, vrf_round(U, 7, run=OTHER_RUN), PROOFS, 1),
    "a round without me": ("check_member", ALL, GOOD, PROOFS, 5),
    "too small a cohort": ("check_cohort", ALL, vrf_round(U[:2], 7), prove(ALL, 7, U[:2]), 1),
}


@pytest.mark.parametrize(("check", "strategy", "parameters", "proofs", "me"), VRF_ATTACKS.values(), ids=VRF_ATTACKS)
def test_vrf_each_attack_is_stopped_by_its_check_alone(check, strategy, parameters, proofs, me, monkeypatch):
    with pytest.raises(REFUSALS):
        strategy.verify(parameters, proofs, me)
    off(monkeypatch, check)
    strategy.verify(parameters, proofs, me)


def test_vrf_the_whole_round_of_another_beacon_is_refused():
    theirs = verifiable(expected=30, beacon=OTHER_BEACON)
    with pytest.raises(ProtocolError, match="published"):
        ALL.verify(vrf_round(U, 7, beacon=OTHER_BEACON), prove(theirs, 7, U), 1)


def test_vrf_a_member_without_a_proof_is_refused():
    for missing in U:
        with pytest.raises(MalformedMessage, match="proofs"):
            ALL.verify(GOOD, {u: proof for u, proof in PROOFS.items() if u != missing}, 1)
    with pytest.raises(InvalidProof):
        ALL.verify(GOOD, PROOFS | {2: b""}, 1)


def test_vrf_a_member_who_is_not_registered_is_refused():
    with pytest.raises(ParametersRefused, match="registry"):
        ALL.verify(vrf_round([*U, 31], 7), prove(ALL, 7, [*U, 31]), 1)


@given(st.integers(0, 2**64 - 1), st.sampled_from(EVERYONE), st.sampled_from(EVERYONE))
@settings(max_examples=25, deadline=None)
def test_vrf_a_proof_holds_for_its_round_and_client_only(index, client, other):
    proofs = prove(ALL, 7, {client, other, 1, 2, 3})
    members = sorted(proofs)
    ALL.verify(vrf_round(members, 7), proofs, client)
    if index != 7:
        with pytest.raises(InvalidProof):
            ALL.verify(vrf_round(members, index), proofs, client)
    if other != client:
        with pytest.raises(InvalidProof):
            ALL.verify(vrf_round(members, 7), proofs | {client: proofs[other]}, client)


def test_vrf_alpha_binds_run_registry_index_and_beacon_and_never_changes():
    parts = [b"dordis/v1/selection", RUN, REGISTRY.root(), (7).to_bytes(8, "big"), BEACON.value(7)]
    encoded = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert ALL.alpha(7) == hashlib.sha256(encoded).digest()
    assert ALL.alpha(7).hex() == ALPHA
    others = [strategy.alpha(7) for strategy in (ANOTHER_RUN, ANOTHER_BEACON, ANOTHER_REGISTRY)]
    assert len({ALL.alpha(7), ALL.alpha(8), *others}) == 5


@pytest.mark.parametrize(("expected", "least", "run"), [(0, 1, RUN), (31, 1, RUN), (5, 0, RUN), (5, 1, RUN[1:])])
def test_vrf_refuses_settings_that_make_no_sense(expected, least, run):
    with pytest.raises(InputError):
        verifiable(expected, least, run)


@pytest.mark.parametrize("index", [-1, 2**64])
def test_an_index_that_no_round_has_is_refused(index):
    for strategy in (Uniform(5, bytes(32)), BALANCED, ALL):
        with pytest.raises(InputError, match="index"):
            strategy.select(index, EVERYONE)


def test_lots_are_shown_under_the_indices_of_the_run_alone():
    selection = replace(verifiable(len(REGISTRY)), indices=3)
    assert selection.claim(an_invite(2), 1, keys_of(1).vrf)
    with pytest.raises(ProtocolError, match="no index 3: its rounds and their tries take 3 at most"):
        selection.claim(an_invite(3), 1, keys_of(1).vrf)
