"""Simulated clients without the protocol: the same encoding and rounding, the same noise law, no masks, no messages.

A sum of independent Skellam variables is one Skellam variable, so that the noise left in a sum is drawn at once.  Who
leaves when has the same effect as in the protocol, errors included.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from dordis.errors import TooFewClients
from dordis.federation.round import Call, Sums
from dordis.federation.selection import NO_PROOFS, Proofs
from dordis.kernels.ring import Vector
from dordis.privacy.cell_table import LARGEST_VARIANCE
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.noise import add_noise
from dordis.privacy.xnoise import context
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput
from dordis.protocols.secagg.collecting import ensure_enough
from dordis.simulation.availability import STAGES
from dordis.simulation.fleet import Population

UPLOAD = STAGES.index("CollectInput")


class IdealFleet:
    """Compute what the protocol would give."""

    def __init__(self, population: Population, entropy: Entropy = secrets.token_bytes) -> None:
        self._population, self._entropy = population, entropy
        self.available = population.available
        self.use_output = population.use_output

    def proofs(self, index: int) -> Proofs:
        """Return nothing: nobody verifies here."""
        return NO_PROOFS

    def sum(self, call: Call) -> Sums:
        """Add up the encoded updates of whoever stays, and the noise that would be left."""
        parameters = call.parameters
        leaving = self._population.leaving(parameters.index, parameters.clients)
        u3 = tuple(u for u in parameters.clients if u not in leaving or STAGES.index(leaving[u]) > UPLOAD)
        check_answers(parameters, leaving)
        stages: dict[str, float] = {}
        call.watch("prepare")
        started = time.perf_counter()
        total = summed(parameters, (vector for _, vector in self._population.prepare(call, u3)))
        stages["prepare"] = time.perf_counter() - started
        call.unmasking()
        call.watch("sum")
        started = time.perf_counter()
        outputs = tuple(self._output(parameters, chunk, u3, total) for chunk in range(len(parameters.chunks)))
        stages["sum"] = time.perf_counter() - started
        gone = {stage: tuple(sorted(int(u) for u in leaving if leaving[u] == stage)) for stage in STAGES}
        return Sums(outputs, stages, {stage: clients for stage, clients in gone.items() if clients})

    def _output(self, parameters: Parameters, chunk: int, u3: Sequence[ClientId], total: Vector) -> ChunkOutput:
        plan, named = parameters.plans[chunk], context(parameters.round, chunk, parameters.digest)
        left = plan.left(u3, named)
        part = np.array(total[parameters.chunks[chunk]])
        for variance in components(left):
            add_noise(part, self._entropy(SEED_BYTES), variance)
        part &= np.uint32(2**parameters.bits - 1)
        return ChunkOutput(part, tuple(u3), left, plan.charged(u3, named), {}, frozenset())


def components(variance: Fraction) -> Iterator[Fraction]:
    """Divide a variance into parts that can be drawn: independent Skellam variables add up to one."""
    while variance > 0:
        part = min(variance, Fraction(LARGEST_VARIANCE))
        yield part
        variance -= part


def summed(parameters: Parameters, vectors: Iterable[Vector]) -> Vector:
    """Return the sum over the ring."""
    total = np.zeros(parameters.dim, np.uint32)
    for vector in vectors:
        total += vector
    return total


def check_answers(parameters: Parameters, leaving: Mapping[ClientId, str]) -> None:
    """Raise what the protocol raises if too few clients answer a stage, or the noise does not tolerate the dropouts."""
    there = set(parameters.clients)
    for place, stage in enumerate(STAGES):
        there -= {u for u, left_at in leaving.items() if left_at == stage}
        if place <= UPLOAD:
            ensure_enough(parameters, stage, there)
        elif stage in _needed(parameters) and len(there) < parameters.quorum:
            raise TooFewClients(stage, len(there), parameters.quorum)


def _needed(parameters: Parameters) -> tuple[str, ...]:
    """Return the requests after the upload that a quorum must answer."""
    return ("Agree", "Unmask") if parameters.is_malicious else ("Unmask",)
