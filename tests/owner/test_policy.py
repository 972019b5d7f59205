"""The owner's policy: each line refuses what is beyond it, allows what is at it, and is named when it refuses.

An owner stands before its client: no data is touched outside the policy, and nothing is uploaded uncounted.
"""

import math
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from functools import partial

import dp_accounting
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import (
    Aborted,
    BudgetRefused,
    InputError,
    ParametersRefused,
    ParticipationRefused,
    ProtocolError,
    TooFewClients,
    TooManyDropouts,
    UnexpectedRequest,
)
from dordis.owner import policy as module
from dordis.owner.participation import MemoryParticipation
from dordis.owner.policy import Owner, Policy
from dordis.privacy import scaling
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols.cohort import agree_on
from dordis.protocols.costs import round_cost
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Encoding
from dordis.protocols.secagg import SECAGG_PLUS
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.protocols.sparse_graph import least_quorum, least_threshold
from dordis.rounds.catch_up import check_pieces
from dordis.rounds.invitation import Terms, Train
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import BalancedSelection
from dordis.selection.vrf_selection import VrfSelection
from tests.adversary.participants import careful_owner
from tests.rounds.parties import DIM, MODEL, Federation, Member, agreed, invite_to, pieces
from tests.runs.cohorts import RUN, keys_of, registry_of

AGREED = {
    "run": bytes(32),
    "index": 0,
    "clients": range(1, 11),
    "threshold": 7,
    "tolerance": 2,
    "colluders": 2,
    "bits": 16,
    "ends": [3, 7],
    "scheme": Scheme.SINGLE,
    "variances": [64, 48],
    "mode": MALICIOUS,
    "encoding": Encoding(mechanism="skellam", sensitivity=96),
}
P = agree_on(**AGREED)
ALLOWING = Policy(
    cohort=10,
    quorum=Fraction(7, 10),
    colluders=2,
    variance=Fraction(48),
    noise=Fraction(1, 2),
    epsilon=40.0,
    delta=1e-5,
    bits=16,
    participations=5,
)
STRICTER = {
    "modes": frozenset({SEMI_HONEST}),
    "cohort": 11,
    "quorum": Fraction(71, 100),
    "colluders": 3,
    "bits": 15,
    "mechanisms": frozenset({"gaussian"}),
    "schemes": frozenset({"exact", "orig"}),
    "variance": Fraction(48) + Fraction(1, 2**10),
    "noise": Fraction(1, 2) + Fraction(1, 2**10),
}
CHECKS = {"modes": "check_mode", "mechanisms": "check_mechanism", "schemes": "check_scheme"}


lenient = partial(Policy, without_guarantee=True)


def test_parameters_at_every_line_are_allowed():
    ALLOWING.check(P)


@pytest.mark.parametrize("line", STRICTER)
def test_parameters_beyond_a_line_are_refused_and_the_line_is_named(line):
    with pytest.raises(ParametersRefused, match=f"line '{line}'"):
        msgspec.structs.replace(ALLOWING, **{line: STRICTER[line]}).check(P)


@pytest.mark.parametrize("line", STRICTER)
def test_each_line_is_kept_by_one_check(line, monkeypatch):
    monkeypatch.setattr(module, CHECKS.get(line, f"check_{line}"), lambda *_: None)
    msgspec.structs.replace(ALLOWING, **{line: STRICTER[line]}).check(P)


UNKNOWN = {"quorum", "variance"}
"""Lines that only parameters tell of."""


@pytest.mark.parametrize("line", STRICTER)
def test_what_an_invitation_promises_is_held_against_the_same_lines(line):
    ALLOWING.check_terms(Terms.from_parameters(P))
    stricter = msgspec.structs.replace(ALLOWING, **{line: STRICTER[line]})
    if line in UNKNOWN:
        stricter.check_terms(Terms.from_parameters(P))
        return
    with pytest.raises(ParametersRefused, match=f"line '{line}'"):
        stricter.check_terms(Terms.from_parameters(P))


def test_every_line_is_tested_here_or_with_the_owner():
    elsewhere = {"units", "sampling"}  # tests/runs/test_records.py
    elsewhere |= {"helpers", "honest_helpers", "faulty_helpers", "no_base"}  # tests/simulation/test_assisted_runs.py
    elsewhere |= {"participations", "trainings", "pieces", "protocols", "epsilon", "delta", "without_guarantee", *SIZES}
    assert {*STRICTER, *elsewhere} == set(Policy.__struct_fields__)


SIZES = {"coordinates": DIM - 1, "model_bytes": len(MODEL.data) - 1}
"""Lines that only an invitation tells of."""


@pytest.mark.parametrize("line", SIZES)
def test_a_size_beyond_a_line_is_refused_at_the_invitation(line):
    invite = invite_to(agreed())
    exact = lenient(
        coordinates=DIM, model_bytes=len(MODEL.data),
        protocols=frozenset({invite.protocol}), modes=frozenset({invite.terms.mode}),
    )  # fmt: skip
    exact.check_invite(invite)
    with pytest.raises(ParametersRefused, match=f"line '{line}'"):
        msgspec.structs.replace(exact, **{line: SIZES[line]}).check_invite(invite)


def test_pieces_beyond_the_line_are_refused_where_they_are_taken():
    owner = careful_owner(ClientId(1), lenient(pieces=2))
    owner.take_piece(2)
    with pytest.raises(ParametersRefused, match=r"line 'pieces'.*a model of 3 pieces exceeds 2"):
        owner.take_piece(3)


def test_the_usual_policy_takes_the_largest_usual_model_in_the_smallest_usual_pieces():
    usual = Policy()
    largest = msgspec.structs.replace(invite_to(agreed()), model_bytes=usual.model_bytes)
    check_pieces(largest, usual.pieces)
    with pytest.raises(UnexpectedRequest):
        check_pieces(largest, usual.pieces + 1)


def test_a_cost_that_leaves_no_release_enough_noise_is_refused_at_the_invitation():
    costly = msgspec.structs.replace(Terms.from_parameters(P), cost=200.0)
    ALLOWING.check_terms(costly)
    with pytest.raises(ParametersRefused, match=r"line 'noise'.* at most 0\.51 of .*, below 13/25: lower this line"):
        msgspec.structs.replace(ALLOWING, noise=Fraction(52, 100)).check_terms(costly)


def test_a_policy_without_a_budget_refuses_whatever_comes(monkeypatch):
    with pytest.raises(ParametersRefused, match=r"line 'epsilon', .* there is no budget"):
        Policy().check(P)
    with pytest.raises(ParametersRefused, match="there is no budget"):
        Policy().check_terms(Terms.from_parameters(P))
    Policy(without_guarantee=True).check(P)
    monkeypatch.setattr(module, "check_budgeted", lambda *_: None)
    Policy().check(P)


def test_a_budget_is_both_numbers_and_both_make_sense():
    for given_lines in ({"epsilon": 1.0}, {"delta": 1e-5}, {"epsilon": 0, "delta": 1e-5}, {"epsilon": 1, "delta": 2}):
        with pytest.raises(InputError):
            Policy(**given_lines)


def test_a_policy_says_what_it_allows_beyond_the_usual():
    assert Policy(epsilon=1.0, delta=1e-5, cohort=50).consents == ()
    lax = Policy(
        modes=frozenset({SEMI_HONEST}), schemes=frozenset({"orig"}), mechanisms=frozenset({"central-gaussian"}),
        protocols=frozenset({"plaintext"}), without_guarantee=True,
    )  # fmt: skip
    said = " ".join(lax.consents)
    for word in ("semi-honest", "plaintext", "central-gaussian", "orig", "keeps to no budget"):
        assert word in said


def test_the_first_line_that_is_broken_is_named():
    with pytest.raises(ParametersRefused, match="line 'cohort'"):
        Policy(cohort=11, bits=1).check(P)


def test_the_noise_that_counts_is_what_stays_when_most_clients_drop():
    baseline = agree_on(**AGREED | {"scheme": Scheme.ORIG})
    lenient = msgspec.structs.replace(ALLOWING, schemes=frozenset({"orig"}), noise=None)
    with pytest.raises(ParametersRefused, match="line 'variance'"):
        lenient.check(baseline)  # 8 survivors of 10, of whom 2 collude: 6/8 of the target
    msgspec.structs.replace(lenient, variance=Fraction(36)).check(baseline)


@pytest.mark.parametrize(("line", "other"), [("variance", "noise"), ("noise", "variance")])
def test_one_chunk_with_little_noise_is_enough_to_refuse(line, other):
    with pytest.raises(ParametersRefused, match=f"line '{line}'"):
        msgspec.structs.replace(ALLOWING, **{other: None}).check(agree_on(**AGREED | {"variances": [10**6, 47]}))


def test_a_larger_scale_does_not_get_around_the_noise_relative_to_the_sensitivity():
    scaled = AGREED | {"variances": [10**4] * 2, "encoding": Encoding(mechanism="skellam", sensitivity=10**6)}
    with pytest.raises(ParametersRefused, match="line 'noise'"):
        ALLOWING.check(agree_on(**scaled))


@pytest.mark.parametrize("sensitivity", [0, -1])
def test_noise_cannot_be_compared_with_a_sensitivity_that_is_not_declared(sensitivity):
    silent = agree_on(**AGREED | {"encoding": Encoding(mechanism="skellam", sensitivity=sensitivity)})
    with pytest.raises(ParametersRefused, match="line 'noise'"):
        ALLOWING.check(silent)


def test_no_noise_at_all_is_refused_where_some_is_asked_for():
    bare = agree_on(**AGREED | {"scheme": Scheme.NONE, "variances": None})
    with pytest.raises(ParametersRefused, match="line 'variance'"):
        lenient(schemes=frozenset({"none"}), variance=Fraction(1, 2**20)).check(bare)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_quorum_is_compared_exactly(n, threshold, numerator, denominator):
    threshold, floor = min(threshold, n), Fraction(min(numerator, denominator), denominator)
    asked = AGREED | {"clients": range(n), "threshold": threshold, "tolerance": 0, "colluders": 0, "mode": SEMI_HONEST}
    policy = lenient(quorum=floor, cohort=1, colluders=0, modes=frozenset({SEMI_HONEST}))
    if Fraction(threshold, n) >= floor:
        policy.check(agree_on(**asked))
    else:
        with pytest.raises(ParametersRefused, match="line 'quorum'"):
            policy.check(agree_on(**asked))


@pytest.mark.parametrize(
    "settings",
    [
        {"cohort": -1},
        {"quorum": 1.5},
        {"variance": -1},
        {"noise": -1},
        {"participations": -1},
    ],
    ids=str,
)
def test_limits_out_of_range_are_refused(settings):
    with pytest.raises(InputError, match=r"limits in a policy|the quorum is a fraction"):
        Policy(**settings)


def test_the_default_trusts_no_server_and_wants_noise():
    for asked in ({"mode": SEMI_HONEST}, {"scheme": Scheme.ORIG}, {"encoding": Encoding(mechanism="none")}):
        with pytest.raises(ParametersRefused):
            lenient().check(agree_on(**AGREED | asked))
    lenient().check(P)


def test_noise_that_clients_bring_counts_and_the_servers_does_not():
    grid = Grid(dim=60, block=32, scale=16.0, bits=20)
    bound = scaling.sensitivity(16.0, 1.0, grid.padded).squared
    brought = DDGauss(grid, 1.0, bound, variance=Fraction(100))
    central = CentralGaussian(grid, 1.0, bound, sigma=1000.0)
    for mechanism, least in ((brought, (len(P.clients) - P.tolerance - P.colluders) * 100), (central, 0)):
        plain = {"scheme": Scheme.NONE, "variances": None, "ends": [64], "bits": 20}
        parameters = agree_on(**AGREED | plain | {"encoding": encoding_of(mechanism, bytes(32))})
        agreed = lenient(mechanisms=frozenset({mechanism.name}), schemes=frozenset({"none"}), variance=Fraction(least))
        agreed.check(parameters)
        with pytest.raises(ParametersRefused, match="variance"):
            msgspec.structs.replace(agreed, variance=Fraction(least + 1)).check(parameters)


@pytest.mark.parametrize(("variance", "allowed"), [(200, True), (100, False)])
def test_the_clipping_bit_is_measured_by_what_it_can_change(variance, allowed):
    ends, encoding = AGREED["ends"], msgspec.structs.replace(AGREED["encoding"], bit=20)
    bit = {"ends": [*ends, ends[-1] + 1], "variances": [*AGREED["variances"], variance], "encoding": encoding}
    with nullcontext() if allowed else pytest.raises(ParametersRefused, match="noise"):
        ALLOWING.check(agree_on(**AGREED | bit))  # half of Delta2^2 is asked for


def test_a_clipping_bit_beyond_what_any_plan_gives_it_is_refused(monkeypatch):
    ends, encoding = AGREED["ends"], msgspec.structs.replace(AGREED["encoding"], bit=2**13)
    bit = {"ends": [*ends, ends[-1] + 1], "variances": [*AGREED["variances"], 2**26], "encoding": encoding}
    with pytest.raises(ParametersRefused, match="the clipping bit is 4096 at most"):
        lenient().check(agree_on(**AGREED | bit))
    monkeypatch.setattr(module, "check_further_scales", lambda *_: None)
    lenient().check(agree_on(**AGREED | bit))


EVERYONE = tuple(range(1, 15))
REGISTRY = registry_of(*EVERYONE)
BEACON = SeedBeacon(b"b" * 32)
BUDGET = {"epsilon": 6.0, "delta": 1e-5}
POLICY = Policy(cohort=5, noise=Fraction(1, 100), **BUDGET)
BALANCED = BalancedSelection(REGISTRY, RUN, 7, 5)
WINDOW = tuple(sorted(BALANCED.window(0)))
STRANGER = next(u for u in EVERYONE if u not in WINDOW)


def parameters_of(clients, index=0, **options):
    return agreed(clients, index, mode=MALICIOUS, run=RUN, **{"variances": [20_000]} | options)


def sparse(n):
    return {
        "degree": 6, "threshold": least_threshold(n, 1, MALICIOUS, 6), "quorum": least_quorum(n, 1, MALICIOUS),
        "tolerance": 1,
    }  # fmt: skip


def invitation_to(parameters, **changes):
    return invite_to(parameters, **{"registry": REGISTRY.root(), "protocol": SECAGG_PLUS.name} | changes)


def federation(selection, clients, policy=POLICY, counts=None):
    counts = counts or {u: MemoryParticipation(cap=3) for u in clients}
    root = REGISTRY.root()
    owners = {u: Owner(u, policy, selection, counts[u], root, keys_of(u).vrf, BEACON) for u in clients}
    keys = {u: {"signing": keys_of(u).signing, "registry": REGISTRY.signing_keys()} for u in clients}
    members = {u: Member(u, SECAGG_PLUS, owner=owners[u], **keys[u]) for u in clients}
    return Federation(members, SECAGG_PLUS, registry=REGISTRY.signing_keys()), counts


def test_a_round_of_the_balanced_selection_goes_through_and_is_counted_once():
    parameters = parameters_of(WINDOW)
    home, counts = federation(BALANCED, WINDOW)
    assert tuple(home.gather(invitation_to(parameters)).ready) == WINDOW
    assert not any(count.count() for count in counts.values())
    assert home.sum(parameters).outputs[0].survivors == WINDOW
    assert all(count.count() == 1 for count in counts.values())
    assert not home.exchange.errors


def test_a_round_of_the_verifiable_selection_goes_through_on_a_sparse_graph():
    selection = VrfSelection(REGISTRY, RUN, Fraction(12), 8, BEACON)
    home, _ = federation(selection, EVERYONE)
    ready = home.gather(invitation_to(parameters_of(EVERYONE, 2))).ready
    drawn = {u: selection.draw(keys_of(u).vrf, 2) for u in EVERYONE}
    assert ready == {u: proof for u, proof in drawn.items() if proof is not None}
    assert 8 <= len(ready) < len(EVERYONE)
    selected = selection.select(2, EVERYONE, ready)
    n = len(selected.clients)
    parameters = parameters_of(selected.clients, 2, **sparse(n), beacon=BEACON.value(2))
    promised = invitation_to(parameters, number=6)
    home, _ = federation(selection, EVERYONE)
    home.gather(promised)
    assert home.sum(parameters, proofs=selected.proofs).outputs[0].survivors == selected.clients
    assert not home.exchange.errors


def test_whoever_is_not_due_refuses_the_invitation():
    home, _ = federation(BALANCED, (*WINDOW, STRANGER))
    assert tuple(home.gather(invitation_to(parameters_of(WINDOW))).ready) == WINDOW
    ((u, error),) = home.exchange.errors
    assert (u, type(error)) == (STRANGER, ProtocolError)
    assert home.members[STRANGER].diary == []


def test_a_client_outside_the_window_makes_everyone_refuse():
    parameters = parameters_of(sorted([*WINDOW[:6], STRANGER]))
    home, counts = federation(BALANCED, WINDOW)
    home.gather(invitation_to(parameters))
    before = home.exchange.sent.total()
    with pytest.raises(TooManyDropouts):
        home.sum(parameters)
    assert len(home.exchange.errors) == 6
    assert all(isinstance(error, ProtocolError) for _, error in home.exchange.errors)
    assert home.exchange.sent.total() == before
    assert not any(count.count() for count in counts.values())


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        (Policy(cohort=5, noise=Fraction(100), **BUDGET), {}, "line 'noise'"),
        (Policy(cohort=8, **BUDGET), {}, "line 'cohort'"),
        (Policy(modes=frozenset({SEMI_HONEST}), **BUDGET), {}, "line 'modes'"),
        (Policy(cohort=5), {}, "line 'epsilon'"),
        (Policy(cohort=5, epsilon=0.5, delta=1e-5), {}, "epsilon would become .*, this client's owner allows 0.5"),
        (Policy(protocols=frozenset({"secagg"}), **BUDGET), {}, "line 'protocols'"),
        (POLICY, {"registry": bytes(32)}, "registry"),
    ],
)
def test_an_invitation_outside_the_policy_makes_everyone_refuse_before_data_is_touched(policy, changes, reason):
    home, _ = federation(BALANCED, WINDOW, policy)
    assert not home.gather(invitation_to(parameters_of(WINDOW), **changes)).ready
    assert len(home.exchange.errors) == len(WINDOW)
    for _, error in home.exchange.errors:
        with pytest.raises(ParametersRefused, match=reason):
            raise error
    assert not home.exchange.sent
    assert not any(member.diary for member in home.members.values())


def test_the_registry_comes_before_the_policy_and_the_policy_before_the_lot():
    owner = Owner(STRANGER, Policy(cohort=8, **BUDGET), BALANCED, MemoryParticipation(), REGISTRY.root())
    invite = invitation_to(parameters_of(WINDOW))
    with pytest.raises(ParametersRefused, match="registry"):
        owner.accept(invitation_to(parameters_of(WINDOW), registry=b""))
    with pytest.raises(ParametersRefused, match="cohort"):
        owner.accept(invite)
    with pytest.raises(ProtocolError, match="not scheduled"):
        Owner(STRANGER, POLICY, BALANCED, MemoryParticipation(), REGISTRY.root()).accept(invite)


def test_parameters_outside_the_policy_are_refused_although_the_invitation_was_not():
    parameters = parameters_of(WINDOW, threshold=6, tolerance=1)
    member = federation(BALANCED, WINDOW[:1], Policy(cohort=5, quorum=Fraction(9, 10), **BUDGET))[0].members[WINDOW[0]]
    member.handle(invitation_to(parameters), *pieces(), Train())
    with pytest.raises(ParametersRefused, match="line 'quorum'"):
        member.handle(AdvertiseKeys(parameters))


def test_a_client_beyond_its_cap_does_not_upload():
    selection = BalancedSelection(REGISTRY, RUN, 14, 5)
    counts = {u: MemoryParticipation(cap=1 if u == 1 else 2) for u in EVERYONE}
    home, _ = federation(selection, EVERYONE, counts=counts)
    for index in range(2):
        parameters = parameters_of(EVERYONE, index)
        home.gather(invitation_to(parameters))
        result = home.sum(parameters)
        assert (1 in result.outputs[0].survivors) is (index == 0)
        assert result.dropped == ({} if index == 0 else {"refused": (1,)})
    assert [(u, type(error)) for u, error in home.exchange.errors] == [(1, ParticipationRefused), (1, Aborted)]


@pytest.mark.parametrize("beacon", [BEACON, None])
def test_a_graph_from_another_beacon_or_without_one_is_refused(beacon):
    parameters = parameters_of(EVERYONE, **sparse(14), beacon=BEACON.value(1))
    selection = BalancedSelection(REGISTRY, RUN, 14, 5)
    owner = Owner(1, POLICY, selection, MemoryParticipation(), REGISTRY.root(), keys_of(1).vrf, beacon)
    member = Member(1, SECAGG_PLUS, owner=owner, signing=keys_of(1).signing, registry=REGISTRY.signing_keys())
    member.handle(invitation_to(parameters), *pieces(), Train())
    with pytest.raises((ProtocolError, ParametersRefused), match="beacon"):
        member.handle(AdvertiseKeys(parameters))


def test_a_budget_is_for_all_rounds_and_what_is_counted_stays_counted_whatever_becomes_of_the_round():
    """Every round fails after the uploads; the third would pass the budget and is refused before data is touched."""
    cost = round_cost(parameters_of(WINDOW)).theta_squared
    epsilon = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2.5 * cost), 1e-5)
    home, counts = federation(BALANCED, WINDOW, Policy(cohort=5, epsilon=epsilon, delta=1e-5))

    def fail(dropped):
        raise TooFewClients("Unmask", 0, 1)

    for index in (0, 2):
        parameters = parameters_of(WINDOW, index)
        home.gather(invitation_to(parameters))
        with pytest.raises(TooFewClients):
            home.sum(parameters, gate=PrivacyGate(charge=fail))
    assert [count.spent().theta_squared for count in counts.values()] == pytest.approx([2 * cost] * 7)
    prepared = [[*member.diary] for member in home.members.values()]
    assert not home.gather(invitation_to(parameters_of(WINDOW, 4))).ready
    assert {type(error) for _, error in home.exchange.errors} == {BudgetRefused}
    assert prepared == [member.diary for member in home.members.values()]


def test_what_the_client_counts_is_what_the_parameters_say_not_what_the_invitation_promised():
    parameters = parameters_of(WINDOW)
    home, counts = federation(BALANCED, WINDOW)
    cheap = invitation_to(parameters)
    dear = msgspec.structs.replace(cheap, terms=msgspec.structs.replace(cheap.terms, cost=1.5 * cheap.terms.cost))
    home.gather(dear)
    home.sum(parameters)
    assert {count.spent() for count in counts.values()} == {round_cost(parameters)}


def test_participants_need_neither_dp_accounting_nor_scipy():
    """Both are made impossible to import; a budget is kept all the same."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('dp_accounting', 'scipy')))\n"
        "import dordis.rounds.client, dordis.owner.policy\n"
        "from dordis.owner.participation import MemoryParticipation, Limits, OwnerBudget\n"
        "from dordis.protocols.costs import RoundCost\n"
        "from dordis.errors import BudgetRefused\n"
        "mine, limits = MemoryParticipation(), Limits(None, OwnerBudget(1.0, 1e-5))\n"
        "mine.reserve(bytes(32), 0, cost=RoundCost(0.07, 1e-25), limits=limits)\n"
        "try: mine.reserve(bytes(32), 1, cost=RoundCost(0.07, 1e-25), limits=limits)\n"
        "except BudgetRefused as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this client's owner allows 1 at delta 1e-05" in done.stdout


def test_an_owner_shows_no_key():
    owner = Owner(1, POLICY, BALANCED, MemoryParticipation(), REGISTRY.root(), keys_of(1).vrf, BEACON)
    assert repr(keys_of(1).vrf) not in repr(owner)


@pytest.mark.parametrize("degree", [0, 6])
@pytest.mark.parametrize("lots", [False, True])
def test_what_a_round_costs_an_owner_includes_the_chances_of_graph_and_lot(degree, lots):
    parameters = parameters_of(EVERYONE, 3, **(sparse(14) if degree else {}), beacon=BEACON.value(3) if degree else b"")
    selection = (
        VrfSelection(REGISTRY, RUN, Fraction(14), 5, BEACON) if lots else BalancedSelection(REGISTRY, RUN, 14, 5)
    )
    owner = Owner(1, POLICY, selection, MemoryParticipation(), REGISTRY.root(), keys_of(1).vrf, BEACON)
    owner.attend(parameters, bytes(32))
    assert owner.participation.spent().failure == 4 * (bool(degree) + lots) * 2.0**-40
