"""What a run would cost: one round rehearsed with updates of zeros, which tell nothing of anybody."""

import secrets
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dordis import wire
from dordis.federation.design import Design
from dordis.protocol import ClientId
from dordis.protocols.delivery import Dispatch
from dordis.protocols.distributed_dp import DistributedDP
from dordis.rounds.app import FixedClient, RoundInfo
from dordis.rounds.missed import missed_sum
from dordis.rounds.model import ModelBytes
from dordis.simulation.availability import Never
from dordis.simulation.config import Simulation
from dordis.simulation.home import Identities, SimulatedHome
from dordis.simulation.run import SimulatedJob
from dordis.simulation.single import IdleServer, single_round

LONGEST = 1 << 18
"""Coordinates of a rehearsed update at most; beyond, time and bytes are taken to grow with the length."""


@dataclass(frozen=True)
class Rehearsed:
    """What a round takes here: seconds of the clients' own work, of the protocol, and the bytes of one client."""

    work: float
    protocol: float
    up: float | None
    down: float | None
    """With the model, which a client gets that does not have it."""
    model_bytes: int
    missed_bytes: int | None
    """Of the sum of a round that a client missed, which it gets in place of the model; None where it gets the model."""

    @property
    def seconds(self) -> float:
        """Return the seconds of a whole round, all clients one after the other."""
        return self.work + self.protocol


def home_of_zeros(simulated: SimulatedJob, design: Design, identities: Identities, fidelity: str) -> SimulatedHome:
    """Return a home like that of a run, whose clients all have updates of zeros and stay."""
    dim = design.setting.dim
    job, client = replace(simulated.job, app=IdleServer(dim), design=design), FixedClient(np.zeros(dim))
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full", dropout=Never())
    return SimulatedHome(job, settings, lambda u: client, identities)


def rehearse(simulated: SimulatedJob) -> Rehearsed:
    """Run one round that nobody takes part in, and one client's work, whose result is forgotten.

    Where rounds have updates of several lengths, that round has the longest.
    """
    job = simulated.job
    n, kept = job.design.setting.clients, job.design.setting.kept
    dim = min(kept, LONGEST)
    design = replace(job.design, setting=replace(job.design.setting, dim=dim, buckets=0))
    identities = Identities(secrets.token_bytes(32), simulated.ids[:n])
    home = home_of_zeros(simulated, design, identities, simulated.config.simulation.fidelity)
    started = time.perf_counter()
    result = single_round(home).result
    seconds, factor = time.perf_counter() - started, kept / dim
    model = len(ModelBytes.of(job.app.model(), job.app.dtype).data)
    return Rehearsed(
        work=n * _work(simulated),
        protocol=factor * seconds,
        up=None if result.up is None else factor * result.up / n,
        down=None if result.down is None else factor * result.down / n + model,
        model_bytes=model,
        missed_bytes=_missed(simulated, model),
    )


def _missed(simulated: SimulatedJob, model: int) -> int | None:
    """Return the bytes of a sum that is replayed, where that is shorter than the model and clients can use it."""
    design, follows = simulated.job.design, simulated.client(ClientId(1)).follows
    if not (follows and design.mechanism.by_chunk):
        return None
    example = msgspec.structs.replace(design.example(), model=ModelBytes.of(()).digest)
    private = DistributedDP(example, design.mechanism)
    n, chunks = design.setting.clients, range(len(private.parameters.chunks))
    sums = [Dispatch(chunk, n, bytes(private.delivered_size(chunk))) for chunk in chunks]
    size = wire.size(missed_sum(1, private.parameters, sums))
    return size if size < model else None


def _work(simulated: SimulatedJob) -> float:
    """Return the seconds that the application takes for a client's update."""
    client, app = simulated.client(ClientId(1)), simulated.job.app
    started = time.perf_counter()
    client.prepare_data(RoundInfo(1, 0), ModelBytes.of(app.model(), app.dtype).array)
    return time.perf_counter() - started
