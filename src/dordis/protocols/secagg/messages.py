"""What SecAgg puts on the wire: for each stage, in order, the reply of the client and the request of the server.

Sets of clients are bitmaps over sorted U; shares, keys and hashes are concatenated in the order of sorted ids.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from dordis.protocol import Message
from dordis.protocols.cohort import CohortOpening
from dordis.protocols.limits import LONGEST_SIGNATURE, MOST_CLIENTS, MOST_COMPONENTS

Signature = Annotated[bytes, Meta(max_length=LONGEST_SIGNATURE)]
OF_CLIENTS = Meta(max_length=MOST_CLIENTS)
"""A map with an entry for each client; one of more entries is not even read."""


def hidden(message: Message) -> str:
    """Return a repr that shows the type of a message and none of its contents."""
    return f"<{type(message).__name__}>"


class Advertisement(Message, frozen=True):
    """Public keys: one for the channel to each peer, one for masking in each chunk; hashes of the upload tokens."""

    channel: bytes
    masking: bytes
    tokens: bytes
    signature: Signature = b""


class AdvertiseKeys(CohortOpening, frozen=True):
    """Stage 0, once a round: these are the parameters; show your keys."""

    reply: ClassVar = Advertisement


class EncryptedShares(Message, frozen=True):
    """Shares for each peer, encrypted to it, commitments to all that is shared, and a hash of every share.

    A ciphertext is followed by the hashes of what is in it; `hashes` are those of the shares that the sender keeps.
    """

    ciphertexts: Annotated[dict[int, bytes], OF_CLIENTS]
    commitments: bytes
    hashes: bytes
    signature: Signature = b""


class ShareKeys(Message, frozen=True):
    """Stage 1, once a round: U1 and their keys; share your secrets among them."""

    reply: ClassVar = EncryptedShares
    advertisements: Annotated[dict[int, Advertisement], OF_CLIENTS]


class SharesDelivered(Message, frozen=True):
    """The shares are open; `accused` are the senders whose ciphertext does not open, or not to what they hashed."""

    accused: bytes


class DeliverShares(Message, frozen=True):
    """End of stage 1: U2, and what its members sent to you: ciphertexts, each with the hashes of what is in it."""

    reply: ClassVar = SharesDelivered
    members: bytes
    ciphertexts: Annotated[dict[int, bytes], OF_CLIENTS]


class InputReady(Message, frozen=True):
    """The masked input can be uploaded at once."""

    chunk: int


class PrepareInput(Message, frozen=True):
    """Stage 2, per chunk, ahead of the upload: mask your input and keep it."""

    reply: ClassVar = InputReady
    ahead: ClassVar = True
    chunk: int


class MaskedInput(Message, frozen=True):
    """The masked vector, b bits a coordinate, and the token that proves it was uploaded."""

    bulk: ClassVar = "vector"
    chunk: int
    vector: bytes
    token: bytes

    __repr__ = hidden


class CollectInput(Message, frozen=True):
    """Stage 2, per chunk: upload your masked input."""

    reply: ClassVar = MaskedInput
    uploads: ClassVar = True
    chunk: int


class Agreement(Message, frozen=True):
    """A signature on U3."""

    chunk: int
    signature: Signature


class Agree(Message, frozen=True):
    """Stage 3, per chunk, against a malicious server: this is U3, and a token for each upload; sign it."""

    reply: ClassVar = Agreement
    chunk: int
    survivors: bytes
    tokens: bytes


class Unmasking(Message, frozen=True):
    """Shares of the masking keys of U2 without U3, of the self-masks of U3, and the sender's own due seeds."""

    chunk: int
    key_shares: bytes
    mask_shares: bytes
    seeds: Annotated[dict[int, bytes], Meta(max_length=MOST_COMPONENTS)]

    __repr__ = hidden


class Unmask(Message, frozen=True):
    """Stage 4, per chunk: this is U3, and a quorum's signatures on it; disclose what belongs to it."""

    reply: ClassVar = Unmasking
    discloses: ClassVar = True
    chunk: int
    survivors: bytes
    signatures: Annotated[dict[int, Signature], OF_CLIENTS] = msgspec.field(default_factory=dict)


class NoiseShares(Message, frozen=True):
    """Shares of the due seeds, in the order of clients and components."""

    chunk: int
    shares: bytes

    __repr__ = hidden


class RemoveNoise(Message, frozen=True):
    """Stage 5, per chunk: the due seeds of these survivors are missing; give your shares of them."""

    reply: ClassVar = NoiseShares
    chunk: int
    owing: bytes
