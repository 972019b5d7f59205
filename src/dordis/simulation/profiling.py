"""How long the stages of a round take: small rounds of zeros with real clients, timed in virtual time.

It is the paper's offline micro-benchmark (section 4.2).  What clients and the server compute is measured in CPU
seconds of this machine and charged to devices of different speed; zeros tell nothing of anybody and cost no privacy.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from dordis.drive import Exchange
from dordis.errors import InputError
from dordis.federation.design import Design
from dordis.federation.selection import Selection
from dordis.pipeline.executor import Timeline, in_turn
from dordis.pipeline.performance import PerformanceModel, Profile
from dordis.protocol import ClientId, Resource
from dordis.rounds.server import RoundEngine, RoundResult, Rounds, Watch, silent
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
from dordis.simulation.home import Identities
from dordis.simulation.rehearsal import home_of_zeros
from dordis.simulation.run import SimulatedJob
from dordis.simulation.single import single_round

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
    model: PerformanceModel


@dataclass(frozen=True)
class Bench:
    """The rounds of a run, with as many clients and the same noise, but of any length and number of chunks."""

    simulated: SimulatedJob
    hardware: Hardware
    longest: int
    """Coordinates of the longest round: all rounds have the bits of a coordinate that it needs, for bits are bytes."""

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return the clients of every round."""
        return self.simulated.ids[: self.simulated.job.design.setting.clients]

    @cached_property
    def devices(self) -> dict[ClientId, Device]:
        """Return the clients' devices."""
        return self.hardware.devices(self.ids, self.simulated.config.simulation.seed)

    @cached_property
    def _identities(self) -> Identities:
        return Identities(secrets.token_bytes(32), self.ids)

    def virtual(self, dim: int, m: int) -> Timeline:
        """Run a round of zeros in virtual time; tell when everything ran."""

        def engine(exchange: LocalExchange, **options: Any) -> RoundEngine:
            timed = VirtualExchange(self.devices, Real(exchange))
            return RoundEngine(timed, run=run_virtually, compute=ServerProcessor(), **options)

        return self.timed(dim, m, engine)

    def real(
        self, dim: int, m: int, slowed: Callable[[LocalExchange], Exchange] = lambda exchange: exchange
    ) -> Timeline:
        """Run a round of zeros in threads; `slowed` may put something before the exchange."""
        return self.timed(dim, m, lambda exchange, **options: RoundEngine(in_turn(slowed(exchange)), **options))

    def timed(self, dim: int, m: int, engine: Callable[..., RoundEngine]) -> Timeline:
        """Run a round of zeros on an engine; tell when everything ran."""
        home = home_of_zeros(self.simulated, self._design(dim), self._identities, "full")
        exchanges: list[LocalExchange] = []

        def rounds(run: bytes, selection: Selection) -> Rounds:
            exchanges.append(LocalExchange(home.made(run, selection), ahead=True))
            job = home.job
            return engine(
                exchanges[0],
                protocol=job.protocol,
                registry=home.registry.signing_keys(),
                available=lambda index: self.ids,
                suite=job.suite,
                meter=exchanges[0],
            )

        result = single_round(home, m, rounds).result
        check_complete(result, exchanges[0], len(self.ids))
        return result.timeline or Timeline(())

    @cached_property
    def bits(self) -> int:
        """Return the bits of a coordinate."""
        design = self.simulated.job.design
        return replace(design, setting=replace(design.setting, dim=self.longest, buckets=0)).mechanism.grid.bits

    def _design(self, dim: int) -> Design:
        design = self.simulated.job.design
        return replace(design, setting=replace(design.setting, dim=dim, bits=self.bits, buckets=0))


def profile(
    simulated: SimulatedJob,
    hardware: Hardware = Hardware(),  # noqa: B008  a frozen value
    dims: Sequence[int] = DIMS,
    numbers: Sequence[int] = NUMBERS,
    repeats: int = REPEATS,
    watch: Watch = silent,
) -> Profiled:
    """Time rounds of every length in every number of chunks, in turn, and fit the model; a first round warms up."""
    config, bench = simulated.config, Bench(simulated, hardware, max(*simulated.job.app.dims, *dims))
    watch("warming up")
    first = bench.virtual(dims[0], max(numbers))
    taken = Profile()
    for repeat in range(repeats):
        for dim in dims:
            for m in numbers:
                watch(f"{dim} coordinates, m = {m} ({repeat + 1} of {repeats})")
                timeline = bench.virtual(dim, m)
                taken = taken.observe(dim, timeline.setup_seconds, timeline.stage_seconds)
    return Profiled(
        clients=len(bench.ids),
        protocol=config.protocol.use,
        mode=config.protocol.mode,
        noise=config.privacy.noise.name,
        bits=bench.bits,
        hardware=hardware,
        resources=first.resources,
        steps=first.steps,
        profile=taken,
        model=taken.fit(),
    )


def check_complete(result: RoundResult, exchange: LocalExchange, n: int) -> None:
    """Refuse to time a round that lost someone: it would be shorter than it should."""
    if exchange.errors:
        raise exchange.errors[0][1]
    if result.dropped or any(len(output.survivors) != n for output in result.outputs):
        raise InputError("a round without dropouts lost clients: what it took says nothing")
