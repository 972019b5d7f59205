"""A hash for every share, made by its dealer: whoever shows a share that does not fit its hash has altered it.

A hash covers a whole share, never a limb: a share is as hard to guess as the secret, 256 bits, a limb is not.  So no
salt is needed.
"""

import hashlib
from struct import Struct

from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.escrow import Escrow
from dordis.protocols.secagg.masking import split

HASH_BYTES = 16
_WHERE = Struct(">QQQQ")


def share_hash(
    parameters: Parameters, chunk: int, dealer: ClientId, holder: ClientId, place: int, share: bytes
) -> bytes:
    """Hash a share of the secret at a place of a chunk; all that stands before the share has a fixed length."""
    where = _WHERE.pack(chunk, dealer, holder, place)
    named = b"dordis/v1/share" + parameters.round + parameters.digest + where
    return hashlib.sha256(named + share).digest()[:HASH_BYTES]


def share_hashes(parameters: Parameters, dealer: ClientId, holder: ClientId, shares: bytes) -> bytes:
    """Hash all shares that a holder has of a dealer, in the order of chunks and secrets."""
    count, chunks = Escrow(parameters, 0).shared, len(parameters.chunks)
    cut = split(shares, len(shares) // (count * chunks), count * chunks)
    return b"".join(
        share_hash(parameters, *where, share)
        for where, share in zip(
            ((chunk, dealer, holder, place) for chunk in range(chunks) for place in range(count)), cut, strict=True
        )
    )


def hashes_length(parameters: Parameters) -> int:
    """Return how many bytes the hashes of all shares of one dealer for one holder take."""
    return HASH_BYTES * Escrow(parameters, 0).shared * len(parameters.chunks)
