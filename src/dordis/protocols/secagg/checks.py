"""Checks of a client before it answers: each is one function, so that a test can remove it."""

from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain

from dordis.crypto.suite import Suite
from dordis.errors import InputError, MalformedMessage, ParametersRefused, ProtocolError, TooManyDropouts
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg import statements
from dordis.protocols.secagg.masking import KEY_BYTES, split, token_hash
from dordis.protocols.secagg.messages import Advertisement
from dordis.protocols.secagg.share_hashes import share_hashes
from dordis.protocols.secagg.statements import Registry


def check_member(parameters: CohortParameters, me: ClientId) -> None:
    """I am one of the round's clients."""
    if me not in parameters.rank:
        raise ParametersRefused(f"client {me} is not among the clients of this round")


def check_length(vector: Vector, parameters: CohortParameters) -> None:
    """My vector is as long as the sum."""
    if vector.size != parameters.dim:
        raise InputError(f"the round sums vectors of {parameters.dim} coordinates, not {vector.size}")


def check_subset(members: Set[int], of: Set[int], what: str) -> None:
    """These clients are among those."""
    if not members <= of:
        raise ProtocolError(f"{what} names clients that cannot be there")


def check_present(members: Set[int], me: ClientId, what: str) -> None:
    """I am among these clients."""
    if me not in members:
        raise ProtocolError(f"{what} leaves me out")


def check_enough(members: Set[int], parameters: CohortParameters, what: str) -> None:
    """These clients are at least t; on SecAgg+, at least q."""
    if len(members) < parameters.quorum:
        raise ProtocolError(f"{what} has {len(members)} clients, fewer than the quorum of {parameters.quorum}")


def check_tolerated(members: Set[int], parameters: CohortParameters) -> None:
    """No more than T clients are missing: otherwise too little noise would be left."""
    dropped = len(parameters.clients) - len(members)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)


def check_own_keys(advertisements: Mapping[int, Advertisement], me: ClientId, own: Advertisement) -> None:
    """My keys are broadcast as I sent them."""
    if advertisements[me] != own:
        raise ProtocolError("my own keys were altered in the broadcast")


def check_registered(parameters: CohortParameters, registry: Registry) -> None:
    """Every client of the round is in the registry that I was given."""
    if not registry.keys() >= parameters.rank.keys():
        raise ParametersRefused("the round has clients that are not in the registry")


def check_keys_signed(
    advertisements: Mapping[int, Advertisement], parameters: CohortParameters, registry: Registry, suite: Suite
) -> None:
    """Everyone signed its keys, for this round and these parameters."""
    for u, advertisement in advertisements.items():
        statement = statements.keys(parameters, ClientId(u), advertisement)
        statements.verify(suite, registry, ClientId(u), statement, advertisement.signature)


def check_tokens(
    survivors: Iterable[ClientId],
    tokens: bytes,
    advertisements: Mapping[int, Advertisement],
    parameters: CohortParameters,
    chunk: int,
) -> None:
    """Everyone in U3 uploaded: the server shows the token that only came with the upload."""
    everyone = tuple(survivors)
    for u, token in zip(everyone, split(tokens, KEY_BYTES, len(everyone)), strict=True):
        expected = split(advertisements[u].tokens, KEY_BYTES, len(parameters.chunks))[chunk]
        if token_hash(parameters, chunk, u, token) != expected:
            raise ProtocolError(f"there is no proof that client {u} uploaded")


def check_same_survivors(signed: bytes | None, asked: bytes) -> None:
    """I unmask for the very U3 that I signed."""
    if signed != asked:
        raise ProtocolError("this U3 is not the one I signed")


def check_quorum_signed(
    parameters: CohortParameters,
    chunk: int,
    survivors: bytes,
    signatures: Mapping[int, bytes],
    registry: Registry,
    suite: Suite,
) -> None:
    """A quorum of U3 signed this U3; a signer counts once."""
    signers = signatures.keys()
    check_subset(signers, set(parameters.unpack(survivors)), "the quorum")
    check_enough(signers, parameters, "the quorum")
    statement = statements.survivors(parameters, chunk, survivors)
    for u, signed in signatures.items():
        statements.verify(suite, registry, ClientId(u), statement, signed)


def verify_survivors(
    parameters: CohortParameters,
    chunk: int,
    survivors: Collection[ClientId],
    signatures: Mapping[int, bytes],
    registry: Registry,
    suite: Suite,
) -> None:
    """A quorum of these survivors of U signed the list; anybody with the parameters can verify that after the round."""
    check_subset(set(survivors), set(parameters.clients), "the survivors")
    check_quorum_signed(parameters, chunk, parameters.pack(survivors), signatures, registry, suite)


def check_neighbours(members: Set[int], parameters: CohortParameters, me: ClientId) -> None:
    """Enough of my neighbourhood is in U2: fewer could be cut off from the rest together with me."""
    present = len(parameters.neighbourhoods[me] & members)
    if present < parameters.threshold:
        raise ProtocolError(f"{present} of my neighbourhood are left, fewer than {parameters.threshold}")


def check_delivered(senders: Set[int], expected: Set[int]) -> None:
    """There is a ciphertext from every other member of U2 in my neighbourhood, and from nobody else."""
    if senders != expected:
        raise ProtocolError("the ciphertexts delivered are not those of U2")


def check_keys_well_formed(
    advertisements: Mapping[int, Advertisement], parameters: CohortParameters, suite: Suite
) -> None:
    """Everyone has one channel key, and a masking key and a token hash for each chunk; no key is of low order."""
    chunks = len(parameters.chunks)
    for advertisement in advertisements.values():
        fields = (advertisement.channel, advertisement.masking, advertisement.tokens)
        if tuple(map(len, fields)) != (KEY_BYTES, KEY_BYTES * chunks, KEY_BYTES * chunks):
            raise MalformedMessage("an advertisement has keys of the wrong number or length")
        for key in (advertisement.channel, *split(advertisement.masking, KEY_BYTES, chunks)):
            suite.agreement.validate(key)


def check_keys_distinct(advertisements: Mapping[int, Advertisement], parameters: CohortParameters) -> None:
    """No key occurs twice: a client that copies a key does not know its private half, and deviates."""
    chunks = len(parameters.chunks)
    keys = list(
        chain.from_iterable(
            (advertisement.channel, *split(advertisement.masking, KEY_BYTES, chunks))
            for advertisement in advertisements.values()
        )
    )
    if len(set(keys)) != len(keys):
        raise ProtocolError("a public key occurs twice in the broadcast")


def check_not_empty(members: Set[int], what: str) -> None:
    """There is something to answer."""
    if not members:
        raise ProtocolError(f"{what} names nobody")


def check_share_length(share: bytes, own: bytes) -> None:
    """A peer's shares are as many as mine: all secrets of all chunks."""
    if len(share) != len(own):
        raise MalformedMessage("a peer sent the wrong number of shares")


def check_share_fits(parameters: CohortParameters, dealer: ClientId, me: ClientId, share: bytes, hashes: bytes) -> None:
    """My shares are those that their dealer hashed: I could not show others later without being named for it."""
    if share_hashes(parameters, dealer, me, share) != hashes:
        raise ProtocolError(f"the shares of client {dealer} do not fit their hashes")


def check_nobody_accused(accused: bool) -> None:
    """I do not upload once I have accused a sender: my shares of its secrets would be missing."""
    if accused:
        raise ProtocolError("the round cannot go on after an accusation")
