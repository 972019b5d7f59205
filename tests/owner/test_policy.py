"""The owner's policy: each line refuses what is beyond it, allows what is at it, and is named when it refuses."""

from contextlib import nullcontext
from fractions import Fraction
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError, ParametersRefused, UnexpectedRequest
from dordis.owner import policy as module
from dordis.owner.policy import Policy
from dordis.privacy import scaling
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.baselines import CentralGaussian
from dordis.privacy.mechanisms.distributed import DDGauss
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId
from dordis.protocols.cohort import agree_on
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST, Encoding
from dordis.rounds.invitation import check_pieces
from dordis.rounds.terms import Terms
from tests.adversary.participants import careful_owner
from tests.rounds.parties import DIM, MODEL, agreed, invite_to

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
    with pytest.raises(ParametersRefused, match="line 'noise'"):
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
            Policy.from_settings(given_lines)


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


def test_a_policy_is_read_from_plain_settings():
    settings = {
        "cohort": 10,
        "quorum": 0.7,
        "colluders": 2,
        "variance": 48,
        "noise": "1/2",
        "bits": 16,
        "modes": ["malicious"],
        "schemes": ["single", "exact"],
        "mechanisms": ["skellam"],
        "participations": 5,
        "epsilon": 40,
        "delta": 1e-5,
    }
    assert Policy.from_settings(settings) == ALLOWING
    assert Policy.from_settings({}) == Policy()


@pytest.mark.parametrize(
    "settings",
    [
        {"cohorts": 10},
        {"cohort": "10"},
        {"cohort": 10.5},
        {"cohort": -1},
        {"quorum": 1.5},
        {"quorum": True},
        {"quorum": "1/0"},
        {"quorum": "nan"},
        {"quorum": None},
        {"quorum": [1, 2]},
        {"variance": -1},
        {"noise": "much"},
        {"modes": "malicious"},
        {"modes": [1]},
        {"participations": -1},
    ],
    ids=str,
)
def test_settings_that_are_no_policy_are_refused(settings):
    with pytest.raises(InputError, match="policy"):
        Policy.from_settings(settings)


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
