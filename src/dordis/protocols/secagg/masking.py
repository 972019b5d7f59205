"""A client's secrets of a chunk, and everything that is derived from secrets: channels, masks, commitments, hashes.

The dealer of a share is the client whose secret is shared, its holder the client that keeps the share.  A dealer sends
a hash of every share: a holder that discloses a share with another hash has altered the share.  A hash covers a whole
share, never a single one of the numbers (limbs) that make up the share.  So no salt is needed: a whole share is as hard
to guess as the secret, 256 bits.  The input of the hash is a label, the round, the parameter hash, chunk and dealer
(`encode_dealer`), holder and index of the secret (`encode_holder`), all of fixed length, and the share.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from struct import Struct
from typing import Any

import msgspec

from dordis.crypto import kdf
from dordis.crypto.suite import Suite
from dordis.errors import MalformedMessage
from dordis.kernels.ring import Vector
from dordis.protocol import ClientId
from dordis.protocols.cohort import CohortParameters
from dordis.protocols.escrow import IssuedSecrets

KEY_BYTES = 32
KEY, SELF_MASK, FIRST_DEPOSITED = 0, 1, 2
"""Indices of the secrets that a client shares for a chunk: masking key, self-mask seed, first deposited secret."""


def shared_count(parameters: CohortParameters, chunk: int) -> int:
    """Return how many secrets a client shares for a chunk: masking key, self-mask seed, deposited secrets."""
    return FIRST_DEPOSITED + parameters.escrow(chunk).deposited


class Secrets(msgspec.Struct, frozen=True):
    """A client's own secrets for one chunk."""

    masking: bytes
    """s_u^SK of the paper: private key of the pairwise masks; shared among neighbours."""
    self_mask: bytes
    """b_u of the paper: seed of the self-mask; shared among neighbours."""
    token: bytes
    """Token sent with the upload; the server shows it to other clients as proof of the upload."""
    issued: IssuedSecrets
    """Private and deposited secrets of the chunk's escrow; the deposited ones are shared among neighbours."""

    def __repr__(self) -> str:
        return "<Secrets>"

    @property
    def shared(self) -> tuple[bytes, ...]:
        """Return the secrets of which neighbours get shares: masking key, self-mask seed, deposited secrets."""
        return (self.masking, self.self_mask, *self.issued.deposited)


def split(data: bytes, size: int, count: int) -> tuple[bytes, ...]:
    """Return the `count` items of `size` bytes in `data`; raise MalformedMessage if `data` has another length."""
    if len(data) != size * count:
        raise MalformedMessage(f"expected {count} items of {size} bytes, got {len(data)} bytes")
    return tuple(data[i:j] for i, j in pairwise(range(0, len(data) + 1, size)))


def self_mask(suite: Suite, parameters: CohortParameters, chunk: int, client: ClientId, seed: bytes) -> Any:
    """Return the keystream of a client's self-mask, PRG(b_u), from its seed b_u."""
    label = kdf.label("self-mask", parameters.round, chunk, client, client)
    return suite.prg.Stream.from_bytes(kdf.derive(seed, label, parameters.digest, suite.prg.STREAM_BYTES))


def pair_mask(
    suite: Suite,
    parameters: CohortParameters,
    chunk: int,
    pair: tuple[ClientId, ClientId],
    private: bytes,
    public: bytes,
) -> Any:
    """Return the keystream of a pair's mask, PRG(s_uv), from the private key of one and the public key of the other.

    Both are masking keys.  The client with the lower id adds the mask, the client with the higher id subtracts it.
    """
    label = kdf.label("pair-mask", parameters.round, chunk, min(pair), max(pair))
    shared = suite.agreement.agree(private, public)
    return suite.prg.Stream.from_bytes(kdf.derive(shared, label, parameters.digest, suite.prg.STREAM_BYTES))


def add_masks(
    suite: Suite,
    y: Vector,
    parameters: CohortParameters,
    chunk: int,
    me: ClientId,
    own: Secrets,
    peers: Mapping[ClientId, bytes],
) -> None:
    """Add the self-mask and all pairwise masks to a client's input `y`; `peers` has neighbours' public masking keys."""
    added = [self_mask(suite, parameters, chunk, me, own.self_mask)]
    subtracted: list[Any] = []
    for v, public in peers.items():
        mask = pair_mask(suite, parameters, chunk, (me, v), own.masking, public)
        (added if me < v else subtracted).append(mask)
    suite.prg.add_masks(y, added, subtracted, parameters.bits)


class Channel:
    """One direction of the encrypted channel between two clients; it carries a single message.

    `keys` are the public channel keys of sender and receiver, and `shared` is the secret on which these two agreed.
    """

    def __init__(
        self,
        suite: Suite,
        parameters: CohortParameters,
        sender: ClientId,
        receiver: ClientId,
        keys: Sequence[bytes],
        shared: bytes,
    ) -> None:
        self._cipher = cipher = suite.cipher
        label = kdf.label("shares", parameters.round, 0, sender, receiver)
        derived = kdf.derive(shared, label, parameters.digest, cipher.KEY_BYTES + cipher.NONCE_BYTES)
        self._key, self._nonce = derived[: cipher.KEY_BYTES], derived[cipher.KEY_BYTES :]
        self._bound = label + parameters.digest + b"".join(keys)

    def encrypt(self, plaintext: bytes) -> bytes:
        """Encrypt the message, bound to round, parameters, sender, receiver and the public keys of both clients."""
        return self._cipher.encrypt(self._key, self._nonce, plaintext, self._bound)

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt the message, or raise `DecryptionFailed`."""
        return self._cipher.decrypt(self._key, self._nonce, ciphertext, self._bound)


def commitment(
    parameters: CohortParameters, chunk: int, client: ClientId, use: str, index: int, secret: bytes
) -> bytes:
    """Return a client's commitment to one of its secrets.

    `use` is "self-mask", with index 0, or "noise", with the index of the deposited secret.
    """
    label = kdf.label(f"commit-{use}", parameters.round, chunk, client, index)
    return kdf.commit(label, parameters.digest, secret)


def commitments(
    parameters: CohortParameters, chunk: int, client: ClientId, seed: bytes, deposited: Sequence[bytes]
) -> tuple[bytes, ...]:
    """Return commitments to self-mask seed and deposited secrets; the public masking key commits to the private one."""
    own = commitment(parameters, chunk, client, "self-mask", 0, seed)
    return (own, *(commitment(parameters, chunk, client, "noise", k, secret) for k, secret in enumerate(deposited)))


def token_hash(parameters: CohortParameters, chunk: int, client: ClientId, token: bytes) -> bytes:
    """Return the hash of an upload token.

    Only the sender and the receiver of an upload know its token.  So a server that shows the token has received the
    upload, or colludes with the sender.
    """
    return kdf.commit(kdf.label("token", parameters.round, chunk, client, client), parameters.digest, token)


HASH_BYTES = 16
_TWO = Struct(">QQ")


def encode_dealer(parameters: CohortParameters, chunk: int, dealer: ClientId) -> bytes:
    """Return the first part of the input of `share_hash`: label, round, parameter hash, chunk and dealer."""
    return b"dordis/v1/share" + parameters.round + parameters.digest + _TWO.pack(chunk, dealer)


def encode_holder(holder: ClientId, place: int) -> bytes:
    """Return the second part of the input of `share_hash`: the holder, and the index of the secret in the chunk."""
    return _TWO.pack(holder, place)


def share_hash(dealer: bytes, holder: bytes, share: bytes) -> bytes:
    """Return the hash of a share; `dealer` is the result of `encode_dealer`, `holder` that of `encode_holder`."""
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
    """Return the two parts of what a dealer sent: the ciphertext of the shares, and the hashes of the shares."""
    end = max(0, len(sent) - hashes_length(parameters))
    return sent[:end], sent[end:]


def hashes_length(parameters: CohortParameters) -> int:
    """Return the number of bytes of the hashes of all shares from one dealer to one holder."""
    return HASH_BYTES * shared_count(parameters, 0) * len(parameters.chunks)
