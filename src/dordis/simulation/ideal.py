"""Simulated clients without the protocol: the same encoding and rounding, the same noise law, no masks, no messages.

A sum of independent Skellam variables is one Skellam variable, so that the noise left in a sum is drawn at once.  Who
leaves when has the same effect as in the protocol, errors included.
"""

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from dordis.errors import TooFewClients
from dordis.federation.round import Call, Sums
from dordis.federation.selection import NO_PROOFS, Proofs
from dordis.kernels.ring import Vector
from dordis.privacy.cell_table import LARGEST_VARIANCE
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.noise import add_noise
from dordis.privacy.xnoise import Due, context
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg import ChunkOutput
from dordis.protocols.secagg.collecting import ensure_enough
from dordis.simulation.availability import STAGES, has_left
from dordis.simulation.fleet import Owned, Population

UPLOAD, UNMASK = STAGES.index("CollectInput"), STAGES.index("Unmask")
Leaving = Mapping[ClientId, str]


class IdealFleet:
    """Compute what the protocol would give; where there are owners, they draw lots and count participations."""

    def __init__(
        self, population: Population, entropy: Entropy = secrets.token_bytes, owned: Owned | None = None
    ) -> None:
        self._population, self._entropy, self._owned = population, entropy, owned
        self.use_output = population.use_output

    def available(self, index: int) -> Collection[ClientId]:
        """Return who can be selected for a round."""
        there = self._population.available(index)
        return there if self._owned is None else self._owned.willing(there)

    def proofs(self, index: int) -> Proofs:
        """Return the proofs of those who draw their own lots."""
        return NO_PROOFS if self._owned is None else self._owned.lots(index)

    def sum(self, call: Call) -> Sums:
        """Add up the encoded updates of whoever stays, and the noise that would be left."""
        parameters = call.parameters
        leaving = self._population.leaving(parameters.index, parameters.clients)
        u3 = tuple(answering(parameters, leaving, STAGES[UPLOAD]))
        check_answers(parameters, leaving, STAGES[:UPLOAD])
        if self._owned is not None:
            self._owned.count(parameters, u3)
        check_answers(parameters, leaving, STAGES[UPLOAD:UNMASK])
        stages: dict[str, float] = {}
        call.watch("prepare")
        started = time.perf_counter()
        total = summed(parameters, (vector for _, vector in self._population.prepare(call, u3)))
        stages["prepare"] = time.perf_counter() - started
        call.unmasking()
        check_answers(parameters, leaving, STAGES[UNMASK:])  # too late to cost nothing
        check_neighbours(parameters, leaving)
        call.watch("sum")
        started = time.perf_counter()
        chunks = range(len(parameters.chunks))
        outputs = tuple(self._output(parameters, chunk, u3, total, leaving) for chunk in chunks)
        stages["sum"] = time.perf_counter() - started
        gone = {stage: tuple(sorted(int(u) for u in leaving if leaving[u] == stage)) for stage in STAGES}
        return Sums(outputs, stages, {stage: clients for stage, clients in gone.items() if clients})

    def _output(
        self, parameters: Parameters, chunk: int, u3: Sequence[ClientId], total: Vector, leaving: Leaving
    ) -> ChunkOutput:
        plan, named = parameters.plans[chunk], context(parameters.round, chunk, parameters.digest)
        stayed = lost(parameters, plan.due(u3, named), leaving)
        left = plan.left(u3, named, stayed)
        part = np.array(total[parameters.chunks[chunk]])
        for variance in components(left):
            add_noise(part, self._entropy(SEED_BYTES), variance)
        part &= np.uint32(2**parameters.bits - 1)
        return ChunkOutput(part, tuple(u3), left, plan.charged(u3, named), stayed, frozenset())


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


def lost(parameters: Parameters, due: Due, leaving: Leaving) -> Due:
    """Return the due noise that stays: its owner does not tell the seed, and too few others give shares of it."""
    telling, helping = (set(answering(parameters, leaving, stage)) for stage in ("Unmask", "RemoveNoise"))
    owing = {u: ks for u, ks in due.items() if ks and u not in telling}
    holders = parameters.neighbourhoods
    return {u: ks for u, ks in owing.items() if len(helping & holders[ClientId(u)]) < parameters.threshold}


def answering(parameters: Parameters, leaving: Leaving, stage: str) -> list[ClientId]:
    """Return who is still there at a stage."""
    return [u for u in parameters.clients if not has_left(leaving.get(u), stage)]


def check_answers(parameters: Parameters, leaving: Leaving, stages: Sequence[str]) -> None:
    """Raise what the protocol raises if too few clients answer a stage, or the noise does not tolerate the dropouts."""
    for stage in stages:
        there = answering(parameters, leaving, stage)
        if STAGES.index(stage) <= UPLOAD:
            ensure_enough(parameters, stage, there)
        elif stage in _needed(parameters) and len(there) < parameters.quorum:
            raise TooFewClients(stage, len(there), parameters.quorum)


def check_neighbours(parameters: Parameters, leaving: Leaving) -> None:
    """Raise what the protocol raises if too few neighbours of a client are left to rebuild its secrets."""
    if not parameters.degree:
        return
    there = set(answering(parameters, leaving, STAGES[UNMASK]))
    for u in answering(parameters, leaving, "ShareKeys"):
        if (holders := len(there & parameters.neighbourhoods[u])) < parameters.threshold:
            raise TooFewClients(STAGES[UNMASK], holders, parameters.threshold)


def _needed(parameters: Parameters) -> tuple[str, ...]:
    """Return the requests after the upload that a quorum must answer."""
    return ("Agree", "Unmask") if parameters.is_malicious else ("Unmask",)
