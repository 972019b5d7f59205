"""The messages of SecAgg: for each stage, in order, the reply of the client and the request of the server.

Sets of clients are bitmaps over U, the clients of the round, sorted; shares, keys and hashes are concatenated in the
order of sorted ids.  In the malicious mode clients sign statements on what they send (the functions `.._statement`);
each kind of statement has its own tag, and names the round and its parameters.
"""

import hashlib
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from dordis.protocol import ClientId, Message
from dordis.protocols.cohort import CohortOpening, CohortParameters
from dordis.protocols.limits import LONGEST_SIGNATURE, MOST_CLIENTS, MOST_COMPONENTS

Signature = Annotated[bytes, Meta(max_length=LONGEST_SIGNATURE)]
OF_CLIENTS = Meta(max_length=MOST_CLIENTS)
"""The limit of maps by client: a map with more than `MOST_CLIENTS` entries is refused before an entry is read."""


def redacted_repr(message: Message) -> str:
    """Return a repr that shows the type of a message and none of its contents."""
    return f"<{type(message).__name__}>"


class Advertisement(Message, frozen=True):
    """A client's public keys: one for channels and, for each chunk, one for masking.

    `tokens` has, for each chunk, the hash of a token, which the client sends with its upload.  A server that shows the
    token has received the upload, or colludes with the client.
    """

    channel: bytes
    masking: bytes
    tokens: bytes
    signature: Signature = b""


class AdvertiseKeys(CohortOpening, frozen=True):
    """Stage 0, once a round: check the parameters and send your public keys."""

    reply: ClassVar = Advertisement


class EncryptedShares(Message, frozen=True):
    """Encrypted shares for each peer, commitments to the shared secrets, and a hash of every share.

    A private masking key has no commitment here, because its public key serves as one.  Each ciphertext is followed by
    the hashes of the shares in it; `hashes` has the hashes of the sender's shares of its own secrets.
    """

    ciphertexts: Annotated[dict[int, bytes], OF_CLIENTS]
    commitments: bytes
    hashes: bytes
    signature: Signature = b""


class ShareKeys(Message, frozen=True):
    """Stage 1, once a round: share your secrets among U1, the clients whose advertised keys are in this request."""

    reply: ClassVar = EncryptedShares
    advertisements: Annotated[dict[int, Advertisement], OF_CLIENTS]


class SharesDelivered(Message, frozen=True):
    """The reply to `DeliverShares`; `accused` are the clients whose ciphertext or hashes are wrong."""

    accused: bytes


class DeliverShares(Message, frozen=True):
    """End of stage 1: decrypt your shares; `members` is U2, the clients that shared secrets.

    `ciphertexts` has, by sender, the shares for the receiver of this request, with their hashes.
    """

    reply: ClassVar = SharesDelivered
    members: bytes
    ciphertexts: Annotated[dict[int, bytes], OF_CLIENTS]


class InputReady(Message, frozen=True):
    """The reply to `PrepareInput`: the masked input is ready for the upload."""

    chunk: int


class PrepareInput(Message, frozen=True):
    """Stage 2, per chunk, ahead of the upload: mask your input, and keep the result for `CollectInput`."""

    reply: ClassVar = InputReady
    ahead: ClassVar = True
    chunk: int


class MaskedInput(Message, frozen=True):
    """The masked input, packed into b bits for each coordinate, and its token (`Advertisement.tokens`)."""

    bulk: ClassVar = "vector"
    chunk: int
    vector: bytes
    token: bytes

    __repr__ = redacted_repr


class CollectInput(Message, frozen=True):
    """Stage 2, per chunk: upload your masked input."""

    reply: ClassVar = MaskedInput
    uploads: ClassVar = True
    chunk: int


class Agreement(Message, frozen=True):
    """A client's signature on U3, the survivors of the chunk."""

    chunk: int
    signature: Signature


class Agree(Message, frozen=True):
    """Stage 3, per chunk, in the malicious mode: sign U3, the survivors; `tokens` prove their uploads."""

    reply: ClassVar = Agreement
    chunk: int
    survivors: bytes
    tokens: bytes


class Unmasking(Message, frozen=True):
    """Shares of the masking keys of dropouts (U2 without U3) and of the self-mask seeds of survivors.

    `seeds` has, by index, those of the sender's own deposited secrets that the rule of the escrow releases for U3.
    """

    chunk: int
    key_shares: bytes
    mask_shares: bytes
    seeds: Annotated[dict[int, bytes], Meta(max_length=MOST_COMPONENTS)]

    __repr__ = redacted_repr


class Unmask(Message, frozen=True):
    """Stage 4, per chunk: disclose what the server needs to unmask the sum over U3, the survivors.

    `signatures` are a quorum's signatures on U3; there are none in the semi-honest mode.
    """

    reply: ClassVar = Unmasking
    discloses: ClassVar = True
    chunk: int
    survivors: bytes
    signatures: Annotated[dict[int, Signature], OF_CLIENTS] = msgspec.field(default_factory=dict)


class NoiseShares(Message, frozen=True):
    """Shares of the noise seeds that `RemoveNoise` asks for, in the order of clients and noise components."""

    chunk: int
    shares: bytes

    __repr__ = redacted_repr


class RemoveNoise(Message, frozen=True):
    """Stage 5, per chunk: disclose your shares of the noise seeds that survivors in `owing` should have disclosed."""

    reply: ClassVar = NoiseShares
    chunk: int
    owing: bytes


def keys_statement(parameters: CohortParameters, u: ClientId, advertisement: Advertisement) -> bytes:
    """Return the statement that client u signs: these are my public keys and the hashes of my upload tokens."""
    return _statement(b"keys", parameters, _id(u), advertisement.channel, advertisement.masking, advertisement.tokens)


def shares_statement(parameters: CohortParameters, u: ClientId, promised: EncryptedShares) -> bytes:
    """Return the statement that client u signs: these are my commitments, ciphertexts and hashes of shares."""
    sent = hashlib.sha256()
    for v, ciphertext in sorted(promised.ciphertexts.items()):
        sent.update(_id(v) + hashlib.sha256(ciphertext).digest())
    return _statement(b"shares", parameters, _id(u), promised.commitments, sent.digest(), promised.hashes)


def survivors_statement(parameters: CohortParameters, chunk: int, bitmap: bytes) -> bytes:
    """Return the statement that a client signs: these are the survivors (U3), and I help to unmask no other sum."""
    return _statement(b"survivors", parameters, _id(chunk), bitmap)


def _statement(tag: bytes, parameters: CohortParameters, *parts: bytes) -> bytes:
    everything = (b"dordis/v1/statement/" + tag, parameters.round, parameters.digest, *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in everything)


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")
