"""The primitives that secure aggregation is built from, as one value: pass another to build it from others.

Keys, agreed secrets and shared secrets have 32 bytes, because key derivation takes them and sharing shares them; all
clients of a round must use the same suite, and those that do not cannot open each other's shares.  Errors are those of
`dordis.errors`: a `CryptoError` for what came from elsewhere, an `InputError` for a caller's mistake.  A configuration
names a suite as `package.module:NAME`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dordis.crypto import agreement, cipher, prg, sharing, signature
from dordis.kernels.ring import Vector

Entropy = Callable[[int], bytes]
Shares = npt.NDArray[np.uint32]
"""Shape (.., limbs): the last axis is one share."""


class KeyAgreement(Protocol):
    """KA: key agreement on keys of 32 bytes."""

    def generate(self, entropy: Entropy, /) -> bytes:
        """Draw a private key."""

    def public_key(self, private: bytes, /) -> bytes:
        """Compute the public key of a private one."""

    def validate(self, peer_public: bytes, /) -> None:
        """Refuse a public key that is malformed, has another spelling, or would force the secret."""

    def agree(self, private: bytes, peer_public: bytes, /) -> bytes:
        """Compute the 32 bytes shared with a peer."""


class Cipher(Protocol):
    """AE: authenticated encryption under a key and a nonce that serve one message only."""

    KEY_BYTES: int
    """The length of a key."""
    NONCE_BYTES: int
    """The length of a nonce."""
    TAG_BYTES: int
    """By how much a ciphertext is longer than its plaintext."""

    def encrypt(self, key: bytes, nonce: bytes, plaintext: bytes, associated: bytes, /) -> bytes:
        """Encrypt a plaintext and bind it to the associated data."""

    def decrypt(self, key: bytes, nonce: bytes, ciphertext: bytes, associated: bytes, /) -> bytes:
        """Decrypt, or raise `DecryptionFailed` if anything at all was altered."""


class ShareDecoder(Protocol):
    """Recovery from the shares held at fixed points."""

    def combine(self, shares: Shares, /) -> tuple[bytes, ...]:
        """Recover secrets from shares of shape (points, secrets, limbs), or raise `SharingError`."""


class Sharing(Protocol):
    """SS: threshold sharing of secrets of 32 bytes."""

    SHARE_BYTES: int
    """The length of a share on the wire."""
    LIMBS: int
    """The length of a share in an array."""

    def split(self, secrets: Sequence[bytes], points: Sequence[int], threshold: int, entropy: Entropy, /) -> Shares:
        """Share every secret among the points; return shape (points, secrets, limbs)."""

    def to_bytes(self, shares: Shares, /) -> bytes:
        """Serialise shares of shape (count, limbs)."""

    def from_bytes(self, data: bytes, count: int, /) -> Shares:
        """Parse shares from elsewhere, or raise `SharingError`."""

    def Interpolation(self, points: Sequence[int], threshold: int, /) -> ShareDecoder:  # noqa: N802
        """Prepare to recover from the shares of these points."""


class Streams(Protocol):
    """The maker of keystreams."""

    def from_bytes(self, derived: bytes, /) -> Any:
        """Name the one keystream that these derived bytes are for."""


class Prg(Protocol):
    """PG: keystreams, and masks over Z_{2^b} made from them."""

    STREAM_BYTES: int
    """How many derived bytes name a keystream."""

    @property
    def Stream(self) -> Streams:  # noqa: N802
        """Return the maker of keystreams."""

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
        """Add and subtract masks modulo 2^bits in place, in `threads` threads; `acc` begins at coordinate `first`."""


class Signature(Protocol):
    """SIG: signatures."""

    def sign(self, private: bytes, message: bytes, /) -> bytes:
        """Sign a message."""

    def verify(self, public: bytes, message: bytes, signature: bytes, /) -> None:
        """Return if the signature is good, and raise otherwise."""


@dataclass(frozen=True)
class Suite:
    """The paper's KAHandler, AEHandler, SSHandler, PGHandler and SIG; modules or any objects with these functions."""

    agreement: KeyAgreement
    cipher: Cipher
    sharing: Sharing
    prg: Prg
    signature: Signature


DEFAULT = Suite(agreement, cipher, sharing, prg, signature)
"""X25519, AES-256-GCM, Shamir modulo 2^31 - 1, AES-128-CTR, Ed25519."""
