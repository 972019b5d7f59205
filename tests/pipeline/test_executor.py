"""The executor: stages run in the planned order, the first failure ends the round, and no task is left over."""

import asyncio
import inspect
import threading
import time
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dordis.errors import InputError, TooFewClients
from dordis.pipeline.executor import Timeline, execute, execute_async, serialise_exchange
from dordis.pipeline.planner import schedule_stages
from dordis.protocol import Message, Resource, Step
from dordis.simulation.virtual_devices import run_virtually
from tests.paused_processes import HANG

C, N, S = Resource.CLIENT, Resource.NETWORK, Resource.SERVER
FIVE = [C, N, S, N, C]


class Ask(Message, frozen=True):
    chunk: int


class Answer(Message, frozen=True):
    chunk: int


async def inline(work):
    return work()


async def turns():
    """Let all tasks go on as far as they can without anything from outside."""
    for _ in range(100):
        await asyncio.sleep(0)


async def at_once(requests):
    return [(u, Answer(request.chunk)) for u, request in requests.items()]


def lazily(log, requests):
    for u, request in requests.items():
        log.append(u)
        yield u, Answer(request.chunk)


def asking(c, resource=N, clients=(1, 2), after=None, closed=None):
    """Return a step that asks, takes all replies, calls `after` and tells `closed` when it has ended."""

    def ask():
        try:
            replies = yield dict.fromkeys(clients, Ask(c))
            assert [(u, reply.chunk) for u, reply in replies] == [(u, c) for u in clients]
            if after is not None:
                after()
        finally:
            if closed is not None:
                closed.append(c)

    return Step(ask, resource)


def timed():
    """Return a function that makes steps of a given duration, and where to compute them."""
    pending = []

    def step(duration, resource):
        return Step(partial(pending.append, duration), resource)

    async def compute(work):
        result = work()
        await asyncio.sleep(pending.pop())
        return result

    return step, compute


times = st.floats(0.001, 10.0)
workflows = st.lists(st.sampled_from(Resource), min_size=1, max_size=6).filter(
    lambda resources: all(a is not b for a, b in pairwise(resources))
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data(), workflows, st.integers(1, 8))
def test_every_stage_starts_and_ends_as_planned(data, resources, m):
    seconds = data.draw(st.lists(times, min_size=len(resources), max_size=len(resources)))
    step, compute = timed()
    chunks = [[step(seconds[s], resource) for s, resource in enumerate(resources)] for _ in range(m)]
    setup = [step(1.5, C), step(0.5, S)]
    timeline = run_virtually(execute_async(setup, chunks, at_once, compute))
    planned = schedule_stages(resources, seconds, m, setup=2.0)
    actual = {(span.stage, span.chunk): (span.start, span.end) for span in timeline.spans if span.chunk >= 0}
    assert actual.keys() == {(slot.stage, slot.chunk) for slot in planned.slots}
    for slot in planned.slots:
        assert actual[slot.stage, slot.chunk] == pytest.approx((slot.start, slot.end), abs=1e-6)
    assert timeline.completion == pytest.approx(planned.completion)
    assert timeline.setup_seconds == pytest.approx(2.0)
    for s, durations in enumerate(timeline.stage_seconds):
        assert durations == pytest.approx([seconds[s]] * m, abs=1e-6)


def test_the_timeline_names_every_step_and_survives_being_saved():
    def begin():
        yield {}

    def collect(c):
        yield {}

    def remove():
        pass

    chunks = [[Step(partial(collect, c), N), Step(remove, S), Step(remove, S)] for c in range(2)]
    timeline = run_virtually(execute_async([Step(begin, C)], chunks, at_once, inline))
    named = sorted((span.chunk, span.stage, span.step, span.resource.value) for span in timeline.spans)
    assert named == [
        (-1, 0, "begin", "c-comp"),
        *((c, *rest) for c in range(2) for rest in [(0, "collect", "comm"), *[(1, "remove", "s-comp")] * 2]),
    ]
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=Timeline) == timeline


def test_a_failure_is_raised_as_it_was():
    failure = TooFewClients("this stage", 1, 2)
    failure.__cause__ = cause = KeyError("why")

    def fail():
        raise failure

    with pytest.raises(TooFewClients) as raised:
        run_virtually(execute_async([], [[asking(0, after=fail)], [asking(1)]], at_once, inline))
    assert raised.value is failure
    assert raised.value.__cause__ is cause


def test_a_failure_cancels_what_another_chunk_awaits_and_closes_its_flow():
    closed, cancelled = [], []

    def fail():
        raise ZeroDivisionError

    async def exchange(requests):
        (chunk,) = {request.chunk for request in requests.values()}
        try:
            await asyncio.sleep([1, 2, 50][chunk])
        except asyncio.CancelledError:
            cancelled.append(chunk)
            raise
        return await at_once(requests)

    async def main():
        chunks = [
            [asking(c, C, closed=closed), asking(c, N, closed=closed, after=fail if c == 1 else None)] for c in range(3)
        ]
        with pytest.raises(ZeroDivisionError):
            await execute_async([], chunks, exchange, inline)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())
    assert cancelled == [2]
    assert sorted(closed) == [0, 0, 1, 1, 2]


def test_a_failing_set_up_runs_no_chunk():
    asked = []

    async def exchange(requests):
        asked.extend(request.chunk for request in requests.values())
        return []

    def fail():
        raise TooFewClients("set-up", 0, 1)

    with pytest.raises(TooFewClients):
        run_virtually(execute_async([Step(fail, C)], [[asking(0)]], exchange, inline))
    assert not asked


def test_a_failing_exchange_is_raised_as_it_was():
    async def exchange(requests):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run_virtually(execute_async([], [[asking(0)], [asking(1)]], exchange, inline))


def kept(step, flows):
    """Return the step; its flow is kept, so that only the executor can close it."""

    def run():
        flows.append(step.run())
        return flows[-1]

    return Step(run, step.resource)


@pytest.mark.parametrize("during_setup", [True, False])
def test_cancelling_from_outside_leaves_nothing_behind(during_setup):
    flows = []

    async def exchange(requests):
        await asyncio.sleep(100)

    async def main():
        step, chunks = kept(asking(0), flows), [[asking(1)], [asking(2)]]
        round_ = ([step], chunks) if during_setup else ([], [[step], *chunks])
        task = asyncio.create_task(execute_async(*round_, exchange, inline))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main())
    assert [inspect.getgeneratorstate(flow) for flow in flows] == [inspect.GEN_CLOSED]


@pytest.mark.parametrize("all_tasks", [True, False])  # as asyncio.run does when a handler of a signal raises
@pytest.mark.parametrize("during_setup", [True, False])
def test_a_thread_is_outlived_and_makes_no_further_requests_once_the_round_is_cancelled(during_setup, all_tasks):
    asked, entered, go, flows = [], threading.Event(), threading.Event(), []

    def slow(requests):
        for u in requests:
            asked.append(u)
            entered.set()
            go.wait(HANG)
            yield u, Answer(0)

    async def exchange(requests):
        return slow(requests)

    async def main():
        step = kept(asking(0, clients=(1, 2, 3)), flows)
        task = asyncio.create_task(execute_async(*(([step], []) if during_setup else ([], [[step]])), exchange))
        await asyncio.to_thread(entered.wait, HANG)
        for cancelled in asyncio.all_tasks() - {asyncio.current_task()} if all_tasks else {task}:
            cancelled.cancel()
        await turns()
        task.cancel()  # impatience changes nothing
        await turns()
        early = task.done()
        go.set()
        assert not early
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert asked == [1]
    assert inspect.getgeneratorstate(flows[0]) == inspect.GEN_CLOSED


def test_replies_that_a_flow_leaves_are_still_made():
    log = []

    async def exchange(requests):
        return lazily(log, requests)

    def ask():
        yield dict.fromkeys((1, 2, 3), Ask(0))

    run_virtually(execute_async([], [[Step(ask, N)]], exchange, inline))
    assert log == [1, 2, 3]


def test_all_that_a_flow_does_happens_where_the_server_computes():
    where = []

    def here():
        where.append(threading.current_thread() is threading.main_thread())

    def replies():
        here()
        yield 1, Answer(0)

    async def exchange(requests):
        return replies()

    def flow():
        here()
        for _ in (yield {1: Ask(0)}):
            here()

    def run():
        here()
        return flow()

    asyncio.run(execute_async([Step(here, S)], [[Step(run, N)]], exchange))
    assert where == [False] * 5


def test_stages_of_different_chunks_overlap_in_threads():
    both = threading.Barrier(2, timeout=HANG)  # passes only if two chunks are in it at the same time

    def meet():
        both.wait()

    def pass_by():
        pass

    execute([], [[Step(pass_by, C), Step(meet, S)], [Step(meet, C), Step(pass_by, S)]], lambda requests: [])


def test_one_client_answers_one_request_at_a_time():
    inside, most = {1: 0, 2: 0}, []

    def exchange(requests):
        for u, request in requests.items():
            inside[u] += 1
            most.append(inside[u])
            for _ in range(20):
                time.sleep(0)  # lets the other threads come in, if they can
            inside[u] -= 1
            yield u, Answer(request.chunk)

    chunks = [[asking(c, C), asking(c, N), asking(c, S)] for c in range(4)]
    timeline = execute([], chunks, exchange)
    assert set(most) == {1}
    assert len(most) == 24
    assert len(timeline.spans) == 12


def test_in_turn_asks_nobody_before_replies_are_taken():
    log = []
    replies = asyncio.run(serialise_exchange(partial(lazily, log))({1: Ask(0), 2: Ask(0)}))
    assert not log
    next(iter(replies))
    assert log == [1]


def test_chunks_of_different_stages_are_refused():
    with pytest.raises(InputError, match="same stages"):
        run_virtually(execute_async([], [[Step(print, C)], [Step(print, S)]], at_once, inline))


def test_a_round_without_chunks_is_its_set_up():
    ran = []
    timeline = run_virtually(execute_async([Step(lambda: ran.append(1), C)], [], at_once, inline))
    assert ran == [1]
    assert timeline.stage_seconds == ()


def test_a_timeline_tells_the_stages_of_a_chunk_without_the_set_up():
    def unmask():
        pass

    def decode():
        pass

    chunk = [asking(0), Step(unmask, S), Step(decode, S)]
    timeline = run_virtually(execute_async([Step(decode, C)], [chunk], at_once, inline))
    assert timeline.resources == (N, S)
    assert timeline.steps == (("ask",), ("unmask", "decode"))
