"""How long rounds take, plain and in a pipeline, for any costs: the paper's round-time figure (section 6.3 and 6.4)."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import groupby, product
from operator import attrgetter
from typing import Any

import msgspec

from dordis.pipeline.executor import Timeline
from dordis.pipeline.planner import MOST_CHUNKS, plan
from dordis.privacy.planning import default_threshold
from dordis.privacy.skellam import block_size, padded_length
from dordis.privacy.xnoise import NoisePlan, Scheme, default_tolerance
from dordis.protocol import ClientId
from dordis.protocols.neighbourhood import solve
from dordis.protocols.parameters import SEMI_HONEST
from dordis.reproduce.costs import CHUNK_STEPS, VARIANCE, Costs, Shape
from dordis.reproduce.modelled import Devices, simulate, work
from dordis.simulation.clock import WORKERS, heterogeneous

SEED = 1
RATES = tuple(Fraction(tenths, 10) for tenths in range(4))
SCHEMES = (Scheme.ORIG, Scheme.SINGLE, Scheme.EXACT)
SIZES = (16, 32, 64, 100)
"""Clients of a round as its size grows."""


@dataclass(frozen=True)
class Workload:
    """A model and the clients of a round; `other` is the seconds of a round outside of aggregation, mostly training.

    The paper's figure gives no numbers in its text.  ResNet-18 over CIFAR-10 spends 89 to 93 % of a plain round on
    aggregation, VGG-19 93 to 95 %: with 9 % and 6 % that is 41 s and 55 s under its cost mix.  FEMNIST gets 41 s, too.
    """

    model: str
    dim: int
    clients: int
    other: float


CNN = Workload("CNN 1M", 1_018_174, 100, 41.0)
RESNET = Workload("ResNet-18 11M", 11_183_562, 100, 41.0)
RESNET_16 = replace(RESNET, clients=16)
VGG = Workload("VGG-19 20M", 20_040_522, 16, 55.0)
WORKLOADS = (CNN, RESNET, RESNET_16, VGG)


@dataclass(frozen=True)
class Configuration:
    """One group of bars of the figure."""

    workload: Workload
    scheme: Scheme = Scheme.SINGLE
    rate: Fraction = Fraction(1, 10)
    plus: bool = False
    """Whether the graph is that of SecAgg+."""

    @property
    def graph(self) -> str:
        """Return the name of the protocol on this graph."""
        return "SecAgg+" if self.plus else "SecAgg"

    @property
    def dropped(self) -> int:
        """Return how many clients are lost before they upload."""
        return int(self.rate * self.workload.clients)

    def shape(self, costs: Costs, m: int) -> Shape:
        """Return what the costs of m chunks depend on."""
        n, dim = self.workload.clients, self.workload.dim
        tolerance = int(costs.tolerated * n) or default_tolerance(n, default_threshold(n, 1))
        variance = VARIANCE if self.scheme is not Scheme.NONE else Fraction(0)
        noise = NoisePlan(self.scheme, n, tolerance, 1, variance)
        length = dim if costs.padded else padded_length(dim, block_size(dim))
        peers = costs.degrees.get(n) or degree(n, tolerance) if self.plus else n - 1
        return Shape.of(noise, peers, self.dropped, m, costs.chunk_dim(length, m))

    def devices(self) -> Devices:
        """Return the devices of the survivors: the slowest are among them, whoever drops out."""
        return heterogeneous(map(ClientId, range(self.workload.clients - self.dropped)), SEED, workers=WORKERS)


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
    def over_bound(self) -> float:
        """Return how far aggregation in a pipeline is from the bound."""
        return self.pipelined / self.bound

    @property
    def share(self) -> float:
        """Return the share of a plain round that is aggregation."""
        return self.plain / (self.plain + self.other)

    @property
    def pipelined_share(self) -> float:
        """Return the share of a pipelined round that is aggregation."""
        return self.pipelined / (self.pipelined + self.other)

    def fields(self) -> dict[str, object]:
        """Return all of it as JSON."""
        derived = ("speedup", "over_bound", "share", "pipelined_share")
        return msgspec.structs.asdict(self) | {name: getattr(self, name) for name in derived}


def timelines(configuration: Configuration, costs: Costs) -> tuple[Timeline, Timeline]:
    """Run a round plain, and with as many chunks as the planner says, under the executor in virtual time."""
    devices = configuration.devices()
    m = chunks(configuration, costs, devices)
    plain, pipelined = (simulate(*costs.steps(configuration.shape(costs, count)), devices) for count in (1, m))
    return plain, pipelined


def chunks(configuration: Configuration, costs: Costs, devices: Devices) -> int:
    """Let the planner choose the number of chunks from what every stage would take."""
    steps = {m: costs.steps(configuration.shape(costs, m)) for m in range(1, MOST_CHUNKS + 1)}

    def stage_seconds(m: int) -> Sequence[float]:
        stages = groupby(steps[m][1][0], lambda cost: cost.resource)
        return [sum(cost.seconds(devices) for cost in stage) for _, stage in stages]

    def setup_seconds(m: int) -> float:
        return sum(cost.seconds(devices) for cost in steps[m][0])

    return plan([resource for resource, _ in groupby(CHUNK_STEPS.values())], stage_seconds, setup_seconds).chunks


def round_time(configuration: Configuration, costs: Costs) -> RoundTime:
    """Run a round both ways, and say what came of it."""
    plain, pipelined = timelines(configuration, costs)
    m, workload = len(pipelined.stage_seconds[0]), configuration.workload
    shapes = [configuration.shape(costs, count) for count in (1, m)]
    seconds = [work(*costs.steps(shape), configuration.devices()) for shape in shapes]
    least = min(seconds, key=lambda works: max(works.values()))
    plain_busy, pipelined_busy = (
        {resource.value: value / (timeline.completion + workload.other) for resource, value in works.items()}
        for works, timeline in zip(seconds, (plain, pipelined), strict=True)
    )
    return RoundTime(
        costs=costs.name,
        model=workload.model,
        clients=workload.clients,
        graph=configuration.graph,
        degree=shapes[0].peers,
        scheme=configuration.scheme.value,
        dropout=float(configuration.rate),
        other=workload.other,
        plain=plain.completion,
        pipelined=pipelined.completion,
        chunks=m,
        bound=max(least.values()),
        bottleneck=max(least, key=lambda resource: least[resource]).value,
        plain_busy=plain_busy,
        pipelined_busy=pipelined_busy,
    )


def configurations() -> Iterator[Configuration]:
    """Return all of the figure."""
    for workload, plus, rate, scheme in product(WORKLOADS, (False, True), RATES, SCHEMES):
        yield Configuration(workload, scheme, rate, plus)


def figure(costs: Costs, shown: Iterable[Configuration] | None = None) -> list[RoundTime]:
    """Run the figure, or some of it: some hundred rounds, twice."""
    return [round_time(configuration, costs) for configuration in (shown or configurations())]


def shares(costs: Costs) -> list[RoundTime]:
    """Run rounds of more and more clients, without and with noise: how much of a round is aggregation?"""
    return [
        round_time(Configuration(replace(RESNET, clients=n), scheme, plus=plus), costs)
        for plus, n, scheme in product((False, True), SIZES, (Scheme.NONE, *SCHEMES))
    ]


def grouped(rounds: Iterable[RoundTime], *names: str) -> dict[Any, list[RoundTime]]:
    """Group rounds by some of their fields, in the order in which these come."""
    key: Callable[[RoundTime], Hashable] = attrgetter(*names)
    groups: dict[Any, list[RoundTime]] = {}
    for round_ in rounds:
        groups.setdefault(key(round_), []).append(round_)
    return groups
