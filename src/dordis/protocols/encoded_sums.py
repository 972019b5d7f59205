"""Distributed differential privacy: clients encode updates, any summing protocol adds them, the server decodes the sum.

The summing protocol does not depend on the encoding.  The noise is added and removed by
`dordis.protocols.noise_addition_and_removal`.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from dordis.errors import InputError, ParametersRefused
from dordis.kernels.ring import Packed, Vector, pack, packed_size, unpack
from dordis.privacy.clipping import CLIPPING_BIT, bit_value
from dordis.privacy.encoding import (
    SEED_BYTES,
    Entropy,
    Grid,
    Reals,
    delivered_size,
    dequantise,
    norm,
    quantise,
    unfold_sum,
    unrotate_integers,
    unrotate_sum,
)
from dordis.privacy.further_releases import FurtherRelease, FurtherSum
from dordis.privacy.mechanisms import Mechanism, NoiseFrom, check_by_chunk, check_folding, find_builtin_mechanism
from dordis.privacy.record_encoding import Integers, RecordEncoding, encode_sum, sensitivity
from dordis.privacy.scaling import BLOCKS_FROM, Floats, Sensitivity, block_size
from dordis.privacy.skellam_noise import SKELLAM
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.noise_addition_and_removal import ChunkOutput
from dordis.protocols.parameters import Encoding, Parameters, Projection, check_further


def encoding_of(
    mechanism: Mechanism,
    rotation: bytes,
    further: Sequence[FurtherRelease] = (),
    records: RecordEncoding | UnsetType = UNSET,
) -> Encoding:
    """Return the `Encoding` for a round's parameters: mechanism, seed of the rotation, further releases, records."""
    others = tuple(release for release in further if release.name != CLIPPING_BIT)
    grid = mechanism.grid
    folded = Projection(grid.dim, grid.buckets, mechanism.rounding, mechanism.delivered_bits) if grid.buckets else UNSET
    return Encoding(
        mechanism=mechanism.name,
        clip=mechanism.clip,
        sensitivity=mechanism.sensitivity,
        scale=grid.scale,
        block=grid.block,
        rotation=rotation,
        bit=sum(release.scale for release in further if release.name == CLIPPING_BIT),
        noise=mechanism.noise or UNSET,
        projection=folded,
        records=records,
        further=others or UNSET,
    )


def releases_of(parameters: Parameters) -> list[tuple[Sensitivity, range]]:
    """Return the sensitivity and the chunks of each release of a round: the update, then the further releases."""
    encoding = parameters.encoding
    update = Sensitivity(encoding.sensitivity, parameters.update_dim)
    further = [release.sensitivity for release in encoding.further_releases]
    return list(zip([update, *further], parameters.release_chunks, strict=True))


def mechanism_of(parameters: Parameters, dim: int | None = None, kind: type[Mechanism] | None = None) -> Mechanism:
    """Return the mechanism that the parameters name, for updates of `dim` coordinates (None: as the parameters say).

    `kind` is the class of a third party's mechanism, passed by the caller: a name in the parameters never imports code.
    Raise ParametersRefused if the mechanism contradicts the other parameters.
    """
    written, kind = parameters.encoding, kind or find_builtin_mechanism(parameters.encoding.mechanism)
    projection = written.projection or None
    length = projection.dim if projection else parameters.update_dim
    buckets = projection.buckets if projection else 0
    check_folding(kind, buckets)
    grid = Grid(length if dim is None else dim, written.block, written.scale, parameters.bits, buckets)
    mechanism = kind.from_parameters(grid, written.clip, written.sensitivity, written.noise or "")
    check_agreed(parameters, mechanism)
    check_scheme(parameters, mechanism)
    check_further_law(parameters, mechanism)
    return mechanism


@dataclass(frozen=True, eq=False)
class DecodedChunk:
    """The decoded sum of one chunk of a round."""

    values: Floats = field(repr=False)
    """A sum of updates is in real units, block after block (see `Grid`); that of a further release in integer units."""
    survivors: int


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The decoded sum of a round in real units, and for each chunk the number of clients in its sum."""

    total: Floats = field(repr=False)
    survivors: tuple[int, ...]
    """For each chunk of the update, the number of clients in the sum of the chunk."""
    by_block: npt.NDArray[np.int64] = field(repr=False)
    """For each of B blocks, the number of clients in its sum; coordinate (or bucket) i is in block i mod B."""
    further: Mapping[str, FurtherSum] = field(default_factory=dict)
    """The sums of further releases, by their names."""
    batch: float = 1.0
    """The number of records that a client is expected to sample; 1 if clients are the unit of privacy."""
    buckets: int = 0
    """Number k of buckets into which updates were folded, coordinate i into bucket i mod k; 0 if not folded."""

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return, for each coordinate, the number of clients whose update is in the sum."""
        kept = self.buckets or self.total.size
        return np.resize(np.resize(self.by_block, kept), self.total.size)

    @cached_property
    def mean(self) -> Floats:
        """Return the mean: each coordinate of the sum, divided by `batch` and by the number of clients in the sum.

        `batch` is 1; if records are the unit of privacy, it is the number of records a client is expected to sample.
        """
        alike = len(set(self.survivors)) == 1
        mean: Floats = self.total / ((self.survivors[0] if alike else self.counts) * self.batch)
        return mean


@dataclass(frozen=True)
class DistributedDP:
    """Encodes the updates of one round before the sum, and decodes the sum, by the parameters of the round.

    >>> from dordis.protocols.cohort import agree_on
    >>> parameters = agree_on(run=bytes(32), index=0, clients=[1, 2], threshold=2, tolerance=0, bits=16,
    ...     ends=[4], encoding=Encoding(scale=100.0, block=4, rotation=bytes(32)))
    >>> dp = DistributedDP.from_parameters(parameters, dim=3)
    >>> total = sum(dp.encode(np.array(update)) for update in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    >>> dp.decode([ChunkOutput.from_plan(parameters, 0, total, parameters.clients, {})]).mean.round(1).tolist()
    [2.0, 2.0, 2.0]
    """

    parameters: Parameters
    mechanism: Mechanism

    @classmethod
    def from_parameters(cls, parameters: Parameters, dim: int, kind: type[Mechanism] | None = None) -> "DistributedDP":
        """Return the `DistributedDP` for updates of `dim` coordinates; `kind` is a third party's mechanism, if any."""
        return cls(parameters, mechanism_of(parameters, dim, kind))

    def __post_init__(self) -> None:
        check_agreed(self.parameters, self.mechanism)
        check_scheme(self.parameters, self.mechanism)
        check_block(self.mechanism.grid)
        check_chunks(self.parameters, self.mechanism.grid)
        check_records(self.parameters, self.mechanism)

    def encode(
        self, update: Reals, entropy: Entropy = secrets.token_bytes, values: Mapping[str, npt.ArrayLike] | None = None
    ) -> Vector:
        """Return a client's encoded update.  Call this once a round: a second encoding would reveal more of the update.

        `values` are the client's values of the further releases, by name; a missing value counts as zeros.
        """
        encoding, bits = self.parameters.encoding, self.parameters.bits
        vector = self.mechanism.encode(update, encoding.rotation, entropy)
        if not encoding.further_releases:
            return vector
        given = dict(values or {})
        if encoding.bit:
            given[CLIPPING_BIT] = bit_value(norm(update), encoding.clip)
        further = [one.encode(given.get(one.name, np.zeros(one.length)), bits) for one in encoding.further_releases]
        return np.concatenate([vector, *further])

    @property
    def records(self) -> RecordEncoding | None:
        """Return how records are sampled and encoded; None if clients, not records, are the unit of privacy."""
        return self.parameters.encoding.records or None

    @property
    def batch(self) -> float:
        """Return the number of records that a client is expected to sample; 1 if clients are the unit of privacy."""
        return self.records.batch if self.records else 1.0

    def encode_records(
        self, total: Integers, values: Mapping[str, npt.ArrayLike], entropy: Entropy = secrets.token_bytes
    ) -> Vector:
        """Return a client's encoded input from `total`, the exact sum of its quantised records.

        The mechanism's own noise, if any, is added to `total` in place.  `values` has the sums of further releases.
        """
        encoding, records = self.parameters.encoding, self.records
        if records is None:
            raise InputError("the unit of privacy of this round is the client: there is no sum of records to encode")
        seed = entropy(SEED_BYTES)
        self.mechanism.add_client_noise(total, records.length, entropy)
        vector = encode_sum(total, self.mechanism.grid, records.shift, encoding.rotation, seed)
        if not encoding.further_releases:
            return vector
        further = [one.encode_sum(values[one.name], self.parameters.bits) for one in encoding.further_releases]
        return np.concatenate([vector, *further])

    @property
    def sums_reals(self) -> bool:
        """Tell whether a simulation may sum updates as real numbers, because nothing in the round needs integers."""
        mechanism, parameters = self.mechanism, self.parameters
        noisy = mechanism.in_ring or Scheme(parameters.scheme) is not Scheme.NONE
        plain = type(mechanism).encode is Mechanism.encode and not mechanism.grid.buckets
        return plain and not noisy and not parameters.encoding.further_releases and self.records is None

    def aggregate_reals(self, total: Floats, counts: Sequence[int]) -> Aggregate:
        """Add the server's noise, if any, to `total`, a sum of updates as reals; return `aggregate` of the result."""
        self.mechanism.add_server_noise(total)
        return self.aggregate(total, counts, {})

    def decode(self, chunks: Sequence[ChunkOutput]) -> Aggregate:
        """Return the aggregate from the sums of all chunks; if sums are delivered, clients obtain it from them too."""
        sizes = [span.stop - span.start for span in self.parameters.chunks]
        if [chunk.total.size for chunk in chunks] != sizes:
            raise InputError(f"the round has chunks of {sizes} coordinates: pass the sum of each, in order")
        if self.mechanism.delivered_bits:
            decoded = [self.decode_chunk(k, chunk.total, len(chunk.survivors)) for k, chunk in enumerate(chunks)]
            return self.assemble(decoded)
        update = [chunks[chunk] for chunk in self.parameters.release_chunks[0]]
        further = {
            release.name: self._sum_further(release, output.total, len(output.survivors))
            for release, output in zip(self.parameters.encoding.further_releases, chunks[len(update) :], strict=True)
        }
        whole = np.concatenate([chunk.total for chunk in update]) if len(update) > 1 else update[0].total
        total = self.mechanism.decode(whole, 1, self.parameters.encoding.rotation)
        return self.aggregate(total, [len(chunk.survivors) for chunk in update], further)

    def _sum_further(self, release: FurtherRelease, total: Vector, survivors: int) -> FurtherSum:
        return FurtherSum.from_total(release, total, survivors * self.batch, self.parameters.bits)

    def decode_chunk(self, chunk: int, total: Vector, survivors: int) -> DecodedChunk:
        """Return the decoded sum of a chunk; raise ParametersRefused if the mechanism decodes whole sums only."""
        check_by_chunk(self.mechanism)
        self._check_length(chunk, total)
        if self.mechanism.delivered_bits:
            return self.decode_delivered(chunk, self.encode_delivered(chunk, total), survivors)
        return self._decode_summed(chunk, total, survivors)

    def encode_delivered(self, chunk: int, total: Vector) -> bytes:
        """Return the sum of a chunk as bytes for clients; mechanisms with `delivered_bits` quantise sums of updates."""
        self._check_length(chunk, total)
        if self.mechanism.delivered_bits and self.further_release(chunk) is None:
            return quantise(total, self.mechanism.grid)
        return pack(total, self.parameters.bits).tobytes()

    def delivered_size(self, chunk: int) -> int:
        """Return the number of bytes in which the sum of a chunk is sent to clients."""
        span = self.parameters.chunks[chunk]
        if self.mechanism.delivered_bits and self.further_release(chunk) is None:
            return delivered_size(span.stop - span.start, self.mechanism.grid.block)
        return packed_size(span.stop - span.start, self.parameters.bits)

    def decode_delivered(self, chunk: int, data: Packed, survivors: int) -> DecodedChunk:
        """Return the decoded sum of a chunk from the bytes of `encode_delivered`."""
        check_by_chunk(self.mechanism)
        span, grid = self.parameters.chunks[chunk], self.mechanism.grid
        if not self.mechanism.delivered_bits or self.further_release(chunk) is not None:
            total = unpack(data, self.parameters.bits, span.stop - span.start)
            return self._decode_summed(chunk, total, survivors)
        read = dequantise(data, span.stop - span.start, grid)
        return DecodedChunk(unrotate_integers(read, grid, self.parameters.encoding.rotation, span.start), survivors)

    def _decode_summed(self, chunk: int, total: Vector, survivors: int) -> DecodedChunk:
        """Return the decoded sum of a chunk from the sum modulo 2^b."""
        if (release := self.further_release(chunk)) is not None:
            return DecodedChunk(self._sum_further(release, total, survivors).units, survivors)
        start, rotation = self.parameters.chunks[chunk].start, self.parameters.encoding.rotation
        return DecodedChunk(unrotate_sum(total, self.mechanism.grid, rotation, start), survivors)

    def _check_length(self, chunk: int, total: Vector) -> None:
        span = self.parameters.chunks[chunk]
        if total.size != span.stop - span.start:
            raise InputError(f"chunk {chunk} has {span.stop - span.start} coordinates, not {total.size}")

    def further_release(self, chunk: int) -> FurtherRelease | None:
        """Return the further release that is summed in a chunk; None for a chunk of the update."""
        further = self.parameters.encoding.further_releases
        place = chunk - (len(self.parameters.chunks) - len(further))
        return further[place] if place >= 0 else None

    def assemble(self, chunks: Sequence[DecodedChunk]) -> Aggregate:
        """Return the aggregate from all decoded chunks; it equals what `decode` returns for the sums of the chunks."""
        if len(chunks) != len(self.parameters.chunks):
            raise InputError(f"the round has {len(self.parameters.chunks)} chunks, not {len(chunks)}")
        assembly = Assembly(self)
        for chunk, decoded in enumerate(chunks):
            assembly.add(chunk, decoded)
        return assembly.aggregate()

    def aggregate(self, total: Floats, counts: Sequence[int], further: Mapping[str, FurtherSum]) -> Aggregate:
        """Return the aggregate of a decoded sum; `counts` are the numbers of survivors of the chunks of the update."""
        grid = self.mechanism.grid
        blocks = [(span.stop - span.start) // grid.block for span in self.parameters.chunks]
        return Aggregate(
            total, tuple(counts), np.repeat(counts, blocks[: len(counts)]), further, self.batch, grid.buckets
        )


class Assembly:
    """Assembles the aggregate of a round from its chunks, which are added in any order."""

    def __init__(self, private: DistributedDP) -> None:
        self._private, self._grid = private, private.mechanism.grid
        self._kept = np.empty(self._grid.summed_dim)
        self._survivors: dict[int, int] = {}
        self._further: dict[str, FurtherSum] = {}

    def __len__(self) -> int:
        return len(self._survivors) + len(self._further)

    def add(self, chunk: int, decoded: DecodedChunk) -> None:
        if (release := self._private.further_release(chunk)) is not None:
            count = decoded.survivors * self._private.batch
            self._further[release.name] = FurtherSum(decoded.values, release.scale, count)
        else:
            self._grid.place(self._kept, decoded.values, self._private.parameters.chunks[chunk].start)
            self._survivors[chunk] = decoded.survivors

    def aggregate(self) -> Aggregate:
        """Return the aggregate, after all chunks were added."""
        total = unfold_sum(self._kept, self._grid, self._private.parameters.encoding.rotation)
        counts = [self._survivors[chunk] for chunk in sorted(self._survivors)]
        return self._private.aggregate(total, counts, self._further)


def check_agreed(parameters: Parameters, mechanism: Mechanism) -> None:
    """Raise ParametersRefused if the mechanism differs from the encoding or the ring in the agreed parameters."""
    written = parameters.encoding
    if written != encoding_of(mechanism, written.rotation, written.further_releases, written.records):
        raise ParametersRefused(f"the round has not agreed on this mechanism, '{mechanism.name}'")
    if len(parameters.encoding.rotation) != SEED_BYTES:
        raise ParametersRefused(f"the seed of the rotation has {SEED_BYTES} bytes")
    if parameters.bits != mechanism.grid.bits:
        raise ParametersRefused(f"the round's ring has {parameters.bits} bits, not {mechanism.grid.bits}")


def check_records(parameters: Parameters, mechanism: Mechanism) -> None:
    """Raise ParametersRefused if records are the unit of privacy, and their accounting does not hold for the round."""
    records, grid = parameters.encoding.records, mechanism.grid
    if not records:
        return
    records.check(grid.block)
    if not mechanism.sums_records or grid.buckets:
        raise ParametersRefused(f"sums of records cannot be folded, and cannot have the noise '{mechanism.name}'")
    scaled_clip = records.scaled_clip(grid.block)
    if not math.isclose(scaled_clip, grid.scale * mechanism.clip, rel_tol=1e-9):
        raise ParametersRefused(f"s c = {grid.scale * mechanism.clip} is not what C_q and k give, {scaled_clip}")
    bounds_sum = mechanism.noise_from is not NoiseFrom.CLIENT  # a client's own noise comes before the rounding
    if bounds_sum and mechanism.sensitivity < sensitivity(scaled_clip, grid.padded):
        raise ParametersRefused(f"one record may change the sum by more than Delta2^2 = {mechanism.sensitivity}")
    if not 0 <= parameters.index < records.events:
        raise ParametersRefused(
            f"the index {parameters.index} of this round is not below the {records.events} events of the plan"
        )


def check_scheme(parameters: Parameters, mechanism: Mechanism) -> None:
    """Raise ParametersRefused if the mechanism does not support the noise scheme of the round."""
    if Scheme(parameters.scheme) not in mechanism.schemes:
        raise ParametersRefused(f"the mechanism '{mechanism.name}' does not go with the scheme '{parameters.scheme}'")


def check_block(grid: Grid) -> None:
    """Raise ParametersRefused unless blocks have the length `block_size`; longer ones could pad a vector to any size.

    Vectors below `BLOCKS_FROM` coordinates may have shorter blocks too, so that they can have several chunks.
    """
    length, block = grid.summed_dim, block_size(grid.summed_dim)
    if grid.block > block or (length >= BLOCKS_FROM and grid.block != block):
        raise ParametersRefused(f"{length} coordinates are rotated in blocks of {block}, not of {grid.block}")


def check_further_law(parameters: Parameters, mechanism: Mechanism) -> None:
    """Raise ParametersRefused for further releases without Skellam noise: their cost is known for that noise only."""
    if parameters.encoding.further_releases and mechanism.law != SKELLAM:
        raise ParametersRefused(
            f"the noise of '{mechanism.name}' is not Skellam noise: privacy.clipping must be a fixed bound with it, "
            "and the application must not have further releases"
        )


def check_chunks(parameters: Parameters, grid: Grid) -> None:
    """Raise ParametersRefused unless the chunks of the update have whole blocks and make up the padded update."""
    check_further(parameters)
    if parameters.update_dim != grid.padded:
        raise ParametersRefused(f"{grid.dim} coordinates are padded to {grid.padded}, not to {parameters.update_dim}")
    if any(parameters.chunks[chunk].stop % grid.block for chunk in parameters.release_chunks[0]):
        raise ParametersRefused(f"chunks end at multiples of the block, {grid.block}")
