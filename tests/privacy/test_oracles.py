"""Noise, encoding and accounting, compared with independently computed numbers, most of them by mpmath."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.special import logsumexp
from scipy.stats import norm

from dordis.kernels import hadamard
from dordis.privacy import accounting, scaling
from dordis.privacy.accounting import (
    ALL_ROUNDS,
    PAPER_ORDERS,
    Composed,
    ParticipationSchedule,
    Repeated,
    SkellamSum,
    gaussian_multiplier,
    guarantee,
    renyi_divergences,
)
from dordis.privacy.encoding import centre
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.privacy.skellam_noise import skellam_masses
from dordis.privacy.xnoise_components import NoisePlan, Scheme

ORACLES = json.loads((Path(__file__).parents[1] / "vectors" / "privacy_oracles.json").read_text())["oracles"]
Given = dict[str, Any]


def of(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on the oracles of these kinds."""
    chosen = [
        pytest.param(known["input"], known["expect"], id=known["id"]) for known in ORACLES if known["cat"] in kinds
    ]
    return pytest.mark.parametrize(("given", "expect"), chosen)


def paper_setting(given: Given, rounds: int) -> Setting:
    """Plan as the paper does: one block, nobody colludes, all rounds count, an even share of noise each."""
    return Setting(
        ParticipationSchedule(given["clients"], given["clients"], rounds, ALL_ROUNDS),
        dim=given["dim"],
        clip=given["clip"],
        delta=given["delta"],
        bits=given["bits"],
        headroom=given["k"],
        scheme=Scheme.ORIG,
        colluders=0,
        one_block=True,
        orders=PAPER_ORDERS,
    )


def pmf(variance: Fraction) -> dict[int, float]:
    """Return the law that the noise tables are built from."""
    masses = [float(Fraction(mass, 2**128)) for mass in skellam_masses(variance)]
    return {sign * x: mass for x, mass in enumerate(masses) for sign in (1, -1)}


def test_there_are_54_oracles_and_every_kind_has_a_test() -> None:
    assert len(ORACLES) == 54
    marks = [mark for test in globals().values() for mark in getattr(test, "pytestmark", ())]
    assert sum(len(mark.args[1]) for mark in marks) == 54


@of("round_bound")
def test_the_norm_after_rounding(given: Given, expect: Given) -> None:
    beta = given["beta"] and scaling.BETA
    squared = scaling.rounded_norm(given["scaled_clip"], given["dim"], beta)
    assert math.sqrt(squared) == pytest.approx(expect["l2"], rel=1e-9)
    assert scaling.l1_bound(math.sqrt(squared), given["dim"]) == pytest.approx(expect["l1"], rel=1e-9)


@of("skellam_rdp_bound")
def test_the_divergence_of_skellam_noise(given: Given, expect: Given) -> None:
    (result,) = accounting.skellam_rdp(np.array([given["alpha"]]), given["l2"] ** 2, given["l1"], given["mu"])
    assert result == pytest.approx(expect["rdp"], rel=1e-12)


@of("skellam_rdp_exact_1d")
def test_the_law_of_the_noise_has_the_exact_divergence(given: Given, expect: Given) -> None:
    law, alpha, shift = pmf(Fraction(given["mu"])), given["alpha"], given["shift"]
    powers = (p**alpha * law[x - shift] ** (1 - alpha) for x, p in law.items() if law.get(x - shift))
    exact = math.log(math.fsum(powers)) / (alpha - 1)
    assert exact == pytest.approx(expect["rdp"], rel=1e-8)
    assert alpha * shift**2 / (2 * given["mu"]) == pytest.approx(expect["gaussian"], rel=1e-12)
    if isinstance(alpha, int):
        assert accounting.skellam_rdp(np.array([alpha]), shift**2, shift, given["mu"])[0] >= exact


@of("skellam_delta_exact_1d")
def test_the_law_of_the_noise_has_the_exact_delta(given: Given, expect: Given) -> None:
    law, bound = pmf(Fraction(str(given["mu"]))), math.exp(given["eps"])
    exact = math.fsum(max(0.0, p - bound * law.get(x - given["shift"], 0.0)) for x, p in law.items())
    assert exact == pytest.approx(expect["delta"], rel=1e-8)
    ratio = given["shift"] / math.sqrt(given["mu"] - 0.5)
    near, far = ratio / 2 - given["eps"] / ratio, -ratio / 2 - given["eps"] / ratio
    gaussian = norm.cdf(near) - bound * norm.cdf(far)
    assert gaussian == pytest.approx(expect["gauss_delta_var_mu_minus_half"], rel=1e-8)
    assert gaussian >= exact


@of("rdp_to_eps_single")
def test_the_conversion_from_one_order(given: Given, expect: Given) -> None:
    result, order = compute_epsilon([given["alpha"]], [given["rdp"]], given["delta"])
    assert (result, order) == (pytest.approx(expect["eps"], abs=1e-12), given["alpha"])


@of("gauss_exact_eps")
def test_the_central_baseline_is_exact(given: Given, expect: Given) -> None:
    assert gaussian_multiplier(expect["eps"], 1, given["delta"]) == pytest.approx(1 / given["mu"], rel=1e-6)
    assert gaussian_multiplier(expect["eps"], 9, given["delta"]) == pytest.approx(3 / given["mu"], rel=1e-6)


def amplified(release: SkellamSum, q: float, order: int) -> float:
    """Return the divergence if clients are drawn by lot, unseen by the adversary: Zhu and Wang, 2019, theorem 5."""
    whole = dict(zip(range(2, order + 1), renyi_divergences(release, range(2, order + 1)), strict=True))
    logs = [(order - 1) * math.log1p(-q) + math.log(order * q - q + 1)]
    for k, divergence in whole.items():
        weight = math.log((1 if k == 2 else 3) * math.comb(order, k))
        logs.append(weight + (order - k) * math.log1p(-q) + k * math.log(q) + (k - 1) * divergence)
    return min(float(logsumexp(logs)) / (order - 1), whole[order])


@of("eps_dskellam_rdp")
def test_epsilon_of_a_run(given: Given, expect: Given) -> None:
    """Of clients that are drawn by lot the oracle is for outsiders; for the server, who sees them, it is more."""
    bound = scaling.sensitivity(given["scale"], given["clip"], given["padded_dim"])
    release = SkellamSum(bound.squared, bound.l1, (given["scale"] * given["central_sigma_real"]) ** 2)
    result = guarantee(Repeated(release, given["rounds"]), given["delta"], PAPER_ORDERS)
    spent, order = result.epsilon, result.order
    if given["q"] < 1:
        run = [given["rounds"] * amplified(release, given["q"], a) for a in PAPER_ORDERS]
        spent, order = compute_epsilon(PAPER_ORDERS, run, given["delta"])
        assert spent < result.epsilon
    assert (spent, order) == (pytest.approx(expect["eps"], abs=1e-7), expect["order"])


@of("plan")
def test_noise_and_scale_for_a_budget(given: Given, expect: Given) -> None:
    setting, known = paper_setting(given, given["rounds"]), expect["rdp"]
    result = plan(setting, given["eps"])
    assert setting.padded == given["padded_dim"]
    assert result.scale == pytest.approx(known["scale"], rel=1e-6)
    assert result.sigma == pytest.approx(known["central_sigma_real"], rel=1e-6)
    assert result.sigma / given["clip"] == pytest.approx(known["z"], rel=1e-6)
    assert result.sigma_int == pytest.approx(known["central_sigma_int"], rel=1e-6)
    assert math.sqrt(result.noise.added_variance) == pytest.approx(known["local_sigma_int"], rel=1e-6)

    def enough(sensitivity: scaling.Sensitivity, variance: float) -> bool:
        """Take the noise for Gaussian of variance mu - 1/2, which nobody has proved in more than one dimension."""
        multiplier = math.sqrt(max(variance - 0.5, 1e-9)) / sensitivity.l2
        return (
            dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(given["rounds"]), given["delta"]) <= given["eps"]
        )

    ring, known = setting.ring(given["bits"]), expect["gauss_exact_mu_minus_half"]
    scale = scaling.largest_scale(ring, enough)
    sigma_int = math.sqrt(ring.room(scale))
    assert scale == pytest.approx(known["scale"], rel=1e-6)
    assert sigma_int == pytest.approx(known["central_sigma_int"], rel=1e-6)
    assert sigma_int / scale == pytest.approx(known["central_sigma_real"], rel=1e-6)
    assert sigma_int / scale / given["clip"] == pytest.approx(known["z"], rel=1e-6)


@of("orig_dropout")
def test_epsilon_if_clients_drop_out_under_orig(given: Given, expect: Given) -> None:
    result = plan(paper_setting(given, given["rounds"]), given["eps"])
    unpadded = scaling.sensitivity(result.scale, given["clip"], given["dim"])  # what the paper's code counts with
    for row in expect["rows"]:
        n, dropped = given["clients"], row["dropped"]
        assert dropped == math.floor(Fraction(str(row["rate"])) * n)
        assert result.epsilon_with_dropout(dropped, Scheme.ORIG) == pytest.approx(row["eps"], abs=1e-4)
        artifact = result.setting.epsilon(unpadded, float(result.variance * (n - dropped) / n))
        assert artifact == pytest.approx(row["eps_artifact_unpadded"], abs=1e-4)


@of("xnoise_components")
def test_components_of_the_paper(given: Given, expect: Given) -> None:
    """The paper inflates by t / (t - T_C), which is our (n - T) / (n - T - T_C) if n - T is the threshold."""
    n, t, T, T_C = given["U"], given["t"], given["T"], given["T_C"]
    assert expect["protocol_ok"] == (t >= n - T)
    sigma2 = Fraction(3 * math.lcm(*range(1, 17)))  # every component is then on the grid
    kappa = NoisePlan(Scheme.EXACT, n, n - t, T_C, sigma2).kappa
    assert kappa == Fraction(expect["kappa"])
    inflated = NoisePlan(Scheme.EXACT, n, T, 0, kappa * sigma2)
    shares = [Fraction(share) for share in expect["component_var_over_sigma2"]]
    assert [variance / sigma2 for variance in (*inflated.base, *inflated.removable)] == shares
    for dropped, left in expect["residual"].items():
        survivors = range(n - int(dropped))
        assert inflated.variance_left(survivors, b"") / sigma2 == Fraction(left)
        first, last = expect["removed_indices"].get(dropped, (1, 0))
        assert set(inflated.due_components(survivors, b"").values()) == {tuple(range(first - 1, last))}
    kept = {Fraction(left) * (m - T_C) / m for left in expect["residual"].values() for m in range(t, n + 1)}
    assert min(kept) == Fraction(expect["honest_worst"])


@of("ledger_heterogeneous")
def test_epsilon_after_rounds_that_lost_different_numbers(given: Given, expect: Given) -> None:
    n = given["clients"]
    result = plan(paper_setting(given, given["planned_rounds"]), given["eps_budget"])
    bound = result.sensitivity
    left = [float(result.variance * (n - dropped) / n) for dropped in given["dropped_per_round"]]
    rounds = [SkellamSum(bound.squared, bound.l1, variance) for variance in left]
    spent = [
        guarantee(Composed(tuple(rounds[:i])), given["delta"], PAPER_ORDERS).epsilon for i in range(1, len(rounds) + 1)
    ]
    assert spent == pytest.approx(expect["eps_after_each_round"], abs=1e-5)
    over = next(i for i, value in enumerate(spent) if value > given["eps_budget"])
    assert (over, over) == (expect["first_round_index_over_budget"], expect["last_allowed_rounds"])


@of("gauss_poisson")
def test_the_library_amplifies_gaussian_noise(given: Given, expect: Given) -> None:
    step = dp_accounting.PoissonSampledDpEvent(given["q"], dp_accounting.GaussianDpEvent(given["z"]))
    run = dp_accounting.SelfComposedDpEvent(step, given["rounds"])
    assert RdpAccountant().compose(run).get_epsilon(given["delta"]) == pytest.approx(expect["eps_rdp"], abs=0.01)
    pld = PLDAccountant(value_discretization_interval=1e-3)
    assert pld.compose(run).get_epsilon(given["delta"]) == pytest.approx(expect["eps_pld"], abs=0.005)


@of("gauss_wor_replace_one")
def test_the_library_samples_without_replacement(given: Given, expect: Given) -> None:
    noise = dp_accounting.GaussianDpEvent(given["z_wrt_replace_sensitivity"])
    step = dp_accounting.SampledWithoutReplacementDpEvent(given["N"], given["n"], noise)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(list(range(2, 65)), relation)
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, given["rounds"]))
    assert accountant.get_epsilon(given["delta"]) == pytest.approx(expect["eps_rdp"], abs=0.01)


@of("wht")
def test_the_rotation(given: Given, expect: Given) -> None:
    x, d = np.array(given["x"], np.float64), expect["d"]
    signs = np.packbits(np.array(given["signs"]) < 0, bitorder="little")
    hadamard.rotate(x, d, signs)
    assert x * math.sqrt(d) == pytest.approx([float(y) for y in expect["y_times_sqrt_d"]], abs=1e-12)
    hadamard.unrotate(x, d, signs)
    assert x == pytest.approx(given["x"], abs=1e-12)


@of("modular_centre")
def test_the_ring_is_read_around_zero(given: Given, expect: Given) -> None:
    ring = np.array([given["v"] % 2 ** given["bits"]], np.uint32)
    assert centre(ring, given["bits"]).tolist() == [expect["r"]]


@of("ddgauss_rdp")
def test_the_divergence_of_discrete_gaussians(given: Given, expect: Given) -> None:
    n, scale = given["clients"], given["local_sigma_int"]
    assert accounting.discrete_gaussian_distance(n, scale) == pytest.approx(expect["tau"], rel=1e-10)
    (result,) = accounting.discrete_gaussian_rdp(
        np.array([given["alpha"]]), n, scale, given["l2"], given["l1"], given["dim"]
    )
    assert result == pytest.approx(expect["rdp"], rel=1e-10)


@of("bits_feasible")
def test_too_few_bits_are_known_beforehand(given: Given, expect: Given) -> None:
    d = given["padded_dim"]
    ring = scaling.Ring(given["bits"], clients=1, clip=1.0, dim=d, block=d, headroom=given["k"])
    assert (ring.room(0) > given["z"] ** 2 * scaling.rounded_norm(0, d)) == expect["feasible"]
