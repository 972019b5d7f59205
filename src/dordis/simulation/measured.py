"""Measure what the steps of a round cost on this machine: small rounds of real parties, fitted by linear laws.

CPU seconds of the thread, the best of several: other work on the machine hardly shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import thread_time

import numpy as np
from scipy.optimize import nnls

from dordis.drive import begin, resume
from dordis.kernels.ring import Vector
from dordis.pipeline.stages import name
from dordis.privacy import skellam
from dordis.privacy.encoding import SEED_BYTES, Grid, chunk_ends
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.privacy.xnoise import Scheme
from dordis.protocol import ClientId, Message
from dordis.protocols import parameters as rules
from dordis.protocols.delivery import DeliveryClient
from dordis.protocols.distributed_dp import DistributedDP, encoding_of
from dordis.protocols.parameters import RUN_BYTES, Parameters
from dordis.protocols.round import REPLIES, RoundClient, RoundServer
from dordis.protocols.secagg import SecAggClient, SecAggServer
from dordis.protocols.secagg.messages import CollectInput
from dordis.simulation.costs import (
    ASSEMBLE,
    BITS,
    CLIENT,
    ENCODE,
    REPLY,
    REQUEST,
    SERVER,
    VARIANCE,
    Costs,
    Law,
    Shape,
    whole_vector,
)
from dordis.simulation.exchange import Lost
from dordis.simulation.metered import MeteredExchange

BLOCK = 4096
REPEATS = 2

Observed = dict[tuple[str, str], float]
"""What a round was seen to cost, by step and by what is counted."""

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
    ("deliver_shares", REPLY): ("one",),
    ("prepare_inputs", CLIENT): ("one", "peers", "dim", "far", "masks*dim", "noise*dim"),
    ("prepare_inputs", SERVER): ("one", "clients"),
    ("prepare_inputs", REQUEST): ("one",),
    ("prepare_inputs", REPLY): ("one",),
    ("collect_inputs", CLIENT): ("one", "dim", "far"),
    ("collect_inputs", SERVER): ("one", "survivors", "dim", "uploads*dim", "uploads*far"),
    ("collect_inputs", REQUEST): ("one",),
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
    ("dispatch", REPLY): ("one",),
    ("store", CLIENT): ("one", "dim", "far"),
    ("store", SERVER): ("one", "clients"),
    ("store", REQUEST): ("one",),
    ("store", REPLY): ("one",),
    (ENCODE, CLIENT): ("one", "dim", "far"),
    (ASSEMBLE, CLIENT): ("one", "dim", "far"),
    (ASSEMBLE, SERVER): ("one", "dim", "far"),
}
"""What each cost is linear in."""


@dataclass(frozen=True)
class Proxy:
    """A small round of real parties, of which the last ones drop out before they upload."""

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

    def cast(self, private: DistributedDP, vector: Vector) -> tuple[RoundServer, dict[ClientId, RoundClient]]:
        """Return the server of a new round, and its clients, who all have the same input."""
        clients = {u: RoundClient(SecAggClient(u, vector), DeliveryClient(private)) for u in self.parameters.clients}
        return RoundServer(SecAggServer(self.parameters), private), clients

    @property
    def lost(self) -> frozenset[ClientId]:
        """Return who drops out."""
        return frozenset(self.parameters.clients[self.clients - self.dropped :])

    def is_lost(self, u: ClientId, request: Message) -> bool:
        """Tell whether a client is gone when a request comes: before it uploads."""
        return u in self.lost and isinstance(request, CollectInput)


PROXIES = (
    Proxy(6, 22, 1, 1),
    Proxy(8, 21, 1, 0, Scheme.ORIG),
    Proxy(8, 20, 1, 2, Scheme.EXACT),
    Proxy(8, 20, 2, 0, Scheme.ORIG),
    Proxy(16, 19, 1, 4),
    Proxy(16, 19, 2, 0, Scheme.ORIG),
    Proxy(32, 18, 1, 6),
    Proxy(32, 16, 4, 0),
    Proxy(48, 14, 2, 6, Scheme.EXACT),
    Proxy(48, 14, 4, 0, Scheme.ORIG),
    Proxy(64, 14, 2, 6, degree=24),
    Proxy(100, 14, 1, 10),
)


def observe(proxy: Proxy) -> Observed:
    """Run a round, one step after the other; a step of several chunks counts with the median of them."""
    private = DistributedDP(proxy.parameters, proxy.mechanism)
    update = np.full(1 << proxy.log_dim, 2.0 ** (-proxy.log_dim / 2), np.float32)
    start = thread_time()
    vector = private.encode(update)
    found = {(ENCODE, CLIENT): [thread_time() - start]}
    server, parties = proxy.cast(private, vector)
    for step, cost in _played(server, parties, proxy.is_lost):
        for which, amount in cost.items():
            found.setdefault((step, which), []).append(amount)
    start = thread_time()
    server.aggregate()
    between = thread_time()
    assert parties[proxy.parameters.clients[0]].aggregate is not None  # noqa: S101  it is made when it is asked for
    found[ASSEMBLE, SERVER], found[ASSEMBLE, CLIENT] = [between - start], [thread_time() - between]
    return {key: median(amounts) for key, amounts in found.items()}


def _played(
    server: RoundServer, parties: Mapping[ClientId, RoundClient], lost: Lost
) -> Iterator[tuple[str, dict[str, float]]]:
    """Run the steps; say what each has cost the server, and a client in the middle."""
    for step in server.workflow:
        exchange = MeteredExchange(parties, REPLIES, lost)
        start = thread_time()
        flow = step.run()
        requests = begin(flow)
        while flow is not None and requests is not None:
            requests = resume(flow, exchange(requests))
        cost = {SERVER: thread_time() - start - exchange.seconds}
        if exchange.answered:
            cost |= {
                CLIENT: median(each.seconds for each in exchange.answered),
                REQUEST: float(max(each.request for each in exchange.answered)),
                REPLY: float(max(each.reply for each in exchange.answered)),
            }
        yield name(step), cost


def measure(proxies: Sequence[Proxy] = PROXIES, repeats: int = REPEATS) -> Costs:
    """Run every proxy several times, keep the best of each cost, and fit the laws; takes half a minute."""
    observe(proxies[0])  # compiles kernels, builds tables
    turns = [[observe(proxy) for proxy in proxies] for _ in range(repeats)]
    best = [{key: min(run[key] for run in runs) for key in runs[0]} for runs in zip(*turns, strict=True)]
    seen = [(proxy.shape().counts(), amounts) for proxy, amounts in zip(proxies, best, strict=True)]
    laws: dict[str, dict[str, Law]] = {}
    for (step, which), terms in TERMS.items():
        rows = [(_whole(step, counts), amounts[step, which]) for counts, amounts in seen]
        laws.setdefault(step, {})[which] = fit(terms, [row for row, _ in rows], [amount for _, amount in rows])
    return Costs("measured", laws)


def _whole(step: str, counts: Mapping[str, float]) -> Mapping[str, float]:
    """Return the counts of a step: those that treat the whole vector count all of it."""
    return whole_vector(counts["dim"] * counts["chunks"]) if step in (ENCODE, ASSEMBLE) else counts


def fit(terms: Sequence[str], rows: Sequence[Mapping[str, float]], amounts: Sequence[float]) -> Law:
    """Return non-negative coefficients of least squared relative deviation.

    >>> fit(("one", "dim"), [{"one": 1, "dim": d} for d in (10, 20, 40)], [7.0, 12.0, 22.0])
    {'one': 2.0, 'dim': 0.5}
    """
    matrix = np.array([[row[term] for term in terms] for row in rows], dtype=np.float64)
    scale = np.maximum(matrix.max(axis=0), np.finfo(np.float64).tiny)
    target = np.maximum(np.array(amounts, dtype=np.float64), np.finfo(np.float64).tiny)
    found, _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
    return {term: float(f"{value:.12g}") for term, value in zip(terms, found / scale, strict=True) if value > 0}
