"""Rounds simulated from cost laws beside rounds of real parties in virtual time."""

import msgspec
import numpy as np

from dordis.pipeline.executor import execute_async
from dordis.protocol import ClientId
from dordis.protocols.encoded_sums import DistributedDP
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.virtual_devices import (
    WORKERS,
    Device,
    Real,
    ServerProcessor,
    VirtualExchange,
    heterogeneous,
    run_virtually,
)
from reproduce.costs import ASSEMBLE, ENCODE, Costs
from reproduce.costs_measured import SmallRound, measure
from reproduce.costs_simulated import simulate

INSTANT = 1e12
"""Bits per second of links that take no time: what is compared is the computing."""
NUMBERS = (1, 4)


def modelled_over_real(repeats: int = 5) -> dict[int, float]:
    """Return what a round of 16 clients and 2^20 coordinates takes by the model over reality, by number of chunks."""
    costs = measure()
    laws = {step: law for step, law in costs.laws.items() if step not in (ENCODE, ASSEMBLE)}  # outside of the executor
    within = msgspec.structs.replace(costs, laws=laws)
    return {m: _ratio(within, SmallRound(16, 20, m, 2), repeats) for m in NUMBERS}


def _ratio(costs: Costs, small: SmallRound, repeats: int) -> float:
    clients, survivors = small.parameters.clients, small.parameters.clients[: small.clients - small.dropped]
    fast = {
        u: msgspec.structs.replace(device, bandwidth=INSTANT)
        for u, device in heterogeneous(survivors, 1, workers=WORKERS).items()
    }
    everyone = {u: Device(INSTANT, slowness=0.01, workers=WORKERS) for u in clients} | fast
    modelled = simulate(*costs.steps(small.shape()), fast).completion
    return modelled / min(_really(small, everyone) for _ in range(repeats))


def _really(small: SmallRound, devices: dict[ClientId, Device]) -> float:
    """Run a round of real parties in virtual time."""
    private = DistributedDP(small.parameters, small.mechanism)
    server, parties = small.parties(private, private.encode(np.zeros(1 << small.log_dim, np.float32)))
    exchange = VirtualExchange(devices, Real(LocalExchange(parties, small.is_lost, ahead=True)))
    chunks = [chunk.workflow for chunk in server.chunks]
    return run_virtually(execute_async(server.setup.workflow, chunks, exchange, ServerProcessor())).completion
