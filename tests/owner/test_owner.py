"""An owner stands before its client: no data is touched outside the policy, nothing uploaded uncounted."""

import math
import subprocess
import sys
from fractions import Fraction

import dp_accounting
import msgspec
import pytest

from dordis.errors import (
    Aborted,
    BudgetRefused,
    ParametersRefused,
    ParticipationRefused,
    ProtocolError,
    TooFewClients,
    TooManyDropouts,
)
from dordis.owner.owner import Owner
from dordis.owner.participation import MemoryParticipation
from dordis.owner.policy import Policy
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.protocols.secagg import SECAGG_PLUS
from dordis.protocols.secagg.messages import AdvertiseKeys
from dordis.protocols.sparse_graph import least_quorum, least_threshold
from dordis.rounds.invitation import Train
from dordis.rounds.privacy_gate import PrivacyGate
from dordis.selection.beacon import SeedBeacon
from dordis.selection.selection import BalancedSelection
from dordis.selection.vrf import VrfSelection
from tests.rounds.parties import Federation, Member, agreed, invite_to, pieces
from tests.runs.cohorts import RUN, keys_of, registry_of

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
        "import dordis.rounds.client, dordis.owner.owner\n"
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
