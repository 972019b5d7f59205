"""A hash for every share, made by its dealer: whoever shows a share that does not fit its hash has altered it.

A hash covers a whole share, never a limb: a share is as hard to guess as the secret, 256 bits, a limb is not.  So no
salt is needed.
"""

from collections.abc import Callable
from hashlib import sha256
from struct import Struct

from dordis.errors import MalformedMessage
from dordis.protocol import ClientId
from dordis.protocols.parameters import Parameters
from dordis.protocols.secagg.escrow import Escrow

HASH_BYTES = 16
_WHERE = Struct(">QQQQ")


def hasher(parameters: Parameters) -> Callable[[int, ClientId, ClientId, int, bytes], bytes]:
    """Return what hashes a share, given chunk, dealer, holder, the place of its secret in the chunk, and the share.

    All that is hashed before the share has a fixed length.
    """
    named, pack = b"dordis/v1/share" + parameters.round + parameters.digest, _WHERE.pack
    return lambda chunk, dealer, holder, place, share: sha256(
        named + pack(chunk, dealer, holder, place) + share
    ).digest()[:HASH_BYTES]


def share_hashes(parameters: Parameters, dealer: ClientId, holder: ClientId, shares: bytes) -> bytes:
    """Hash all shares that a holder has of a dealer, in the order of chunks and secrets."""
    hashed, chunks, count = hasher(parameters), len(parameters.plans), Escrow(parameters, 0).shared
    size, rest = divmod(len(shares), chunks * count)
    if rest:
        raise MalformedMessage("the shares of all secrets have one length")
    return b"".join(
        [
            hashed(chunk, dealer, holder, place, shares[(start := size * (chunk * count + place)) : start + size])
            for chunk in range(chunks)
            for place in range(count)
        ]
    )


def split_hashes(parameters: Parameters, sent: bytes) -> tuple[bytes, bytes]:
    """Cut what a dealer sent into the ciphertext and the hashes that follow it."""
    end = max(0, len(sent) - hashes_length(parameters))
    return sent[:end], sent[end:]


def hashes_length(parameters: Parameters) -> int:
    """Return how many bytes the hashes of all shares of one dealer for one holder take."""
    return HASH_BYTES * Escrow(parameters, 0).shared * len(parameters.chunks)
