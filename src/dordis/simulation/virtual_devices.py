"""Virtual time: rounds on simulated devices and links of any speed, without waiting for them.

A computation is run immediately and measured, or only its duration is modelled.  In virtual time the computation then
occupies the processor of the client or of the server for this duration, and messages occupy the link of the client.
Processors and links serve requests in order of arrival.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from dordis.protocol import ClientId, Message, Requests
from dordis.simulation.exchange import LocalExchange

Result = TypeVar("Result")

ZIPF = 1.2
"""The paper's Zipf exponent a: the i-th slowest client takes i^-a times the time of the slowest client."""
MEGABIT = 1e6
WORKERS = 2
"""Number of requests that a client handles in parallel in a pipeline, so that no short request waits for a long one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0, and jumps to the next timer when nothing else is ready to run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._jumping.now


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances the virtual clock instead of waiting for timeouts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are ready; if there are none, advance the virtual clock by the timeout."""
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("virtual time cannot advance: all tasks wait, and there is no timer")
        if not events and timeout is not None:
            self.now += timeout
        return events


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time and return its result.

    >>> run_virtually(asyncio.sleep(3600.0, "an hour later"))
    'an hour later'
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class Device(msgspec.Struct, frozen=True):
    """A client's processor and its link, which sends and receives at the same time."""

    bandwidth: float
    """Bits per second, each way."""
    latency: float = 0.0
    """Seconds that each message takes in addition to its size divided by the bandwidth."""
    slowness: float = 1.0
    """Seconds that this device takes for one measured or modelled second of work."""
    workers: int = 1
    """Number of requests that the device handles in parallel, each at full speed.

    To assume full speed is nearly right: the pipeline gives each resource to one chunk at a time, so long requests
    hardly overlap.
    """


def heterogeneous(
    clients: Iterable[ClientId],
    seed: int,
    a: float = ZIPF,
    slowest: float = 21.0,
    fastest: float = 210.0,
    latency: float = 0.0,
    workers: int = 1,
) -> dict[ClientId, Device]:
    """Return the paper's devices (section 6.1), whose bandwidths and speeds are Zipf-distributed and independent.

    The i-th slowest link has i^a times the bandwidth `slowest`, but at most `fastest`, both in Mbps.  The i-th slowest
    processor takes i^-a times the measured time.

    >>> sorted(round(device.bandwidth / 1e6) for device in heterogeneous(range(8), seed=1).values())
    [21, 48, 78, 111, 145, 180, 210, 210]
    """
    members = list(clients)
    rng = np.random.default_rng(seed)
    share = np.arange(1, len(members) + 1, dtype=np.float64) ** -a
    bandwidths = rng.permutation(np.minimum(slowest / share, fastest)) * MEGABIT
    slownesses = rng.permutation(share)
    return {
        u: Device(float(bandwidth), latency, float(slowness), workers)
        for u, bandwidth, slowness in zip(members, bandwidths, slownesses, strict=True)
    }


class Delivery(NamedTuple):
    """The outcome of a request: the reply, if any, the client's CPU seconds, and the bytes it received and sent."""

    reply: Message | None
    received: int
    seconds: float
    sent: int


NOTHING_CAME = Delivery(None, 0, 0.0, 0)
"""The outcome of a lost request."""
Deliver = Callable[[ClientId, Message], Delivery]


@dataclass
class Real:
    """Delivers requests to clients of a `LocalExchange`, and measures their CPU seconds."""

    exchange: LocalExchange

    def __call__(self, u: ClientId, request: Message) -> Delivery:
        """Deliver a request and return its outcome; the CPU seconds include encoding and decoding on both sides."""
        before, sent, start = self.exchange.received[u], self.exchange.sent[u], thread_time()
        reply = dict(self.exchange({u: request})).get(u)
        seconds = thread_time() - start
        received = self.exchange.received[u] - before
        return Delivery(reply, received, seconds, self.exchange.sent[u] - sent) if received else NOTHING_CAME


@dataclass
class _Queue:
    """A queue that serves one job at a time, in order of arrival."""

    free: float = 0.0

    def end(self, arrival: float, seconds: float) -> float:
        """Return when a job of `seconds` that arrives at `arrival` would end; the queue itself does not change."""
        return max(self.free, arrival) + seconds


class _Worker:
    """One worker of a client: it receives a request, computes, and sends the reply.

    All requests pass the queues of these three steps in the same order.  So when a request arrives, the time at which
    it will leave each queue is known.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._down, self._processor, self._up = _Queue(), _Queue(), _Queue()

    def ends(self, now: float, delivery: Delivery) -> tuple[float, float, float]:
        """Return the times at which a request is received, its reply is computed, and the reply is sent."""
        came = self._down.end(now, 8 * delivery.received / self._device.bandwidth)
        computed = self._processor.end(came + self._device.latency, delivery.seconds * self._device.slowness)
        return came, computed, self._up.end(computed, 8 * delivery.sent / self._device.bandwidth)

    def serve(self, now: float, delivery: Delivery) -> float:
        """Let the worker handle a request that is sent at time `now`; return when the server has the whole reply."""
        self._down.free, self._processor.free, self._up.free = self.ends(now, delivery)
        return self._up.free + self._device.latency


class VirtualExchange:
    """Delivers requests in virtual time; a call returns when the last reply to its requests has arrived.

    A lost request takes no time, as if the server knew which clients have left.  The server's link has no limit.
    """

    def __init__(self, devices: Mapping[ClientId, Device], deliver: Deliver) -> None:
        self._deliver = deliver
        self._workers = {u: [_Worker(device) for _ in range(device.workers)] for u, device in devices.items()}

    async def __call__(self, requests: Requests) -> list[tuple[ClientId, Message]]:
        """Deliver the requests; return the replies in order of arrival."""
        now = asyncio.get_running_loop().time()
        arrivals: list[tuple[float, ClientId, Message]] = []
        last = now
        for u, request in requests.items():
            delivery = self._deliver(u, request)
            arrival = min(self._workers[u], key=lambda worker: worker.ends(now, delivery)[-1]).serve(now, delivery)
            last = max(last, arrival)
            if delivery.reply is not None:
                arrivals.append((arrival, u, delivery.reply))
        await asyncio.sleep(last - now)
        return [(u, reply) for _, u, reply in sorted(arrivals, key=lambda arrived: arrived[:2])]


class ServerProcessor:
    """The server's processor in virtual time: it runs one call at a time, and `meter` measures the call's duration."""

    def __init__(self, meter: Callable[[], float] = thread_time) -> None:
        self._meter = meter
        self._free = 0.0

    async def __call__(self, work: Callable[[], Result], /) -> Result:
        """Call the function immediately, and return its result at the virtual time at which it would end."""
        start = self._meter()
        result = work()
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now) + self._meter() - start
        await asyncio.sleep(self._free - now)
        return result
