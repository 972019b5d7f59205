"""A hash of every share, from its dealer: a holder that discloses a share with another hash has altered it.

A hash covers a whole share, never one of its limbs.  A share is as hard to guess as the secret, 256 bits, so that no
salt is needed.  The hash's input is a label, the round, the parameter hash, chunk and dealer (`encode_dealer`), holder
and index of the secret (`encode_holder`), all of fixed length, and the share.
"""

from hashlib import sha256
from struct import Struct

from dordis.errors import MalformedMessage
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.secagg.state import shared_count

HASH_BYTES = 16
_TWO = Struct(">QQ")


def encode_dealer(parameters: CohortParameters, chunk: int, dealer: ClientId) -> bytes:
    """Return the first part of the hash's input: the dealer and the chunk."""
    return b"dordis/v1/share" + parameters.round + parameters.digest + _TWO.pack(chunk, dealer)


def encode_holder(holder: ClientId, place: int) -> bytes:
    """Return the second part of the hash's input: the holder, and the index of the secret in the chunk."""
    return _TWO.pack(holder, place)


def share_hash(dealer: bytes, holder: bytes, share: bytes) -> bytes:
    """Return the hash of a share; `dealer` and `holder` are encoded by the functions above."""
    return sha256(dealer + holder + share).digest()[:HASH_BYTES]


def share_hashes(parameters: CohortParameters, dealer: ClientId, holder: ClientId, shares: bytes) -> bytes:
    """Return the hashes of all shares from a dealer to a holder, in the order of chunks and secrets."""
    chunks, count = len(parameters.plans), shared_count(parameters, 0)
    size, rest = divmod(len(shares), chunks * count)
    if rest:
        raise MalformedMessage("the shares of all secrets must have the same length")
    hashes, start = [], 0
    for chunk in range(chunks):
        first = encode_dealer(parameters, chunk, dealer)
        for place in range(count):
            hashes.append(share_hash(first, encode_holder(holder, place), shares[start : start + size]))
            start += size
    return b"".join(hashes)


def split_hashes(parameters: CohortParameters, sent: bytes) -> tuple[bytes, bytes]:
    """Return the ciphertext and the hashes that a dealer sent together."""
    end = max(0, len(sent) - hashes_length(parameters))
    return sent[:end], sent[end:]


def hashes_length(parameters: CohortParameters) -> int:
    """Return the number of bytes of the hashes of all shares from one dealer to one holder."""
    return HASH_BYTES * shared_count(parameters, 0) * len(parameters.chunks)
