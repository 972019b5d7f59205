"""VRF selection: clients accept a U with valid proofs and refuse every other U; participation caps."""

import hashlib
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dordis.config.reading import read_config
from dordis.crypto import vrf
from dordis.errors import (
    InputError,
    InvalidProof,
    MalformedMessage,
    ParametersRefused,
    ProtocolError,
    RoundFailed,
    TooFewClients,
)
from dordis.runs.job import Job
from dordis.selection import vrf_selection as module
from dordis.selection.beacon import SeedBeacon
from dordis.selection.vrf_selection import (
    VrfSelection,
    chance_below,
    describe_starvation,
    expected_cohort,
    is_starved,
    vrf_number,
    working_cap,
    working_cohort,
)
from dordis.simulation.run import prepare
from tests.runs.cohorts import OTHER_RUN, RUN, a_round, an_invite, keys_of, registry_of

REFUSALS = (ProtocolError, InvalidProof, ParametersRefused)
BEACON = SeedBeacon(b"beacon of tests/federation......")
EVERYONE = tuple(range(1, 31))
REGISTRY = registry_of(*EVERYONE)
ALPHA = "c063f1bd0138dea59f2277f0a3d5638839da9e260651d21753c7b8fb357acc22"


def verifiable(expected=10, least=1, run=RUN, beacon=BEACON, registry=REGISTRY):
    return VrfSelection(registry, run, Fraction(expected), least, beacon)


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
    lots = [
        vrf_number(proof) / 2**128 for index in range(rounds) for proof in prove(strategy, index, EVERYONE).values()
    ]
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
    "a proof too many": ("check_proofs_complete", ALL, GOOD, PROOFS | prove(ALL, 7, [5]), 1),
    "a beacon of the server's own": ("check_beacon", ALL, vrf_round(U, 7, beacon=OTHER_BEACON), PROOFS, 1),
    "another run": ("check_run", ALL, vrf_round(U, 7, run=OTHER_RUN), PROOFS, 1),
    "a round without me": ("check_member", ALL, GOOD, PROOFS, 5),
    "too small a cohort": ("check_cohort", ALL, vrf_round(U[:2], 7), prove(ALL, 7, U[:2]), 1),
}


@pytest.mark.parametrize(("check", "strategy", "parameters", "proofs", "me"), VRF_ATTACKS.values(), ids=VRF_ATTACKS)
def test_vrf_each_attack_is_stopped_by_its_check_alone(check, strategy, parameters, proofs, me, monkeypatch):
    with pytest.raises(REFUSALS):
        strategy.verify(parameters, proofs, me)
    monkeypatch.setattr(module, check, lambda *_: None)
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


def test_lots_are_shown_under_the_indices_of_the_run_alone():
    selection = replace(verifiable(len(REGISTRY)), indices=3)
    assert selection.claim(an_invite(2), 1, keys_of(1).vrf)
    with pytest.raises(ProtocolError, match="index 3 is beyond the 3 that the run plans"):
        selection.claim(an_invite(3), 1, keys_of(1).vrf)


def sampled_cohorts(clients: int, per_round: int, rounds: int, cap: int) -> np.ndarray:
    """Return the cohorts of the last round of 4,000 runs in which every client draws lots until its cap."""
    rng = np.random.default_rng(7)
    lots = rng.random((4000, rounds, clients)) < per_round / clients
    before = lots[:, :-1].sum(axis=1)
    return (lots[:, -1] & (before < cap)).sum(axis=1)


@pytest.mark.parametrize(("clients", "per_round", "rounds", "cap"), [(60, 30, 2, 1), (100, 16, 30, 5), (40, 10, 8, 2)])
def test_the_last_cohort_is_that_of_sampled_runs(clients: int, per_round: int, rounds: int, cap: int) -> None:
    cohorts = sampled_cohorts(clients, per_round, rounds, cap)
    mean = expected_cohort(clients, per_round, cap, rounds)
    assert cohorts.mean() == pytest.approx(mean, abs=0.3)
    assert (cohorts < 8).mean() == pytest.approx(chance_below(clients, mean / clients, 8), abs=0.04)


def test_the_proposed_cap_and_cohort_work() -> None:
    assert is_starved(60, 30, 2, 1, 16, 5)
    assert working_cap(60, 30, 2, 1, 16, 5) == 2
    n = working_cohort(60, 30, 2, 16, 5)
    assert n is not None
    assert not is_starved(60, n, 2, -(-2 * n // 60), -(-16 * n // 30), 5)
    assert describe_starvation(60, 30, 2, 2, 16, 5) == ""


def lots(*keys: str) -> Job:
    cohort = ("federation.clients=60", "federation.per_round=30", "federation.rounds=2", "federation.selection=vrf")
    return prepare(read_config(keys=[*cohort, *keys])).job


def test_a_job_warns_of_starved_rounds_until_the_proposed_cap_is_set() -> None:
    (warning,) = lots().warnings
    assert "federation.participations = 2" in warning
    capped = lots("federation.participations=2")
    assert (capped.warnings, capped.design.cap) == ((), 2)
