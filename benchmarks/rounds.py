"""One SecAgg round with all parties in this process: CPU seconds and bytes of each."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from time import thread_time

import numpy as np

from benchmarks.server_process import peak_mb
from dordis.crypto import signature
from dordis.pipeline import executor as drive
from dordis.pipeline.executor import Exchange
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, Message
from dordis.protocols.cohort import agree_on
from dordis.protocols.noise_addition_and_removal import ChunkOutput, NoisyInput, PrivateServer
from dordis.protocols.parameters import RUN_BYTES, SEMI_HONEST, Parameters
from dordis.protocols.secagg import SECAGG, SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.protocols.sparse_graph import solve
from dordis.simulation.exchange import LocalExchange
from reproduce.costs import BITS, VARIANCE
from reproduce.network import NoReplay


@dataclass(frozen=True)
class Setting:
    """A round of n clients with d coordinates; some drop before they upload.

    On the complete graph t is `threshold` and T = n - t; if `tolerance` gives T, the graph is the sparsest for it.
    """

    clients: int
    dim: int
    threshold: int
    dropped: int
    scheme: Scheme = Scheme.SINGLE
    variance: Fraction = VARIANCE
    mode: str = SEMI_HONEST
    tolerance: int | None = None

    def parameters(self) -> Parameters:
        """Agree on the round; its noise tables are built here, before anything is measured."""
        sparse = None if self.tolerance is None else solve(self.clients, self.tolerance, 1, self.mode)
        return agree_on(
            mode=self.mode,
            beacon=bytes(32),
            run=bytes(RUN_BYTES),
            index=0,
            clients=range(1, self.clients + 1),
            threshold=sparse.threshold if sparse else self.threshold,
            quorum=sparse.quorum if sparse else None,
            degree=sparse.degree if sparse else 0,
            tolerance=self.clients - self.threshold if self.tolerance is None else self.tolerance,
            colluders=1,
            bits=BITS,
            ends=[self.dim],
            scheme=self.scheme,
            variances=[self.variance],
        )

    @property
    def lost(self) -> frozenset[ClientId]:
        """Return the clients that drop: the last ones."""
        return frozenset(ClientId(u) for u in range(self.clients - self.dropped + 1, self.clients + 1))

    def is_lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether a client is gone when a request comes: before it uploads."""
        return u in self.lost and isinstance(request, CollectInput)


@dataclass(frozen=True)
class Costs:
    """What a round costs: CPU seconds of surviving clients (least, median, most) and of the server, megabytes."""

    client_min_s: float
    client_s: float
    client_max_s: float
    server_s: float
    upload_mb: float
    """All replies of the client that sends most."""
    traffic_mb: float
    """Replies and requests of a surviving client, on average."""

    def best(self, other: "Costs") -> "Costs":
        """Keep the smaller seconds of two runs."""
        return Costs(
            min(self.client_min_s, other.client_min_s),
            min(self.client_s, other.client_s),
            min(self.client_max_s, other.client_max_s),
            min(self.server_s, other.server_s),
            self.upload_mb,
            self.traffic_mb,
        )


def play(setting: Setting, parameters: Parameters) -> Costs:
    """Run one round, everyone's input zero, and return what it costs."""
    given = NoisyInput(np.zeros(setting.dim, np.uint32))
    keys = {u: signature.generate() for u in parameters.clients}
    registry = {u: signature.public_key(key) for u, key in keys.items()}
    clients = {u: SecAggClient(u, given, NoReplay(), signing=keys[u], registry=registry) for u in parameters.clients}
    exchange = LocalExchange(clients, setting.is_lost)  # nothing ahead: all clients would hold their uploads
    start = thread_time()
    (output,) = drive.run(PrivateServer(SecAggServer(parameters, registry), parameters), exchange)
    server_s = thread_time() - start - sum(exchange.seconds.values())
    check(output, setting)
    seconds = [exchange.seconds[u] for u in output.survivors]
    return Costs(
        client_min_s=min(seconds),
        client_s=statistics.median(seconds),
        client_max_s=max(seconds),
        server_s=server_s,
        upload_mb=max(exchange.sent.values()) / 1e6,
        traffic_mb=statistics.mean(exchange.sent[u] + exchange.received[u] for u in output.survivors) / 1e6,
    )


def check(output: ChunkOutput, setting: Setting) -> None:
    """Make sure that the round did what is measured: the sum of zeros is the noise that must be left."""
    assert len(output.survivors) == setting.clients - setting.dropped
    signed = (output.total << np.uint32(32 - BITS)).view(np.int32) >> (32 - BITS)
    left = float(output.left)
    error = float(np.mean(np.square(signed.astype(np.float64)))) / left - 1
    assert abs(error) < 10 * ((2 + 1 / left) / setting.dim) ** 0.5, error  # the kurtosis of Skellam is 3 + 1 / variance


def best_of(count: int, *settings: Setting) -> list[Costs]:
    """Play the settings in turn, `count` times over, and return the best costs of each."""
    agreed = [setting.parameters() for setting in settings]
    kept = [play(setting, parameters) for setting, parameters in zip(settings, agreed, strict=True)]
    for _ in range(count - 1):
        for place, (setting, parameters) in enumerate(zip(settings, agreed, strict=True)):
            kept[place] = kept[place].best(play(setting, parameters))
    return kept


def memory(setting: Setting) -> float:
    """Run a round with its server alone in a process; return the most megabytes that it held."""
    given = NoisyInput(np.zeros(setting.dim, np.uint32))
    clients = {ClientId(u): SecAggClient(ClientId(u), given, NoReplay()) for u in range(1, setting.clients + 1)}

    def answer(u: ClientId, request: Message) -> Message | None:
        return None if setting.is_lost(u, request) else clients[u].handle(request)

    return peak_mb(partial(_serve, setting), answer, SECAGG.requests)


def _serve(setting: Setting, exchange: Exchange) -> Callable[[], None]:
    parameters = setting.parameters()
    (output,) = drive.run(PrivateServer(SecAggServer(parameters), parameters), exchange)
    return partial(check, output, setting)
