"""Measure the duration of each stage of a round, in small rounds with updates of zeros.

This is the paper's offline micro-benchmark (section 4.2).  The computations of clients and server are measured in CPU
seconds of this machine, and charged in virtual time to devices of different speeds.  Updates of zeros reveal nothing
and cost no privacy.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from dordis.errors import InputError
from dordis.pipeline.executor import Timeline, serialise_exchange
from dordis.pipeline.performance import PerformanceModel, Profile
from dordis.protocol import ClientId, Resource
from dordis.protocol_driver import Exchange
from dordis.rounds.engine import RoundEngine, RoundResult, RoundRunner
from dordis.runs.plan import RoundPlan
from dordis.selection.selection import Selection
from dordis.simulation.dry_run import zero_population
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.population import Identities
from dordis.simulation.run import SimulatedJob, single_round
from dordis.simulation.virtual_devices import (
    WORKERS,
    Device,
    Real,
    ServerProcessor,
    VirtualExchange,
    heterogeneous,
    run_virtually,
)

DIMS = (50_000, 200_000, 400_000)
"""Lengths of timed updates: short, but long enough that each of eight chunks has several blocks.

None is a multiple of a large block.
"""
NUMBERS = (1, 2, 4, 8)
REPEATS = 2


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clients' devices, of different speeds; by default those of the paper (section 6.1)."""

    bandwidth: float = 21.0
    """Bandwidth of the slowest link in Mbps; the fastest link has ten times as much."""
    slowness: float = 1.0
    """Seconds that the slowest client takes for one second of work of this machine."""

    def devices(self, ids: Iterable[ClientId], seed: int) -> dict[ClientId, Device]:
        """Return a device for every client, with processor speed and bandwidth drawn from `seed`."""
        if not (0 < self.bandwidth < math.inf and 0 < self.slowness < math.inf):
            given = f"bandwidth {self.bandwidth} and slowness {self.slowness}"
            raise InputError(f"{given} of the slowest client must be finite and above 0")
        drawn = heterogeneous(ids, seed, slowest=self.bandwidth, fastest=10 * self.bandwidth, workers=WORKERS)
        return {
            u: msgspec.structs.replace(device, slowness=self.slowness * device.slowness) for u, device in drawn.items()
        }


class MeasuredProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a micro-benchmark: its setting, the timings, and the performance model fitted to them."""

    clients: int
    protocol: str
    mode: str
    noise: str
    bits: int
    hardware: Hardware
    resources: tuple[Resource, ...]
    """For every stage, the resource that it uses: a client's or the server's processor, or the network."""
    steps: tuple[tuple[str, ...], ...]
    """For every stage, the names of its steps."""
    profile: Profile
    model: PerformanceModel


@dataclass(frozen=True)
class Bench:
    """Times rounds with updates of zeros, with the clients and the noise of a job."""

    simulated: SimulatedJob
    hardware: Hardware
    longest: int
    """Coordinates of the longest update; its bits per coordinate are used in all timed rounds."""

    @cached_property
    def ids(self) -> tuple[ClientId, ...]:
        """Return the ids of the clients of every timed round."""
        return self.simulated.ids[: self.simulated.job.design.setting.clients]

    @cached_property
    def devices(self) -> dict[ClientId, Device]:
        """Return the device of every client of a timed round."""
        return self.hardware.devices(self.ids, self.simulated.config.simulation.seed)

    @cached_property
    def _identities(self) -> Identities:
        return Identities(secrets.token_bytes(32), self.ids)

    def virtual(self, dim: int, m: int) -> Timeline:
        """Run a round of zeros of `dim` coordinates in `m` chunks in virtual time; return the times of its steps."""

        def engine(exchange: LocalExchange, **options: Any) -> RoundEngine:
            timed = VirtualExchange(self.devices, Real(exchange))
            return RoundEngine(timed, run=run_virtually, compute=ServerProcessor(), **options)

        return self.timed(dim, m, engine)

    def real(
        self, dim: int, m: int, slowed: Callable[[LocalExchange], Exchange] = lambda exchange: exchange
    ) -> Timeline:
        """Run a round of zeros, of `dim` coordinates in `m` chunks, in real time; return the times of its steps.

        `slowed` may wrap the exchange, for instance to delay messages.
        """
        return self.timed(
            dim, m, lambda exchange, **options: RoundEngine(serialise_exchange(slowed(exchange)), **options)
        )

    def timed(self, dim: int, m: int, engine: Callable[..., RoundEngine]) -> Timeline:
        """Run a round of zeros on an engine that `engine` constructs; return the times of its steps.

        Updates have `dim` coordinates in `m` chunks.
        """
        home = zero_population(self.simulated, self._design(dim), self._identities, "full")
        exchanges: list[LocalExchange] = []

        def rounds(run: bytes, selection: Selection) -> RoundRunner:
            exchanges.append(LocalExchange(home.create_clients(run, selection), ahead=True))
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
        """Return the bits of a coordinate in all timed rounds: those of the longest update."""
        design = self.simulated.job.design
        return replace(design, setting=replace(design.setting, dim=self.longest, buckets=0)).mechanism.grid.bits

    def _design(self, dim: int) -> RoundPlan:
        design = self.simulated.job.design
        return replace(design, setting=replace(design.setting, dim=dim, bits=self.bits, buckets=0))


def profile(
    simulated: SimulatedJob,
    hardware: Hardware = Hardware(),  # noqa: B008  a frozen value
    dims: Sequence[int] = DIMS,
    numbers: Sequence[int] = NUMBERS,
    repeats: int = REPEATS,
    progress: Callable[[str], None] = lambda what: None,
) -> MeasuredProfile:
    """Time rounds of all lengths `dims` and numbers of chunks `numbers`, and fit the performance model to the times.

    The times of a first round, which warms up, are not used.
    """
    config, bench = simulated.config, Bench(simulated, hardware, max(*simulated.job.app.dims, *dims))
    progress("warming up")
    first = bench.virtual(dims[0], max(numbers))
    taken = Profile()
    for repeat in range(repeats):
        for dim in dims:
            for m in numbers:
                progress(f"{dim} coordinates, m = {m} ({repeat + 1} of {repeats})")
                timeline = bench.virtual(dim, m)
                taken = taken.observe(dim, timeline.setup_seconds, timeline.stage_seconds)
    return MeasuredProfile(
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
    """Raise the first client's error, or InputError, if a timed round lost clients, so that its times are too short."""
    if exchange.errors:
        raise exchange.errors[0][1]
    if result.dropped or any(len(output.survivors) != n for output in result.outputs):
        raise InputError("a timed round lost clients although none drops out: its times are not usable, run it again")
