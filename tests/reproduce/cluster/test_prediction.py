"""Predictions of measured rounds: exact where rounds follow the models, none where too little is known."""

import pytest

from dordis.pipeline.planner import schedule_stages
from reproduce.cluster.links import plan_links
from reproduce.cluster.prediction import (
    STAGES,
    aggregation_seconds,
    predict_from_costs,
    predict_from_rounds,
    relative_error,
    stage_means,
)
from reproduce.costs import REPLY, REQUEST, Costs
from tests.reproduce.cluster.rounds import DIM, make_record, stage_law


def test_stages_are_those_of_a_chunk():
    assert [(resource.value, steps[0]) for resource, steps in STAGES] == [
        ("c-comp", "prepare_inputs"),
        ("comm", "collect_inputs"),
        ("s-comp", "agree"),
        ("comm-down", "dispatch"),
        ("c-comp", "store"),
    ]
    assert STAGES[2][1][-1] == "release_secrets"


def test_a_record_gives_its_aggregation_and_the_mean_stages_of_a_chunk():
    record = make_record(4)
    assert aggregation_seconds(record) == pytest.approx(record.seconds - 1.0 - 0.5 - 3.0 - 0.25)
    setup, stages = stage_means(record.stages, 4)
    assert setup == pytest.approx(0.6)
    assert stages == pytest.approx([stage_law(s, 4) for s in range(5)])


def test_rounds_that_follow_the_performance_model_are_predicted_from_the_others():
    rounds = {m: make_record(m).stages for m in (1, 2, 4, 8)}
    expected = schedule_stages([resource for resource, _ in STAGES], [stage_law(s, 4) for s in range(5)], 4, 0.6)
    assert predict_from_rounds(rounds, DIM, 4) == pytest.approx(expected.completion, rel=1e-3)
    assert (
        predict_from_rounds({m: rounds[m] for m in (1, 2, 4)}, DIM, 4) is None
    )  # two others do not tell three terms apart


def test_a_round_of_transfers_alone_takes_what_the_slowest_link_takes():
    links = plan_links(4, latency=0.0)
    costs = Costs("toy", {"collect_inputs": {REPLY: {"dim": 2.5}}, "dispatch": {REQUEST: {"dim": 2.5}}})
    plain, chunked = (predict_from_costs(costs, links, 1 << 20, 0, m, cores=2) for m in (1, 16))
    each_way = (1 << 20) * 20 / 21e6
    assert plain == pytest.approx(2 * each_way, rel=1e-6)
    assert chunked == pytest.approx(each_way * 17 / 16, rel=1e-6)


def test_an_error_is_relative_to_what_was_measured():
    assert relative_error(12.0, 10.0) == pytest.approx(0.2)
    assert relative_error(None, 10.0) is None
