"""Simulated rounds: steps of given seconds and bytes, run by the executor in virtual time."""

from collections.abc import Iterable, Mapping, Sequence

from dordis.pipeline.executor import Timeline, execute_async
from dordis.protocol import ClientId, Flow, Message, Resource, Step
from dordis.simulation.virtual_devices import Delivery, Device, ServerProcessor, VirtualExchange, run_virtually

Devices = Mapping[ClientId, Device]


class StepCost(Message, frozen=True):
    """The cost of a step: bytes of request and answer for each client, seconds of each client and of the server.

    In simulated rounds it is sent in place of the request and of the reply whose cost it states.
    """

    step: str
    resource: Resource
    request: int = 0
    client: float = 0.0
    answer: int = 0
    server: float = 0.0

    def seconds(self, devices: Devices) -> float:
        """Return the duration of the step alone, until the server has processed the slowest reply."""
        size = 8 * (self.request + self.answer)
        return max(size / d.bandwidth + self.client * d.slowness for d in devices.values()) + self.server


def simulate(setup: Sequence[StepCost], chunks: Sequence[Sequence[StepCost]], devices: Devices) -> Timeline:
    """Run a round of such steps under the executor; thousands of steps take milliseconds.

    >>> upload = StepCost("upload", Resource.NETWORK, answer=1_000_000)
    >>> simulate([], [[upload]] * 2, {ClientId(1): Device(bandwidth=8e6)}).completion
    2.0
    """
    server_seconds = 0.0

    def step(cost: StepCost) -> Step:
        def run() -> Flow:
            nonlocal server_seconds
            if cost.request or cost.client or cost.answer:
                yield dict.fromkeys(devices, cost)
            server_seconds += cost.server

        run.__name__ = cost.step
        return Step(run, cost.resource)

    exchange, processor = VirtualExchange(devices, _deliver), ServerProcessor(lambda: server_seconds)
    steps = ([step(cost) for cost in costs] for costs in (setup, *chunks))
    return run_virtually(execute_async(next(steps), list(steps), exchange, processor))


def _deliver(u: ClientId, cost: Message) -> Delivery:
    if not isinstance(cost, StepCost):
        raise TypeError(f"a simulated round sends StepCost only, not {type(cost).__name__}")
    return Delivery(cost, cost.request, cost.client, cost.answer)


def work(setup: Sequence[StepCost], chunks: Iterable[Sequence[StepCost]], devices: Devices) -> dict[Resource, float]:
    """Return the seconds that each resource works in a round: the slowest client, the slowest link, and the server.

    Upload and download are two resources if the resource of some step is the downlink, and one resource otherwise.
    """
    steps = [*setup, *(cost for chunk in chunks for cost in chunk)]
    slowness, bandwidth = max(d.slowness for d in devices.values()), min(d.bandwidth for d in devices.values())
    up, down = (8 * sum(getattr(cost, way) for cost in steps) / bandwidth for way in ("answer", "request"))
    both_ways = any(cost.resource is Resource.DOWNLINK for cost in steps)
    seconds = {
        Resource.CLIENT: slowness * sum(cost.client for cost in steps),
        Resource.NETWORK: up if both_ways else up + down,
        Resource.SERVER: sum(cost.server for cost in steps),
    }
    return seconds | {Resource.DOWNLINK: down} if both_ways else seconds
