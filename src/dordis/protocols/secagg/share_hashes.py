"""A hash for every share, made by its dealer: a holder that shows a share with another hash has altered it.

A hash covers a whole share, never a limb: a share is as hard to guess as the secret, 256 bits, a limb is not.  So no
salt is needed.  What is hashed is the label, the round, the parameter hash, chunk and dealer (`dealt`), holder and
place (`held`), all of a fixed length, and the share.
"""

from hashlib import sha256
from struct import Struct

from dordis.errors import MalformedMessage
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.state import shared_count

HASH_BYTES = 16
_TWO = Struct(">QQ")


def dealt(parameters: CohortParameters, chunk: int, dealer: ClientId) -> bytes:
    """Return the first part of the hash's input: the dealer and the chunk."""
    return b"dordis/v1/share" + parameters.round + parameters.digest + _TWO.pack(chunk, dealer)


def held(holder: ClientId, place: int) -> bytes:
    """Return the second part of the hash's input: the holder, and the index of the secret in the chunk."""
    return _TWO.pack(holder, place)


def share_hash(dealt: bytes, held: bytes, share: bytes) -> bytes:
    """Hash a share."""
    return sha256(dealt + held + share).digest()[:HASH_BYTES]


def share_hashes(parameters: CohortParameters, dealer: ClientId, holder: ClientId, shares: bytes) -> bytes:
    """Hash all shares that a holder has of a dealer, in the order of chunks and secrets."""
    chunks, count = len(parameters.plans), shared_count(parameters, 0)
    size, rest = divmod(len(shares), chunks * count)
    if rest:
        raise MalformedMessage("the shares of all secrets have one length")
    hashes, start = [], 0
    for chunk in range(chunks):
        first = dealt(parameters, chunk, dealer)
        for place in range(count):
            hashes.append(share_hash(first, held(holder, place), shares[start : start + size]))
            start += size
    return b"".join(hashes)


def split_hashes(parameters: CohortParameters, sent: bytes) -> tuple[bytes, bytes]:
    """Cut what a dealer sent into the ciphertext and the hashes that follow it."""
    end = max(0, len(sent) - hashes_length(parameters))
    return sent[:end], sent[end:]


def hashes_length(parameters: CohortParameters) -> int:
    """Return how many bytes the hashes of all shares of one dealer for one holder take."""
    return HASH_BYTES * shared_count(parameters, 0) * len(parameters.chunks)
