"""Claims: the paper's cost mix gives its figure, overlap alone its gains, ours keeps its promises."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from dordis.privacy.xnoise_components import Scheme
from reproduce.claims import Claim, added_share, fitted, own_claims, padding_claim, paper_claims, share_claims
from reproduce.costs import Costs
from reproduce.costs_paper import OVERLAP, PAPER, UNPADDED
from reproduce.round_times import (
    CNN,
    RESNET,
    VGG,
    Configuration,
    configurations,
    group_by,
    round_time,
    run_figure,
    run_shares,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "rounds"


@pytest.fixture(scope="module")
def paper():
    return run_figure(PAPER, [shown for shown in configurations() if not shown.plus])


@pytest.fixture(scope="module")
def committed():
    return msgspec.json.decode((RESULTS / "costs.json").read_bytes(), type=Costs)


def statements(claims, holds):
    return [claim.statement for claim in claims if claim.holds is holds]


@pytest.mark.slow
def test_under_the_paper_s_cost_mix_what_was_not_fitted_holds_or_is_refused_with_a_reason(paper):
    claims = paper_claims(paper)
    assert "larger models gain more" in statements(claims, True)
    assert "the same increase with 10, 20 and 30 % dropout" in statements(claims, False)
    assert all(claim.verdict for claim in claims)
    assert any(claim.verdict.startswith("fitted") for claim in claims)


@pytest.mark.slow
def test_gains_to_which_overlap_was_fitted_do_not_count():
    claims = paper_claims(run_figure(OVERLAP))
    assert "speed-up, ResNet-18 and VGG-19" in statements(claims, None)
    assert "speed-up, VGG-19, n = 16" in statements(claims, False)


def test_a_fitted_claim_never_counts_and_a_missed_one_says_why():
    assert fitted("idle", "53 %", "53 %", near=True).holds is None
    missed = fitted("idle", "53 %", "40 %", near=False)
    assert missed.verdict.startswith("NO: differs, because the model's costs")
    assert Claim("gain", "2", "1", False, "of links").verdict == "NO: differs, because of links"


@pytest.mark.slow
def test_under_the_paper_s_mix_the_planner_chooses_the_numbers_of_chunks_that_the_paper_used(paper):
    groups = group_by(paper, "model", "clients").values()
    assert [Counter(time.chunks for time in group).most_common(1)[0][0] for group in groups] == [2, 11, 3, 5]


def test_padding_chunks_to_powers_of_two_is_much_of_what_larger_models_gained(paper):
    padded, unpadded = (round_time(Configuration(VGG, Scheme.ORIG), costs) for costs in (PAPER, UNPADDED))
    assert unpadded.speedup < padded.speedup - 0.3
    assert f"{unpadded.speedup:.2f}" in padding_claim([unpadded, *(t for t in paper if t.model != VGG.model)]).observed


def test_what_a_scheme_adds_is_a_share_of_the_seconds_of_orig(paper):
    at_none = group_by(paper, "model", "dropout")[RESNET.model, 0.0]
    orig, _, exact = (time.plain for time in at_none[:3])
    assert added_share(at_none[:3], Scheme.EXACT, lambda time: time.plain) == [pytest.approx((exact - orig) / orig)]


@pytest.mark.slow
def test_aggregation_takes_more_of_a_round_the_more_clients_and_with_noise():
    holding = statements(share_claims(run_shares(PAPER)), True)
    assert {"the share is larger with DP than without", "the share grows with n (16, 32, 64, 100)"} <= {*holding}


def test_with_the_costs_measured_for_the_results_the_promises_hold(committed):
    shown = [Configuration(RESNET, scheme, Fraction(1, 10)) for scheme in (Scheme.ORIG, Scheme.SINGLE)]
    assert [claim.statement for claim in own_claims(run_figure(committed, shown)) if not claim.holds] == []


@pytest.mark.parametrize("costs", [PAPER, OVERLAP, UNPADDED])
def test_no_round_beats_the_bound(costs):
    for workload in (CNN, VGG):
        time = round_time(Configuration(workload), costs)
        assert time.over_bound >= 1
        assert time.pipelined <= time.plain * 1.01
        assert all(0 <= share <= 1 for share in (*time.plain_busy.values(), *time.pipelined_busy.values()))
