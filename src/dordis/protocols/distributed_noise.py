"""Noise beside the sum: what a client adds to its input before it is summed, and what is removed from the sum after.

The seeds of the noise are secrets that the summing protocol's client issues: the base component comes from a private
one, removable components from deposited ones.  After the sum the protocol has released the seeds that are due, and
their noise is subtracted.  No summing protocol knows any of this.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.cell_table import LARGEST_VARIANCE
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.noise import SKELLAM, NoiseLaw
from dordis.privacy.xnoise import Due, context
from dordis.protocol import ClientId, Flow, ProtocolServer, Resource, Step
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.parameters import Parameters, check_tables
from dordis.protocols.summing import ChunkedServer, ChunkSum, SummingChunk, SummingServer, SummingSetup
from dordis.protocols.vectors import HERE, Vectors


@dataclass(frozen=True, eq=False)
class NoisyInput:
    """A client's encoded update, to which the noise of every chunk is added as that chunk is asked for."""

    vector: Vector = field(repr=False)
    law: NoiseLaw = SKELLAM

    def check(self, parameters: Parameters) -> None:
        """Refuse noise tables other than this program's."""
        check_tables(parameters, self.law)

    def chunk(self, parameters: Parameters, chunk: int, issued: IssuedSecrets) -> Vector:
        """Return a chunk of the update with all its noise, modulo 2^32, in memory of its own."""
        noisy = np.array(self.vector[parameters.chunks[chunk]])
        for seed, variance in noise_components(parameters, chunk, issued):
            self.law.add(noisy, seed, variance)
        return noisy


def noise_components(parameters: Parameters, chunk: int, issued: IssuedSecrets) -> list[tuple[bytes, Fraction]]:
    """Return seed and variance of each noise component of one client in a chunk, the base component first."""
    plan = parameters.plans[chunk]
    return list(zip((*issued.private, *issued.deposited), (*plan.base, *plan.removable), strict=True))


def client_noise(parameters: Parameters, chunk: int, issued: IssuedSecrets, law: NoiseLaw = SKELLAM) -> list[Vector]:
    """Return the noise that one client adds to a chunk, component by component, the base component first."""
    span, drawn = parameters.chunks[chunk], []
    for seed, variance in noise_components(parameters, chunk, issued):
        drawn.append(np.zeros(span.stop - span.start, np.uint32))
        law.add(drawn[-1], seed, variance)
    return drawn


@dataclass(frozen=True)
class ChunkOutput:
    """The sum over U3 with exactly the noise that must stay, and what happened on the way."""

    total: Vector = field(repr=False)
    """Over the ring; empty where a simulation summed real numbers."""
    survivors: tuple[ClientId, ...]
    left: Fraction
    """Variance of the noise in the sum."""
    charged: Fraction
    """Variance that the privacy of the survivors may count on."""
    stayed: Due = field(default_factory=dict)
    """Due components that could not be removed: they are still in the sum."""
    named: frozenset[ClientId] = frozenset()
    """Clients that were caught in a lie, which the sum survived."""

    @classmethod
    def of(
        cls,
        parameters: Parameters,
        chunk: int,
        total: Vector,
        survivors: tuple[ClientId, ...],
        stayed: Due,
        named: frozenset[ClientId] = frozenset(),
    ) -> "ChunkOutput":
        """Return the output of a chunk with the noise that its plan leaves."""
        plan, lots = parameters.plans[chunk], context(parameters.round, chunk, parameters.digest)
        left, charged = plan.left(survivors, lots, stayed), plan.charged(survivors, lots)
        return cls(total, survivors, left, charged, stayed, named)


def remove_noise(
    parameters: Parameters, chunk: int, summed: ChunkSum, law: NoiseLaw = SKELLAM, vectors: Vectors = HERE
) -> ChunkOutput:
    """Subtract the noise of all released seeds from the sum of a chunk, in place; return what is left."""
    removable = parameters.plans[chunk].removable
    released = [(seed, removable[k]) for seeds in summed.released.values() for k, seed in seeds.items()]
    vectors.remove_noise(summed.total, released, law.add)
    np.bitwise_and(summed.total, np.uint32(2**parameters.bits - 1), out=summed.total)
    due = parameters.due(chunk, summed.survivors) if summed.survivors else {}
    stayed = unreleased(due, summed.released)
    return ChunkOutput.of(parameters, chunk, summed.total, summed.survivors, stayed, summed.named)


def unreleased(due: Due, released: Mapping[ClientId, Mapping[int, bytes]]) -> Due:
    """Return the due components whose seeds were not released."""
    missing = {u: tuple(k for k in ks if k not in released.get(ClientId(u), {})) for u, ks in due.items()}
    return {u: ks for u, ks in missing.items() if ks}


class PrivateChunk(ProtocolServer[ChunkOutput]):
    """A chunk of a summing protocol, and the removal of noise after it."""

    def __init__(
        self,
        summing: SummingChunk,
        setup: SummingSetup,
        parameters: Parameters,
        chunk: int,
        law: NoiseLaw = SKELLAM,
    ) -> None:
        self.summing, self.parameters, self.chunk = summing, parameters, chunk
        self._setup, self._law = setup, law
        self._output: ChunkOutput | None = None

    @property
    def u3(self) -> tuple[ClientId, ...]:
        """Return the clients whose input is in the sum; nobody until that is known."""
        return self.summing.u3

    @property
    def workflow(self) -> Sequence[Step]:
        """Return the steps that make the sum, then the one that removes noise."""
        return *self.summing.workflow, Step(self.remove_noise, Resource.SERVER)

    def remove_noise(self) -> Flow | None:
        """Remove the noise that is due."""
        summed = self.summing.output()
        self._output = remove_noise(self.parameters, self.chunk, summed, self._law, self._setup.vectors)
        return None

    def output(self) -> ChunkOutput:
        """Return the sum and its noise, once the noise that is due is removed."""
        if self._output is None:
            raise InputError(f"the noise of chunk {self.chunk} is not removed yet")
        return self._output


class PrivateServer(ChunkedServer[ChunkOutput]):
    """A summing protocol's server, and the removal of noise after every chunk."""

    def __init__(self, summing: SummingServer, parameters: Parameters) -> None:
        self.setup, sums = summing.setup, enumerate(summing.chunks)
        self.chunks: Sequence[PrivateChunk] = [PrivateChunk(m, self.setup, parameters, chunk) for chunk, m in sums]


@dataclass(frozen=True)
class OneDraw:
    """All noise that is left in a sum, drawn at once: for ideal fidelity only, where one program plays all parties.

    Noise of one law adds up, so that the sum has the law that the clients' noise would give it.
    """

    entropy: Entropy = secrets.token_bytes

    def add(self, parameters: Parameters, output: ChunkOutput, law: NoiseLaw = SKELLAM) -> None:
        """Add noise of the variance that the output states to its sum, in place."""
        for variance in drawable(output.left):
            law.add(output.total, self.entropy(SEED_BYTES), variance)
        np.bitwise_and(output.total, np.uint32(2**parameters.bits - 1), out=output.total)


def drawable(variance: Fraction) -> Iterator[Fraction]:
    """Divide a variance into parts that a noise table can have."""
    while variance > 0:
        part = min(variance, Fraction(LARGEST_VARIANCE))
        yield part
        variance -= part
