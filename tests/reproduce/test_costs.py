"""Modelled rounds: their steps are the protocol's, the paper's cost mix gives its figure, ours keeps its promises."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dordis.privacy.xnoise import Scheme
from dordis.protocol import Resource
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.round import RoundServer
from dordis.protocols.secagg import SecAggServer
from dordis.reproduce.claims import own_claims, padding_claim, paper_claims, share_claims
from dordis.reproduce.costs import CHUNK_STEPS, CLIENT, SETUP_STEPS, Costs, Shape
from dordis.reproduce.measured import TERMS, Proxy, fit, observe
from dordis.reproduce.paper_mix import OVERLAP, PAPER, UNPADDED
from dordis.reproduce.round_times import (
    CNN,
    RESNET,
    RESNET_16,
    VGG,
    Configuration,
    configurations,
    figure,
    round_time,
    shares,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "rounds"
TINY = Proxy(6, 13, 2, 1)


@pytest.fixture(scope="module")
def paper():
    return figure(PAPER, [each for each in configurations() if not each.plus])


@pytest.fixture(scope="module")
def committed():
    return msgspec.json.decode((RESULTS / "costs.json").read_bytes(), type=Costs)


def test_modelled_steps_are_the_steps_of_a_round():
    p = TINY.parameters
    server = RoundServer(SecAggServer(p), DistributedDP(p, TINY.mechanism))
    assert [step.run.__name__ for step in server.setup.workflow] == list(SETUP_STEPS)
    for chunk in server.chunks:
        assert {step.run.__name__: step.resource for step in chunk.workflow} == CHUNK_STEPS
        assert [step.run.__name__ for step in chunk.workflow] == list(CHUNK_STEPS)


def test_a_real_round_shows_every_cost_that_there_is_a_law_for():
    seen = observe(TINY)
    assert TERMS.keys() <= seen.keys()
    assert all(amount >= 0 for amount in seen.values())
    assert 2.5 * 4096 < seen["collect_inputs", "reply"] < 2.5 * 4096 + 200


def test_a_shape_counts_what_the_noise_plan_says():
    shape = TINY.shape()
    assert (shape.clients, shape.survivors, shape.chunks, shape.dim) == (6, 5, 2, 4096)
    counts = Shape(10, 9, 2, 3, 100, base=1, removable=1, due=4).counts()
    assert counts["masks*dim"] == 10 * 100
    assert counts["lifted*dim"] == (8 + 2 * 8) * 100
    assert counts["shares"] == 3 * 3 * 10


def test_a_law_is_found_in_what_follows_it():
    rng = np.random.default_rng(0)
    rows = [{"one": 1, "dim": d, "masks*dim": d * n} for d, n in rng.integers(1, 1000, (12, 2)).tolist()]
    amounts = [3 + 0.5 * row["dim"] + 0.01 * row["masks*dim"] for row in rows]
    assert fit(("one", "dim", "masks*dim"), rows, amounts) == pytest.approx({"one": 3, "dim": 0.5, "masks*dim": 0.01})


def test_the_paper_s_cost_mix_gives_the_paper_s_figure(paper):
    claims = paper_claims(paper)
    assert [claim.statement for claim in claims if claim.holds is False] == []
    assert sum(claim.holds is True for claim in claims) == 5


def test_overlap_alone_gives_the_gains_that_are_claimed():
    claims = paper_claims(figure(OVERLAP))
    assert [claim.statement for claim in claims if claim.holds is False] == []
    assert sum(claim.holds is True for claim in claims) == 5


def test_what_is_padded_as_a_whole_is_as_long_in_any_number_of_chunks():
    assert [m * OVERLAP.chunk_dim(11_183_562, m) for m in (1, 2, 4, 8)] == [2**24] * 4


def test_under_the_paper_s_mix_the_planner_chooses_the_numbers_of_chunks_that_the_paper_used(paper):
    chosen = {task: Counter() for task in (CNN, RESNET, RESNET_16, VGG)}
    for each in paper:
        task = next(task for task in chosen if (task.name, task.clients) == (each.model, each.clients))
        chosen[task][each.chunks] += 1
    most = [counter.most_common(1)[0][0] for counter in chosen.values()]
    assert most == [2, 11, 3, 5]


def test_padding_chunks_to_powers_of_two_is_much_of_what_larger_models_gained(paper):
    configuration = Configuration(VGG, Scheme.ORIG)
    padded, unpadded = (round_time(configuration, costs) for costs in (PAPER, UNPADDED))
    assert unpadded.speedup < padded.speedup - 0.3
    assert "1." in padding_claim([unpadded, *(each for each in paper if each.model != VGG.name)]).found


def test_aggregation_takes_more_of_a_round_the_more_clients_and_with_noise():
    assert all(claim.holds is not False for claim in share_claims(shares(PAPER)))


def test_with_the_costs_measured_for_the_results_the_promises_hold(committed):
    shown = [Configuration(RESNET, scheme, Fraction(1, 10)) for scheme in (Scheme.ORIG, Scheme.SINGLE)]
    assert [claim.statement for claim in own_claims(figure(committed, shown)) if not claim.holds] == []


@pytest.mark.parametrize("costs", [PAPER, OVERLAP, UNPADDED])
def test_no_round_beats_the_bound(costs):
    for task in (CNN, VGG):
        each = round_time(Configuration(task), costs)
        assert each.over_bound >= 1
        assert each.pipelined <= each.plain * 1.01
        assert all(0 <= share <= 1 for share in (*each.plain_busy.values(), *each.pipelined_busy.values()))


def test_only_the_last_chunk_pays_for_the_whole_vector():
    costs = Costs("toy", {"store": {CLIENT: {"dim": 1.0}}, "assemble": {CLIENT: {"dim": 0.5}}})
    _, chunks = costs.steps(Shape(2, 1, 0, 3, 10))
    assert [chunk[-1].client for chunk in chunks] == [10, 10, 25]
    assert {cost.resource for chunk in chunks for cost in chunk} == set(Resource)
