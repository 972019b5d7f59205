"""Checks that clients, server and helpers make in assisted rounds; each is a function, so that tests can disable it.

The *header* of a contribution is its small part, signed by the client, with digests of the masked vector and the boxes.
A box has a client's seeds for all *sets* that a helper is in; a set's *rank* is its index in the parameters' `sets`.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import msgspec

from dordis.crypto.suite import Suite
from dordis.errors import (
    DecryptionFailed,
    InputError,
    MalformedMessage,
    ParametersRefused,
    ProtocolError,
    UnexpectedRequest,
)
from dordis.kernels.ring import Vector, packed_size
from dordis.protocol import ENCODER, ClientId
from dordis.protocols.assisted.messages import (
    DIGEST_BYTES,
    VERSION,
    Header,
    commit_seed,
    epoch_key_statement,
    header_statement,
)
from dordis.protocols.assisted.parameters import AssistedParameters
from dordis.protocols.escrow import SECRET_BYTES
from dordis.protocols.limits import LONGEST_PROOF
from dordis.protocols.parameters import INDEX_BYTES, RUN_BYTES, unpack_words

Keys = Mapping[ClientId, bytes]
"""The public signing keys of all clients, or of all helpers, by id."""

LARGEST_INDEX = 1 << 62
"""Round indices are below this bound, so that the index of a round and of the next few rounds fits eight bytes."""
_HEADER = msgspec.msgpack.Decoder(Header)


def check_length(vector: Vector, parameters: AssistedParameters) -> None:
    """Raise InputError unless the client's vector has as many coordinates as the round sums."""
    if vector.size != parameters.dim:
        raise InputError(f"the round sums vectors of {parameters.dim} coordinates, not {vector.size}")


def check_signing_key(signing: bytes) -> None:
    """Raise ParametersRefused if the client has no signing key: the server would refuse its unsigned contribution."""
    if not signing:
        raise ParametersRefused("an assisted round needs a client's signing key")


def check_helpers_registered(parameters: AssistedParameters, helpers: Keys) -> None:
    """Raise ParametersRefused unless every helper of the round is in the registry."""
    if not helpers.keys() >= set(parameters.members):
        raise ParametersRefused("the round has helpers that are not in the registry")


def check_epoch_keys_signed(parameters: AssistedParameters, helpers: Keys, suite: Suite) -> None:
    """Raise unless every helper signed its epoch key (its public key for this round), as a key for this run."""
    for h in parameters.present:
        key = parameters.helpers[h]
        if key is not None:
            suite.signature.verify(helpers[h], epoch_key_statement(parameters.run, key), key.signature)


def check_epoch_keys_fresh(parameters: AssistedParameters, now: float) -> None:
    """Raise ParametersRefused if a helper's key expired by `now`, in seconds since 1970: helpers erase expired keys."""
    for h, key in parameters.helpers.items():
        if key is not None and key.not_after <= now:
            raise ParametersRefused(f"the key of helper {h} has expired")


def check_epoch_keys_well_formed(parameters: AssistedParameters, suite: Suite) -> None:
    """Raise if a helper's key is of low order: anybody could compute the secret agreed with such a key."""
    for key in parameters.helpers.values():
        if key is not None:
            suite.agreement.validate(key.key)


def read_header(parameters: AssistedParameters, client: ClientId, encoded: bytes) -> Header:
    """Return a decoded header; raise unless it is canonical and names this client, round and parameters."""
    try:
        header = _HEADER.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessage("these bytes are not the header of a contribution") from None
    if ENCODER.encode(header) != encoded:
        raise MalformedMessage("the header of a contribution is not in its one encoding")
    check_header_form(parameters, header)
    check_header_round(parameters, header)
    check_header_client(header, client)
    return header


def check_header_form(parameters: AssistedParameters, header: Header) -> None:
    """Raise MalformedMessage if a header's version, digests or vector length are wrong, or its proof is too long."""
    sizes = len(header.key), len(header.boxes), len(header.seeds), len(header.vector)
    counts = 1, len(parameters.present), len(parameters.sets), 1
    if header.version != VERSION or sizes != tuple(DIGEST_BYTES * count for count in counts):
        raise MalformedMessage("the header of a contribution has digests of the wrong number or length")
    if len(header.proof) > LONGEST_PROOF or header.length != packed_size(parameters.dim, parameters.bits):
        raise MalformedMessage(f"the vector of a contribution has {header.length} bytes")


def check_header_round(parameters: AssistedParameters, header: Header) -> None:
    """Raise ProtocolError unless a header is for this round and these parameters."""
    if header.round != parameters.round or header.parameters != parameters.digest:
        raise ProtocolError("the header of a contribution is for another round, or other parameters")


def check_header_client(header: Header, client: ClientId) -> None:
    """Raise ProtocolError unless a header names the client that sent it."""
    if header.client != client:
        raise ProtocolError(f"client {client} sent the header of client {header.client}")


def check_header_signed(clients: Keys, client: ClientId, encoded: bytes, signature: bytes, suite: Suite) -> None:
    """Raise unless the client is registered and `signature` is its signature of the encoded header."""
    if client not in clients:
        raise ProtocolError(f"client {client} is not in the registry")
    suite.signature.verify(clients[client], header_statement(encoded), signature)


def check_vector_digest(header: Header, vector: bytes | memoryview) -> None:
    """Raise ProtocolError unless the vector hashes to the digest in the signed header."""
    if len(vector) != header.length or hashlib.sha256(vector).digest() != header.vector:
        raise ProtocolError("the vector of a contribution is not the one in its header")


def check_box_digest(parameters: AssistedParameters, header: Header, helper: ClientId, box: bytes) -> None:
    """Raise ProtocolError unless a box hashes to the digest that the signed header states for this helper."""
    place = parameters.present.index(helper)
    signed = header.boxes[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]
    if hashlib.sha256(box).digest() != signed:
        raise ProtocolError(f"the box for helper {helper} is not the one in the header of client {header.client}")


def check_seeds(parameters: AssistedParameters, header: Header, client: ClientId, seeds: Mapping[int, bytes]) -> None:
    """Raise DecryptionFailed unless the seeds, by rank of the helper set, match the commitments in the header.

    If the seeds match, all members of a set of helpers have received the same seed from the client.
    """
    for rank, seed in seeds.items():
        committed = header.seeds[DIGEST_BYTES * rank : DIGEST_BYTES * (rank + 1)]
        if commit_seed(parameters, client, rank, seed) != committed:
            raise DecryptionFailed(f"the seed of client {client} for set {rank} is not the one committed to")


def check_seed_count(plaintext: bytes, count: int) -> None:
    """Raise DecryptionFailed unless a decrypted box has `count` seeds, one for each set that its helper is in."""
    if len(plaintext) != SECRET_BYTES * count:
        raise DecryptionFailed(f"a box holds {count} seeds of {SECRET_BYTES} bytes")


def check_one_header(known: bytes | None, digest: bytes, client: ClientId) -> None:
    """Raise UnexpectedRequest if the helper has seen another header of the client in this round.

    `known` is the digest of the header that it has seen, or None; `digest` is that of the header in this request.
    """
    if known is not None and known != digest:
        raise UnexpectedRequest(f"there was another header of client {client} in this round")


def check_round_id(round: bytes) -> None:
    """Raise MalformedMessage unless `round` is a round id: a run id, followed by an index below `LARGEST_INDEX`."""
    if len(round) != RUN_BYTES + INDEX_BYTES or int.from_bytes(round[RUN_BYTES:], "big") >= LARGEST_INDEX:
        raise MalformedMessage(f"a request to a helper has no round id of {RUN_BYTES + INDEX_BYTES} bytes")


def check_joined_run(joined: bytes | None, round: bytes) -> None:
    """Raise ParametersRefused unless a request is for the run that the helper joined; `joined` None: any run."""
    if joined is not None and round[:RUN_BYTES] != joined:
        raise ParametersRefused("the request is for a round of another run than the one that this helper has joined")


def check_same_parameters(known: bytes, digest: bytes) -> None:
    """Raise UnexpectedRequest if the round's parameters changed: their hash was `known`, and is now `digest`."""
    if known != digest:
        raise UnexpectedRequest("there were other parameters under this index")


def check_own_key(parameters: AssistedParameters, me: ClientId, public: bytes) -> None:
    """Raise ParametersRefused unless `public` is the public key of helper `me` in the parameters."""
    key = parameters.helpers.get(me)
    if key is None or key.key != public:
        raise ParametersRefused(f"the round does not name the live key of helper {me}")


def read_survivors(words: bytes) -> tuple[ClientId, ...]:
    """Return the survivors, U3, from words of eight bytes; raise ProtocolError unless they are sorted and distinct."""
    survivors = tuple(map(ClientId, unpack_words(words)))
    check_sorted(survivors)
    return survivors


def check_sorted(survivors: Sequence[ClientId]) -> None:
    """Raise ProtocolError unless the survivors are sorted without repetition."""
    if any(u >= v for u, v in pairwise(survivors)):
        raise ProtocolError("U3 is not sorted, or has a client twice")


def check_survivor_count(parameters: AssistedParameters, survivors: Collection[ClientId]) -> None:
    """Raise unless there are n_min to n_max survivors: with fewer, too little noise would be left."""
    if not parameters.n_min <= len(survivors) <= parameters.n_max:
        raise ProtocolError(
            f"U3 has {len(survivors)} clients, and not {parameters.n_min} to {parameters.n_max} of them"
        )


def check_all_opened(survivors: Collection[ClientId], opened: Collection[ClientId]) -> None:
    """Raise ProtocolError unless every survivor is in `opened`, the clients whose boxes this helper found valid."""
    if not set(survivors) <= set(opened):
        raise ProtocolError("U3 has a client whose box was not opened here without fault")


def check_same_statement(claimed: bytes, asked: bytes) -> None:
    """Raise UnexpectedRequest if the helper has agreed on other survivors or parameters in this round.

    `claimed` is the digest of the statement that the helper agreed on, `asked` that of the statement in the request.
    """
    if claimed != asked:
        raise UnexpectedRequest("another U3 was agreed on under this index")


def check_agreed(claimed: bytes | None) -> None:
    """Raise UnexpectedRequest if the helper signed no U3 (survivors) in this round: `claimed`, its digest, is None."""
    if claimed is None:
        raise UnexpectedRequest("a reveal was asked for before this helper agreed on U3")


def check_quorum(
    parameters: AssistedParameters, statement: bytes, signatures: Mapping[int, bytes], helpers: Keys, suite: Suite
) -> None:
    """Raise unless a quorum of different helpers of the round signed the statement on the survivors."""
    signers = set(map(ClientId, signatures))
    if not signers <= set(parameters.members) or len(signers) < parameters.quorum:
        raise ProtocolError(f"{len(signers)} signatures are no quorum of {parameters.quorum} helpers of the round")
    for h, signature in signatures.items():
        suite.signature.verify(helpers[ClientId(h)], statement, signature)


def check_own_sets(parameters: AssistedParameters, me: ClientId, ranks: Collection[int]) -> None:
    """Raise ProtocolError if `ranks`, the requested sets, is empty, or has a set that helper `me` is not in."""
    if not ranks or not set(ranks) <= set(parameters.ranks[me]):
        raise ProtocolError(f"helper {me} was asked for sets that it is not in")
