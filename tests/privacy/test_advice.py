"""How many clients a run needs: the advice about a plan, compared with simulated runs."""

import math
import secrets
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import dordis
from dordis import AppClient, AppServer
from dordis.cli import plan_advice
from dordis.errors import InputError
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.advice import advise, clients_for_ratio, list_warnings, parameters_for_ratio, run_ratio
from dordis.privacy.planning import Plan, plan
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import add_noise
from dordis.protocols.noise_addition_and_removal import split_variance

HOSPITALS = Setting(ParticipationSchedule(10, 10, 50), dim=1_000_000, delta=1e-5), 6.0
MORE_HOSPITALS = Setting(ParticipationSchedule(1000, 100, 50), dim=18_410, delta=1e-5), 3.0
LARGE_MODEL = Setting(ParticipationSchedule(1000, 100, 50), dim=1_000_000, delta=1e-5), 3.0
PHONES = Setting(ParticipationSchedule(100_000, 1000, 100), dim=1_000_000, delta=1e-5), 6.0
SEPARATION = 2.0  # of two classes along the direction to be learnt: without noise 97.7 % of them are told apart


def resized(planned: Plan, n: int, rounds: int) -> Plan:
    schedule = replace(planned.setting.participation, per_round=n, rounds=rounds)
    return plan(replace(planned.setting, participation=schedule), planned.epsilon)


def after_all_rounds(planned: Plan) -> tuple[float, float]:
    """Return what R rounds of agreeing clients add up to: the length of the signal, and that of the noise.

    The noise is drawn by the sampler of the protocol: Skellam variables of R rounds add up to one.
    """
    setting = planned.setting
    rounds, n = setting.participation.rounds, setting.clients
    drawn = np.zeros(setting.dim, np.uint32)
    left = Fraction(planned.noise.variance_left(range(n), b""))
    for variance in split_variance(left * rounds):
        add_noise(drawn, secrets.token_bytes(32), variance)
    noise = drawn.view(np.int32).astype(np.float64) / planned.scale
    return rounds * n * setting.clip, float(np.linalg.norm(noise))


def accuracy(signal: float, noise: float) -> float:
    """Tell two classes apart along the noisy direction: Phi(separation times its cosine with the right one)."""
    return 0.5 * math.erfc(-SEPARATION * signal / math.hypot(signal, noise) / math.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "least", "most", "said"),
    [
        (HOSPITALS, 0.50, 0.52, "the noise drowns everything"),
        (LARGE_MODEL, 0.60, 0.75, "only coarse things are learnt"),
        (MORE_HOSPITALS, 0.93, 0.97, "a model is learnt, and the noise costs accuracy"),
        (PHONES, 0.975, 0.98, "the noise costs little accuracy"),
    ],
)
def test_what_is_said_of_a_run_is_what_its_noise_does(given, least, most, said):
    planned = plan(*given)
    signal, noise = after_all_rounds(planned)
    assert run_ratio(planned) == pytest.approx(signal / noise, rel=0.05)
    assert least <= accuracy(signal, noise) <= most
    assert said in plan_advice.describe_run(planned)
    assert ("nothing will be learnt" in " ".join(list_warnings(planned))) == (given is HOSPITALS)


class Total(AppServer):
    """Add up the means of all rounds."""

    dim = 20_000

    def __init__(self):
        self.total = np.zeros(self.dim)

    def use_output(self, round, aggregate):
        self.total += aggregate.mean

    def result(self):
        return self.total


class Agreeing(AppClient):
    """Give the same update as everybody, as long as the clip bound."""

    def __init__(self, place):
        self.update = np.full(Total.dim, 1 / math.sqrt(Total.dim))

    def prepare_data(self, round, model):
        return self.update


def test_the_ratio_is_that_of_a_whole_run(tmp_path):
    rounds, federation = 6, {"clients": 24, "per_round": 12, "rounds": 6}
    total = dordis.run(
        {
            "output": str(tmp_path),
            "app": {"server": f"{__name__}:Total", "client": f"{__name__}:Agreeing"},
            "federation": federation,
            "privacy": {"epsilon": 8.0, "delta": 1e-5},
            "simulation": {"fidelity": "ideal", "dropout": {"kind": "none"}},
        }
    ).model
    noise = total - rounds / math.sqrt(Total.dim)
    planned = plan(Setting(ParticipationSchedule(24, 12, rounds), dim=Total.dim, delta=1e-5), 8.0)
    assert rounds / np.linalg.norm(noise) == pytest.approx(run_ratio(planned), rel=0.05)


def test_the_ratio_grows_as_the_root_of_n_and_not_with_rounds():
    planned = plan(*MORE_HOSPITALS)
    assert run_ratio(resized(planned, 400, 50)) == pytest.approx(2 * run_ratio(planned), rel=0.03)
    assert run_ratio(resized(planned, 100, 200)) == pytest.approx(run_ratio(planned), rel=0.03)


def test_so_many_clients_or_parameters_have_the_ratio_that_is_said():
    setting, epsilon = MORE_HOSPITALS
    planned = plan(setting, epsilon)
    clients = clients_for_ratio(planned, 10)
    wider = replace(setting, participation=ParticipationSchedule(clients, clients // 10, 50))
    smaller = replace(setting, dim=parameters_for_ratio(planned, 10))
    assert run_ratio(plan(wider, epsilon)) == pytest.approx(10, rel=0.05)
    assert run_ratio(plan(smaller, epsilon)) == pytest.approx(10, rel=0.1)


def test_the_smallest_cohort_that_has_enough_is_chosen():
    planned = plan(Setting(ParticipationSchedule(5000, 100, 51), dim=18_410, delta=1e-5), 6.0)
    advice = advise(planned, lambda n, rounds: resized(planned, n, rounds))
    cohort = advice.chosen.setting.participation
    assert 100 < cohort.per_round < 1000
    assert cohort.rounds * cohort.per_round == pytest.approx(cohort.releases * 5000, rel=0.02)
    assert run_ratio(advice.chosen) == pytest.approx(10, rel=0.1)
    assert [larger.setting.clients for larger in advice.larger] == [200, 400, 1000]


def test_a_plan_that_has_enough_is_kept_and_cohorts_that_cannot_be_are_left_out():
    planned = plan(*PHONES)

    def none(n, rounds):
        raise InputError("no")

    assert advise(planned, none).chosen is planned
    assert "A round cannot have more clients" in plan_advice.describe_larger_rounds(advise(planned, none))
    advice = advise(planned, lambda n, rounds: resized(planned, n, rounds))
    assert advice.chosen.setting.participation == planned.setting.participation


@pytest.mark.parametrize(
    ("delta", "epsilon", "said"),
    [
        (1e-2, 6.0, ("not below 0.01", "above 0.001")),
        (9e-3, 6.0, ("above 0.001",)),
        (1e-5, 25.0, ("above 20",)),
        (9e-4, 19.0, ()),
    ],
)
def test_a_guarantee_that_promises_little_is_warned_of(delta, epsilon, said):
    found = list_warnings(plan(Setting(ParticipationSchedule(100, 50, 20), dim=650, delta=delta), epsilon))
    assert len(found) == len(said)
    assert all(words in warning for words, warning in zip(said, found, strict=True))
