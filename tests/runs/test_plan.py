"""Noise strategies: what each makes the clients agree on, and that every one is planned for its budget."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.privacy import accounting
from dordis.privacy.accounting import Gaussian, ParticipationSchedule, Repeated
from dordis.privacy.clipping import CLIPPING_BIT
from dordis.privacy.further_releases import FurtherValue
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss
from dordis.privacy.noise_strategies import TABLE, Central, Conservative, Early, Local, NoNoise, Orig, Rebasing, XNoise
from dordis.privacy.setting import Setting
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import SEMI_HONEST
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from tests.ledger.charged_rounds import new_ledger
from tests.protocols.rounds import agree_on_plan as agree_on

RUN = bytes(32)
SETTING = Setting(ParticipationSchedule(population=40, per_round=20, rounds=10), dim=100, delta=1e-5)
PROVING = [XNoise(), XNoise("exact"), Orig(), Early(), Conservative(0.2), Central(), Local()]


def design_of(strategy, **changes):
    return RoundPlan(strategy, replace(SETTING, **changes), 6.0)


def parameters_of(design, clients=range(1, 21), index=0):
    return design.agree_on(run=RUN, index=index, clients=clients, rotation=bytes(32), model=b"", beacon=bytes(32))


def output_of(parameters, survivors):
    from dordis.privacy.xnoise_components import removal_context

    plan, named = parameters.plans[0], removal_context(parameters.round, 0, parameters.digest)
    total = np.zeros(parameters.dim, np.uint32)
    return ChunkOutput(
        total,
        tuple(survivors),
        plan.variance_left(survivors, named),
        plan.charged_variance(survivors, named),
        {},
        set(),
    )


@pytest.mark.parametrize("strategy", PROVING, ids=lambda strategy: strategy.name)
def test_as_many_rounds_as_the_cap_without_dropout_keep_the_budget_and_nearly_use_it_up(strategy):
    design = design_of(strategy, tolerance=0)
    ledger = new_ledger(RUN, design.budget)
    for index in range(design.cap):
        parameters = parameters_of(design, index=index)
        ledger.reserve(design.charge(parameters))
        ledger.complete(index, [output_of(parameters, parameters.clients)])
    spent = ledger.summary().epsilon
    least = 4.5 if isinstance(strategy, Conservative) else 5.9  # it provides for a fifth that did not drop
    assert least < spent <= 6.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [XNoise(), XNoise("exact")], ids=["single", "exact"])
@pytest.mark.parametrize("dropped", range(8))
def test_xnoise_keeps_what_was_wanted_whoever_drops(strategy, dropped):
    design = design_of(strategy, tolerance=7)
    parameters = parameters_of(design)
    noise = design.noise([output_of(parameters, parameters.clients[dropped:])])
    assert noise.left >= noise.charged >= noise.wanted


@pytest.mark.parametrize("strategy", [Orig(), Early()], ids=lambda strategy: strategy.name)
def test_orig_loses_the_share_of_everyone_who_drops(strategy):
    design = design_of(strategy, tolerance=7)
    parameters = parameters_of(design)
    noise = design.noise([output_of(parameters, parameters.clients[5:])])
    assert noise.charged / noise.wanted == pytest.approx(14 / 19, rel=1e-6)  # 15 are left, of whom one may collude


def test_conservative_provides_for_its_rate_and_no_more():
    design = design_of(Conservative(0.25), tolerance=7)
    parameters = parameters_of(design)
    kept = [design.noise([output_of(parameters, parameters.clients[d:])]) for d in (5, 6)]
    assert kept[0].charged >= kept[0].wanted > kept[1].charged


def test_the_baselines_add_their_own_noise_and_the_protocol_none():
    for strategy in (Central(), Local(), NoNoise()):
        parameters = parameters_of(design_of(strategy))
        assert parameters.scheme == "none"
        assert all(not (plan.base or plan.removable) for plan in parameters.plans)


def test_local_needs_far_more_noise_than_central():
    central, local = (design_of(strategy).mechanism for strategy in (Central(), Local()))
    assert local.sigma == pytest.approx(central.sigma, rel=0.01)  # each client adds what the server would add once


def test_what_proves_nothing_has_no_charge():
    for strategy in (NoNoise(), Rebasing()):
        design = design_of(strategy)
        assert not design.proves
        assert design.charge(parameters_of(design)) is None


def test_orig_is_counted_and_never_stopped_and_the_others_are():
    assert design_of(Orig()).budget.epsilon is None
    for strategy in (XNoise(), Early(), Conservative(), Central(), Local()):
        assert design_of(strategy).budget.epsilon == 6.0


def test_gaussian_noise_is_calibrated_as_the_ledger_counts():
    multiplier = accounting.gaussian_multiplier(6.0, 11, 1e-5)
    assert accounting.epsilon(Repeated(Gaussian(multiplier), 11), 1e-5) <= 6.0
    assert accounting.epsilon(Repeated(Gaussian(multiplier * (1 - 1e-9)), 11), 1e-5) > 6.0


@pytest.mark.parametrize("strategy", [XNoise(), Central(), NoNoise()], ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("clients", [15, 23])
def test_rounds_of_another_size_keep_the_releases_of_a_client(strategy, clients):
    design = design_of(strategy)
    other = design.for_clients(clients)
    assert other.setting.clients == clients
    assert other.cap == design.cap
    assert len(parameters_of(other, range(1, clients + 1)).clients) == clients
    with pytest.raises(InputError, match=f"{clients} clients a round"):
        parameters_of(other)


def test_discrete_gaussian_noise_goes_with_orig():
    design = RoundPlan(Orig(), SETTING, 6.0, kind=DDGauss)
    parameters = parameters_of(design)
    assert parameters.scheme == "none"
    assert (parameters.encoding.mechanism, parameters.encoding.noise) == ("ddgauss", str(design.mechanism.share))
    noise = design.noise([output_of(parameters, parameters.clients)])
    assert noise.left > noise.charged >= noise.wanted * (1 - 1e-12)


def test_a_sparse_graph_is_solved_for():
    design = RoundPlan(XNoise(), replace(SETTING, tolerance=1), 6.0, ThreatModel(sparse=True))
    parameters = parameters_of(design)
    assert 0 < parameters.degree <= 19
    assert parameters.quorum == design.setting.t


def test_noise_is_the_same_in_every_chunk():
    setting = Setting(ParticipationSchedule(population=40, per_round=20, rounds=10), dim=40_000, delta=1e-5)
    parameters = RoundPlan(XNoise(), setting, 6.0).example(chunks=2)
    assert len(parameters.chunks) == 2
    assert len({Fraction(variance) for variance in parameters.variances.values()}) == 1


@pytest.mark.parametrize(("threshold", "mode"), [(57, "malicious"), (100, "malicious"), (20, "semi-honest")])
@pytest.mark.parametrize("clients", [60, 99, 140])
def test_a_threshold_of_ones_own_is_kept_in_proportion_and_above_the_colluders(threshold, mode, clients):
    setting = Setting(ParticipationSchedule(200, 100, 2), dim=10, delta=1e-5, threshold=threshold, colluders=10)
    design = RoundPlan(XNoise(), setting, 6.0, ThreatModel(mode)).for_clients(clients)
    assert design.example().quorum >= threshold * clients / 100


@pytest.mark.parametrize(("clip", "dim", "epsilon"), [(0.7, 10, 2.0), (3.0, 10, 3.3), (1.3, 1000, 8.7)])
@pytest.mark.parametrize("strategy", [Central(), Local()], ids=lambda strategy: strategy.name)
def test_rounding_does_not_cost_the_baselines_their_last_round(strategy, clip, dim, epsilon):
    for rounds in (3, 7):
        setting = Setting(ParticipationSchedule(100, 50, rounds), dim=dim, clip=clip, delta=1e-5)
        design = RoundPlan(strategy, setting, epsilon)
        charge = design.charge(parameters_of(design, range(1, 51)))
        event = Repeated(charge.releases[0].prices[0].event, design.cap)
        assert epsilon * (1 - 1e-8) < accounting.epsilon(event, 1e-5) <= epsilon


@pytest.mark.parametrize("strategy", [XNoise(), XNoise("exact"), Orig(), Conservative(0.2)], ids=lambda s: s.name)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_design_writes_its_plan_down(strategy, share):
    further = (FurtherValue(CLIPPING_BIT, share),) if share else ()
    design = RoundPlan(strategy, replace(SETTING, dim=40_000, further=further), 6.0, ThreatModel(SEMI_HONEST))
    expected = agree_on(
        design.plan, run=RUN, index=0, chunks=2, further=design.plan.further, rotation=bytes(32), beacon=bytes(32)
    )
    assert design.example(chunks=2) == expected
    assert (expected.encoding.bit > 0) == (share > 0)


def test_every_strategy_says_what_it_does_and_why_it_proves_nothing_where_it_does():
    for kind in TABLE:
        design = design_of(kind())
        assert design.words.noise
        assert "{" not in design.words.noise
        assert bool(design.words.unproved) == (not design.proves)
        assert design.trust(True, False).noise is design.mechanism.noise_from


@pytest.mark.parametrize("strategy", [Central(), Local()], ids=lambda strategy: strategy.name)
def test_a_strategy_that_brings_its_mechanism_takes_no_other(strategy):
    assert RoundPlan(strategy, SETTING, 6.0, kind=DDGauss).mechanism.name == strategy.mechanism


def test_the_noise_on_a_sum_is_told_whoever_adds_it():
    central, local, none = (design_of(strategy) for strategy in (Central(), Local(), NoNoise()))
    assert central.sigma == pytest.approx(central.mechanism.sigma)
    assert local.sigma == pytest.approx(local.mechanism.sigma * 20**0.5)
    assert none.sigma is None
