"""What an invitation promises: every cohort that may come of it keeps it, and nothing less does."""

import math
from fractions import Fraction

import msgspec
import pytest

from dordis.errors import ParametersRefused
from dordis.owner.policy import Policy, check_noise
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss, DSkellam
from dordis.privacy.noise_strategies import Central, Conservative, Local, NoNoise, Orig, XNoise
from dordis.privacy.record_encoding import RecordEncoding
from dordis.privacy.setting import Setting
from dordis.protocols.costs import noise_ratios
from dordis.protocols.parameters import MALICIOUS, SEMI_HONEST
from dordis.rounds.invitation import Terms, check_terms, check_terms_kept
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from tests.rounds.parties import IDS, VARIANCE, agreed

P = agreed()
KEPT = Terms.from_parameters(P)
TIGHTER = {
    "mode": MALICIOUS,
    "clients": len(IDS) + 1,
    "colluders": 2,
    "bits": 19,
    "mechanism": "ddgauss",
    "scheme": "exact",
    "clip": 1.001,
    "cost": KEPT.cost * (1 - 1e-12),
    "records": RecordEncoding(2**32, 2**22, 20, 100, 3),
    "further": ("correct answers",),
}
"""Promises that the parameters do not keep."""
LOOSER = {"clients": 2, "colluders": 0, "bits": 32, "cost": math.inf}


def changed(terms, **fields):
    return msgspec.structs.replace(terms, **fields)


def test_the_terms_of_parameters_are_read_from_them():
    assert (KEPT.mode, KEPT.clients, KEPT.colluders, KEPT.bits) == (SEMI_HONEST, 7, 1, 20)
    assert (KEPT.mechanism, KEPT.scheme, KEPT.clip) == ("skellam", "single", 1.0)
    least = min(plan.reserved_variance() for plan in P.plans)
    assert least >= VARIANCE
    assert noise_ratios(P) == [least / P.encoding.sensitivity]
    assert KEPT.cost == pytest.approx(P.encoding.sensitivity / (least - Fraction(1, 2)), rel=1e-12)
    assert KEPT.ratio >= noise_ratios(P)[0]


def test_parameters_keep_their_own_terms_and_looser_ones():
    check_terms_kept(KEPT, KEPT)
    for name, value in LOOSER.items():
        check_terms_kept(changed(KEPT, **{name: value}), KEPT)


@pytest.mark.parametrize("name", TIGHTER)
def test_a_promise_that_is_not_kept_is_refused(name):
    with pytest.raises(ParametersRefused, match="not what its invitation promised"):
        check_terms_kept(changed(KEPT, **{name: TIGHTER[name]}), KEPT)


def test_every_term_is_tested():
    assert set(TIGHTER) == set(Terms.__struct_fields__)


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan])
def test_a_cost_that_is_none_is_refused(cost):
    with pytest.raises(ParametersRefused, match="the cost in an invitation"):
        check_terms(changed(KEPT, cost=cost))


@pytest.mark.parametrize("sensitivity", [0, -1])
def test_noise_counts_for_nothing_where_the_sensitivity_is_not_declared(sensitivity):
    silent = msgspec.structs.replace(P, encoding=msgspec.structs.replace(P.encoding, sensitivity=sensitivity))
    assert noise_ratios(silent) == [0]
    assert Terms.from_parameters(silent).cost == math.inf


STRATEGIES = [
    (XNoise(), DSkellam), (XNoise("exact"), DSkellam), (Orig(), DSkellam), (Conservative(0.3), DSkellam),
    (Orig(), DDGauss), (Central(), DSkellam), (Local(), DSkellam), (NoNoise(), DSkellam),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("colluders", [0, 2])
@pytest.mark.parametrize(("strategy", "kind"), STRATEGIES, ids=lambda given: getattr(given, "__name__", str(given)))
def test_every_cohort_from_the_least_on_keeps_what_was_promised(strategy, kind, colluders):
    setting = Setting(ParticipationSchedule(40, 16, 20), dim=100, colluders=colluders)
    design = RoundPlan(strategy, setting, 6.0, ThreatModel(MALICIOUS), kind)
    least = design.setting.t
    promised = design.promise(least)
    for clients in (least, least + 1, 12, 13, 15, 16):
        check_terms_kept(promised, Terms.from_parameters(design.for_clients(clients).example(), design.kind))
    assert promised.clients == least


@pytest.mark.parametrize(("strategy", "kind"), STRATEGIES, ids=lambda given: getattr(given, "__name__", str(given)))
def test_no_owner_refuses_an_invitation_whose_parameters_have_enough_noise(strategy, kind):
    setting = Setting(ParticipationSchedule(40, 16, 20), dim=100, colluders=2)
    design = RoundPlan(strategy, setting, 6.0, ThreatModel(MALICIOUS), kind)
    promised, most = design.promise(design.least), min(noise_ratios(design.example()))
    for terms in (promised, Terms.from_parameters(design.example(), design.kind)):
        check_noise(Policy(noise=most), terms.ratio)
    if kind is DSkellam and most:
        with pytest.raises(ParametersRefused, match="line 'noise'"):
            check_noise(Policy(noise=3 * most), promised.ratio)


@pytest.mark.parametrize("per_round", [5, 6])
def test_small_cohorts_of_every_size_keep_a_conservative_promise(per_round):
    """A fifth of 5 clients is one, and of 4 none: a cohort of 4 provides for one all the same."""
    setting = Setting(ParticipationSchedule(9, per_round, 2), dim=70)
    design = RoundPlan(Conservative(0.2), setting, 6.0, ThreatModel(SEMI_HONEST))
    promised = design.promise(design.least)
    for clients in range(design.least, 10):
        check_terms_kept(promised, Terms.from_parameters(design.for_clients(clients).example(), design.kind))
    assert design.for_clients(4).setting.reserve == (per_round == 5)  # of 6 a dropout is tolerated anyway
