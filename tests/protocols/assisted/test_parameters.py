"""The rules of assisted rounds: numbers of helpers, keys, arrivals, noise schemes, and the options of the protocol."""

from itertools import combinations

import msgspec
import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.assisted import ASSISTED
from dordis.protocols.assisted.parameters import Options, check_arrivals
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, check_rules
from tests.protocols.assisted.parties import Round


@pytest.mark.parametrize(("m", "f", "quorum"), [(2, 1, 2), (3, 1, 3), (4, 1, 3), (5, 1, 4), (7, 2, 5), (10, 3, 7)])
def test_quorums_share_an_honest_helper_and_one_set_has_no_colluder(m, f, quorum):
    round = Round(m=m, f=f, options={"abort": m < 3 * f + 1}) if m != 10 else None
    if round is None:  # C(10, 3) = 120 sets
        with pytest.raises(ParametersRefused, match="at most 64 sets"):
            Round(m=m, f=f)
        return
    parameters = round.parameters
    assert parameters.quorum == quorum
    assert 2 * quorum > m + f
    assert parameters.sets == tuple(combinations(range(1, m + 1), m - f))
    for colluding in combinations(range(1, m + 1), f):
        assert any(set(members).isdisjoint(colluding) for members in parameters.sets)
    for h in range(1, m + 1):
        assert [h in parameters.sets[rank] for rank in parameters.ranks[h]] == [True] * len(parameters.ranks[h])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"m": 3, "f": 1}, "m >= 3 f"),
        ({"m": 2, "f": 2}, "1 <= f < m"),
        ({"own": {"faulty": 0}}, "1 <= f < m"),
        ({"absent": (1, 2)}, "have no key"),
        ({"n_min": 4, "n_max": 9}, "below half"),
        ({"scheme": Scheme.CONSERVATIVE}, "no noise scheme 'conservative'"),
        ({"scheme": Scheme.EXACT, "n_min": 70, "n_max": 135}, "at most 64, not 65"),
    ],
)
def test_parameters_that_break_a_rule_are_refused(settings, reason):
    with pytest.raises(ParametersRefused, match=reason):
        Round(**settings)


def test_options_and_the_semi_honest_mode_allow_fewer_helpers_and_arrivals():
    assert Round(m=3, options={"abort": True}).parameters.voices == 2
    assert Round(m=3, mode=SEMI_HONEST).parameters.voices == 1
    assert Round(m=2, options={"abort": True}).parameters.voices == 1
    assert Round(n_min=4, options={"no_base": True}).parameters.plans[0].fraction == 1
    assert Round(n_min=9).parameters.plans[0].removable == ()


def test_a_round_without_base_noise_is_refused_although_enough_clients_arrive():
    parameters = Round().parameters
    assert all(plan.base and plan.removable for plan in parameters.plans)
    bare = msgspec.structs.replace(parameters, fraction=1)
    with pytest.raises(ParametersRefused, match="add no base noise"):
        check_arrivals(bare)
    check_arrivals(msgspec.structs.replace(bare, no_base=True))


def test_a_key_for_another_round_or_of_two_helpers_is_refused():
    parameters = Round().parameters
    keys = dict(parameters.helpers)
    for changed in (keys | {1: msgspec.structs.replace(keys[1], first=4, last=4)}, keys | {1: keys[2]}):
        with pytest.raises(ParametersRefused, match=r"not for round 3|the same key"):
            check_rules(msgspec.structs.replace(parameters, helpers=changed))


def test_the_lot_of_removal_is_the_same_in_all_chunks():
    round = Round(came=8)
    survivors = tuple(round.inputs)
    assert round.parameters.due(0, survivors) == round.parameters.due(1, survivors)
    assert sum(map(len, round.parameters.due(0, survivors).values())) == 2 * 3


def test_options_choose_the_helpers_and_others_are_refused():
    sizes = [ASSISTED.configure(ASSISTED, {}, mode).helpers for mode in (MALICIOUS, SEMI_HONEST)]
    assert sizes == [4, 3]
    assert ASSISTED.configure(ASSISTED, {"faulty": 2}, MALICIOUS).helpers == 7
    with pytest.raises(InputError, match=r"protocol\.options"):
        ASSISTED.configure(ASSISTED, {"helper": 4}, MALICIOUS)
    assert Options().faulty == 1
