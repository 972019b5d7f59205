"""Estimates of the time and bytes of a planned run, from one round with updates of zeros, which reveal nothing."""

import secrets
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dordis import wire
from dordis.config.schema import Simulation
from dordis.dropout_models import NoDropout
from dordis.protocol import ClientId
from dordis.protocols.delivery import Dispatch
from dordis.protocols.encoded_sums import DistributedDP
from dordis.rounds.app import FixedClient, RoundInfo
from dordis.rounds.catch_up import missed_sum
from dordis.rounds.model import ModelBytes
from dordis.rounds.records import as_record_client, rehearse_records
from dordis.runs.plan import RoundPlan
from dordis.simulation.one_round import IdleServer, single_round
from dordis.simulation.population import Identities, SimulatedHome
from dordis.simulation.run import SimulatedJob

LONGEST = 1 << 18
"""Most coordinates of a measured update; time and bytes of longer ones are extrapolated in proportion to them."""


@dataclass(frozen=True)
class RehearsalCosts:
    """Estimated costs of a round.

    `work` has the seconds of all clients' training, `protocol` the seconds of everything else, and `up` the bytes that
    one client sends.
    """

    work: float
    protocol: float
    up: float | None
    down: float | None
    """Bytes that a client receives, with the whole model; if it already has the model, `model_bytes` fewer."""
    model_bytes: int
    missed_bytes: int | None
    """Bytes of the sum of one missed round, which a client receives instead of the model; None if it always gets the
    model."""

    @property
    def seconds(self) -> float:
        """Return the seconds of a whole round if the clients compute one after the other, as in a simulation."""
        return self.work + self.protocol


def zero_population(simulated: SimulatedJob, design: RoundPlan, identities: Identities, fidelity: str) -> SimulatedHome:
    """Return a population for a job without dropout, whose clients have updates of zeros instead of training."""
    dim = design.setting.dim
    job, client = replace(simulated.job, app=IdleServer(dim), design=design), FixedClient(np.zeros(dim))
    settings = Simulation(fidelity="ideal" if fidelity == "ideal" else "full", dropout=NoDropout())
    return SimulatedHome(job, settings, lambda u: client, identities)


def rehearse(simulated: SimulatedJob) -> RehearsalCosts:
    """Return the costs of a round, from one measured round of zeros and one training, whose update is discarded.

    If the application has updates of several lengths, the longest one is measured.
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
    """Return the bytes of the sum of one missed round; None if clients cannot catch up with it.

    Also None if the model, of `model` bytes, is smaller.
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
    """Return the seconds that the application takes to compute the update of one client."""
    client, app, design = simulated.client(ClientId(1)), simulated.job.app, simulated.job.design
    if design.record_encoding is not None:
        return rehearse_records(as_record_client(client), app, design.setting.clip, design.record_encoding)
    started = time.perf_counter()
    client.prepare_data(RoundInfo(1, 0), ModelBytes.from_numbers(app.model(), app.dtype).array)
    return time.perf_counter() - started
