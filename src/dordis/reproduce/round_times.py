"""How long rounds take, plain and in a pipeline, for any costs: the paper's round-time figure (section 6.3 and 6.4)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import groupby, product

import msgspec

from dordis.pipeline.executor import Timeline
from dordis.pipeline.planner import MOST_CHUNKS, plan
from dordis.privacy.planning import default_threshold
from dordis.privacy.skellam import block_size, padded_length
from dordis.privacy.xnoise import NoisePlan, Scheme, default_tolerance
from dordis.protocol import ClientId, Resource
from dordis.protocols.neighbourhood import solve
from dordis.protocols.parameters import SEMI_HONEST
from dordis.reproduce.costs import VARIANCE, Costs, Shape
from dordis.simulation.clock import WORKERS, Cost, Device, heterogeneous, simulate

SEED = 1
RATES = tuple(Fraction(tenths, 10) for tenths in range(4))
SCHEMES = (Scheme.ORIG, Scheme.SINGLE, Scheme.EXACT)

Devices = Mapping[ClientId, Device]


@dataclass(frozen=True)
class Task:
    """A model and the clients of a round; `other` is the seconds of a round outside of aggregation, mostly training.

    The paper's figure gives no numbers in its text.  ResNet-18 over CIFAR-10 spends 89 to 93 % of a plain round on
    aggregation, VGG-19 93 to 95 %: with 9 % and 6 % that is 41 s and 55 s under its cost mix.  FEMNIST gets 41 s, too.
    """

    name: str
    dim: int
    clients: int
    other: float


CNN = Task("CNN 1M", 1_018_174, 100, 41.0)
RESNET = Task("ResNet-18 11M", 11_183_562, 100, 41.0)
RESNET_16 = Task("ResNet-18 11M", 11_183_562, 16, 41.0)
VGG = Task("VGG-19 20M", 20_040_522, 16, 55.0)
TASKS = (CNN, RESNET, RESNET_16, VGG)


@dataclass(frozen=True)
class Configuration:
    """One group of bars of the figure."""

    task: Task
    scheme: Scheme = Scheme.SINGLE
    rate: Fraction = Fraction(1, 10)
    plus: bool = False
    """Whether the graph is that of SecAgg+."""

    @property
    def dropped(self) -> int:
        """Return how many clients are lost before they upload."""
        return int(self.rate * self.task.clients)

    def shape(self, costs: Costs, m: int) -> Shape:
        """Return what the costs of m chunks depend on."""
        n = self.task.clients
        tolerance = int(costs.tolerated * n) or default_tolerance(n, default_threshold(n, 1))
        variance = VARIANCE if self.scheme is not Scheme.NONE else Fraction(0)
        noise = NoisePlan(self.scheme, n, tolerance, 1, variance)
        dim = self.task.dim if costs.padded else padded_length(self.task.dim, block_size(self.task.dim))
        peers = costs.degrees.get(n) or degree(n, tolerance) if self.plus else n - 1
        return Shape.of(noise, peers, self.dropped, m, costs.chunk_dim(dim, m))

    def devices(self) -> Devices:
        """Return the survivors' devices: the slowest are among them, whoever drops out."""
        return heterogeneous(map(ClientId, range(self.task.clients - self.dropped)), SEED, workers=WORKERS)


@cache
def degree(clients: int, tolerance: int) -> int:
    """Return the degree of SecAgg+."""
    return solve(clients, tolerance, 1, SEMI_HONEST).degree


class RoundTime(msgspec.Struct, frozen=True):
    """What a configuration takes, in seconds.

    `busy` is the share of the round, `other` included, in which the slowest client or the server computes, or the
    slowest link carries something.
    """

    costs: str
    model: str
    clients: int
    graph: str
    degree: int
    scheme: str
    dropout: float
    other: float
    plain: float
    pipelined: float
    chunks: int
    bound: float
    """The least that any overlap takes: the slowest link's transfers, the slowest client's or the server's work."""
    bottleneck: str
    plain_busy: dict[str, float]
    pipelined_busy: dict[str, float]

    @property
    def speedup(self) -> float:
        """Return how much faster the round is in a pipeline."""
        return (self.plain + self.other) / (self.pipelined + self.other)

    @property
    def pipelined_share(self) -> float:
        """Return the share of a pipelined round that is aggregation."""
        return self.pipelined / (self.pipelined + self.other)

    @property
    def over_bound(self) -> float:
        """Return how far aggregation in a pipeline is from the bound."""
        return self.pipelined / self.bound

    @property
    def share(self) -> float:
        """Return the share of a plain round that is aggregation."""
        return self.plain / (self.plain + self.other)

    def fields(self) -> dict[str, object]:
        """Return all of it as JSON."""
        whole: dict[str, object] = msgspec.to_builtins(self)
        names = ("speedup", "over_bound", "share", "pipelined_share")
        return whole | {name: getattr(self, name) for name in names}


def timelines(configuration: Configuration, costs: Costs) -> tuple[Timeline, Timeline]:
    """Run a round plain, and with as many chunks as the planner says, under the executor in virtual time."""
    devices = configuration.devices()
    m = chunks(configuration, costs, devices)
    plain, pipelined = (simulate(*costs.steps(configuration.shape(costs, count)), devices) for count in (1, m))
    return plain, pipelined


def round_time(configuration: Configuration, costs: Costs) -> RoundTime:
    """Run a round both ways, and say what came of it."""
    plain, pipelined = timelines(configuration, costs)
    m, task, devices = len(pipelined.stage_seconds[0]), configuration.task, configuration.devices()
    once, often = (work(*costs.steps(configuration.shape(costs, count)), devices) for count in (1, m))
    least = min(once, often, key=lambda each: max(each.values()))
    return RoundTime(
        costs=costs.name,
        model=task.name,
        clients=task.clients,
        graph="SecAgg+" if configuration.plus else "SecAgg",
        degree=configuration.shape(costs, m).peers,
        scheme=configuration.scheme.value,
        dropout=float(configuration.rate),
        other=task.other,
        plain=plain.completion,
        pipelined=pipelined.completion,
        chunks=m,
        bound=max(least.values()),
        bottleneck=max(least, key=lambda resource: least[resource]).value,
        plain_busy=busy(once, plain.completion + task.other),
        pipelined_busy=busy(often, pipelined.completion + task.other),
    )


def chunks(configuration: Configuration, costs: Costs, devices: Devices) -> int:
    """Let the planner choose the number of chunks from what every stage would take."""
    steps = {m: costs.steps(configuration.shape(costs, m)) for m in range(1, MOST_CHUNKS + 1)}
    groups = [list(group) for _, group in groupby(steps[1][1][0], lambda cost: cost.resource)]
    resources = [group[0].resource for group in groups]

    def stage_seconds(m: int) -> Sequence[float]:
        chunk = iter(steps[m][1][0])
        return [sum(seconds(next(chunk), devices) for _ in group) for group in groups]

    def setup_seconds(m: int) -> float:
        return sum(seconds(cost, devices) for cost in steps[m][0])

    return plan(resources, stage_seconds, setup_seconds).chunks


def seconds(cost: Cost, devices: Devices) -> float:
    """Return what a step takes if nothing else is going on: until the last reply, and the server's work on them."""
    asked = (
        8 * (cost.request + cost.reply) / device.bandwidth + cost.client * device.slowness
        for device in devices.values()
    )
    return max(asked) + cost.server


def work(setup: Sequence[Cost], parts: Iterable[Sequence[Cost]], devices: Devices) -> dict[Resource, float]:
    """Return what each resource has to do in a round: the slowest client and the slowest link, and the server."""
    steps = [*setup, *(cost for part in parts for cost in part)]
    slowest, narrowest = (
        max(device.slowness for device in devices.values()),
        min(device.bandwidth for device in devices.values()),
    )
    return {
        Resource.CLIENT: slowest * sum(cost.client for cost in steps),
        Resource.NETWORK: 8 * sum(cost.request + cost.reply for cost in steps) / narrowest,
        Resource.SERVER: sum(cost.server for cost in steps),
    }


def busy(seconds: Mapping[Resource, float], completion: float) -> dict[str, float]:
    """Return the share of a round in which each resource has something to do; the rest it is idle."""
    return {resource.value: each / completion for resource, each in seconds.items()}


def configurations() -> Iterator[Configuration]:
    """Return all of the figure."""
    for task, plus, rate, scheme in product(TASKS, (False, True), RATES, SCHEMES):
        yield Configuration(task, scheme, rate, plus)


def figure(costs: Costs, shown: Iterable[Configuration] | None = None) -> list[RoundTime]:
    """Run the figure, or some of it: some hundred rounds, twice."""
    return [round_time(configuration, costs) for configuration in (shown or configurations())]


def added(rounds: Sequence[RoundTime], scheme: Scheme, *, pipelined: bool) -> dict[tuple[str, int, str, float], float]:
    """Return what a scheme adds to aggregation over `orig`, as a share of it, by configuration."""

    def took(each: RoundTime) -> float:
        return each.pipelined if pipelined else each.plain

    keys = {(each.model, each.clients, each.graph, each.dropout, each.scheme): took(each) for each in rounds}
    return {
        (model, n, graph, rate): value / keys[model, n, graph, rate, Scheme.ORIG.value] - 1
        for (model, n, graph, rate, name), value in keys.items()
        if name == scheme.value
    }


SIZES = (16, 32, 64, 100)
"""Clients of a round as its size grows."""


def shares(costs: Costs) -> list[RoundTime]:
    """Run rounds of more and more clients, without and with noise: how much of a round is aggregation?"""
    return [
        round_time(Configuration(replace(RESNET, clients=n), scheme, Fraction(1, 10), plus), costs)
        for plus, n, scheme in product((False, True), SIZES, (Scheme.NONE, *SCHEMES))
    ]
