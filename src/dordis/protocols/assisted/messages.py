"""The messages of an assisted round, and how their contents are computed: masks, pieces, digests, statements.

Each client sends one message; helpers answer four kinds of request.  A client signs a header with the digests of
everything in its contribution.  Helpers receive headers and their own boxes (seeds encrypted to them); vectors stay
with the server.  Every client draws one seed for each set of helpers.  The client derives from this seed the mask that
it adds for the set, and, for each removable noise component, a *piece* of the component's seed.  The exclusive or of
the pieces of all sets is the seed of the component.  A set is named by its rank: its index in the parameters' `sets`.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from dordis.crypto import kdf
from dordis.crypto.suite import Suite
from dordis.kernels.ring import Vector, pack
from dordis.protocol import ClientId, Message, Role
from dordis.protocols.assisted.parameters import MOST_SETS, AssistedParameters, EpochKey, EpochKeys, Signature
from dordis.protocols.escrow import SECRET_BYTES
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.parameters import RUN_BYTES, Parameters
from dordis.protocols.summing import Opening

VERSION = 1
"""Version of headers and of signed statements."""
DIGEST_BYTES = 32
Due = Sequence[tuple[int, ClientId, int]]
"""For each noise seed of which the helper sets reveal their pieces, in order: chunk, client and noise component."""


class Introduce(Message, frozen=True):
    """To helpers, before the parameters are fixed: send your public keys for this round and the next ones."""

    reply: ClassVar = EpochKeys
    role: ClassVar = Role.HELPER
    round: bytes


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed part of a contribution; `vector` is a digest, `boxes` has the digest of each box, in order of helpers.

    `seeds` has the client's commitments to its seeds, by rank of the set.  `length` is that of the vector, in bytes.
    `key` is the client's fresh public key for the boxes, `proof` the proof of the client's selection.
    """

    version: int
    round: bytes
    parameters: bytes
    client: int
    key: bytes
    boxes: bytes
    seeds: bytes
    vector: bytes
    length: int
    proof: bytes


class SignedContribution(Message, frozen=True):
    """A client's one message: the signed header, the boxes in the order of helpers, and the masked input, packed."""

    bulk: ClassVar = "vector"
    header: bytes
    signature: Signature
    boxes: bytes
    vector: bytes


class SendContribution(Opening, frozen=True):
    """To arriving clients: check the parameters, and send your contribution."""

    reply: ClassVar = SignedContribution
    uploads: ClassVar = True
    parameters: AssistedParameters


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a contribution that one helper receives: the signed header and the helper's box."""

    header: bytes
    signature: Signature
    box: bytes


class BoxesOpened(Message, frozen=True):
    """The reply to `OpenBoxes`; `named` has the ids of clients whose box or seeds are wrong, encoded by `pack_words`.

    `unable` is true if the helper has no private key for this round, and therefore opened no box.
    """

    named: bytes
    unable: bool = False


class OpenBoxes(Message, frozen=True):
    """To helpers: open these boxes, and name the clients whose box does not open or contradicts their header."""

    reply: ClassVar = BoxesOpened
    role: ClassVar = Role.HELPER
    parameters: AssistedParameters
    entries: Annotated[dict[int, Entry], Meta(max_length=MOST_CLIENTS)]


class SurvivorsAgreed(Message, frozen=True):
    """A helper's signature on U3, the survivors: the helper reveals mask sums for no other U3 of this round."""

    signature: Signature


class AgreeOnSurvivors(Message, frozen=True):
    """To helpers, in the malicious mode: sign U3; `survivors` has its client ids, encoded by `pack_words`."""

    reply: ClassVar = SurvivorsAgreed
    role: ClassVar = Role.HELPER
    round: bytes
    survivors: bytes


class Revealed(Message, frozen=True):
    """The value of each requested set of helpers, whole or as a digest.

    A value is the sum of the masks for the set, and the set's pieces of noise seeds.  For the sets whose value was
    requested whole, `pieces` has the pieces, by rank of the set, and `masks` the packed mask sums, one after the other
    in the order of ranks.  For all other sets, `digests` has the digest of the value, by rank.
    """

    bulk: ClassVar = "masks"
    digests: dict[int, bytes]
    pieces: dict[int, bytes]
    masks: bytes


class Reveal(Message, frozen=True):
    """To helpers: reveal the value, over U3, of each set in `sets`: the whole value if True, its digest if False.

    `signatures` are a quorum's signatures on U3, by helper; there are none in the semi-honest mode.
    """

    reply: ClassVar = Revealed
    role: ClassVar = Role.HELPER
    discloses: ClassVar = True
    round: bytes
    survivors: bytes
    signatures: Annotated[dict[int, Signature], Meta(max_length=MOST_SETS)]
    sets: Annotated[dict[int, bool], Meta(max_length=MOST_SETS)]

    @property
    def vectors(self) -> int:
        """Return the number of mask sums that the reply must have: one for each value requested whole."""
        return sum(self.sets.values())


def mask_stream(suite: Suite, parameters: Parameters, client: ClientId, rank: int, seed: bytes) -> Any:
    """Return the keystream of a client's mask for the helper set with this `rank`, from its `seed` for this set.

    The mask covers the client's whole vector: all chunks.
    """
    label = kdf.label("assisted-mask", parameters.round, 0, client, rank)
    return suite.prg.Stream.from_bytes(kdf.derive(seed, label, parameters.digest, suite.prg.STREAM_BYTES))


def piece(parameters: Parameters, chunk: int, client: ClientId, rank: int, component: int, seed: bytes) -> bytes:
    """Return a piece of the seed of a client's removable noise component, from its `seed` for the helper set `rank`."""
    label = kdf.label("assisted-piece", parameters.round, chunk, client, rank) + b"/%d" % component
    return kdf.derive(seed, label, parameters.digest, SECRET_BYTES)


def join_pieces(pieces: Iterable[bytes]) -> bytes:
    """Return a noise seed from its pieces, one from each set of helpers: their exclusive or."""
    joined = 0
    for part in pieces:
        joined ^= int.from_bytes(part, "big")
    return joined.to_bytes(SECRET_BYTES, "big")


def due_pieces(parameters: AssistedParameters, survivors: Collection[ClientId]) -> Due:
    """Return, in order, chunk, client and component of each noise seed to be released, given these survivors."""
    return [
        (chunk, ClientId(u), component)
        for chunk in range(len(parameters.chunks))
        for u, components in sorted(parameters.due(chunk, survivors).items())
        for component in components
    ]


def commit_seed(parameters: Parameters, client: ClientId, rank: int, seed: bytes) -> bytes:
    """Return a client's commitment to its seed for the set of helpers with this rank (index in `sets`)."""
    label = kdf.label("assisted-seed", parameters.round, 0, client, rank)
    return kdf.commit(label, parameters.digest, seed)


def sum_masks(
    suite: Suite, parameters: AssistedParameters, rank: int, seeds: Mapping[ClientId, bytes], threads: int = 1
) -> bytes:
    """Return the sum of the masks that the clients in `seeds` added for the set with this rank, packed."""
    total: Vector = np.zeros(parameters.dim, np.uint32)
    streams = [mask_stream(suite, parameters, u, rank, seed) for u, seed in seeds.items()]
    suite.prg.add_masks(total, streams, [], parameters.bits, threads=threads)
    return pack(total, parameters.bits).tobytes()


def digest_value(parameters: AssistedParameters, rank: int, masks: bytes | memoryview, pieces: bytes) -> bytes:
    """Return the digest of the value that a set of helpers reveals: its mask sum and its pieces of noise seeds."""
    label = kdf.label("assisted-value", parameters.round, 0, 0, rank)
    hashed = hashlib.sha256()
    for part in (label, parameters.digest, masks, pieces):
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.digest()


def header_statement(encoded: bytes) -> bytes:
    """Return the statement that a client signs: this header has the digests of my contribution."""
    return _statement(b"assisted-header", encoded)


def epoch_key_statement(run: bytes, key: EpochKey) -> bytes:
    """Return the statement that a helper signs: this is my only key for these rounds of the run."""
    numbers = (key.epoch, key.first, key.last, key.not_after)
    return _statement(b"assisted-epoch", run, *(number.to_bytes(8, "big") for number in numbers), key.key)


def survivors_statement(parameters: AssistedParameters, headers: Iterable[bytes]) -> bytes:
    """Return the statement that a helper signs: this is U3; `headers` are digests of the clients' headers, by id."""
    digests = list(headers)
    run, index = parameters.round[:RUN_BYTES], parameters.round[RUN_BYTES:]
    count = len(digests).to_bytes(8, "big")
    return _statement(
        b"assisted-survivors", run, index, parameters.digest, count, hashlib.sha256(b"".join(digests)).digest()
    )


def _statement(tag: bytes, *parts: bytes) -> bytes:
    everything = (b"dordis/v1/statement/" + tag, VERSION.to_bytes(8, "big"), *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in everything)
