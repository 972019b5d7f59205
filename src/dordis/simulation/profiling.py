"""How long the stages of a round take: small rounds of zeros with real clients, timed in virtual time.

It is the paper's offline micro-benchmark (section 4.2).  What clients and the server compute is measured in CPU
seconds of this machine and charged to devices of different speed; zeros tell nothing of anybody and cost no privacy.
"""

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.federation.design import Design
from dordis.federation.owner import Owner
from dordis.federation.participation import MemoryParticipation
from dordis.federation.round import Watch, silent
from dordis.kernels.ring import Vector
from dordis.pipeline.executor import Timeline, execute_async
from dordis.pipeline.performance import Performance, Profile
from dordis.protocol import ClientId, Resource, Step
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.round import REPLIES, RoundClient, RoundServer
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.simulation.cast import Cast, Identities
from dordis.simulation.clock import (
    WORKERS,
    Device,
    Real,
    ServerProcessor,
    VirtualExchange,
    heterogeneous,
    run_virtually,
)
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.job import Job
from dordis.simulation.rehearsal import convene

DIMS = (50_000, 200_000, 400_000)
"""Short, but long enough that a chunk of an eighth still has blocks; none is a multiple of a large one."""
NUMBERS = (1, 2, 4, 8)
REPEATS = 2


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What devices the clients have: the paper's, of different speed, if nothing else is said (section 6.1)."""

    bandwidth: float = 21.0
    """Mbps of the slowest link; the fastest has ten times as many."""
    slowness: float = 1.0
    """Seconds that the slowest client takes for one second of this machine's."""

    def devices(self, ids: Iterable[ClientId], seed: int) -> dict[ClientId, Device]:
        """Return a device for every client."""
        if not (0 < self.bandwidth < math.inf and 0 < self.slowness < math.inf):
            raise InputError("the slowest client has a bandwidth and a slowness above 0")
        drawn = heterogeneous(ids, seed, slowest=self.bandwidth, fastest=10 * self.bandwidth, workers=WORKERS)
        return {
            u: msgspec.structs.replace(device, slowness=self.slowness * device.slowness) for u, device in drawn.items()
        }


class Profiled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A micro-benchmark: what was timed, how long it took, and the model that was fitted to it."""

    clients: int
    protocol: str
    mode: str
    noise: str
    bits: int
    hardware: Hardware
    resources: tuple[Resource, ...]
    """Of every stage."""
    steps: tuple[tuple[str, ...], ...]
    """Of every stage, by name."""
    profile: Profile
    model: Performance


@dataclass(frozen=True)
class Bench:
    """The rounds of a run, with as many clients and the same noise, but of any length and number of chunks."""

    job: Job
    hardware: Hardware
    longest: int
    """Coordinates of the longest round: all rounds have the bits of a coordinate that it needs, for bits are bytes."""

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return the clients of every round."""
        return self.job.ids[: self.job.design.setting.clients]

    @cached_property
    def devices(self) -> dict[ClientId, Device]:
        """Return the clients' devices."""
        return self.hardware.devices(self.ids, self.job.config.simulation.seed)

    @cached_property
    def _identities(self) -> Identities:
        return Identities.of(secrets.token_bytes(32), self.ids)

    def play(self, dim: int, m: int) -> Timeline:
        """Run a round of zeros in virtual time; tell when everything ran."""
        server, exchange = self.cast(dim, m)
        virtual = VirtualExchange(self.devices, Real(exchange))
        timeline = run_virtually(execute_async(*workflows(server), virtual, ServerProcessor()))
        check_complete(server, exchange, len(self.ids))
        return timeline

    def cast(self, dim: int, m: int) -> tuple[RoundServer, LocalExchange]:
        """Return the server of a new round, and its clients behind an exchange: to be run, in whatever time."""
        design = self._design(dim)
        cast, parameters = convene(self.job.config, design, self._identities, m)
        private = DistributedDP(parameters, design.mechanism)
        vector = private.encode(np.zeros(dim))
        clients = {u: self._client(u, cast, private, vector) for u in self.ids}
        server = RoundServer(SecAggServer(parameters, self._identities.registry.signing_keys()), private)
        return server, LocalExchange(clients, REPLIES, ahead=True)

    def _client(self, u: ClientId, cast: Cast, private: DistributedDP, vector: Vector) -> RoundClient:
        registry, keys = self._identities.registry, self._identities.keys
        owner = Owner(u, cast.policy, cast.selection, MemoryParticipation(), cast.beacon)
        summing = SecAggClient(u, vector, owner=owner, signing=keys[u].signing, registry=registry.signing_keys())
        return RoundClient(summing, DeliveryClient(private))

    @cached_property
    def bits(self) -> int:
        """Return the bits of a coordinate."""
        design = self.job.design
        return replace(design, setting=replace(design.setting, dim=self.longest)).mechanism.grid.bits

    def _design(self, dim: int) -> Design:
        design = self.job.design
        return replace(design, setting=replace(design.setting, dim=dim, bits=self.bits))


def profile(
    job: Job,
    hardware: Hardware = Hardware(),  # noqa: B008  a frozen value
    dims: Sequence[int] = DIMS,
    numbers: Sequence[int] = NUMBERS,
    repeats: int = REPEATS,
    watch: Watch = silent,
) -> Profiled:
    """Time rounds of every length in every number of chunks, in turn, and fit the model; a first round warms up."""
    bench = Bench(job, hardware, max(job.app.dim, *dims))
    watch("warming up")
    first = bench.play(dims[0], max(numbers))
    taken = Profile()
    for repeat in range(repeats):
        for dim in dims:
            for m in numbers:
                watch(f"{dim} coordinates, m = {m} ({repeat + 1} of {repeats})")
                timeline = bench.play(dim, m)
                taken = taken.observe(dim, timeline.setup_seconds, timeline.stage_seconds)
    return Profiled(
        clients=len(bench.ids),
        protocol=job.config.protocol.use,
        mode=job.config.protocol.mode,
        noise=job.config.privacy.noise.name,
        bits=bench.bits,
        hardware=hardware,
        resources=first.resources,
        steps=first.steps,
        profile=taken,
        model=taken.fit(),
    )


def workflows(server: RoundServer) -> tuple[Sequence[Step], list[Sequence[Step]]]:
    """Return the steps of the set-up, and of every chunk."""
    return server.setup.workflow, [chunk.workflow for chunk in server.chunks]


def check_complete(server: RoundServer, exchange: LocalExchange, n: int) -> None:
    """Refuse to time a round that lost someone: it would be shorter than it should."""
    if exchange.errors:
        raise exchange.errors[0][1]
    if any(len(chunk.delivery.output()) != n for chunk in server.chunks):
        raise InputError("a round without dropouts lost clients: what it took says nothing")
