"""What each mechanism's sums cost in the ledger, against a second computation, and that none of it can be altered."""

import json
import math
from collections.abc import Callable
from fractions import Fraction

import dp_accounting
import mpmath
import pytest
from msgspec import UNSET, structs

from dordis import wire
from dordis.errors import BudgetExceeded, InputError, LedgerDamaged, ParametersRefused
from dordis.ledger.entries import Reserved, encode_entry
from dordis.ledger.ledger import Budget, Charge, Ledger, verify_ledger
from dordis.privacy import accounting, scaling
from dordis.privacy.accounting import (
    Composed,
    DiscreteGaussianSum,
    Event,
    Gaussian,
    Repeated,
    SkellamSum,
)
from dordis.privacy.clipping import clipping_bit
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian, LocalGaussian, NoMechanism
from dordis.privacy.mechanisms.skellam_and_ddgauss import DDGauss, DSkellam, discrete_gaussian_masses
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.cohort import CohortParameters, agree_on
from dordis.protocols.encoded_sums import encoding_of
from tests.case_samples import sample_cases
from tests.ledger.charged_rounds import DELTA, DIM, forge, new_ledger
from tests.protocols.rounds import Round, random_inputs
from tests.runs.cohorts import RUN

COARSE = Grid(dim=60, block=32, scale=15.0, bits=20)
GRID = Grid(dim=60, block=32, scale=16.0, bits=20)
BOUND = scaling.sensitivity(GRID.scale, 1.0, DIM)
SHARE = Fraction(3001, 4)
N, T, T_C = 8, 2, 1
UNLIMITED = Budget(None, DELTA)

DDGAUSS = DDGauss(GRID, 1.0, BOUND.squared, variance=SHARE)
CENTRAL = CentralGaussian(GRID, 1.0, BOUND.squared, sigma=3.0)
LOCAL = LocalGaussian(GRID, 1.0, sigma=4.5)


class Foreign(Mechanism, frozen=True, tag="somebody.else:Mechanism"):
    """A mechanism of somebody else's: what it costs is what it says."""

    says: Callable[[Fraction], Event] = lambda variance: Gaussian(math.sqrt(float(variance)) / BOUND.l2)
    schemes = frozenset(Scheme)

    def release(self, variance):
        return self.says(variance)


FOREIGN = Foreign(GRID, 1.0, BOUND.squared)


def parameters_of(mechanism, index=0, **options):
    """Return a round of eight clients and two chunks, in which the protocol adds no noise if nothing else is said."""
    settings = {"threshold": N - T, "tolerance": T, "colluders": T_C, "bits": 20, "ends": [DIM // 2, DIM]} | options
    bit = settings.pop("bit", 0)
    encoding = encoding_of(mechanism, bytes(32), [clipping_bit(bit)] if bit else [])
    return agree_on(run=RUN, index=index, clients=range(N), encoding=encoding, **settings)


def forged_noise(mechanism, noise):
    parameters = parameters_of(mechanism)
    return structs.replace(parameters, encoding=structs.replace(parameters.encoding, noise=noise))


def play(ledger, mechanism, index=0, dropped=(), told=True, **options):
    """Run a round of the protocol from its reservation to its end."""
    parameters = parameters_of(mechanism, index, **options)
    ledger.reserve(Charge.from_parameters(parameters, mechanism=mechanism if told else None))
    lost = [(u, "CollectInput", chunk) for u in dropped for chunk in range(2)]
    ledger.complete(index, Round(parameters, random_inputs(parameters, 1), lost_requests=lost).run())
    return ledger.summary()


def approx(value):
    return pytest.approx(value, rel=1e-7)


def reserved(mechanism, told=True, **options):
    ledger = new_ledger(RUN, UNLIMITED)
    ledger.reserve(Charge.from_parameters(parameters_of(mechanism, **options), mechanism=mechanism if told else None))
    return ledger.summary().epsilon


# Discrete Gaussian noise


def ddgauss_epsilon(honest, rounds=1):
    """Return the epsilon of shares of so many honest clients, from the published formula alone."""
    g, l1, l2 = math.sqrt(SHARE), BOUND.l1, BOUND.l2
    tau = 10 * sum(math.exp(-2 * (math.pi * g) ** 2 * k / (k + 1)) for k in range(1, honest))
    S = math.sqrt(honest) * g
    found = []
    for a in accounting.ORDERS:
        near = (l2 / S) ** 2
        divergence = min(
            a / 2 * near + tau * DIM,
            a / 2 * (near + 2 * l1 / S * tau + tau**2 * DIM),
            a / 2 * (l2 / S + tau * math.sqrt(DIM)) ** 2,
        )
        found.append(rounds * divergence + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1))
    return min(found)


@pytest.mark.parametrize("told", [True, False])
def test_ddgauss_is_reserved_at_the_shares_of_those_who_stay_at_least(told):
    assert reserved(DDGAUSS, told) == approx(ddgauss_epsilon(N - T - T_C))


@pytest.mark.parametrize("dropped", [(), (3,), (3, 5)])
def test_ddgauss_costs_what_the_shares_of_the_survivors_leave(dropped):
    ledger = new_ledger(RUN, UNLIMITED)
    summary = play(ledger, DDGAUSS, dropped=dropped)
    spent = ddgauss_epsilon(N - len(dropped) - T_C)
    assert summary.clients == approx({u: 0.0 if u in dropped else spent for u in range(N)})
    count = N - len(dropped)
    assert [fact.left for fact in ledger.round(0).outcomes] == [count * SHARE] * 2
    assert [fact.charged for fact in ledger.round(0).outcomes] == [(count - T_C) * SHARE] * 2
    event = DDGAUSS.release((count - T_C) * SHARE)
    assert summary.epsilon == approx(accounting.epsilon(event, DELTA))


def test_under_ddgauss_dropouts_cost_more():
    spent = [play(new_ledger(RUN, UNLIMITED), DDGAUSS, dropped=range(gone)).epsilon for gone in range(T + 1)]
    assert spent == sorted(set(spent))


def test_rounds_of_ddgauss_are_composed():
    ledger = new_ledger(RUN, UNLIMITED)
    for index in range(3):
        summary = play(ledger, DDGAUSS, index)
    assert summary.epsilon == approx(ddgauss_epsilon(N - T_C, rounds=3))
    assert summary.mechanisms == ("ddgauss",)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [Fraction(1, 4), 5, 10**4, 10**6])
def test_the_discrete_gaussian_sampler_is_as_near_to_its_law_as_is_charged(variance):
    found = discrete_gaussian_masses(variance)
    reach = math.isqrt(2 * 140 * math.ceil(variance)) + 2
    with mpmath.workprec(400):
        weights = [
            mpmath.exp(-(mpmath.mpf(x) ** 2) * mpmath.mpf(1) / (2 * mpmath.mpf(float(variance)))) for x in range(reach)
        ]
        total = weights[0] + 2 * sum(weights[1:])
        off = [
            abs(weight / total - mpmath.mpf(mass) / 2**127)
            for weight, mass in zip(weights, [*found, *[0] * reach], strict=False)
        ]
        distance = (off[0] + 2 * sum(off[1:])) / 2
    assert 0 < distance <= 2.0**-127 * (2 * len(found) + 1) < accounting.SAMPLE_DISTANCE


def test_what_the_discrete_gaussian_sampler_is_off_is_charged():
    (cost,) = Charge.from_parameters(parameters_of(DDGAUSS)).costs()
    assert cost.distance == N * DIM * 2.0**-105
    assert cost.event == Composed((Repeated(DDGAUSS.release((N - T - T_C) * SHARE), 1),))


@pytest.mark.parametrize("noise", ["", "0", "1/5", "6002/8", "1/0", "x", "-5", UNSET])
def test_a_share_that_is_none_is_refused(noise):
    with pytest.raises(ParametersRefused):
        Charge.from_parameters(forged_noise(DDGAUSS, noise))


def test_ddgauss_goes_with_no_other_noise_and_no_bare_bit():
    with pytest.raises(InputError, match="does not go with the scheme 'single'"):
        Charge.from_parameters(parameters_of(DDGAUSS, variances=[1, 1], scheme=Scheme.SINGLE))
    with pytest.raises(InputError, match="none to further releases"):
        Charge.from_parameters(parameters_of(DDGAUSS, bit=3, ends=[DIM, DIM + 1]))


# Gaussian noise


def gaussian_epsilon(multiplier, rounds):
    """Return the exact epsilon of Gaussian noise, as dp-accounting has it."""
    return dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(rounds), DELTA)


@pytest.mark.parametrize(
    ("mechanism", "multiplier"),
    [(CENTRAL, 3.0 * 16.0 / math.sqrt(BOUND.squared)), (LOCAL, 4.5)],
    ids=["central", "local"],
)
def test_gaussian_noise_costs_the_same_whoever_drops(mechanism, multiplier):
    ledger = new_ledger(RUN, UNLIMITED)
    assert reserved(mechanism) == approx(gaussian_epsilon(multiplier, 1))
    for index, dropped in enumerate([(), (2,), (6, 7)]):
        summary = play(ledger, mechanism, index, dropped)
        assert summary.clients[0] == approx(gaussian_epsilon(multiplier, index + 1))
    assert summary.clients[2] == approx(gaussian_epsilon(multiplier, 2))


@pytest.mark.parametrize("mechanism", [DDGAUSS, CENTRAL, LOCAL], ids=lambda mechanism: mechanism.name)
def test_mechanisms_of_dordis_are_read_from_the_parameters(mechanism):
    assert Charge.from_parameters(parameters_of(mechanism)) == Charge.from_parameters(
        parameters_of(mechanism), mechanism=mechanism
    )


@pytest.mark.parametrize("noise", ["", "nan", "4.50", "-1.0", "loud", UNSET])
@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL], ids=lambda mechanism: mechanism.name)
def test_gaussian_noise_that_is_no_number_is_refused(mechanism, noise):
    with pytest.raises(InputError):
        Charge.from_parameters(forged_noise(mechanism, noise))


def test_a_mechanism_must_be_agreed_on_and_those_of_others_told():
    with pytest.raises(InputError, match="not a mechanism of dordis: pass the mechanism"):
        Charge.from_parameters(parameters_of(FOREIGN))
    for other in (LOCAL, *(structs.replace(CENTRAL, **c) for c in ({"clip": 0.5}, {"sigma": 2.0}, {"grid": COARSE}))):
        with pytest.raises(ParametersRefused, match="not agreed"):
            Charge.from_parameters(parameters_of(CENTRAL), mechanism=other)


def test_a_bit_that_has_no_noise_passes_every_budget():
    charge = Charge.from_parameters(parameters_of(CENTRAL, bit=3, ends=[DIM, DIM + 1]), mechanism=CENTRAL)
    with pytest.raises(BudgetExceeded) as refused:
        new_ledger(RUN, Budget(1e6, DELTA)).reserve(charge)
    assert refused.value.epsilon == math.inf


# No mechanism, and those of others


@pytest.mark.parametrize("told", [True, False])
def test_without_a_mechanism_there_is_no_epsilon(told):
    nothing = NoMechanism(GRID)
    with pytest.raises(InputError, match="without a ledger"):
        Charge.from_parameters(parameters_of(nothing), mechanism=nothing if told else None)


@pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.EXACT, Scheme.ORIG])
def test_a_mechanism_of_others_costs_what_it_says_for_the_noise_that_counts(scheme):
    noise = {"variances": [5000, 6000], "scheme": scheme}
    plans = parameters_of(FOREIGN, **noise).plans
    least = min(plan.reserved_variance() for plan in plans)
    assert reserved(FOREIGN, **noise) == approx(gaussian_epsilon(math.sqrt(least) / BOUND.l2, 1))
    ledger = new_ledger(RUN, UNLIMITED)
    spent = play(ledger, FOREIGN, dropped=(4,), **noise).epsilon
    charged = min(fact.charged for fact in ledger.round(0).outcomes)
    assert spent == approx(gaussian_epsilon(math.sqrt(charged) / BOUND.l2, 1))
    assert charged > least if scheme is Scheme.ORIG else charged >= least


def test_the_same_noise_costs_the_same_as_skellams_whoever_says_it():
    noise = {"variances": [5000, 6000], "scheme": Scheme.SINGLE}
    ours = DSkellam(GRID, 1.0, BOUND.squared)
    foreign = structs.replace(FOREIGN, says=ours.release)
    assert reserved(foreign, **noise) == approx(reserved(ours, told=False, **noise))
    assert Charge.from_parameters(parameters_of(ours, **noise), mechanism=ours) == Charge.from_parameters(
        parameters_of(ours, **noise)
    )


def test_a_release_may_be_composed_of_several():
    parts = (Repeated(Gaussian(9.0), 2), SkellamSum(400, 160.0, 9000.0), DiscreteGaussianSum(20.0, 160.0, 5, 30.0, 64))
    event = Repeated(Composed(parts), 3)
    assert reserved(structs.replace(FOREIGN, says=lambda _: event)) == approx(accounting.epsilon(event, DELTA))


REFUSED = {
    "nothing": Composed(()),
    "no noise": Gaussian(0.0),
    "infinite noise": SkellamSum(400, 160.0, math.inf),
    "no number": SkellamSum(math.nan, 160.0, 9000.0),
    "less than nothing": Repeated(Gaussian(5.0), -1),
    "more clients than there are": DiscreteGaussianSum(20.0, 160.0, N + 1, 30.0, 64),
    "no event": "epsilon 1",
}


@pytest.mark.parametrize("event", REFUSED.values(), ids=REFUSED.keys())
def test_an_event_that_proves_nothing_is_refused(event):
    foreign = structs.replace(FOREIGN, says=lambda _: event)
    with pytest.raises(InputError):
        Charge.from_parameters(parameters_of(foreign), mechanism=foreign)


# The file


def write(path):
    """Write a round of every mechanism."""
    ledger = Ledger.create(path, RUN, UNLIMITED)
    for index, mechanism in enumerate([DDGAUSS, CENTRAL, LOCAL]):
        play(ledger, mechanism, index, dropped=(1,))
    return play(ledger, FOREIGN, 3, dropped=(1,), variances=[5000, 6000], scheme=Scheme.ORIG)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_a_ledger_is_verified_without_the_mechanisms(path, monkeypatch):
    summary = write(path)
    for mechanism in (DDGauss, CentralGaussian, LocalGaussian, Foreign):
        monkeypatch.delattr(mechanism, "release")
    assert verify_ledger(path, head=summary.head) == summary
    assert summary.mechanisms == ("central-gaussian", "ddgauss", "local-gaussian", FOREIGN.name)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    (central,) = entries[3]["charge"]["releases"]
    assert central["prices"][0]["terms"] == [
        {"kind": "gaussian", "times": 1, "event": {"multiplier": 48 / math.sqrt(BOUND.squared)}}
    ]


def test_rounds_under_skellam_noise_are_written_as_ever():
    ours = DSkellam(GRID, 1.0, BOUND.squared)
    parameters = parameters_of(ours, variances=[5000, 6000])
    charge = Charge.from_parameters(wire.decode(wire.encode(parameters), CohortParameters))
    assert charge == Charge.from_parameters(parameters, mechanism=ours)
    (release,) = json.loads(encode_entry(Reserved("", charge)))["charge"]["releases"]
    assert list(release) == ["l2_squared", "l1", "dim", "chunks", "variance"]


def release_of(entry):
    return entry["charge"]["releases"][0]


FORGED = {
    "larger shares": lambda es: release_of(es[1])["prices"][0]["terms"][0]["event"].update(scale=28.0),
    "shares of others": lambda es: release_of(es[1])["prices"][0]["terms"][0]["event"].update(clients=N),
    "shares without prices": lambda es: release_of(es[1]).update(mechanism="ddgauss:3001/4", prices=[]),
    "brought by nobody": lambda es: release_of(es[3]).update(brought=True),
    "prices without a mechanism": lambda es: release_of(es[3]).pop("mechanism"),
    "a larger share": lambda es: es[1]["charge"].update(variances=["10000", "10000"]),
    "less Delta2": lambda es: release_of(es[1]).update(l2_squared=1),
    "fewer dropped": lambda es: es[2]["facts"][0].update(dropped=[]),
    "more charged": lambda es: es[2]["facts"][0].update(charged="7000"),
    "nobody left": lambda es: [f.update(dropped=list(range(N)), left="0", charged="0") for f in es[2]["facts"]],
    "no prices": lambda es: release_of(es[3]).update(prices=[]),
    "prices for noise there is not": lambda es: release_of(es[3])["prices"][0].update(variance="1"),
    "more prices": lambda es: release_of(es[3])["prices"].append(release_of(es[3])["prices"][0]),
    "no terms": lambda es: release_of(es[3])["prices"][0].update(terms=[]),
    "no noise": lambda es: release_of(es[3])["prices"][0]["terms"][0]["event"].update(multiplier=0.0),
    "huge noise": lambda es: release_of(es[3])["prices"][0]["terms"][0]["event"].update(multiplier=1e301),
    "never": lambda es: release_of(es[3])["prices"][0]["terms"][0].update(times=0),
    "an unknown event": lambda es: release_of(es[3])["prices"][0]["terms"][0].update(kind="laplace"),
    "an unknown number": lambda es: release_of(es[3])["prices"][0]["terms"][0]["event"].update(luck=1.0),
    "a price less": lambda es: release_of(es[7])["prices"].pop(),
    "prices in disorder": lambda es: release_of(es[7])["prices"].reverse(),
}


@pytest.mark.parametrize("change", sample_cases([*FORGED.values()], one_in=3), ids=FORGED.keys())
def test_a_forged_line_is_noticed_by_what_it_says(path, change):
    write(path)
    forge(path, lambda entries: None)
    assert verify_ledger(path).completed == 4
    forge(path, change)
    with pytest.raises(LedgerDamaged):
        verify_ledger(path)


@pytest.mark.slow
def test_any_altered_byte_is_noticed(path):
    write(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LedgerDamaged):
            verify_ledger(path)
