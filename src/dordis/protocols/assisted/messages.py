"""The messages of an assisted round: one from each client, and four kinds of request to helpers.

A client signs a header with the digests of everything in its contribution.  Helpers receive headers and their own
boxes (seeds encrypted to them); vectors stay with the server.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from dordis.protocol import Message, Role
from dordis.protocols.assisted.parameters import MOST_SETS, AssistedParameters, EpochKeys, Signature
from dordis.protocols.limits import MOST_CLIENTS
from dordis.protocols.summing import Opening

VERSION = 1
"""Version of headers and of signed statements."""


class Introduce(Message, frozen=True):
    """To helpers, before the parameters are fixed: send your public keys for this round and the next ones."""

    reply: ClassVar = EpochKeys
    role: ClassVar = Role.HELPER
    round: bytes


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed part of a contribution: round, key, digests of boxes (by helper) and vector, commitments to seeds."""

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
    """To arriving clients: check the parameters and contribute."""

    reply: ClassVar = SignedContribution
    uploads: ClassVar = True
    parameters: AssistedParameters


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a contribution that one helper receives: the signed header and the helper's box."""

    header: bytes
    signature: Signature
    box: bytes


class BoxesOpened(Message, frozen=True):
    """The clients, as words of eight bytes, with a wrong box or seeds; `unable` if the helper has no private key."""

    named: bytes
    unable: bool = False


class OpenBoxes(Message, frozen=True):
    """To helpers: open these boxes, and name the clients whose box contradicts their header."""

    reply: ClassVar = BoxesOpened
    role: ClassVar = Role.HELPER
    parameters: AssistedParameters
    entries: Annotated[dict[int, Entry], Meta(max_length=MOST_CLIENTS)]


class SurvivorsAgreed(Message, frozen=True):
    """A helper's signature on U3, the survivors: the helper reveals mask sums for no other U3 of this round."""

    signature: Signature


class AgreeOnSurvivors(Message, frozen=True):
    """To helpers, in the malicious mode: sign U3, the survivors, given as words of eight bytes."""

    reply: ClassVar = SurvivorsAgreed
    role: ClassVar = Role.HELPER
    round: bytes
    survivors: bytes


class Revealed(Message, frozen=True):
    """For each requested set, by rank: the due pieces of seeds and, in `masks`, the mask sum; or the digest of both."""

    bulk: ClassVar = "masks"
    digests: dict[int, bytes]
    pieces: dict[int, bytes]
    masks: bytes


class Reveal(Message, frozen=True):
    """To helpers: reveal the mask sums over U3 for these sets, by rank: whole if True, else only the digest."""

    reply: ClassVar = Revealed
    role: ClassVar = Role.HELPER
    discloses: ClassVar = True
    round: bytes
    survivors: bytes
    signatures: Annotated[dict[int, Signature], Meta(max_length=MOST_SETS)]
    sets: Annotated[dict[int, bool], Meta(max_length=MOST_SETS)]

    @property
    def vectors(self) -> int:
        """Return the number of whole mask sums that the reply carries beside its frame."""
        return sum(self.sets.values())
