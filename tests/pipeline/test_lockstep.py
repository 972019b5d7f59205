"""Chunks in lockstep: one exchange for a step of all chunks, after the set-up; a failure closes all flows."""

import asyncio

import pytest

from dordis.errors import InputError
from dordis.pipeline.executor import execute_in_lockstep
from dordis.protocol import SETUP, Resource, Step


def make_step(name, log, trips=1, resource=Resource.CLIENT):
    """Return a step with some round trips that writes down what it receives, and its end."""

    def run():
        try:
            for trip in range(trips):
                replies = yield {name: trip}
                log.append((name, list(replies)))
        finally:
            log.append((name, "closed"))

    run.__name__ = name
    return Step(run, resource)


async def in_place(work):
    return work()


def run(setup, chunks, exchange):
    return asyncio.run(execute_in_lockstep(setup, chunks, exchange, in_place))


def test_all_chunks_send_before_any_is_answered():
    waiting, log = [], []

    async def exchange(requests):
        waiting.append(requests)
        for _ in range(3):
            await asyncio.sleep(0)
        return [(1, tuple(waiting))]

    run([], [[make_step("a", log)], [make_step("b", log)]], exchange)
    received = [replies for _, replies in log if replies != "closed"]
    assert [set(map(str, reply[1])) for (reply,) in received] == [{"{'a': 0}", "{'b': 0}"}] * 2


def test_the_set_up_comes_first_and_a_span_stands_for_all_chunks():
    log = []

    async def exchange(requests):
        return []

    chunks = [[make_step(f"{step}", log) for step in ("mask", "upload")] for _ in range(3)]
    timeline = run([make_step("keys", log, trips=2)], chunks, exchange)
    assert [(span.chunk, span.step) for span in timeline.spans] == [(SETUP, "keys"), (0, "mask"), (0, "upload")]
    assert [name for name, what in log if what != "closed"] == ["keys"] * 2 + ["mask"] * 3 + ["upload"] * 3


def test_flows_of_unequal_length_each_get_their_own_replies():
    log = []

    async def exchange(requests):
        return [(name, trip) for name, trip in requests.items()]

    run([], [[make_step("a", log, trips=1)], [make_step("b", log, trips=3)]], exchange)
    replies = {name: [reply for who, reply in log if who == name and reply != "closed"] for name in "ab"}
    assert replies == {"a": [[("a", 0)]], "b": [[("b", 0)], [("b", 1)], [("b", 2)]]}


def test_a_failure_is_raised_and_every_flow_is_closed():
    log = []

    async def exchange(requests):
        if "b" in requests:
            raise InputError("lost")
        return []

    with pytest.raises(InputError, match="lost"):
        run([], [[make_step("a", log, trips=2)], [make_step("b", log)]], exchange)
    assert sorted(name for name, what in log if what == "closed") == ["a", "b"]
