"""What a run would cost: one round rehearsed with updates of zeros, which tell nothing of anybody."""

import secrets
import time
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dordis.federation.app import AppClient
from dordis.federation.design import Design
from dordis.federation.round import Call, silent
from dordis.federation.selection import NO_PROOFS
from dordis.privacy.encoding import SEED_BYTES
from dordis.privacy.skellam import Floats
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.simulation.cast import Cast, Identities
from dordis.simulation.config import Config
from dordis.simulation.job import Job

LONGEST = 1 << 18
"""Coordinates of a rehearsed update at most; beyond, time and bytes are taken to grow with the length."""


@dataclass(frozen=True)
class Rehearsed:
    """What a round takes here: seconds of the clients' own work, of the protocol, and the bytes of one client."""

    work: float
    protocol: float
    up: float | None
    down: float | None

    @property
    def seconds(self) -> float:
        """Return the seconds of a whole round, all clients one after the other."""
        return self.work + self.protocol


class Zeros(AppClient):
    """A client that has nothing to say."""

    def __init__(self, dim: int) -> None:
        self._update = np.zeros(dim)

    def prepare_data(self, round: int, model: Floats) -> Floats:
        """Return zeros."""
        return self._update


def rehearse(job: Job) -> Rehearsed:
    """Run one round that nobody takes part in, and one client's work, whose result is forgotten."""
    dim = min(job.app.dim, LONGEST)
    design = replace(job.design, setting=replace(job.design.setting, dim=dim))
    n = design.setting.clients
    cast, parameters = convene(job.config, design, Identities.of(secrets.token_bytes(32), job.ids[:n]))
    fleet = cast.fleet(cast.population(lambda _: Zeros(dim)))
    started = time.perf_counter()
    sums = fleet.sum(Call(parameters, design.mechanism, np.zeros(0), NO_PROOFS, lambda: None, silent))
    factor = job.app.dim / dim
    return Rehearsed(
        work=n * _work(job),
        protocol=factor * (time.perf_counter() - started),
        up=None if sums.up is None else factor * sums.up / n,
        down=None if sums.down is None else factor * sums.down / n,
    )


def convene(config: Config, design: Design, identities: Identities, chunks: int = 1) -> tuple[Cast, Parameters]:
    """Agree on a round in which everybody takes part, of a run that has no other; return who plays it, too."""
    ids, run = tuple(identities.keys), secrets.token_bytes(32)
    federation = msgspec.structs.replace(config.federation, clients=len(ids), selection="balanced")
    cast = Cast(msgspec.structs.replace(config, federation=federation), design, ids, run, identities)
    clients, beacon = cast.selection.select(0, ids).clients, cast.beacon.value(0)
    rotation = bytes(SEED_BYTES)
    return cast, design.agree_on(run=run, index=0, clients=clients, rotation=rotation, beacon=beacon, chunks=chunks)


def _work(job: Job) -> float:
    """Return the seconds that the application takes for a client's update."""
    client = job.client(ClientId(1))
    started = time.perf_counter()
    client.prepare_data(1, job.app.model())
    return time.perf_counter() - started
