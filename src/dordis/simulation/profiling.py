"""Measured costs of a round, from rounds with updates of zeros, which reveal nothing and cost no privacy.

`profile` is the paper's offline micro-benchmark (section 4.2): it measures the duration of each stage in small rounds.
The computations of clients and server are measured in CPU seconds of this machine.  In virtual time, the computation
of a client takes as long as it would take on the client's simulated device.  `rehearse` estimates the time and the
bytes of a round of a planned run.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from dordis import wire
from dordis.config.schema import Simulation
from dordis.dropout_models import NoDropout
from dordis.errors import InputError
from dordis.pipeline.executor import Timeline, serialise_exchange
from dordis.pipeline.performance_model import PerformanceModel, Profile
from dordis.protocol import ClientId, Resource
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import DistributedDP
from dordis.rounds.app import FixedClient, RoundInfo
from dordis.rounds.catch_up import missed_sum
from dordis.rounds.engine import RoundEngine, RoundResult, RoundRunner
from dordis.rounds.model import ModelBytes
from dordis.rounds.records import as_record_client, rehearse_records
from dordis.runs.plan import RoundPlan
from dordis.selection.selection import Selection
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.population import Identities, SimulatedHome
from dordis.simulation.run import IdleServer, SimulatedJob, single_round
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
"""Lengths of timed updates: short, but so long that each of eight chunks has several blocks (of coordinates that are
rotated together).  No length is a multiple of a large power of two.
"""
NUMBERS = (1, 2, 4, 8)
REPEATS = 2


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The speeds of the clients' devices; by default the speeds of the paper (section 6.1)."""

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
    """The result of a micro-benchmark: its setting, the timings, and the performance model fitted to the timings."""

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
    """A benchmark that times rounds with updates of zeros; number of clients and noise are those of a job."""

    simulated: SimulatedJob
    hardware: Hardware
    longest: int
    """Length of the longest update; all timed rounds use the bits per coordinate of an update of this length."""

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
        """Run a round in virtual time; return the times of its steps.

        Updates are zeros, with `dim` coordinates in `m` chunks.
        """

        def engine(exchange: LocalExchange, **options: Any) -> RoundEngine:
            timed = VirtualExchange(self.devices, Real(exchange))
            return RoundEngine(timed, run=run_virtually, compute=ServerProcessor(), **options)

        return self.timed(dim, m, engine)

    def real(self, dim: int, m: int) -> Timeline:
        """Run a round in real time; return the times of its steps.

        Updates are zeros, with `dim` coordinates in `m` chunks.
        """
        return self.timed(dim, m, lambda exchange, **options: RoundEngine(serialise_exchange(exchange), **options))

    def timed(self, dim: int, m: int, engine: Callable[..., RoundEngine]) -> Timeline:
        """Run a round on an engine that `engine` constructs; return the times of its steps.

        Updates are zeros, with `dim` coordinates in `m` chunks.
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
        """Return the bits per coordinate in all timed rounds: those for an update with `longest` coordinates."""
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
    """Time a round for each length in `dims` and each number of chunks in `numbers`, `repeats` times each.

    Return the times, and the performance model that is fitted to them.  The first round only warms up caches, and its
    times are not used.
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
    """Raise if a timed round lost clients, because its times are then too short: the first error that a client raised,
    or an InputError if none did.
    """
    if exchange.errors:
        raise exchange.errors[0][1]
    if result.dropped or any(len(output.survivors) != n for output in result.outputs):
        raise InputError("a timed round lost clients although none drops out: its times are not usable, run it again")


LONGEST = 1 << 18
"""Largest length of a measured update; time and bytes of longer updates are extrapolated in proportion to the length.
"""


@dataclass(frozen=True)
class RehearsalCosts:
    """Estimated costs of a round.

    `work` has the seconds in which all clients of the round train, one after the other, `protocol` the seconds of
    everything else, and `up` the bytes that one client sends.
    """

    work: float
    protocol: float
    up: float | None
    down: float | None
    """Bytes that a client receives if it gets the whole model; a client that has the model gets `model_bytes` fewer."""
    model_bytes: int
    missed_bytes: int | None
    """Bytes of the sum of one missed round.  A client that missed one round receives this sum instead of the model.

    None if such a client receives the model.
    """

    @property
    def seconds(self) -> float:
        """Return the seconds of a whole round if the clients compute one after the other, as in a simulation."""
        return self.work + self.protocol


def zero_population(simulated: SimulatedJob, design: RoundPlan, identities: Identities, fidelity: str) -> SimulatedHome:
    """Return a population for a job in which no client drops out or trains, and all updates are zeros."""
    dim = design.setting.dim
    job, client = replace(simulated.job, app=IdleServer(dim), design=design), FixedClient(np.zeros(dim))
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full", dropout=NoDropout())
    return SimulatedHome(job, settings, lambda u: client, identities)


def rehearse(simulated: SimulatedJob) -> RehearsalCosts:
    """Return the estimated costs of a round.

    The costs are measured in one round with updates of zeros, and in one training of the first client, whose update is
    discarded.  If the application has updates of several lengths, the round has updates of the largest length.
    """
    job = simulated.job
    n, kept = job.design.setting.clients, job.design.setting.summed_dim
    dim = min(kept, LONGEST)
    design = replace(job.design, setting=replace(job.design.setting, dim=dim, buckets=0))
    identities = Identities(secrets.token_bytes(32), simulated.ids[:n])
    home = zero_population(simulated, design, identities, simulated.config.simulation.fidelity)
    started = time.perf_counter()
    result = single_round(home).result
    seconds, factor = time.perf_counter() - started, kept / dim
    model = len(ModelBytes.from_numbers(job.app.model(), job.app.dtype).data)
    return RehearsalCosts(
        work=n * _work(simulated),
        protocol=factor * seconds,
        up=None if result.up is None else factor * result.up / n,
        down=None if result.down is None else factor * result.down / n + model,
        model_bytes=model,
        missed_bytes=_missed(simulated, model),
    )


def _missed(simulated: SimulatedJob, model: int) -> int | None:
    """Return the bytes of the missed sum of one round, from which a client computes the current model.

    Return None if the server sends the model instead: because clients cannot compute the model from sums, or because
    the model, which has `model` bytes, is not larger than the sum.
    """
    design, follows = simulated.job.design, simulated.client(ClientId(1)).follows
    if not (follows and design.mechanism.is_decoded_by_chunk):
        return None
    example = msgspec.structs.replace(design.example(), model=ModelBytes.from_numbers(()).digest)
    private = DistributedDP(example, design.mechanism)
    n, chunks = design.setting.clients, range(len(private.parameters.chunks))
    sums = [Dispatch(chunk, n, bytes(private.delivered_size(chunk))) for chunk in chunks]
    size = wire.size(missed_sum(1, private.parameters, sums))
    return size if size < model else None


def _work(simulated: SimulatedJob) -> float:
    """Return the seconds that the first client's application takes to compute an update, or gradients of records."""
    client, app, design = simulated.client(ClientId(1)), simulated.job.app, simulated.job.design
    if design.record_encoding is not None:
        return rehearse_records(as_record_client(client), app, design.setting.clip, design.record_encoding)
    started = time.perf_counter()
    client.prepare_data(RoundInfo(1, 0), ModelBytes.from_numbers(app.model(), app.dtype).array)
    return time.perf_counter() - started
