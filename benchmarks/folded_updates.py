"""Rounds of folded updates beside rounds of full length: bytes of a client, CPU of client and server."""

import secrets
import statistics
from dataclasses import dataclass
from time import thread_time

import numpy as np

from benchmarks.timing import best
from dordis.kernels.ring import packed_size
from dordis.pipeline import executor as drive
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.encoding import SEED_BYTES
from dordis.privacy.noise_strategies import XNoise
from dordis.privacy.projection import AUTO, OFF
from dordis.privacy.setting import Setting
from dordis.protocol import ClientId, Message
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.noise_addition_and_removal import NoisyInput, PrivateServer
from dordis.protocols.parameters import RUN_BYTES, SEMI_HONEST, Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.runs.plan import RoundPlan
from dordis.runs.threat_model import ThreatModel
from dordis.simulation.exchange import LocalExchange
from reproduce.network import NoReplay

LENGTHS = {"d1M": 1_000_000, "d11M": 11_200_000}
POPULATION, CLIENTS, ROUNDS, EPSILON, DELTA = 1000, 100, 50, 6.0, 1e-5
DROPPED = 10


@dataclass(frozen=True)
class FoldedCosts:
    """CPU seconds of the median survivor, encoding included, and of the server, decoding included."""

    client_s: float
    server_s: float


def design_of(dim: int, rule: str) -> RoundPlan:
    """Return the design of the runs that are compared."""
    setting = Setting(ParticipationSchedule(POPULATION, CLIENTS, ROUNDS), dim=dim, delta=DELTA)
    return RoundPlan(XNoise(), setting, EPSILON, ThreatModel(SEMI_HONEST)).with_projection(rule)


def agreed(design: RoundPlan) -> Parameters:
    """Agree on a round; its noise tables are built here, before anything is measured."""
    everyone = range(1, CLIENTS + 1)
    return design.agree_on(run=bytes(RUN_BYTES), index=0, clients=everyone, rotation=secrets.token_bytes(SEED_BYTES))


def upload_kb(dim: int, rule: str = AUTO) -> float:
    """Return the masked vector of one client, without keys and shares."""
    grid = design_of(dim, rule).mechanism.grid
    return packed_size(grid.padded, grid.bits) / 1e3


def dispatch_kb(dim: int, rule: str = AUTO) -> float:
    """Return the sum as it is delivered to one client."""
    design = design_of(dim, rule)
    private = DistributedDP(agreed(design), design.mechanism)
    return len(private.encode_delivered(0, np.zeros(design.mechanism.grid.padded, np.uint32))) / 1e3


def play(dim: int, rule: str) -> FoldedCosts:
    """Run a round in which some drop before they upload, and everyone has the same update."""
    design = design_of(dim, rule)
    parameters = agreed(design)
    private = DistributedDP(parameters, design.mechanism)
    update = np.random.Generator(np.random.PCG64()).standard_normal(dim, np.float32)
    encode_s = best(lambda: private.encode(update), 3)
    vector = private.encode(update)
    clients = {u: SecAggClient(u, NoisyInput(vector), NoReplay()) for u in parameters.clients}
    lost = frozenset(parameters.clients[-DROPPED:])

    def is_lost(u: ClientId, request: Message) -> bool:
        return u in lost and isinstance(request, CollectInput)

    exchange = LocalExchange(clients, is_lost)
    start = thread_time()
    outputs = drive.run(PrivateServer(SecAggServer(parameters), parameters), exchange)
    aggregate = private.decode(outputs)
    server_s = thread_time() - start - sum(exchange.seconds.values())
    survivors = [u for u in parameters.clients if u not in lost]
    assert aggregate.survivors == (len(survivors),)
    return FoldedCosts(encode_s + statistics.median(exchange.seconds[u] for u in survivors), server_s)


def run(quick: bool) -> dict[str, float]:
    """Measure a folded round and the same at full length, which takes long."""
    figures = {f"proj_{name}_upload_kb": upload_kb(dim) for name, dim in LENGTHS.items()}
    figures |= {"proj_d11M_dispatch_kb": dispatch_kb(LENGTHS["d11M"])}
    for name, rule in (("proj_d11M", AUTO), ("unfolded_d11M", OFF)):
        if quick and rule == OFF:
            break
        costs = play(LENGTHS["d11M"], rule)
        figures |= {f"{name}_client_s": costs.client_s, f"{name}_server_s": costs.server_s}
    if not quick:
        figures["unfolded_d11M_upload_kb"] = upload_kb(LENGTHS["d11M"], OFF)
    return figures
