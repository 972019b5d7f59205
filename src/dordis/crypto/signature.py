"""Signatures: Ed25519 (RFC 8032) by libsodium, which refuses non-canonical encodings and points of low order."""

import secrets
from collections.abc import Callable

import nacl.exceptions
from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign, crypto_sign_open, crypto_sign_seed_keypair

from dordis.errors import InputError, InvalidKey, InvalidSignature

KEY_BYTES = 32
SIGNATURE_BYTES = 64


def generate(entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Draw a private key: the 32-byte seed of RFC 8032."""
    return _check_private(entropy(KEY_BYTES))


def public_key(private: bytes) -> bytes:
    """Compute the public key of a private key."""
    return crypto_sign_seed_keypair(_check_private(private))[0]


def sign(private: bytes, message: bytes) -> bytes:
    """Return the signature of a message; Ed25519 is deterministic."""
    return crypto_sign(message, crypto_sign_seed_keypair(_check_private(private))[1])[:SIGNATURE_BYTES]


def validate(public: bytes) -> None:
    """Raise InvalidKey unless a public key is a canonically encoded point of the prime-order group."""
    if len(public) != KEY_BYTES or not crypto_core_ed25519_is_valid_point(public):
        raise InvalidKey("the Ed25519 public key is malformed or not in the prime-order group")


def verify(public: bytes, message: bytes, signature: bytes) -> None:
    """Raise InvalidSignature if the signature does not verify, or InvalidKey if the cause is an invalid public key.

    A key of mixed order, the sum of a valid key and a point of low order, is not refused here, because that check costs
    as much as a verification.  `validate` refuses such keys at registration.
    """
    if len(public) != KEY_BYTES:
        raise InvalidKey(f"an Ed25519 public key has {KEY_BYTES} bytes, got {len(public)}")
    if len(signature) != SIGNATURE_BYTES:
        raise InvalidSignature(f"an Ed25519 signature has {SIGNATURE_BYTES} bytes, got {len(signature)}")
    try:
        crypto_sign_open(signature + message, public)
    except nacl.exceptions.BadSignatureError:
        validate(public)  # raises InvalidKey if the key itself is invalid
        raise InvalidSignature("the signature does not verify under this key and message") from None


def _check_private(private: bytes) -> bytes:
    if len(private) != KEY_BYTES:
        raise InputError(f"an Ed25519 private key has {KEY_BYTES} bytes, got {len(private)}")
    return private
