"""Measure what the steps of a round cost on this machine: small rounds of real parties, fitted by linear laws.

CPU seconds of the thread, the best of several: other work on the machine hardly shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import thread_time

import numpy as np
from scipy.optimize import nnls

from dordis.drive import advance
from dordis.kernels.ring import Vector
from dordis.pipeline.stages import name
from dordis.privacy import skellam
from dordis.privacy.encoding import SEED_BYTES, Grid, chunk_ends
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.xnoise import Scheme
from dordis.protocol import ClientId, Message, Step
from dordis.protocols import parameters as rules
from dordis.protocols.delivery import DeliveryClient, Dispatch, Store
from dordis.protocols.distributed_dp import DistributedDP, encoding_of
from dordis.protocols.distributed_noise import NoisyInput
from dordis.protocols.parameters import RUN_BYTES, Parameters
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.reproduce.costs import (
    ASSEMBLE,
    BITS,
    CLIENT,
    ENCODE,
    RELEASE,
    REPLY,
    REQUEST,
    SERVER,
    VARIANCE,
    Costs,
    Law,
    Shape,
)
from dordis.rounds.server import RoundServer
from dordis.simulation.exchange import LocalExchange

BLOCK = 4096
REPEATS = 2

TERMS: Mapping[tuple[str, str], Sequence[str]] = {
    ("advertise_keys", CLIENT): ("one", "clients", "chunks", "shares"),
    ("advertise_keys", SERVER): ("clients", "clients*chunks"),
    ("advertise_keys", REQUEST): ("one", "clients", "chunks"),
    ("advertise_keys", REPLY): ("one", "chunks"),
    ("share_keys", CLIENT): ("one", "clients*chunks", "peers", "shares", "shares*peers"),
    ("share_keys", SERVER): ("clients", "clients*chunks", "clients*peers", "clients*shares"),
    ("share_keys", REQUEST): ("one", "clients", "clients*chunks"),
    ("share_keys", REPLY): ("one", "chunks", "peers", "shares"),
    ("deliver_shares", CLIENT): ("one", "peers", "shares"),
    ("deliver_shares", SERVER): ("clients", "clients*peers", "clients*shares"),
    ("deliver_shares", REQUEST): ("one", "peers", "shares"),
    ("prepare_inputs", CLIENT): ("one", "peers", "dim", "far", "masks*dim", "noise*dim"),
    ("prepare_inputs", SERVER): ("one", "clients"),
    ("collect_inputs", CLIENT): ("one", "dim", "far"),
    ("collect_inputs", SERVER): ("one", "survivors", "dim", "uploads*dim", "uploads*far"),
    ("collect_inputs", REPLY): ("one", "dim"),
    ("unmask", CLIENT): ("one", "clients", "peers"),
    ("unmask", SERVER): ("one", "survivors", "lost pairs", "rebuilt", "interpolated", "dim", "far", "lifted*dim"),
    ("unmask", REQUEST): ("one", "clients"),
    ("unmask", REPLY): ("one", "peers"),
    ("remove_noise", SERVER): ("one", "survivors", "due", "dim", "due*dim"),
    ("decode", SERVER): ("one", "dim", "far"),
    ("dispatch", CLIENT): ("one", "dim", "far"),
    ("dispatch", SERVER): ("one", "clients", "dim", "far"),
    ("dispatch", REQUEST): ("one", "dim"),
    ("store", CLIENT): ("one", "dim", "far"),
    ("store", SERVER): ("one", "clients"),
    (ENCODE, CLIENT): ("one", "vector", "vector far"),
    (ASSEMBLE, CLIENT): ("one", "vector", "vector far"),
    (ASSEMBLE, SERVER): ("one", "vector", "vector far"),
}
"""What each cost is linear in; one that is not listed is the same in all rounds."""


@dataclass(frozen=True)
class RoundMachines:
    """The two machines of a client, from its encoded input on."""

    summing: SecAggClient
    delivering: DeliveryClient

    def handle(self, request: Message) -> Message:
        """Let the machine answer that knows the request."""
        return (self.delivering if isinstance(request, Dispatch | Store) else self.summing).handle(request)


@dataclass(frozen=True)
class SmallRound:
    """A round of real parties with 2^log_dim coordinates, of which the last clients drop out before they upload."""

    clients: int
    log_dim: int
    chunks: int
    dropped: int
    scheme: Scheme = Scheme.SINGLE
    degree: int = 0

    @cached_property
    def mechanism(self) -> DSkellam:
        """Return the encoding, at a scale that leaves the ring to the noise."""
        grid = Grid(1 << self.log_dim, BLOCK, 100.0, BITS)
        return DSkellam(grid, 1.0, skellam.sensitivity(grid.scale, 1.0, grid.padded).squared)

    @cached_property
    def parameters(self) -> Parameters:
        """Agree on the round."""
        n, ends = self.clients, chunk_ends(1 << self.log_dim, BLOCK, self.chunks)
        return rules.agree_on(
            run=bytes(RUN_BYTES),
            index=0,
            clients=range(1, n + 1),
            threshold=self.degree // 2 + 2 if self.degree else n // 2 + 1,
            quorum=n // 2 + 1,
            degree=self.degree,
            tolerance=4 * (n - n // 2 - 1) // 5,
            colluders=1,
            bits=BITS,
            ends=ends,
            scheme=self.scheme,
            variances=[VARIANCE] * self.chunks,
            beacon=bytes(32),
            encoding=encoding_of(self.mechanism, bytes(SEED_BYTES)),
        )

    def shape(self) -> Shape:
        """Return what its costs depend on."""
        p = self.parameters
        peers = self.degree or self.clients - 1
        return Shape.of(p.plans[0], peers, self.dropped, self.chunks, p.dim // self.chunks)

    def parties(self, private: DistributedDP, vector: Vector) -> tuple[RoundServer, dict[ClientId, RoundMachines]]:
        """Return the server of a new round, and its clients, who all have the same input."""
        clients = {
            u: RoundMachines(SecAggClient(u, NoisyInput(vector)), DeliveryClient(private))
            for u in self.parameters.clients
        }
        return RoundServer(SecAggServer(self.parameters), private), clients

    def is_lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether a client is gone when a request comes: before it uploads."""
        return u > self.clients - self.dropped and isinstance(request, CollectInput)


SMALL_ROUNDS = (
    SmallRound(6, 22, 1, 1),
    SmallRound(8, 21, 1, 0, Scheme.ORIG),
    SmallRound(8, 20, 1, 2, Scheme.EXACT),
    SmallRound(8, 20, 2, 0, Scheme.ORIG),
    SmallRound(16, 19, 1, 4),
    SmallRound(16, 19, 2, 0, Scheme.ORIG),
    SmallRound(32, 18, 1, 6),
    SmallRound(32, 16, 4, 0),
    SmallRound(48, 14, 2, 6, Scheme.EXACT),
    SmallRound(48, 14, 4, 0, Scheme.ORIG),
    SmallRound(64, 14, 2, 6, degree=24),
    SmallRound(100, 14, 1, 10),
)


def observe(small: SmallRound) -> dict[tuple[str, str], float]:
    """Run a round, one step after the other; return its costs by step and by what is counted.

    A step of several chunks counts with the median over the chunks.
    """
    private = DistributedDP(small.parameters, small.mechanism)
    update = np.full(1 << small.log_dim, 2.0 ** (-small.log_dim / 2), np.float32)
    start = thread_time()
    vector = private.encode(update)
    amounts = {(ENCODE, CLIENT): [thread_time() - start]}
    server, clients = small.parties(private, vector)
    released: dict[str, float] = {}
    for step in server.workflow:
        cost = _cost(step, LocalExchange(clients, small.is_lost, ahead=True))
        if name(step) == RELEASE:
            released = cost
            continue
        for which, amount in cost.items():
            amounts.setdefault((name(step), which), []).append(amount + released.pop(which, 0.0))
    start = thread_time()
    server.aggregate()
    between = thread_time()
    assert clients[small.parameters.clients[0]].delivering.aggregate is not None  # noqa: S101  it is made when it is asked for
    amounts[ASSEMBLE, SERVER], amounts[ASSEMBLE, CLIENT] = [between - start], [thread_time() - between]
    return {key: median(values) for key, values in amounts.items()}


def _cost(step: Step, exchange: LocalExchange) -> dict[str, float]:
    """Run a step; return what it cost the server, and a client in the middle."""
    start = thread_time()
    advance([step], exchange)
    cost = {SERVER: thread_time() - start - sum(exchange.seconds.values())}
    if exchange.errors:
        raise exchange.errors[0][1]
    if exchange.seconds:
        cost |= {
            CLIENT: median(exchange.seconds.values()),
            REQUEST: max(exchange.received.values()),
            REPLY: max(exchange.sent.values()),
        }
    return cost


def measure(rounds: Sequence[SmallRound] = SMALL_ROUNDS, repeats: int = REPEATS) -> Costs:
    """Run every round several times, keep the best of each cost, and fit the laws; takes half a minute."""
    observe(rounds[0])  # compiles kernels, builds tables
    turns = [[observe(small) for small in rounds] for _ in range(repeats)]
    best = [{key: min(run[key] for run in runs) for key in runs[0]} for runs in zip(*turns, strict=True)]
    counts = [small.shape().counts() for small in rounds]
    laws: dict[str, dict[str, Law]] = {}
    for step, which in best[0]:
        terms = TERMS.get((step, which), ("one",))
        laws.setdefault(step, {})[which] = fit(terms, counts, [amounts[step, which] for amounts in best])
    return Costs("measured", laws)


def fit(terms: Sequence[str], rows: Sequence[Mapping[str, float]], amounts: Sequence[float]) -> Law:
    """Return non-negative coefficients of least squared relative deviation.

    >>> fit(("one", "dim"), [{"one": 1, "dim": d} for d in (10, 20, 40)], [7.0, 12.0, 22.0])
    {'one': 2.0, 'dim': 0.5}
    """
    matrix = np.array([[row[term] for term in terms] for row in rows], dtype=np.float64)
    scale = np.maximum(matrix.max(axis=0), np.finfo(np.float64).tiny)
    target = np.maximum(np.array(amounts, dtype=np.float64), np.finfo(np.float64).tiny)
    coefficients, _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
    return {term: float(f"{value:.12g}") for term, value in zip(terms, coefficients / scale, strict=True) if value > 0}
