"""Compilation of the numba kernels that a round uses, before the first deadline begins."""

import numpy as np

from dordis import protocol_driver as drive
from dordis.privacy.encoding import Grid
from dordis.privacy.mechanisms.distributed_skellam import DSkellam
from dordis.privacy.scaling import sensitivity
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, Message, Replies, Requests
from dordis.protocols.cohort import agree_on
from dordis.protocols.distributed_dp import DistributedDP, encoding_of
from dordis.protocols.distributed_noise import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.secagg import SecAggClient, SecAggServer

CLIENTS, DROPOUT = (1, 2, 3, 4, 5), 5
DIM, BLOCK, BITS, SCALE, VARIANCE = 1000, 1024, 20, 64.0, 50


def compile_kernels() -> ChunkOutput:
    """Compile all kernels of a round by running a small one in memory with one dropout; return its output."""
    grid = Grid(DIM, BLOCK, SCALE, BITS)
    mechanism = DSkellam(grid, 1.0, sensitivity(SCALE, 1.0, grid.padded).squared)
    parameters = agree_on(
        run=bytes(32),
        index=0,
        clients=CLIENTS,
        threshold=3,
        tolerance=1,
        colluders=1,
        bits=BITS,
        ends=[grid.padded],
        scheme=Scheme.SINGLE,
        variances=[VARIANCE],
        encoding=encoding_of(mechanism, bytes(32)),
    )
    private = DistributedDP(parameters, mechanism)
    update = np.zeros(DIM, np.float32)
    clients = {u: SecAggClient(u, NoisyInput(private.encode(update))) for u in parameters.clients}

    def exchange(requests: Requests) -> Replies:
        return [(u, clients[u].handle(request)) for u, request in requests.items() if not _drops(u, request)]

    (output,) = drive.run(PrivateServer(SecAggServer(parameters), parameters), exchange)
    private.decode_chunk(0, output.total, len(output.survivors))
    return output


def _drops(u: ClientId, request: Message) -> bool:
    return u == DROPOUT and (request.uploads or request.discloses)
