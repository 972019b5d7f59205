"""Key derivation: one 32-byte secret becomes many values, each bound to one use (HKDF-SHA256, RFC 5869)."""

import hashlib
import re

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dordis.errors import InputError

SECRET_BYTES = 32
LONGEST = 255 * 32  # RFC 5869: at most 255 blocks of the hash
SHORTEST_SEED = 16

_USE = re.compile(r"[a-z-]+")


def label(use: str, round_id: bytes, chunk: int, sender: int, receiver: int) -> bytes:
    """Return the label that binds derived bytes to one use in one round and chunk, from one sender to one receiver.

    `receiver` is the id of a party or, for some uses, the number of a set of helpers or of a secret.

    >>> label("mask", bytes.fromhex("0a0b"), 0, 3, 7)
    b'dordis/v1/mask/0a0b/0/3/7'
    """
    if not _USE.fullmatch(use):
        raise InputError(f"a use consists of the letters a-z and '-': got {use!r}")
    if min(chunk, sender, receiver) < 0:
        raise InputError(f"chunk, sender and receiver must be zero or more: got {chunk}, {sender}, {receiver}")
    return b"dordis/v1/%b/%b/%d/%d/%d" % (use.encode(), round_id.hex().encode(), chunk, sender, receiver)


def derive(secret: bytes, label: bytes, parameter_hash: bytes, length: int = 32) -> bytes:
    """Derive `length` bytes from `secret`, bound to a label and to the hash of a round's parameters."""
    _check_secret(secret)
    _check_parameter_hash(parameter_hash)
    # The hash has a fixed length, so two different pairs of label and hash never have the same concatenation.
    return expand(secret, label + parameter_hash, length)


def expand(seed: bytes, info: bytes, length: int) -> bytes:
    """Derive `length` bytes from a uniformly random seed by HKDF without salt; `info` is the input info of RFC 5869."""
    if len(seed) < SHORTEST_SEED:
        raise InputError(f"a seed must have at least {SHORTEST_SEED} bytes, got {len(seed)}")
    if not 1 <= length <= LONGEST:
        raise InputError(f"a length must lie in 1..{LONGEST}, got {length}")
    return HKDF(hashes.SHA256(), length, None, info).derive(seed)


def commit(label: bytes, parameter_hash: bytes, secret: bytes) -> bytes:
    """Return a commitment to a 32-byte secret: hiding if the secret is uniformly random, binding by SHA-256.

    To open the commitment, reveal the secret; the verifier recomputes the commitment and compares.
    """
    _check_secret(secret)
    _check_parameter_hash(parameter_hash)
    parts = (b"dordis/v1/commitment", label, parameter_hash, secret)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def _check_secret(secret: bytes) -> None:
    if len(secret) != SECRET_BYTES:
        raise InputError(f"a secret must have {SECRET_BYTES} bytes, got {len(secret)}")


def _check_parameter_hash(parameter_hash: bytes) -> None:
    if len(parameter_hash) != hashlib.sha256().digest_size:
        raise InputError(f"a parameter hash must have 32 bytes, got {len(parameter_hash)}")
