"""Authenticated encryption by AES-256-GCM; callers never encrypt two messages with the same key and nonce."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dordis.errors import DecryptionFailed, InputError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


def encrypt(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Return the ciphertext, with its tag of 16 bytes at the end; it decrypts only with the same associated data."""
    _check(key, nonce)
    return AESGCM(key).encrypt(nonce, plaintext, associated)


def decrypt(key: bytes, nonce: bytes, ciphertext: bytes, associated: bytes) -> bytes:
    """Return the plaintext of a ciphertext by `encrypt`; raise DecryptionFailed if any of the arguments was altered."""
    _check(key, nonce)
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, associated)
    except InvalidTag:
        raise DecryptionFailed("the ciphertext does not open under this key, nonce and associated data") from None


def _check(key: bytes, nonce: bytes) -> None:
    # AESGCM itself also accepts AES-128 and AES-192 keys, and nonces of other lengths.
    if len(key) != KEY_BYTES:
        raise InputError(f"an AES-256-GCM key has {KEY_BYTES} bytes, got {len(key)}")
    if len(nonce) != NONCE_BYTES:
        raise InputError(f"an AES-256-GCM nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
