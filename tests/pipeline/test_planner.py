"""The planner, compared with a simulation of busy resources written here without its rules.

Stages and their predecessors: the table and the appendix of the paper.
"""

import heapq
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError
from dordis.pipeline.performance_model import SetupModel, StageModel
from dordis.pipeline.planner import PipelinePlan, group_stages, plan_chunks, predecessors, schedule_stages, step_name
from dordis.protocol import Resource, Step

C, N, S = Resource.CLIENT, Resource.NETWORK, Resource.SERVER
FIVE = [C, N, S, N, C]


def simulated(resources, seconds, m):
    """Let every resource work off its list, stage by stage and within by chunk; return when all have ended.

    Event by event: a resource that is free takes the first of its list as soon as that chunk has come so far.
    """
    lists = {r: [(s, c) for s, own in enumerate(resources) if own is r for c in range(m)] for r in set(resources)}
    reached = [0] * m  # by chunk: the stage that comes next
    events, busy, now = [], set(), 0.0
    while any(lists.values()) or events:
        for r, waiting in lists.items():
            if r not in busy and waiting and reached[waiting[0][1]] == waiting[0][0]:
                s, c = waiting.pop(0)
                busy.add(r)
                heapq.heappush(events, (now + seconds[s], s, c))
        now, s, c = heapq.heappop(events)
        busy.remove(resources[s])
        reached[c] += 1
    return now


times = st.floats(0.001, 10.0)
coefficients = st.builds(StageModel, st.floats(0, 10), st.floats(0, 0.3), st.floats(0, 2))
workflows = st.lists(st.sampled_from(Resource), min_size=1, max_size=7)


@settings(max_examples=200)
@given(st.data(), workflows, st.integers(1, 12))
def test_completion_is_that_of_a_simulation(data, resources, m):
    seconds = data.draw(st.lists(times, min_size=len(resources), max_size=len(resources)))
    assert schedule_stages(resources, seconds, m).completion == pytest.approx(
        simulated(resources, seconds, m), rel=1e-12
    )


@settings(max_examples=50)
@given(st.data(), workflows, st.floats(0, 5), st.floats(0, 1))
def test_the_plan_is_the_best_of_all_numbers_simulated(data, resources, a, b):
    models = data.draw(st.lists(coefficients, min_size=len(resources), max_size=len(resources)))

    def seconds(m):
        return [model.seconds(1, m) for model in models]

    chosen = plan_chunks(resources, seconds, SetupModel(a, b).seconds)
    brute = {m: a + b * m + simulated(resources, seconds(m), m) for m in range(1, 21)}
    assert chosen.completions == pytest.approx(brute)
    assert brute[chosen.chunks] == pytest.approx(min(brute.values()))
    assert chosen.schedule.completion == chosen.completions[chosen.chunks]


@given(st.data(), workflows, st.integers(1, 6))
def test_the_critical_path_has_no_gap_and_nothing_runs_before_the_set_up_ends(data, resources, m):
    seconds = data.draw(st.lists(times, min_size=len(resources), max_size=len(resources)))
    timetable = schedule_stages(resources, seconds, m, setup=2.5)
    assert timetable.critical[0].start == 2.5
    assert timetable.critical[-1].end == timetable.completion
    assert all(a.end == b.start for a, b in pairwise(timetable.critical))
    assert min(slot.start for slot in timetable.slots) == 2.5
    assert len(timetable.slots) == len(resources) * m


def test_one_chunk_is_plain_execution():
    assert schedule_stages(FIVE, [1, 2, 3, 4, 5], 1).completion == 15


def test_by_hand_three_chunks_in_five_stages():
    timetable = schedule_stages(FIVE, [1, 2, 3, 2, 1], 3)
    starts = {(slot.stage, slot.chunk): slot.start for slot in timetable.slots}
    assert [starts[0, c] for c in range(3)] == [0, 1, 2]
    assert [starts[1, c] for c in range(3)] == [1, 3, 5]
    assert [starts[2, c] for c in range(3)] == [3, 6, 9]
    assert [starts[3, c] for c in range(3)] == [7, 9, 12]  # the first dispatch waits for the last upload
    assert [starts[4, c] for c in range(3)] == [9, 11, 14]
    assert timetable.completion == 15
    assert timetable.utilisation() == {C: 6 / 15, N: 12 / 15, S: 9 / 15}


def test_of_equals_the_fewest_chunks_are_chosen():
    assert plan_chunks([S], lambda m: [6.0 / m]).chunks == 1


def test_nothing_is_gained_by_chunks_that_cost_more_than_they_overlap():
    assert plan_chunks(FIVE, lambda m: [1.0] * 5).chunks == 1
    assert plan_chunks(FIVE, lambda m: [1.0 / m] * 5, SetupModel(0.0, 10.0).seconds).chunks == 1


def test_the_range_can_be_given():
    assert plan_chunks([C, S], lambda m: [1.0 / m] * 2, numbers=[2, 4, 8]).chunks == 8


def test_a_plan_says_why():
    chosen = plan_chunks(
        FIVE, lambda m: [2 / m + 0.1, 4 / m + 0.1, 9 / m + 0.1, 1 / m + 0.1, 1 / m + 0.1], lambda m: 0.5
    )
    assert chosen.bottleneck is S
    assert sum(chosen.critical.values()) == pytest.approx(chosen.schedule.completion - 0.5)
    assert max(chosen.utilisation, key=chosen.utilisation.get) is S
    text = chosen.explain()
    assert text.startswith(f"{chosen.chunks} chunks: ")
    assert f"{chosen.speedup:.2f} times as fast as 1 chunk" in text
    assert "bottleneck is s-comp" in text
    assert f"{chosen.chunks - 1} chunks would take" in text
    assert f"{chosen.chunks + 1} chunks would take" in text


def test_a_plan_survives_being_saved():
    chosen = plan_chunks(FIVE, lambda m: [1 / m + 0.1] * 5)
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=PipelinePlan) == chosen


@pytest.mark.parametrize("numbers", [[], [0, 1], [-1]])
def test_a_range_without_chunks_is_refused(numbers):
    with pytest.raises(InputError):
        plan_chunks(FIVE, lambda m: [1.0] * 5, numbers=numbers)


@pytest.mark.parametrize(("resources", "seconds"), [(FIVE, [1.0] * 4), ([], [])])
def test_every_stage_needs_a_time(resources, seconds):
    with pytest.raises(InputError):
        schedule_stages(resources, seconds, 2)


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
