"""The most memory that a server holds while all chunks of a round are in flight."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.rounds import NoReplay
from benchmarks.server_process import peak_mb
from dordis import wire
from dordis.drive import Exchange
from dordis.federation.design import Agreement, Design
from dordis.federation.strategies import XNoise
from dordis.pipeline.executor import execute
from dordis.privacy.accounting import Participation
from dordis.privacy.planning import Setting
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.distributed_dp import DistributedDP
from dordis.protocols.parameters import SEMI_HONEST, Parameters
from dordis.protocols.round import REPLIES, RoundClient, RoundServer
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.simulation.profiling import workflows


@dataclass(frozen=True)
class InFlight:
    """A round of n clients and d coordinates in m chunks, all in flight at once."""

    clients: int
    dim: int
    chunks: int

    def parameters(self) -> Parameters:
        """Agree on the round, with the noise of a run of five such rounds."""
        setting = Setting(Participation(10 * self.clients, self.clients, 5), self.dim)
        return Design(XNoise(), setting, 6.0, Agreement(SEMI_HONEST)).example(self.chunks)

    def peak_mb(self) -> float:
        """Run a round with its server alone in a process; one client gets the sum."""
        parameters = self.parameters()
        private, vector = DistributedDP.of(parameters, self.dim), np.zeros(parameters.dim, np.uint32)
        clients = {
            u: RoundClient(SecAggClient(u, vector, NoReplay()), DeliveryClient(private)) for u in parameters.clients
        }
        serve = partial(_serve, wire.encode(parameters), self.dim)
        return peak_mb(serve, lambda u, request: clients[u].handle(request), REPLIES)


def _serve(agreed: bytes, dim: int, exchange: Exchange) -> Callable[[], None]:
    parameters = wire.decode(agreed, Parameters)
    server = RoundServer(SecAggServer(parameters), DistributedDP.of(parameters, dim), parameters.clients[:1])
    execute(*workflows(server), exchange)
    return partial(_nobody_lost, server)


def _nobody_lost(server: RoundServer) -> None:
    assert all(len(output.survivors) == len(server.setup.parameters.clients) for output in server.output())
