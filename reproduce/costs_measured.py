"""Measure the costs of a round's steps on this machine: small rounds of real parties, fitted by linear laws.

Times are CPU seconds of the thread, the best of several, so that other work on the machine has little effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import thread_time

import numpy as np
from scipy.optimize import nnls

from dordis.kernels.ring import Vector
from dordis.pipeline.executor import advance
from dordis.pipeline.planner import step_name
from dordis.privacy import scaling
from dordis.privacy.encoding import SEED_BYTES, Grid, chunk_ends
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.privacy.xnoise_components import Scheme
from dordis.protocol import ClientId, Message, Step
from dordis.protocols.cohort import CohortParameters, agree_on
from dordis.protocols.delivery import DeliveryClient, Dispatch, Store
from dordis.protocols.encoded_sums import DistributedDP, encoding_of
from dordis.protocols.noise_addition_and_removal import NoisyInput
from dordis.protocols.parameters import RUN_BYTES
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.rounds.engine import RoundServer
from dordis.simulation.exchange import LocalExchange
from reproduce.costs import (
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
"""The counts in which each cost is linear; a cost that is not listed is constant."""


@dataclass(frozen=True)
class RoundMachines:
    """The protocol machines of a client after encoding: one for the summing protocol, one for delivery."""

    summing: SecAggClient
    delivering: DeliveryClient

    def handle(self, request: Message) -> Message:
        """Answer with the machine that handles this kind of request."""
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
        """Return the mechanism, with a scale so small that the noise has room in the ring."""
        grid = Grid(1 << self.log_dim, BLOCK, 100.0, BITS)
        return DSkellam(grid, 1.0, scaling.sensitivity(grid.scale, 1.0, grid.padded).squared)

    @cached_property
    def parameters(self) -> CohortParameters:
        """Return the parameters of the round."""
        n, ends = self.clients, chunk_ends(1 << self.log_dim, BLOCK, self.chunks)
        return agree_on(
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
        """Return the shape on which its costs depend."""
        p = self.parameters
        peers = self.degree or self.clients - 1
        return Shape.from_noise(p.plans[0], peers, self.dropped, self.chunks, p.dim // self.chunks)

    def parties(self, private: DistributedDP, vector: Vector) -> tuple[RoundServer, dict[ClientId, RoundMachines]]:
        """Return server and clients of a new round; all clients have the same input."""
        clients = {
            u: RoundMachines(SecAggClient(u, NoisyInput(vector)), DeliveryClient(private))
            for u in self.parameters.clients
        }
        return RoundServer(SecAggServer(self.parameters), private), clients

    def is_lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether this request finds the client dropped out: the last clients drop out before they upload."""
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
    """Run a round step by step; return its costs by step and kind of cost.

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
        if step_name(step) == RELEASE:
            released = cost
            continue
        for which, amount in cost.items():
            amounts.setdefault((step_name(step), which), []).append(amount + released.pop(which, 0.0))
    start = thread_time()
    server.aggregate()
    between = thread_time()
    assert clients[small.parameters.clients[0]].delivering.aggregate is not None  # noqa: S101  it is made when it is asked for
    amounts[ASSEMBLE, SERVER], amounts[ASSEMBLE, CLIENT] = [between - start], [thread_time() - between]
    return {key: median(values) for key, values in amounts.items()}


def _cost(step: Step, exchange: LocalExchange) -> dict[str, float]:
    """Run a step; return the cost of the server and the median cost of a client."""
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
    """Run every round several times, and fit laws to the least value of each cost; takes half a minute."""
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
    """Fit a law with these terms: non-negative coefficients with the least squared relative deviation from `amounts`.

    >>> fit(("one", "dim"), [{"one": 1, "dim": d} for d in (10, 20, 40)], [7.0, 12.0, 22.0])
    {'one': 2.0, 'dim': 0.5}
    """
    matrix = np.array([[row[term] for term in terms] for row in rows], dtype=np.float64)
    scale = np.maximum(matrix.max(axis=0), np.finfo(np.float64).tiny)
    target = np.maximum(np.array(amounts, dtype=np.float64), np.finfo(np.float64).tiny)
    coefficients, _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
    return {term: float(f"{value:.12g}") for term, value in zip(terms, coefficients / scale, strict=True) if value > 0}
