"""The audit of whole rounds: it believes the real ones, and finds faults in their noise and in samples of records."""

import hashlib
import itertools
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest

from dordis.apps.audit import audit, audit_records, toy_design, toy_record_design
from dordis.apps.audit.auditor import FixedDropout, KnownNoise, attacked_round, canary_client
from dordis.apps.audit.variance import variance_test
from dordis.errors import AuditFailed, DordisError, InputError
from dordis.owner.participation import OwnerBudget
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.noise_strategies import NoNoise, XNoise
from dordis.privacy.skellam_noise import SKELLAM, add_noise, round_up_variance
from dordis.privacy.xnoise_components import NoisePlan, read_noise_plan
from dordis.protocol import ClientId
from dordis.protocols.plaintext import PLAINTEXT
from dordis.protocols.secagg import SECAGG, SECAGG_PLUS
from dordis.rounds import records as sampled_records
from dordis.rounds.watch import StageBegan
from dordis.simulation.run import home_of_clients, single_round

SEEDS = range(20)
CLIENTS, COLLUDERS, DROPPED, LATE = 20, 2, 3, 2
SCHEMES = ("single", "exact")
SMALL, LARGE, COUNTED = "smaller than the round states", "larger than the round states", "privacy counts on"


def entropy_of(seed):
    drawn = itertools.count()
    return lambda size: hashlib.shake_256(b"%d %d" % (seed, next(drawn))).digest(size)


def times(factor):
    """Draw noise whose variance is wrong by a factor."""

    def noise(acc, seed, variance, *, subtract=False):
        add_noise(acc, seed, round_up_variance(variance * factor), subtract=subtract)

    return noise


def never_added(acc, seed, variance, *, subtract=False):
    pass


def never_taken_back(acc, seed, variance, *, subtract=False):
    add_noise(acc, seed, variance) if not subtract else None


@pytest.fixture
def faulty(monkeypatch):
    """Return what makes all clients and the server, in any protocol, draw other noise."""

    def put(noise):
        monkeypatch.setattr(DSkellam, "law", replace(SKELLAM, add=noise))

    return put


@cache
def small_design(scheme="single", protocol=SECAGG, clients=CLIENTS, colluders=COLLUDERS):
    return toy_design(clients, epsilon=0.1, colluders=colluders, strategy=XNoise(scheme), protocol=protocol)


def found(seed, scheme="single", protocol=SECAGG, **others):
    return audit(small_design(scheme, protocol, **others), DROPPED, LATE, protocol, entropy_of(seed)).findings


def canary_population(design, coins, protocol, leaving, entropy):
    """Return a population in which client u has the canary of coin u - 1."""
    client = partial(canary_client, design.setting)
    return home_of_clients(design, protocol, lambda u: client(u, coins[u - 1 : u]), entropy, leaving)


# The test of the noise: right noise always passes, a factor of 2 never does, in whole rounds of SecAgg


@pytest.mark.parametrize("scheme", SCHEMES)
def test_right_noise_passes(scheme):
    assert [found(seed, scheme) for seed in SEEDS[:1]] == [()]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "words"), [(Fraction(1, 2), SMALL), (Fraction(2), LARGE)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_noise_that_is_wrong_by_a_factor_of_two_in_variance_is_found(faulty, scheme, factor, words):
    faulty(times(factor))
    assert all(words in " ".join(found(seed, scheme)) for seed in SEEDS[:1])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_twenty_of_twenty(faulty, scheme):
    assert sum(not found(seed, scheme) for seed in SEEDS) == 20
    for factor, words in ((Fraction(1, 2), SMALL), (Fraction(2), LARGE)):
        faulty(times(factor))
        assert sum(words in " ".join(found(seed, scheme)) for seed in SEEDS) == 20


@pytest.mark.slow
def test_rounds_on_a_sparse_graph_are_audited_like_others(faulty):
    many = {"protocol": SECAGG_PLUS, "clients": 60}
    assert small_design(**many).example().degree
    assert found(0, **many) == ()
    faulty(times(Fraction(1, 2)))
    assert SMALL in " ".join(found(0, **many))


@pytest.mark.slow
def test_noise_of_the_size_of_real_units_on_the_integer_grid_is_found(faulty):
    """The fault of the paper's code: its noise had the standard deviation of real units, 8000 times too small."""
    faulty(times(Fraction(1, 8000**2)))
    findings = found(1, clients=40)
    assert SMALL in findings[0]
    assert "an attack shows epsilon" in findings[-1]


def test_noise_that_is_not_taken_back_is_found(faulty):
    faulty(never_taken_back)
    assert [words for words in found(0) if LARGE in words]


def test_noise_that_is_taken_back_too_often_is_found(monkeypatch):
    honest = NoisePlan.due_components

    def greedy(plan, survivors, context):
        due = honest(plan, survivors, context)
        return dict.fromkeys(due, (0,)) if plan.removable else due

    monkeypatch.setattr(NoisePlan, "due_components", greedy)
    assert found(0) == ("privacy counts on less noise than was planned",)


@pytest.fixture
def new_plans():
    """Forget cached plans before and after a test: they remember values that the test replaces."""
    for cached in (small_design, read_noise_plan):
        cached.cache_clear()
    yield
    for cached in (small_design, read_noise_plan):
        cached.cache_clear()


@pytest.mark.usefixtures("new_plans")
def test_noise_that_does_not_make_up_for_colluders_is_found(monkeypatch):
    monkeypatch.setattr(NoisePlan, "kappa", Fraction(1))
    monkeypatch.setattr(OwnerBudget, "covers", lambda *_: True)  # owners would refuse
    assert found(0) == ("privacy counts on less noise than was planned",)


@pytest.mark.slow
def test_a_charge_that_counts_on_the_noise_of_colluders_is_found(monkeypatch):
    monkeypatch.setattr(NoisePlan, "charged_variance", NoisePlan.variance_left)
    assert found(0, clients=40, colluders=12) == (
        "the noise that colluders do not know is smaller than privacy counts on",
    )


def test_clients_that_share_a_seed_are_found(faulty):
    def same(acc, seed, variance, *, subtract=False):
        add_noise(acc, bytes(32), variance, subtract=subtract)

    faulty(same)
    assert [words for words in found(0) if LARGE in words]


# What the auditor sees


@pytest.mark.parametrize("protocol", [SECAGG, PLAINTEXT], ids=["secagg", "plaintext"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_the_noise_of_its_colluders_a_sum_has_just_the_noise_of_the_others(faulty, scheme, protocol):
    """If honest clients draw none, nothing is left: all that the colluders added and that stayed is known."""
    design = small_design(scheme, protocol)
    colluding = [ClientId(u) for u in range(1, COLLUDERS + 1)]
    seeds = {}

    def only_colluders(acc, seed, variance, *, subtract=False):
        if seed in seeds:
            add_noise(acc, seed, variance, subtract=subtract)

    faulty(only_colluders)
    known = KnownNoise(protocol, colluding, DSkellam.law)

    def watch(event):
        begins = isinstance(event, StageBegan) and event.stage == protocol.stages[protocol.upload]
        for u, machine in known._machines.items() if begins else ():
            own = machine.issued(0)
            seeds.update(dict.fromkeys((*own.private, *own.deposited), u))
        known.watch(event)

    coins = np.arange(design.setting.dim) % 3 == 0
    home = canary_population(
        design, coins, known.protocol, FixedDropout.from_protocol(protocol, DROPPED, 0), entropy_of(1)
    )
    output = single_round(home, watch=watch).result.outputs[0]
    seen = known.measure_chunk(0, output)
    assert set(seeds.values()) == set(colluding)
    assert seen.noise.any()
    assert not seen.hidden.any()


def test_what_leaves_late_is_rebuilt_and_stays_right():
    design = small_design()
    known = KnownNoise(SECAGG, [])
    home = canary_population(
        design, np.zeros(1024, bool), known.protocol, FixedDropout.from_protocol(SECAGG, 1, 4), entropy_of(3)
    )
    stages = []
    watch = known.watch
    known.watch = lambda event: (stages.append(getattr(event, "stage", "")), watch(event))
    seen = attacked_round(home, known)
    assert "RemoveNoise" in stages
    assert seen.charged >= design.plan.variance
    assert min(variance_test(seen.noise).too_small, variance_test(seen.noise).too_large) > 1e-4


# Canaries


@pytest.fixture(scope="module")
def design():
    return toy_design(300, protocol=PLAINTEXT)


@pytest.mark.slow
def test_no_noise_at_all_shows_all_that_can_be_shown(design, faulty):
    faulty(never_added)
    seen = audit(design, protocol=PLAINTEXT, entropy=entropy_of(2))
    assert (seen.canaries.correct, seen.canaries.guesses) == (300, 300)
    assert seen.canaries.shown == seen.canaries.most
    with pytest.raises(AuditFailed, match="an attack shows epsilon") as refused:
        seen.check()
    assert refused.value.findings == seen.findings
    assert isinstance(refused.value, DordisError)


def test_a_canary_is_the_largest_update_that_there_is(design, faulty):
    faulty(never_added)
    known = KnownNoise(PLAINTEXT, [])
    coins = np.ones(design.setting.dim, bool)
    home = canary_population(design, coins, known.protocol, FixedDropout.from_protocol(PLAINTEXT, 0, 0), entropy_of(6))
    assert np.mean(attacked_round(home, known).total[:300]) == pytest.approx(design.setting.clip, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 60, 118])
def test_the_real_mechanism_keeps_its_claim_whoever_drops(design, dropped):
    seen = audit(design, dropped, protocol=PLAINTEXT, entropy=entropy_of(dropped))
    assert seen.canaries.canaries == 300 - dropped
    assert 0 <= seen.canaries.shown <= seen.canaries.claimed == design.plan.epsilon <= 2
    assert seen.findings == ()
    seen.check()


@pytest.mark.slow
def test_many_rounds_are_attacked_together(faulty):
    design = toy_design(200, rounds=4, epsilon=1.0, protocol=PLAINTEXT, colluders=5)
    assert design.cap == 4
    right = audit(design, protocol=PLAINTEXT, entropy=entropy_of(4))
    assert (right.findings, right.noise.samples) == ((), 4096)
    faulty(times(Fraction(1, 100**2)))
    assert audit(design, protocol=PLAINTEXT, entropy=entropy_of(4)).canaries.refuted


# What cannot be audited


def test_a_claim_beyond_what_can_be_shown_is_not_audited():
    with pytest.raises(InputError, match="at best"):
        audit(toy_design(100, epsilon=8.0))


def test_a_design_without_a_coordinate_for_each_client_is_not_audited():
    whole = toy_design(100)
    with pytest.raises(InputError, match="coordinate"):
        audit(replace(whole, setting=replace(whole.setting, dim=99)))


def test_a_design_without_noise_of_the_clients_is_not_audited(design):
    with pytest.raises(InputError, match="add together"):
        audit(replace(design, strategy=NoNoise()))


@pytest.mark.parametrize(("dropped", "late"), [(-1, 0), (120, 0), (0, -1), (100, 50)])
def test_more_dropouts_than_tolerated_are_not_audited(design, dropped, late):
    with pytest.raises(InputError, match="drop out" if late == 0 else "leave after"):
        audit(design, dropped, late, PLAINTEXT)


OF_RECORDS = {"clients": 6, "records": 60, "rounds": 3, "sampling": 0.2, "colluders": 1}


def run_records(seed, epsilon=2.0, **changes):
    return audit_records(toy_record_design(epsilon=epsilon, **(OF_RECORDS | changes)), 1, 1, entropy=entropy_of(seed))


def test_real_rounds_of_records_are_believed_with_dropout_and_a_colluder():
    found = run_records(0)
    assert not found.findings
    assert found.canaries.canaries == 4 * 60
    assert found.noise.ratio == pytest.approx(1.0, abs=0.1)
    assert found.counted >= 1


def test_noise_of_records_that_is_too_small_is_found(monkeypatch):
    monkeypatch.setattr(DSkellam, "law", replace(SKELLAM, add=times(0.5)))
    assert any("smaller than the round states" in words for words in run_records(4).findings)


@pytest.mark.slow
def test_a_client_that_does_not_sample_is_found_by_the_canaries(monkeypatch):
    """The noise is as planned, and counts on samples that the clients do not draw: only the attack shows it."""
    plain = run_records(5, epsilon=1.5, sampling=0.02, rounds=40, records=100)
    assert not plain.findings
    everything = lambda seed, sampling, records, cap: sampled_records.np.arange(records)  # noqa: E731
    monkeypatch.setattr(sampled_records, "draw_sample", everything)
    found = run_records(5, epsilon=1.5, sampling=0.02, rounds=40, records=100)
    assert any("an attack shows epsilon" in words for words in found.findings)


def test_a_design_for_clients_has_no_canary_records():
    with pytest.raises(InputError, match="needs records as the unit of privacy"):
        audit_records(toy_design(20))
