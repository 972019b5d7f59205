"""The audit: it believes the real mechanism, and refutes one whose noise is too small, on the same seeds."""

import hashlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from dordis.apps.audit import audit, home_of_canaries, lower_bound, one_round, p_value, toy_design
from dordis.errors import AuditFailed, DordisError, InputError
from dordis.federation.strategies import NoNoise
from dordis.privacy.noise import add_noise, rounded_up
from dordis.protocols.plaintext import PLAINTEXT, client, server
from dordis.protocols.secagg import SECAGG

CLIENTS, MOST_DROPPED = 300, 119


def entropy_of(seed):
    drawn = itertools.count()
    return lambda size: hashlib.shake_256(b"%d %d" % (seed, next(drawn))).digest(size)


def too_small(factor):
    """Draw noise whose standard deviation is too small by a factor."""

    def noise(acc, seed, variance, *, subtract=False):
        add_noise(acc, seed, rounded_up(variance / factor**2), subtract=subtract)

    return noise


def never_added(acc, seed, variance, *, subtract=False):
    pass


def never_taken_back(acc, seed, variance, *, subtract=False):
    add_noise(acc, seed, variance, subtract=False) if not subtract else None


@pytest.fixture
def faulty(monkeypatch):
    """Return what makes the clients and the server of the plaintext protocol draw other noise."""

    def put(noise):
        for party in (client, server):
            monkeypatch.setattr(party, "add_noise", noise)

    return put


@pytest.fixture(scope="module")
def design():
    return toy_design(CLIENTS)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [0, 60, MOST_DROPPED])
def test_the_real_mechanism_keeps_its_claim_whoever_drops(design, dropped):
    found = audit(design, dropped, entropy=entropy_of(dropped))
    assert found.canaries == CLIENTS - dropped
    assert 0 <= found.shown <= found.claimed == design.plan.epsilon <= 2
    assert not found.refuted
    found.check()


@pytest.mark.slow
@pytest.mark.parametrize("factor", [16, 100, 8000])
@pytest.mark.parametrize("dropped", [0, MOST_DROPPED])
def test_noise_that_is_too_small_is_found_out(design, faulty, factor, dropped):
    faulty(too_small(factor))
    found = audit(design, dropped, entropy=entropy_of(dropped))
    assert found.refuted
    with pytest.raises(AuditFailed) as refused:
        found.check()
    assert (refused.value.shown, refused.value.claimed) == (found.shown, design.plan.epsilon)
    assert isinstance(refused.value, DordisError)


def test_noise_of_the_size_of_real_units_on_the_integer_grid_is_found_out(design, faulty):
    faulty(too_small(design.plan.scale))
    found = audit(design, entropy=entropy_of(1))
    assert found.refuted
    assert found.shown > 1.9 * found.claimed


def test_no_noise_at_all_shows_all_that_can_be_shown(design, faulty):
    faulty(never_added)
    found = audit(design, entropy=entropy_of(2))
    assert (found.correct, found.guesses) == (CLIENTS, CLIENTS)
    assert found.shown == found.most


def test_more_noise_than_planned_is_no_reason_for_alarm(design, faulty):
    faulty(never_taken_back)
    assert not audit(design, entropy=entropy_of(3)).refuted


@pytest.mark.slow
def test_many_rounds_are_attacked_together(faulty):
    design = toy_design(200, rounds=4, epsilon=1.0)
    assert design.cap == 4
    assert not audit(design, entropy=entropy_of(4)).refuted
    faulty(too_small(100))
    assert audit(design, entropy=entropy_of(4)).refuted


def test_the_sum_that_is_attacked_has_just_the_noise_of_the_plan(design):
    nobody = np.zeros(CLIENTS - 60, np.bool_)
    seen = one_round(home_of_canaries(design, nobody, PLAINTEXT, entropy_of(5)), nobody)
    left = float(design.plan.noise.left(range(CLIENTS - 60), b"")) / design.plan.scale**2
    assert np.var(seen) == pytest.approx(left, rel=5 * math.sqrt(2 / nobody.size))


def test_a_canary_is_the_largest_update_that_there_is(design, faulty):
    faulty(never_added)
    everyone = np.ones(CLIENTS, np.bool_)
    seen = one_round(home_of_canaries(design, everyone, PLAINTEXT, entropy_of(6)), everyone)
    assert np.mean(seen) == pytest.approx(design.setting.clip, rel=0.05)


def test_any_protocol_can_be_audited():
    design = toy_design(40, epsilon=0.5)
    found = audit(design, 4, SECAGG, entropy_of(7))
    assert (found.canaries, found.refuted) == (36, False)


@pytest.mark.slow
def test_the_claim_stands_again_and_again_and_a_quarter_of_the_noise_never_passes(faulty):
    design = toy_design(2000)
    assert not any(audit(design, 399, entropy=entropy_of(seed)).refuted for seed in range(3))
    faulty(too_small(4))
    assert all(audit(design, 399, entropy=entropy_of(seed)).refuted for seed in range(3))


@pytest.mark.parametrize(
    ("guesses", "correct", "epsilon", "expected"),
    [(10, 10, 0.0, 2.0**-10), (10, 0, 3.0, 1.0), (1, 1, math.log(3), 0.75), (2, 1, math.log(3), 1 - 1 / 16)],
)
def test_without_delta_the_p_value_is_a_binomial_tail(guesses, correct, epsilon, expected):
    assert p_value(20, guesses, correct, epsilon, 0.0) == pytest.approx(expected)


def test_the_p_value_with_delta_is_that_of_the_theorem():
    m, r, v, epsilon, delta = 50, 20, 17, 1.0, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, w) * q**w * (1 - q) ** (r - w) for w in range(r + 1)]
    alpha = max(2 / i * sum(mass[max(0, v - i) : v]) for i in range(1, m + 1))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(sum(mass[v:]) + alpha * m * delta)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_is_bounded_below_its_epsilon_as_often_as_promised(epsilon):
    guesses = 200
    right = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    bounds = [lower_bound(guesses, guesses, v, 0.0, 0.95) for v in range(guesses + 1)]
    exceeded = sum(right.pmf(v) for v in range(guesses + 1) if bounds[v] > epsilon)
    assert 0.01 < exceeded <= 0.05
    assert bounds == sorted(bounds)
    assert bounds[int(right.mean())] > epsilon / 3


def test_delta_and_confidence_lower_the_bound():
    bounds = [lower_bound(1000, 100, 95, delta, 0.95) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > bounds[3]
    assert lower_bound(1000, 100, 95, 0.0, 0.999) < bounds[0]


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


@pytest.mark.parametrize("dropped", [-1, MOST_DROPPED + 1])
def test_more_dropouts_than_tolerated_are_not_audited(design, dropped):
    with pytest.raises(InputError, match="drop out"):
        audit(design, dropped)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: p_value(10, 11, 5, 1.0, 0.0),
        lambda: p_value(10, 5, 6, 1.0, 0.0),
        lambda: p_value(10, 5, -1, 1.0, 0.0),
        lambda: p_value(10, 5, 5, -1.0, 0.0),
        lambda: p_value(10, 5, 5, 1.0, 2.0),
        lambda: lower_bound(10, 5, 5, 0.0, 1.0),
        lambda: lower_bound(10, 5, 5, 0.0, 0.0),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
