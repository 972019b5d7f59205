"""Modelled rounds beside rounds of real parties in virtual time: is what is simulated what would happen?"""

import msgspec
import numpy as np

from dordis.pipeline.executor import execute_async
from dordis.protocol import ClientId, Message
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.round import REPLIES, RoundClient, RoundServer
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.simulation.clock import (
    Device,
    Real,
    ServerProcessor,
    VirtualExchange,
    heterogeneous,
    run_virtually,
    simulate,
)
from dordis.simulation.costs import ASSEMBLE, ENCODE, Costs
from dordis.simulation.exchange import LocalExchange
from dordis.simulation.measured import Proxy, measure

INSTANT = 1e12
"""Bits per second of links that take no time: what is compared is the computing."""
NUMBERS = (1, 4)


def modelled_over_real(repeats: int = 5) -> dict[int, float]:
    """Return what a round of 16 clients and 2^20 coordinates takes by the model over reality, by number of chunks."""
    costs = measure()
    laws = {step: law for step, law in costs.laws.items() if step not in (ENCODE, ASSEMBLE)}  # outside of the executor
    within = msgspec.structs.replace(costs, laws=laws)
    return {m: _ratio(within, Proxy(16, 20, m, 2), repeats) for m in NUMBERS}


def _ratio(costs: Costs, proxy: Proxy, repeats: int) -> float:
    survivors = [u for u in proxy.parameters.clients if u not in proxy.lost]
    fast = {
        u: msgspec.structs.replace(device, bandwidth=INSTANT)
        for u, device in heterogeneous(survivors, 1, workers=2).items()
    }
    everyone = fast | {u: Device(INSTANT, slowness=0.01, workers=2) for u in proxy.lost}
    modelled = simulate(*costs.steps(proxy.shape()), fast).completion
    return modelled / min(_really(proxy, everyone) for _ in range(repeats))


def _really(proxy: Proxy, devices: dict[ClientId, Device]) -> float:
    """Run a round of real parties in virtual time."""
    p, private = proxy.parameters, DistributedDP(proxy.parameters, proxy.mechanism)
    vector = private.encode(np.zeros(1 << proxy.log_dim, np.float32))
    parties = {u: RoundClient(SecAggClient(u, vector), DeliveryClient(private)) for u in p.clients}
    server = RoundServer(SecAggServer(p), private)

    def lost(u: ClientId, request: Message) -> bool:
        return u in proxy.lost and isinstance(request, CollectInput)

    exchange = VirtualExchange(devices, Real(LocalExchange(parties, REPLIES, lost, ahead=True)))
    chunks = [chunk.workflow for chunk in server.chunks]
    return run_virtually(execute_async(server.setup.workflow, chunks, exchange, ServerProcessor())).completion
