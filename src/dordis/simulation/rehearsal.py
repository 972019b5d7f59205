"""What a run would cost: one round rehearsed with updates of zeros, which tell nothing of anybody."""

import secrets
import time
from dataclasses import dataclass, replace

import numpy as np

from dordis.federation.design import Design
from dordis.protocol import ClientId
from dordis.rounds.app import FixedClient, RoundInfo
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
    )


def _work(simulated: SimulatedJob) -> float:
    """Return the seconds that the application takes for a client's update."""
    client, app = simulated.client(ClientId(1)), simulated.job.app
    started = time.perf_counter()
    client.prepare_data(RoundInfo(1, 0), ModelBytes.of(app.model(), app.dtype).array)
    return time.perf_counter() - started
