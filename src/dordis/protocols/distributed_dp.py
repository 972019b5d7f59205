"""Distributed differential privacy: encode, any protocol that sums vectors over Z_{2^b}, decode.

The protocol between the two knows nothing of it: it sums, and adds and removes the noise that the parameters name.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.packing import Packed, pack, packed_size, unpack
from dordis.kernels.ring import Vector
from dordis.privacy.clipping import encode_bit, fraction_below
from dordis.privacy.encoding import SEED_BYTES, Entropy, Grid, Reals, norm, unfolded, unrotated, unrotated_reals
from dordis.privacy.mechanisms import known
from dordis.privacy.mechanisms.mechanism import Mechanism, check_folds
from dordis.privacy.noise import SKELLAM
from dordis.privacy.requantising import delivered_size, requantised, restored
from dordis.privacy.skellam import BLOCKS_FROM, Floats, Sensitivity, block_size
from dordis.privacy.xnoise import Scheme
from dordis.protocols.distributed_noise import ChunkOutput
from dordis.protocols.parameters import Encoding, Parameters, Projection


def encoding_of(mechanism: Mechanism, rotation: bytes, bit: int = 0) -> Encoding:
    """Write a mechanism down for the parameters, with the scale of the clipping bit."""
    return Encoding(
        mechanism=mechanism.name,
        clip=mechanism.clip,
        sensitivity=mechanism.sensitivity,
        scale=mechanism.grid.scale,
        block=mechanism.grid.block,
        rotation=rotation,
        bit=bit,
        noise=mechanism.noise or UNSET,
        projection=projection_of(mechanism),
    )


def projection_of(mechanism: Mechanism) -> Projection | UnsetType:
    """Write down how a mechanism folds updates; nothing if it does not."""
    grid = mechanism.grid
    return Projection(grid.dim, grid.buckets, mechanism.rounding, mechanism.delivered) if grid.buckets else UNSET


def releases_of(parameters: Parameters) -> list[tuple[Sensitivity, range]]:
    """Return the noisy sums of a round and their chunks, as the ledger charges them: the update, and the bit if any."""
    encoding, chunks = parameters.encoding, len(parameters.chunks)
    bits = 1 if encoding.bit else 0
    releases = [(Sensitivity(encoding.sensitivity, parameters.dim - bits), range(chunks - bits))]
    return [*releases, (Sensitivity(encoding.bit**2, 1), range(chunks - 1, chunks))] if bits else releases


def mechanism_of(parameters: Parameters, dim: int | None = None, kind: type[Mechanism] | None = None) -> Mechanism:
    """Read a mechanism for updates of `dim` coordinates, or of whole blocks, from the parameters, or refuse them.

    Whoever knows mechanisms of others passes the `kind` that it expects: the name alone imports none of them.
    """
    written, kind = parameters.encoding, kind or known(parameters.encoding.mechanism)
    projection = written.projection or None
    length = projection.dim if projection else parameters.dim - (1 if written.bit else 0)
    buckets = projection.buckets if projection else 0
    check_folds(kind, buckets)
    grid = Grid(length if dim is None else dim, written.block, written.scale, parameters.bits, buckets)
    mechanism = kind.read(grid, written.clip, written.sensitivity, written.noise or "")
    check_agreed(parameters, mechanism)
    check_scheme(parameters, mechanism)
    check_bit_law(parameters, mechanism)
    return mechanism


@dataclass(frozen=True, eq=False)
class DecodedChunk:
    """One chunk in real units, still in the order of the blocks; of the clipping bit, the fraction of norms below."""

    values: Floats = field(repr=False)
    survivors: int


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The decoded sum, in real units, and how many clients are in each coordinate: chunks may lose different ones."""

    total: Floats = field(repr=False)
    survivors: tuple[int, ...]
    """|U3| of each chunk."""
    by_block: npt.NDArray[np.int64] = field(repr=False)
    """|U3| of each block; coordinate i, or bucket i, is in block i mod B."""
    below: float | None = None
    """Fraction of clients whose norm is at most the clip bound, with noise; None if the round did not count them."""

    buckets: int = 0
    """How many coordinates were summed where updates were folded: coordinate i is in bucket i mod k."""

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many clients are in each coordinate."""
        kept = self.buckets or self.total.size
        return np.resize(np.resize(self.by_block, kept), self.total.size)

    @cached_property
    def mean(self) -> Floats:
        """Return the mean over the clients that are in each coordinate."""
        alike = len(set(self.survivors)) == 1
        mean: Floats = self.total / (self.survivors[0] if alike else self.counts)
        return mean


@dataclass(frozen=True)
class DistributedDP:
    """What comes before and after the sum in one round; both sides make it from the same parameters.

    >>> from dordis.protocols.parameters import agree_on
    >>> parameters = agree_on(run=bytes(32), index=0, clients=[1, 2], threshold=2, tolerance=0, bits=16,
    ...     ends=[4], encoding=Encoding(scale=100.0, block=4, rotation=bytes(32)))
    >>> dp = DistributedDP.of(parameters, dim=3)
    >>> total = sum(dp.encode(np.array(update)) for update in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    >>> dp.decode([ChunkOutput.of(parameters, 0, total, parameters.clients, {})]).mean.round(1).tolist()
    [2.0, 2.0, 2.0]
    """

    parameters: Parameters
    mechanism: Mechanism

    @classmethod
    def of(cls, parameters: Parameters, dim: int, kind: type[Mechanism] | None = None) -> "DistributedDP":
        """Read the mechanism for updates of `dim` coordinates from the parameters; see `mechanism_of`."""
        return cls(parameters, mechanism_of(parameters, dim, kind))

    def __post_init__(self) -> None:
        check_agreed(self.parameters, self.mechanism)
        check_scheme(self.parameters, self.mechanism)
        check_block(self.mechanism.grid)
        check_chunks(self.parameters, self.mechanism.grid)

    def encode(self, update: Reals, entropy: Entropy = secrets.token_bytes) -> Vector:
        """Return a client's input to the sum.  Make it once a round: every encoding of an update tells about it."""
        encoding = self.parameters.encoding
        vector = self.mechanism.encode(update, encoding.rotation, entropy)
        if not encoding.bit:
            return vector
        bit = encode_bit(norm(update), encoding.clip, encoding.bit, self.parameters.bits)
        return np.concatenate([vector, bit])

    @property
    def sums_reals(self) -> bool:
        """Tell whether clipped updates may be summed without rounding: no noise is added to them, and no bit is."""
        mechanism, parameters = self.mechanism, self.parameters
        noisy = mechanism.in_ring or Scheme(parameters.scheme) is not Scheme.NONE
        plain = type(mechanism).encode is Mechanism.encode and not mechanism.grid.buckets
        return plain and not noisy and not parameters.encoding.bit

    def aggregate_reals(self, total: Floats, counts: Sequence[int]) -> Aggregate:
        """Return the aggregate of clipped updates that were summed without rounding, with the server's noise if any."""
        self.mechanism.add_server_noise(total)
        return self.aggregate(total, counts, None)

    def decode(self, chunks: Sequence[ChunkOutput]) -> Aggregate:
        """Return the aggregate from the sums of all chunks: of what is delivered of them, where that is less."""
        sizes = [span.stop - span.start for span in self.parameters.chunks]
        if [chunk.total.size for chunk in chunks] != sizes:
            raise InputError(f"the round has chunks of {sizes} coordinates: pass the sum of each, in order")
        if self.mechanism.delivered:
            decoded = [self.decode_chunk(k, chunk.total, len(chunk.survivors)) for k, chunk in enumerate(chunks)]
            return self.assemble(decoded)
        below = None
        if bit := self.parameters.encoding.bit:
            *chunks, last = chunks
            below = fraction_below(last.total, len(last.survivors), bit, self.parameters.bits)
        whole = np.concatenate([chunk.total for chunk in chunks]) if len(chunks) > 1 else chunks[0].total
        total = self.mechanism.decode(whole, 1, self.parameters.encoding.rotation)
        return self.aggregate(total, [len(chunk.survivors) for chunk in chunks], below)

    def decode_chunk(self, chunk: int, total: Vector, survivors: int) -> DecodedChunk:
        """Return the sum of one chunk in real units, for mechanisms that can decode chunk by chunk."""
        check_by_chunk(self.mechanism)
        self._check_length(chunk, total)
        if self.mechanism.delivered:
            return self.decode_delivered(chunk, self.delivered(chunk, total), survivors)
        return self._decode_summed(chunk, total, survivors)

    def delivered(self, chunk: int, total: Vector) -> bytes:
        """Return the sum of a chunk as it is delivered: in fewer bits where updates are folded."""
        self._check_length(chunk, total)
        if self.mechanism.delivered and not self.is_bit(chunk):
            return requantised(total, self.mechanism.grid)
        return pack(total, self.parameters.bits).tobytes()

    def delivered_size(self, chunk: int) -> int:
        """Return the bytes of the sum of a chunk as it is delivered."""
        span = self.parameters.chunks[chunk]
        if self.mechanism.delivered and not self.is_bit(chunk):
            return delivered_size(span.stop - span.start, self.mechanism.grid.block)
        return packed_size(span.stop - span.start, self.parameters.bits)

    def decode_delivered(self, chunk: int, data: Packed, survivors: int) -> DecodedChunk:
        """Return the sum of one chunk in real units, from what was delivered: server and clients alike."""
        check_by_chunk(self.mechanism)
        span, grid = self.parameters.chunks[chunk], self.mechanism.grid
        if not self.mechanism.delivered or self.is_bit(chunk):
            total = unpack(data, self.parameters.bits, span.stop - span.start)
            return self._decode_summed(chunk, total, survivors)
        read = restored(data, span.stop - span.start, grid)
        return DecodedChunk(unrotated_reals(read, grid, self.parameters.encoding.rotation, span.start), survivors)

    def _decode_summed(self, chunk: int, total: Vector, survivors: int) -> DecodedChunk:
        """Return a sum, or that of the clipping bits, in real units."""
        encoding = self.parameters.encoding
        if self.is_bit(chunk):
            below = fraction_below(total, survivors, encoding.bit, self.parameters.bits)
            return DecodedChunk(np.array([below]), survivors)
        start = self.parameters.chunks[chunk].start
        return DecodedChunk(unrotated(total, self.mechanism.grid, encoding.rotation, start), survivors)

    def _check_length(self, chunk: int, total: Vector) -> None:
        span = self.parameters.chunks[chunk]
        if total.size != span.stop - span.start:
            raise InputError(f"chunk {chunk} has {span.stop - span.start} coordinates, not {total.size}")

    def is_bit(self, chunk: int) -> bool:
        """Tell whether a chunk holds nothing but the clipping bits."""
        return bool(self.parameters.encoding.bit) and chunk == len(self.parameters.chunks) - 1

    def assemble(self, chunks: Sequence[DecodedChunk]) -> Aggregate:
        """Return the aggregate from all chunks, decoded one by one: what `decode` makes of their sums."""
        if len(chunks) != len(self.parameters.chunks):
            raise InputError(f"the round has {len(self.parameters.chunks)} chunks, not {len(chunks)}")
        assembly = Assembly(self)
        for chunk, decoded in enumerate(chunks):
            assembly.add(chunk, decoded)
        return assembly.aggregate()

    def aggregate(self, total: Floats, counts: Sequence[int], below: float | None) -> Aggregate:
        """Return the aggregate of a decoded sum, from how many clients are in each chunk."""
        grid = self.mechanism.grid
        blocks = [(span.stop - span.start) // grid.block for span in self.parameters.chunks]
        return Aggregate(total, tuple(counts), np.repeat(counts, blocks[: len(counts)]), below, grid.buckets)


class Assembly:
    """The aggregate of a round, put together from its chunks in any order: most of that is done as they are added."""

    def __init__(self, private: DistributedDP) -> None:
        self._private, self._grid = private, private.mechanism.grid
        self._kept = np.empty(self._grid.kept)
        self._survivors: dict[int, int] = {}
        self._below: float | None = None

    def __len__(self) -> int:
        return len(self._survivors) + (self._below is not None)

    def add(self, chunk: int, decoded: DecodedChunk) -> None:
        """Put a chunk to its place."""
        if self._private.is_bit(chunk):
            self._below = float(decoded.values[0])
        else:
            self._grid.place(self._kept, decoded.values, self._private.parameters.chunks[chunk].start)
            self._survivors[chunk] = decoded.survivors

    def aggregate(self) -> Aggregate:
        """Return the aggregate, when all chunks are there."""
        total = unfolded(self._kept, self._grid, self._private.parameters.encoding.rotation)
        counts = [self._survivors[chunk] for chunk in sorted(self._survivors)]
        return self._private.aggregate(total, counts, self._below)


def check_by_chunk(mechanism: Mechanism) -> None:
    """Refuse a mechanism that does more to the whole sum than undo the encoding: its noise would be left out."""
    if not mechanism.by_chunk:
        raise ParametersRefused(f"the mechanism '{mechanism.name}' decodes whole vectors only, not chunk by chunk")


def check_agreed(parameters: Parameters, mechanism: Mechanism) -> None:
    """Refuse a mechanism other than the one that the round has agreed on."""
    if parameters.encoding != encoding_of(mechanism, parameters.encoding.rotation, parameters.encoding.bit):
        raise ParametersRefused(f"the round has not agreed on this mechanism, '{mechanism.name}'")
    if len(parameters.encoding.rotation) != SEED_BYTES:
        raise ParametersRefused(f"the seed of the rotation has {SEED_BYTES} bytes")
    if parameters.bits != mechanism.grid.bits:
        raise ParametersRefused(f"the round's ring has {parameters.bits} bits, not {mechanism.grid.bits}")


def check_scheme(parameters: Parameters, mechanism: Mechanism) -> None:
    """Refuse noise that the mechanism was not analysed with, such as XNoise over discrete Gaussians."""
    if Scheme(parameters.scheme) not in mechanism.schemes:
        raise ParametersRefused(f"the mechanism '{mechanism.name}' does not go with the scheme '{parameters.scheme}'")


def check_block(grid: Grid) -> None:
    """Refuse another block than the length gives: a longer one would pad a short vector to any size.

    A vector that is one block by its length may have shorter ones, so that it can have several chunks.
    """
    length, block = grid.kept, block_size(grid.kept)
    if grid.block > block or (length >= BLOCKS_FROM and grid.block != block):
        raise ParametersRefused(f"{length} coordinates are rotated in blocks of {block}, not of {grid.block}")


def check_bit_law(parameters: Parameters, mechanism: Mechanism) -> None:
    """Refuse a clipping bit under noise of another law: what the bit costs is known for Skellam noise only."""
    if parameters.encoding.bit and mechanism.law != SKELLAM:
        raise ParametersRefused(
            f"the noise of '{mechanism.name}' is not Skellam noise: privacy.clipping must be a fixed bound with it"
        )


def check_chunks(parameters: Parameters, grid: Grid) -> None:
    """Refuse chunks that are not runs of whole blocks, or that are not the whole vector."""
    chunks, dim = parameters.chunks, parameters.dim
    if parameters.encoding.bit:  # a chunk of one coordinate, after all others
        chunks, dim = chunks[:-1], dim - 1
        if parameters.chunks[-1] != slice(grid.padded, grid.padded + 1):
            raise ParametersRefused("the clipping bit is the last chunk, of one coordinate")
    if dim != grid.padded:
        raise ParametersRefused(f"{grid.dim} coordinates are padded to {grid.padded}, not to {dim}")
    if any(span.stop % grid.block for span in chunks):
        raise ParametersRefused(f"chunks end at multiples of the block, {grid.block}")
