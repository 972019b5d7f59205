"""Stages and their predecessors: the table and the appendix of the paper."""

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dordis.pipeline.stages import group_stages, predecessors, step_name
from dordis.protocol import Resource, Step

C, N, S = Resource.CLIENT, Resource.NETWORK, Resource.SERVER

TABLE = {  # the paper's table: steps 1 to 11
    "encode": C, "generate_keys": C, "establish_secrets": C, "mask": C,
    "upload": N,
    "deal_with_dropout": S, "aggregate": S, "update_model": S,
    "dispatch": N,
    "decode": C, "use": C,
}  # fmt: skip


def workflow(resources):
    return [Step(partial(int, place), resource) for place, resource in enumerate(resources)]


def test_the_paper_s_eleven_steps_are_five_stages():
    grouped = group_stages(workflow(TABLE.values()))
    assert [stage.resource for stage in grouped] == [C, N, S, N, C]
    assert [len(stage.steps) for stage in grouped] == [4, 1, 3, 1, 2]


@given(st.lists(st.sampled_from(Resource)))
def test_stages_keep_all_steps_in_order_and_neighbours_differ(resources):
    steps = workflow(resources)
    grouped = group_stages(steps)
    assert [step for stage in grouped for step in stage.steps] == steps
    assert all(step.resource is stage.resource for stage in grouped for step in stage.steps)
    assert all(a.resource is not b.resource for a, b in pairwise(grouped))


FIVE = [C, N, S, N, C]


@pytest.mark.parametrize(
    ("s", "c", "expected"),
    [
        (0, 0, set()),  # nothing
        (0, 2, {(0, 1)}),  # the chunk before at the same stage
        (1, 0, {(0, 0)}),  # no earlier stage on the network: the case is left out
        (2, 0, {(1, 0)}),
        (2, 3, {(1, 3), (2, 2)}),
        (3, 0, {(2, 0), (1, 3)}),  # all uploads before the first dispatch
        (4, 0, {(3, 0), (0, 3)}),  # all masking before the first use
        (4, 1, {(3, 1), (4, 0)}),
    ],
)
def test_four_chunks_through_the_paper_s_five_stages(s, c, expected):
    assert set(predecessors(FIVE, 4, s, c)) == expected


def test_a_sum_goes_down_while_later_chunks_come_up():
    ours = [C, N, S, Resource.DOWNLINK, C]
    assert set(predecessors(ours, 4, 3, 0)) == {(2, 0)}
    assert set(predecessors(ours, 4, 3, 1)) == {(2, 1), (3, 0)}


def test_the_previous_stage_on_a_resource_is_the_nearest():
    assert set(predecessors([C, N, C, N, C], 3, 4, 0)) == {(3, 0), (2, 2)}


@given(st.lists(st.sampled_from(Resource), min_size=1, max_size=6), st.integers(1, 5))
def test_predecessors_order_all_that_share_a_resource_or_a_chunk(resources, m):
    instances = [(s, c) for s in range(len(resources)) for c in range(m)]
    behind = {}
    for s, c in instances:  # stage by stage, so that predecessors have been visited: there is no cycle
        direct = predecessors(resources, m, s, c)
        behind[s, c] = set(direct).union(*(behind[before] for before in direct))
    for s, c in instances:
        for q, e in instances:
            if (q, e) < (s, c) and (resources[q] is resources[s] or e == c):
                assert (q, e) in behind[s, c]


def test_a_step_is_named_after_its_function():
    class Machine:
        def collect(self, chunk=0):
            pass

    class Callable:
        def __call__(self):
            pass

    machine = Machine()
    assert step_name(Step(machine.collect, C)) == "collect"
    assert step_name(Step(partial(partial(machine.collect), 3), C)) == "collect"
    assert step_name(Step(Callable(), C)) == "Callable"
