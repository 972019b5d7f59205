"""The suite: all cryptographic primitives of secure aggregation as one value, so that they can be replaced together.

Keys, agreed secrets and shared secrets have 32 bytes, because key derivation and sharing take 32 bytes.  All clients of
a round must use the same suite; otherwise they cannot decrypt each other's shares.  A suite raises `CryptoError` for
invalid data of another party, and `InputError` for a caller's mistake.  A configuration names a suite as
`package.module:NAME`.

`concrete_bounds` has the bounds on attacks on the primitives of `DEFAULT`: the table of docs/proofs/bounds.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dordis.crypto import agreement, cipher, prg, sharing, signature
from dordis.kernels.ring import Vector

Entropy = Callable[[int], bytes]
Shares = npt.NDArray[np.uint32]
"""An array of shares: its last axis has the numbers (limbs) of one share."""


class KeyAgreement(Protocol):
    """Key agreement (KA in the paper) on keys of 32 bytes."""

    def generate(self, entropy: Entropy, /) -> bytes:
        """Draw a private key."""

    def public_key(self, private: bytes, /) -> bytes:
        """Compute the public key of a private key."""

    def validate(self, peer_public: bytes, /) -> None:
        """Raise `InvalidKey` if a public key is malformed, not canonical, or would make the shared secret known."""

    def agree(self, private: bytes, peer_public: bytes, /) -> bytes:
        """Return the secret of 32 bytes that is shared with a peer."""


class Cipher(Protocol):
    """Authenticated encryption (AE in the paper); callers never encrypt two messages with the same key and nonce."""

    KEY_BYTES: int
    """The length of a key."""
    NONCE_BYTES: int
    """The length of a nonce."""
    TAG_BYTES: int
    """The length of a ciphertext minus the length of its plaintext."""

    def encrypt(self, key: bytes, nonce: bytes, plaintext: bytes, associated: bytes, /) -> bytes:
        """Return the ciphertext of a plaintext; it decrypts only with the same associated data."""

    def decrypt(self, key: bytes, nonce: bytes, ciphertext: bytes, associated: bytes, /) -> bytes:
        """Return the plaintext; raise `DecryptionFailed` if the ciphertext or another argument was altered."""


class ShareDecoder(Protocol):
    """A decoder that recovers secrets from their shares at fixed points."""

    def combine(self, shares: Shares, /) -> tuple[bytes, ...]:
        """Return the secrets of shares of shape (points, secrets, LIMBS); wrong shares may raise `SharingError`.

        LIMBS is the length of a share in an array (`Sharing.LIMBS`).
        """


class Sharing(Protocol):
    """Threshold sharing (SS in the paper) of secrets of 32 bytes."""

    SHARE_BYTES: int
    """The length of a serialised share in bytes."""
    LIMBS: int
    """The length of a share in an array, in numbers."""

    def split(self, secrets: Sequence[bytes], points: Sequence[int], threshold: int, entropy: Entropy, /) -> Shares:
        """Return shares of every secret at every point, shape (points, secrets, limbs)."""

    def to_bytes(self, shares: Shares, /) -> bytes:
        """Serialise shares of shape (count, limbs)."""

    def from_bytes(self, data: bytes, count: int, /) -> Shares:
        """Parse `count` shares that another party sent; raise `SharingError` if they are malformed."""

    def Interpolation(self, points: Sequence[int], threshold: int, /) -> ShareDecoder:  # noqa: N802
        """Return a decoder of shares at these points."""


class Streams(Protocol):
    """A factory of keystreams."""

    def from_bytes(self, derived: bytes, /) -> Any:
        """Return the keystream whose key and nonce are these derived bytes."""


class Prg(Protocol):
    """Pseudorandom generator (PG in the paper): keystreams, and masks over Z_{2^b} made from keystreams."""

    STREAM_BYTES: int
    """The number of derived bytes from which a keystream is made."""

    @property
    def Stream(self) -> Streams:  # noqa: N802
        """Return the factory of keystreams."""

    def add_masks(
        self,
        acc: Vector,
        added: Sequence[Any],
        subtracted: Sequence[Any],
        bits: int,
        /,
        *,
        first: int = 0,
        threads: int = 1,
    ) -> None:
        """Add the masks of some keystreams to `acc` and subtract those of others, in place, modulo 2^bits.

        `acc[i]` gets coordinate `first` + i of every mask, so that `acc` may be a part of a longer vector.
        """


class Signature(Protocol):
    """Signatures (SIG in the paper)."""

    def sign(self, private: bytes, message: bytes, /) -> bytes:
        """Return the signature of a message."""

    def verify(self, public: bytes, message: bytes, signature: bytes, /) -> None:
        """Raise `InvalidSignature` unless the signature verifies."""


@dataclass(frozen=True)
class Suite:
    """The primitives KA, AE, SS, PG and SIG of the paper, in this order.

    Each is a module or object with the functions of its type.
    """

    agreement: KeyAgreement
    cipher: Cipher
    sharing: Sharing
    prg: Prg
    signature: Signature


DEFAULT = Suite(agreement, cipher, sharing, prg, signature)
"""X25519, AES-256-GCM, Shamir modulo 2^31 - 1, AES-128-CTR, Ed25519."""

OPERATIONS = 64
"""log2 of q, the number of hashes, cipher calls or group operations that an adversary computes."""


@dataclass(frozen=True)
class RoundSize:
    """The size of a round: clients, degree of the graph (0: complete), chunks, coordinates, noise components."""

    clients: int
    degree: int = 0
    chunks: int = 1
    coordinates: int = 10**6
    components: int = 2
    """Noise components of a client in a chunk: 2 with the scheme `single`, dropout tolerance + 1 with `exact`."""

    @property
    def pairs(self) -> float:
        """Return the number of pairs of clients that are neighbours in the graph."""
        return self.clients * (self.degree or self.clients - 1) / 2

    @property
    def keystreams(self) -> float:
        """Return the number of keystreams: in each chunk one per pair, one per self-mask, three per noise component."""
        return self.chunks * (self.pairs + self.clients * (1 + 3 * self.components))

    @property
    def blocks(self) -> float:
        """Return the most 16-byte blocks that a mask's keystream has: four bytes for each coordinate of a chunk."""
        return max(1.0, 4 * self.coordinates / self.chunks / 16)


def concrete_bounds(size: RoundSize, operations: int = OPERATIONS) -> dict[str, float]:
    """Return, by attack, log2 of a bound on the probability that the attack succeeds in one round.

    `operations` is log2 of the number of the adversary's operations, as in `OPERATIONS`.
    """
    q, n, m, pairs = operations, size.clients, size.chunks, max(1.0, size.pairs)
    keys = math.log2(size.keystreams)
    return {
        "a 128-bit key of a keystream is guessed": q + keys - 128,
        "keystreams differ from uniform ones": keys + 2 * math.log2(size.blocks) - 129,
        "a Diffie-Hellman secret is found, of channels or masks": math.log2((1 + m) * pairs) + 2 * q - 252,
        "a signature is forged": math.log2(n) + 2 * q - 252,
        "a ciphertext of shares is forged": math.log2(20 * m * pairs) - 128,
        "two different sets of parameters have the same hash": 2 * q - 256,
        "a committed secret or a token is guessed": math.log2(4 * n * m) + q - 256,
        "a hashed share is guessed": math.log2(3 * (2 * pairs + n) * m) + q - 256,
        "another share is found with the hash of an honest dealer's share (matters for blame only)": q - 128,
        "a client proves two different outputs for one VRF key and input": q - 128,
    }


def security_bits(size: RoundSize, rounds: int, operations: int = OPERATIONS) -> float:
    """Return b, the bits of security of a run: attacks on its cryptography succeed with probability at most 2^-b.

    The run has `rounds` rounds of this size; `operations` is log2 of the adversary's operations in each of them.

    >>> int(security_bits(RoundSize(100), rounds=1))
    51
    """
    return -math.log2(rounds * sum(2.0**bound for bound in concrete_bounds(size, operations).values()))
