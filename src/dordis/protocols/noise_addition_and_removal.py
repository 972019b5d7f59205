"""Distributed noise: clients add noise to their inputs, and the server removes the excess noise from the sum.

The noise is drawn from seeds, which are secrets of the summing protocol's client (`protocols.escrow`).  The seed of the
base component is a *private* secret, which never leaves the client.  The seeds of removable components are *deposited*:
the protocol can release them to the server.  Once the survivors are known, the noise plan says which components are
*due* for removal.  The protocol returns the seeds of these components with the sum, and the server subtracts their
noise.  A summing protocol does not know that the secrets are seeds.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dordis.errors import InputError
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.skellam_noise import LARGEST_VARIANCE, SKELLAM, NoiseLaw
from dordis.privacy.xnoise_components import Due, removal_context
from dordis.protocol import ClientId, Flow, ProtocolServer, Resource, Step
from dordis.protocols.escrow import IssuedSecrets
from dordis.protocols.parameters import Parameters, check_tables
from dordis.protocols.summing import ChunkedServer, ChunkSum, SummingChunk, SummingServer, SummingSetup
from dordis.protocols.vector_backend import LOCAL, Vectors


@dataclass(frozen=True, eq=False)
class NoisyInput:
    """A client's encoded update, to which `chunk` adds the client's noise, one chunk at a time."""

    vector: Vector = field(repr=False)
    law: NoiseLaw = SKELLAM

    def check(self, parameters: Parameters) -> None:
        """Raise ParametersRefused unless this program's noise tables have the hash that the parameters state."""
        check_tables(parameters, self.law)

    def chunk(self, parameters: Parameters, chunk: int, issued: IssuedSecrets) -> Vector:
        """Return one chunk of the update plus all noise of the client in this chunk, modulo 2^32."""
        noisy = np.array(self.vector[parameters.chunks[chunk]])
        for seed, variance in noise_components(parameters, chunk, issued):
            self.law.add(noisy, seed, variance)
        return noisy


def noise_components(parameters: Parameters, chunk: int, issued: IssuedSecrets) -> list[tuple[bytes, Fraction]]:
    """Return seed and variance of each noise component of one client in a chunk, the base component first."""
    plan = parameters.plans[chunk]
    return list(zip((*issued.private, *issued.deposited), (*plan.base, *plan.removable), strict=True))


def client_noise(parameters: Parameters, chunk: int, issued: IssuedSecrets, law: NoiseLaw = SKELLAM) -> list[Vector]:
    """Return the noise that one client adds to a chunk: a vector for each component, the base component first."""
    span, drawn = parameters.chunks[chunk], []
    for seed, variance in noise_components(parameters, chunk, issued):
        drawn.append(np.zeros(span.stop - span.start, np.uint32))
        law.add(drawn[-1], seed, variance)
    return drawn


@dataclass(frozen=True)
class ChunkOutput:
    """The sum of one chunk, its survivors (U3, the clients in the sum), and the noise left in the sum."""

    total: Vector = field(repr=False)
    """The sum in the ring Z_{2^b}; empty if a simulation summed real numbers."""
    survivors: tuple[ClientId, ...]
    left: Fraction
    """Variance of the noise plan's noise in the sum."""
    charged: Fraction
    """The part of `left` that counts for privacy: without the noise that T_C colluders may know, and without noise that
    was due for removal but stayed."""
    stayed: Due = field(default_factory=dict)
    """Noise components that were due for removal and could not be removed: they are still in the sum."""
    named: frozenset[ClientId] = frozenset()
    """Clients that provably lied; the sum is right nevertheless."""
    signatures: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    """A quorum's signatures on the survivors; empty if nothing was signed."""

    @classmethod
    def from_plan(
        cls,
        parameters: Parameters,
        chunk: int,
        total: Vector,
        survivors: tuple[ClientId, ...],
        stayed: Due,
        named: frozenset[ClientId] = frozenset(),
        signatures: Mapping[ClientId, bytes] | None = None,
    ) -> "ChunkOutput":
        """Return the output of a chunk; `left` and `charged` are computed from the chunk's noise plan.

        The other fields are the arguments of the same name; `signatures` None means that nothing was signed.
        """
        plan, lots = parameters.plans[chunk], removal_context(parameters.round, chunk, parameters.digest)
        left, charged = plan.variance_left(survivors, lots, stayed), plan.charged_variance(survivors, lots)
        return cls(total, survivors, left, charged, stayed, named, signatures or {})


def remove_noise(
    parameters: Parameters, chunk: int, summed: ChunkSum, law: NoiseLaw = SKELLAM, vectors: Vectors = LOCAL
) -> ChunkOutput:
    """Subtract the noise of all released seeds from `summed.total`, in place; return the chunk's output."""
    removable = parameters.plans[chunk].removable
    released = [(seed, removable[k]) for seeds in summed.released.values() for k, seed in seeds.items()]
    vectors.remove_noise(summed.total, released, law.add)
    np.bitwise_and(summed.total, np.uint32(2**parameters.bits - 1), out=summed.total)
    due = parameters.due(chunk, summed.survivors) if summed.survivors else {}
    stayed = unreleased(due, summed.released)
    return ChunkOutput.from_plan(
        parameters, chunk, summed.total, summed.survivors, stayed, summed.named, summed.signatures
    )


def unreleased(due: Due, released: Mapping[ClientId, Mapping[int, bytes]]) -> Due:
    """Return the noise components that are due for removal and whose seeds were not released."""
    missing = {u: tuple(k for k in ks if k not in released.get(ClientId(u), {})) for u, ks in due.items()}
    return {u: ks for u, ks in missing.items() if ks}


class PrivateChunk(ProtocolServer[ChunkOutput]):
    """The server's steps for one chunk: those of the summing protocol, then the removal of excess noise."""

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
        """Return the survivors, U3: the clients whose input is in the sum; empty until the uploads have ended."""
        return self.summing.u3

    @property
    def workflow(self) -> Sequence[Step]:
        return *self.summing.workflow, Step(self.remove_noise, Resource.SERVER)

    def remove_noise(self) -> Flow | None:
        """Subtract the noise of all released seeds from the sum of the chunk; return None: the step has no requests."""
        summed = self.summing.output()
        self._output = remove_noise(self.parameters, self.chunk, summed, self._law, self._setup.vectors)
        return None

    def output(self) -> ChunkOutput:
        """Return the sum with the variances of its noise; raise InputError before `remove_noise` has run."""
        if self._output is None:
            raise InputError(f"the noise of chunk {self.chunk} is not removed yet")
        return self._output


class PrivateServer(ChunkedServer[ChunkOutput]):
    """The server of a summing protocol, extended by the removal of excess noise from the sum of every chunk."""

    def __init__(self, summing: SummingServer, parameters: Parameters) -> None:
        self.setup, sums = summing.setup, enumerate(summing.chunks)
        self.chunks: Sequence[PrivateChunk] = [PrivateChunk(m, self.setup, parameters, chunk) for chunk, m in sums]


@dataclass(frozen=True)
class OneDraw:
    """Adds all noise that is left in a sum at once, for ideal fidelity, where one program plays all parties.

    Independent noises of one `NoiseLaw` add up to noise of the same law, and their variances add up.  So noise drawn
    with the summed variance has the same distribution as the noise of all clients together.
    """

    entropy: Entropy = secrets.token_bytes

    def add(self, parameters: Parameters, output: ChunkOutput, law: NoiseLaw = SKELLAM) -> None:
        """Add noise of variance `output.left` to `output.total`, in place."""
        for variance in split_variance(output.left):
            law.add(output.total, self.entropy(SEED_BYTES), variance)
        np.bitwise_and(output.total, np.uint32(2**parameters.bits - 1), out=output.total)


def split_variance(variance: Fraction) -> Iterator[Fraction]:
    """Yield parts that add up to `variance`, each at most `LARGEST_VARIANCE`, the limit of one noise table."""
    while variance > 0:
        part = min(variance, Fraction(LARGEST_VARIANCE))
        yield part
        variance -= part
