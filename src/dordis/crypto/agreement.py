"""Key agreement: X25519 (RFC 7748); public keys of low order, which would make the shared secret known, are refused."""

import secrets
from collections.abc import Callable

import nacl.exceptions

# Of the two vetted libraries that are installed libsodium is faster: about 45 us for an agreement, OpenSSL about 75 us.
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base

from dordis.errors import InputError, InvalidKey

KEY_BYTES = 32

_P = 2**255 - 19
_ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
_ORDER_8_TWIN = 39382357235489614581723060781553021112529911719440698176882885853963445705823
_LOW_ORDER = frozenset({0, 1, _P - 1, _ORDER_8, _ORDER_8_TWIN})
"""The u-coordinates of all points of low order on the curve and its twist."""


def generate(entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Draw a private key."""
    return _check_private(entropy(KEY_BYTES))


def public_key(private: bytes) -> bytes:
    """Compute the public key of a private key."""
    return crypto_scalarmult_base(_check_private(private))


def validate(peer_public: bytes) -> None:
    """Raise InvalidKey if a public key has the wrong length, is not in canonical form, or is of low order."""
    _check_public(peer_public)
    u = int.from_bytes(peer_public, "little")
    if u >= _P:
        raise InvalidKey("the X25519 public key is not in its canonical form")
    if u in _LOW_ORDER:
        raise InvalidKey("the X25519 public key is a point of low order")


def agree(private: bytes, peer_public: bytes) -> bytes:
    """Return the raw secret shared with a peer; callers derive keys from it and never use it as a key itself."""
    _check_public(peer_public)
    try:
        return crypto_scalarmult(_check_private(private), peer_public)
    except nacl.exceptions.RuntimeError:
        # libsodium fails exactly when the output would be all zero, that is for points of low order.
        raise InvalidKey("the X25519 public key is a point of low order") from None


def _check_public(peer_public: bytes) -> None:
    if len(peer_public) != KEY_BYTES:
        raise InvalidKey(f"an X25519 public key has {KEY_BYTES} bytes, got {len(peer_public)}")


def _check_private(private: bytes) -> bytes:
    # libsodium's binding reads 32 bytes from an argument of any length.
    if len(private) != KEY_BYTES:
        raise InputError(f"an X25519 private key has {KEY_BYTES} bytes, got {len(private)}")
    return private
