"""Checks that clients make of requests, and the server of replies; each is a function, so that tests can disable it.

U1 are the clients that advertised keys, U2 those of them that shared secrets, U3 the survivors of a chunk; t_k is the
threshold of shares.  `what` names the checked set or request in the error.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain

from dordis.crypto.suite import Suite
from dordis.errors import InputError, MalformedMessage, ParametersRefused, ProtocolError, TooManyDropouts
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.masking import KEY_BYTES, share_hashes, split, token_hash
from dordis.protocols.secagg.messages import Advertisement, keys_statement, survivors_statement

Registry = Mapping[ClientId, bytes]
"""The public signing keys of all clients that may take part; clients do not get them from the server."""


def check_member(parameters: CohortParameters, me: ClientId) -> None:
    """Raise ParametersRefused unless this client is one of the round's clients."""
    if me not in parameters.rank:
        raise ParametersRefused(f"client {me} is not among the clients of this round")


def check_length(vector: Vector, parameters: CohortParameters) -> None:
    """Raise InputError unless this client's vector has as many coordinates as the round sums."""
    if vector.size != parameters.dim:
        raise InputError(f"the round sums vectors of {parameters.dim} coordinates, not {vector.size}")


def check_subset(members: Set[int], of: Set[int], what: str) -> None:
    """Raise ProtocolError unless all `members` are among `of`."""
    if not members <= of:
        raise ProtocolError(f"{what} names clients that it must not name")


def check_present(members: Set[int], me: ClientId, what: str) -> None:
    """Raise ProtocolError unless this client is among `members`."""
    if me not in members:
        raise ProtocolError(f"{what} leaves me out")


def check_enough(members: Set[int], parameters: CohortParameters, what: str) -> None:
    """Raise ProtocolError unless `members` are at least a quorum of clients."""
    if len(members) < parameters.quorum:
        raise ProtocolError(f"{what} has {len(members)} clients, fewer than the quorum of {parameters.quorum}")


def check_tolerated(members: Set[int], parameters: CohortParameters) -> None:
    """Raise TooManyDropouts if more than T clients are missing from `members`: too little noise would be left."""
    dropped = len(parameters.clients) - len(members)
    if dropped > parameters.tolerance:
        raise TooManyDropouts(dropped, parameters.tolerance)


def check_own_keys(advertisements: Mapping[int, Advertisement], me: ClientId, own: Advertisement) -> None:
    """Raise ProtocolError unless this client's entry in the server's list of keys is what the client sent, `own`."""
    if advertisements[me] != own:
        raise ProtocolError("my own keys were altered in the broadcast")


def check_registered(parameters: CohortParameters, registry: Registry) -> None:
    """Raise ParametersRefused unless every client of the round is in the registry."""
    if not registry.keys() >= parameters.rank.keys():
        raise ParametersRefused("the round has clients that are not in the registry")


def verify_statement(suite: Suite, registry: Registry, u: ClientId, statement: bytes, signed: bytes) -> None:
    """Raise ProtocolError if client u is not registered, CryptoError unless it `signed` the `statement`."""
    if u not in registry:
        raise ProtocolError(f"client {u} is not in the registry")
    suite.signature.verify(registry[u], statement, signed)


def check_keys_signed(
    advertisements: Mapping[int, Advertisement], parameters: CohortParameters, registry: Registry, suite: Suite
) -> None:
    """Raise unless each client signed its advertised keys, for this round and these parameters (`verify_statement`)."""
    for u, advertisement in advertisements.items():
        statement = keys_statement(parameters, ClientId(u), advertisement)
        verify_statement(suite, registry, ClientId(u), statement, advertisement.signature)


def check_tokens(
    survivors: Iterable[ClientId],
    tokens: bytes,
    advertisements: Mapping[int, Advertisement],
    parameters: CohortParameters,
    chunk: int,
) -> None:
    """Raise ProtocolError unless `tokens` are the survivors' upload tokens, which prove that they uploaded."""
    everyone = tuple(survivors)
    for u, token in zip(everyone, split(tokens, KEY_BYTES, len(everyone)), strict=True):
        expected = split(advertisements[u].tokens, KEY_BYTES, len(parameters.chunks))[chunk]
        if token_hash(parameters, chunk, u, token) != expected:
            raise ProtocolError(f"there is no proof that client {u} uploaded")


def check_same_survivors(signed: bytes | None, asked: bytes) -> None:
    """Raise ProtocolError unless U3 in the request to unmask, `asked`, is the U3 that this client signed."""
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
    """Raise unless a quorum of the clients in `survivors`, the bitmap of U3, signed this bitmap."""
    signers = signatures.keys()
    check_subset(signers, set(parameters.unpack(survivors)), "the quorum")
    check_enough(signers, parameters, "the quorum")
    statement = survivors_statement(parameters, chunk, survivors)
    for u, signed in signatures.items():
        verify_statement(suite, registry, ClientId(u), statement, signed)


def verify_survivors(
    parameters: CohortParameters,
    chunk: int,
    survivors: Collection[ClientId],
    signatures: Mapping[int, bytes],
    registry: Registry,
    suite: Suite,
) -> None:
    """Raise unless a quorum of the survivors signed the list of survivors; anybody can check this after a round."""
    check_subset(set(survivors), set(parameters.clients), "the survivors")
    check_quorum_signed(parameters, chunk, parameters.pack(survivors), signatures, registry, suite)


def check_neighbours(members: Set[int], parameters: CohortParameters, me: ClientId) -> None:
    """Raise ProtocolError unless at least t_k clients of this client's neighbourhood are in `members`, U1 or U2.

    With fewer, the server could separate this client and some neighbours from all others, and learn their sum.
    """
    present = len(parameters.neighbourhoods[me] & members)
    if present < parameters.threshold:
        raise ProtocolError(f"{present} of my neighbourhood are left, fewer than {parameters.threshold}")


def check_delivered(senders: Set[int], expected: Set[int]) -> None:
    """Raise ProtocolError unless ciphertexts of shares are from (at the server: for) exactly the expected clients."""
    if senders != expected:
        raise ProtocolError("the delivered ciphertexts are not from the members of U2")


def check_keys_well_formed(
    advertisements: Mapping[int, Advertisement], parameters: CohortParameters, suite: Suite
) -> None:
    """Raise unless each client has a channel key, and for each chunk a masking key and a token hash.

    Keys of low order, with which the agreed secret would be known to anybody, are refused.
    """
    chunks = len(parameters.chunks)
    for advertisement in advertisements.values():
        fields = (advertisement.channel, advertisement.masking, advertisement.tokens)
        if tuple(map(len, fields)) != (KEY_BYTES, KEY_BYTES * chunks, KEY_BYTES * chunks):
            raise MalformedMessage("an advertisement has keys of the wrong number or length")
        for key in (advertisement.channel, *split(advertisement.masking, KEY_BYTES, chunks)):
            suite.agreement.validate(key)


def check_keys_distinct(advertisements: Mapping[int, Advertisement], parameters: CohortParameters) -> None:
    """Raise ProtocolError if a public key occurs twice: a client that copied the key does not know its private half."""
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
    """Raise ProtocolError if a request names no clients."""
    if not members:
        raise ProtocolError(f"{what} names nobody")


def check_share_length(share: bytes, own: bytes) -> None:
    """Raise MalformedMessage unless a peer's shares are as long as `own`, this client's shares of its own secrets."""
    if len(share) != len(own):
        raise MalformedMessage("a peer sent the wrong number of shares")


def check_share_fits(parameters: CohortParameters, dealer: ClientId, me: ClientId, share: bytes, hashes: bytes) -> None:
    """Raise ProtocolError unless the shares from a dealer hash to the `hashes` that the dealer sent.

    If a client kept shares with other hashes, the server would take the client for a liar when it discloses them.
    """
    if share_hashes(parameters, dealer, me, share) != hashes:
        raise ProtocolError(f"the shares of client {dealer} do not fit their hashes")


def check_nobody_accused(accused: bool) -> None:
    """Raise ProtocolError if this client accused a peer: the peer sent no usable shares, so the round cannot go on."""
    if accused:
        raise ProtocolError("the round cannot go on after an accusation")
