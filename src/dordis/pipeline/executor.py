"""Drivers of protocols: they run a server's steps, one after the other or pipelined; an exchange carries the messages.

In a pipeline the set-up runs first, then all chunks.  A stage consists of consecutive steps that keep one resource
busy.  A stage of a chunk starts as soon as its predecessors have ended (`pipeline.planner.predecessors`).  With one
chunk nothing overlaps.  The caller's `compute` runs the computations of the server: in threads, or, to simulate a
deployment, on a virtual clock.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from dordis.errors import InputError
from dordis.pipeline.planner import Stage, group_stages, predecessors, step_name
from dordis.protocol import (
    SETUP,
    ClientId,
    Flow,
    Message,
    OpenCall,
    ProtocolServer,
    Replies,
    Requests,
    Resource,
    Role,
    Step,
)

Result = TypeVar("Result")
Output = TypeVar("Output")

Exchange = Callable[[Requests], Replies]
"""Delivers requests, and returns an iterator of the replies that came in time."""
AsyncExchange = Callable[[Requests], Awaitable[Replies]]
Compute = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a computation of the server, for example in a thread, and returns its result."""


def run(server: ProtocolServer[Output], exchange: Exchange) -> Output:
    """Run all steps of a server and return its output."""
    advance(server.workflow, exchange)
    return server.output()


def advance(steps: Iterable[Step], exchange: Exchange) -> None:
    """Run the steps one after the other; `exchange` carries their requests and replies."""
    for step in steps:
        flow = step.run()
        requests = begin(flow)
        while flow is not None and requests is not None:
            requests = resume(flow, exchange(requests))


def begin(flow: Flow | None) -> Requests | None:
    """Start a flow, the generator of a step, and return its first requests; None if the step sends no requests."""
    return None if flow is None else next(flow, None)


def resume(flow: Flow, replies: Replies) -> Requests | None:
    """Pass the replies to a flow, the generator of a step; return its next requests, or None at its end.

    Some exchanges send a request only when its reply is read.  Therefore replies that the flow leaves unread are read
    here, so that every client gets its request.
    """
    try:
        requests = flow.send(replies)
    except StopIteration:
        requests = None
    for _ in replies:
        pass
    return requests


class Span(msgspec.Struct, frozen=True):
    """Start and end of a step, in seconds since the round began; steps of the set-up have chunk -1."""

    chunk: int
    stage: int
    step: str
    resource: Resource
    start: float
    end: float


class Timeline(msgspec.Struct, frozen=True):
    """Start and end of all steps of the set-up and of the chunks, in the order in which they ended."""

    spans: tuple[Span, ...]

    @property
    def completion(self) -> float:
        """Return the seconds that the round took."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def setup_seconds(self) -> float:
        """Return the end of the set-up, in seconds since the round began; 0 if there was no set-up."""
        return max((span.end for span in self.spans if span.chunk == SETUP), default=0.0)

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Return the resource of each stage, in order; all chunks have the same stages."""
        resources = {span.stage: span.resource for span in self.spans if span.chunk != SETUP}
        return tuple(resources[s] for s in sorted(resources))

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the steps in each stage, in order; all chunks have the same stages."""
        names: dict[int, dict[str, None]] = {}
        for span in self.spans:
            if span.chunk != SETUP:
                names.setdefault(span.stage, {})[span.step] = None
        return tuple(tuple(names[s]) for s in sorted(names))

    @property
    def stage_seconds(self) -> tuple[tuple[float, ...], ...]:
        """Return the seconds that each stage took in each chunk: first index the stage, second the chunk."""
        steps: dict[tuple[int, int], list[Span]] = {}
        for span in self.spans:
            if span.chunk != SETUP:
                steps.setdefault((span.stage, span.chunk), []).append(span)
        count, m = (1 + max((key[place] for key in steps), default=-1) for place in (0, 1))
        return tuple(tuple(steps[s, c][-1].end - steps[s, c][0].start for c in range(m)) for s in range(count))


def execute(setup: Iterable[Step], chunks: Sequence[Iterable[Step]], exchange: Exchange) -> Timeline:
    """Run a round with clients in this process, where clients and server compute in threads; return its timeline."""
    return asyncio.run(execute_async(setup, chunks, serialise_exchange(exchange)))


def run_in_thread(work: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Run `work` in a thread and return a future of its result; cancelling the future does not stop the thread."""
    return asyncio.get_running_loop().run_in_executor(None, work)


async def execute_async(
    setup: Iterable[Step],
    chunks: Sequence[Iterable[Step]],
    exchange: AsyncExchange,
    compute: Compute = run_in_thread,
) -> Timeline:
    """Run the set-up, then all chunks in a pipeline; return the timeline.  All chunks must have the same stages.

    The first failure ends the round and is raised unchanged.  After a failure or a cancellation no further request is
    sent; if the server is computing at that time, the end of the computation is awaited.
    """
    workflows = [group_stages(chunk) for chunk in chunks]
    resources = [stage.resource for stage in workflows[0]] if workflows else []
    if any([stage.resource for stage in workflow] != resources for workflow in workflows):
        raise InputError("all chunks must go through the same stages")
    conductor = _Conductor(exchange, compute)
    for s, stage in enumerate(group_stages(setup)):
        await conductor.perform(SETUP, s, stage)
    done = {(s, c): asyncio.Event() for s in range(len(resources)) for c in range(len(workflows))}

    async def process(c: int) -> None:
        for s, stage in enumerate(workflows[c]):
            for before in predecessors(resources, len(workflows), s, c):
                await done[before].wait()
            await conductor.perform(c, s, stage)
            done[s, c].set()

    await _run_all(process(c) for c in range(len(workflows)))
    return Timeline(tuple(conductor.spans))


class _Conductor:
    """Runs stages, and records start and end of their steps; after a cancellation it sends no further request."""

    def __init__(self, exchange: AsyncExchange, compute: Compute) -> None:
        self._exchange, self._compute = exchange, compute
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._stopped = threading.Event()
        self.spans: list[Span] = []

    async def perform(self, chunk: int, s: int, stage: Stage) -> None:
        """Run the steps of stage `s` of a chunk, one after the other; `chunk` is SETUP for a stage of the set-up."""
        for step in stage.steps:
            start = self._clock() - self._began
            await self._run(step)
            end = self._clock() - self._began
            self.spans.append(Span(chunk, s, step_name(step), step.resource, start, end))

    async def _run(self, step: Step) -> None:
        """Run one step: the server's computations by the constructor's `compute`, the requests by its `exchange`."""
        flow = await self._compute_result(step.run)
        if flow is None:
            return
        try:
            requests = await self._compute_result(partial(begin, flow))
            while requests is not None:
                replies = self._take_until_stopped(await self._exchange(requests))
                requests = await self._compute_result(partial(resume, flow, replies))
        finally:
            flow.close()

    async def _compute_result(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`; after a cancellation, wait for the end of `work`, then raise CancelledError."""
        task: asyncio.Future[Result] = asyncio.ensure_future(self._compute(work))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._stopped.set()
            await _wait_for_end(task)  # a flow must not be closed while it runs
            raise
        return task.result()

    def _take_until_stopped(self, replies: Replies) -> Iterator[tuple[ClientId, Message]]:
        """Yield the replies; raise _Stopped after a cancellation, so that missing replies do not count as dropouts."""
        for reply in replies:
            yield reply
            if self._stopped.is_set():
                raise _Stopped
        if self._stopped.is_set():  # replies missing after a stop are not dropouts
            raise _Stopped


class _Stopped(Exception):  # not an error: it ends the flows of a round that has failed in another step
    pass


async def _wait_for_end(task: "asyncio.Future[Result]") -> None:
    """Wait until a task has ended, even if the waiting is cancelled, and discard the task's exception."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()


async def _run_all(processes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all processes; at the first failure cancel the others, wait for their end, and raise that failure."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for process in processes:
                group.create_task(process)
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure


def serialise_exchange(exchange: Exchange) -> AsyncExchange:
    """Return an exchange that chunks in different threads can share: a client gets one request at a time.

    The given `exchange` is called from several threads at once, but never at once for the same client.  An
    `OpenCall`, which has no addressees, is passed on to it unchanged.
    """
    locks: dict[tuple[Role, ClientId], threading.Lock] = {}

    def one_by_one(requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for u, request in requests.items():
            with locks.setdefault((request.role, u), threading.Lock()):
                answers = list(exchange({u: request}))
            yield from answers

    async def answer(requests: Requests) -> Replies:
        return exchange(requests) if isinstance(requests, OpenCall) else one_by_one(requests)

    return answer


async def execute_in_lockstep(
    setup: Iterable[Step],
    chunks: Sequence[Iterable[Step]],
    exchange: AsyncExchange,
    compute: Compute = run_in_thread,
) -> Timeline:
    """Run the set-up, then each step for all chunks together; the returned timeline has one span for each step.

    In each step `exchange` is called for all chunks before a reply is needed.  So it can send a client its requests for
    all chunks in one message.
    """
    clock = asyncio.get_running_loop().time
    began, spans = clock(), []
    steps = [(SETUP, (step,)) for step in setup] + [(0, same) for same in zip(*chunks, strict=True)]
    for place, (chunk, same) in enumerate(steps):
        start = clock() - began
        await _run_step(same, exchange, compute)
        spans.append(Span(chunk, place, step_name(same[0]), same[0].resource, start, clock() - began))
    return Timeline(tuple(spans))


async def _run_step(steps: Sequence[Step], exchange: AsyncExchange, compute: Compute) -> None:
    flows = [await compute(step.run) for step in steps]
    try:
        due = [(flow, await compute(partial(begin, flow))) for flow in flows if flow is not None]
        while due := [(flow, requests) for flow, requests in due if requests is not None]:
            answers = await asyncio.gather(*(exchange(requests) for _, requests in due))
            due = [
                (flow, await compute(partial(resume, flow, replies)))
                for (flow, _), replies in zip(due, answers, strict=True)
            ]
    finally:
        for flow in flows:
            if flow is not None:
                flow.close()
