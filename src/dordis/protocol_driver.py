"""Move messages: the only code that connects a server's steps to clients."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from dordis.protocol import Flow, ProtocolServer, Replies, Requests, Step

Output = TypeVar("Output")

Exchange = Callable[[Requests], Replies]
"""Deliver requests; return the replies that came in time, one by one."""
AsyncExchange = Callable[[Requests], Awaitable[Replies]]


def run(server: ProtocolServer[Output], exchange: Exchange) -> Output:
    """Run all steps of a server and return its output."""
    advance(server.workflow, exchange)
    return server.output()


def advance(steps: Iterable[Step], exchange: Exchange) -> None:
    """Run some steps, one after the other."""
    for step in steps:
        flow = step.run()
        requests = begin(flow)
        while flow is not None and requests is not None:
            requests = resume(flow, exchange(requests))


def begin(flow: Flow | None) -> Requests | None:
    """Return the first requests of a flow, or None if it has none."""
    return None if flow is None else next(flow, None)


def resume(flow: Flow, replies: Replies) -> Requests | None:
    """Hand the replies over; return the next requests, or None at the end of the flow.

    Replies may be made as they are asked for; those that the flow leaves are still made, so that every request arrives.
    """
    try:
        requests = flow.send(replies)
    except StopIteration:
        requests = None
    for _ in replies:
        pass
    return requests
