"""Run a round with all chunks side by side: one trip a step, for exchanges whose trips take longer than their work."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from dordis.drive import AsyncExchange, begin, resume
from dordis.pipeline.executor import Compute, Span, Timeline, in_thread
from dordis.pipeline.stages import name
from dordis.protocol import SETUP, Step


async def execute_together(
    setup: Iterable[Step],
    chunks: Sequence[Iterable[Step]],
    exchange: AsyncExchange,
    compute: Compute = in_thread,
) -> Timeline:
    """Run the set-up, then each step of every chunk at once; the exchange is called for all chunks before it answers.

    A span stands for the step of all chunks.
    """
    clock = asyncio.get_running_loop().time
    began, spans = clock(), []
    steps = [(SETUP, (step,)) for step in setup] + [(0, same) for same in zip(*chunks, strict=True)]
    for place, (chunk, same) in enumerate(steps):
        start = clock() - began
        await _step(same, exchange, compute)
        spans.append(Span(chunk, place, name(same[0]), same[0].resource, start, clock() - began))
    return Timeline(tuple(spans))


async def _step(steps: Sequence[Step], exchange: AsyncExchange, compute: Compute) -> None:
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
