"""Drivers of protocols: they run a server's steps, and carry requests and replies by an exchange."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from dordis.protocol import Flow, ProtocolServer, Replies, Requests, Step

Output = TypeVar("Output")

Exchange = Callable[[Requests], Replies]
"""Delivers requests, and returns an iterator of the replies that came in time."""
AsyncExchange = Callable[[Requests], Awaitable[Replies]]


def run(server: ProtocolServer[Output], exchange: Exchange) -> Output:
    """Run all steps of a server and return its output."""
    advance(server.workflow, exchange)
    return server.output()


def advance(steps: Iterable[Step], exchange: Exchange) -> None:
    """Run steps one after the other; `exchange` carries their requests and replies."""
    for step in steps:
        flow = step.run()
        requests = begin(flow)
        while flow is not None and requests is not None:
            requests = resume(flow, exchange(requests))


def begin(flow: Flow | None) -> Requests | None:
    """Start the flow of a step, its generator, and return its first requests; None if the step sends no requests."""
    return None if flow is None else next(flow, None)


def resume(flow: Flow, replies: Replies) -> Requests | None:
    """Send the replies to the flow; return its next requests, or None at its end.

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
