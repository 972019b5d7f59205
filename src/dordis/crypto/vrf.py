"""Verifiable random function: ECVRF-EDWARDS25519-SHA512-TAI of RFC 9381; names and section numbers are the RFC's.

Points and scalars stay in their 32-byte encodings; libsodium does the arithmetic.  This module is stricter than the
RFC in one respect: keys and Gamma must lie in the prime-order group, as the keys and Gamma of honest parties do.
"""

import secrets
from collections.abc import Callable
from hashlib import sha512

import nacl.exceptions
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_add,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from dordis.crypto import signature
from dordis.errors import InputError, InvalidProof

POINT_BYTES = 32
CHALLENGE_BYTES = 16
PROOF_BYTES = 80

_SUITE = b"\x03"
_ORDER = 2**252 + 27742317777372353535851937790883648493
_IDENTITY = bytes([1]) + bytes(31)


def generate(entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Draw a private key, which must not be used for anything else, such as signatures."""
    return signature.generate(entropy)


def public_key(private: bytes) -> bytes:
    """Compute the public key of a private key."""
    return signature.public_key(private)


def prove(private: bytes, alpha: bytes) -> bytes:
    """Return the proof pi of the function's output on `alpha` (5.1); `proof_to_hash` computes the output from pi."""
    Y = public_key(private)
    x, prefix = _expand(private)
    H = _encode_to_curve(Y, alpha)
    gamma = crypto_scalarmult_ed25519_noclamp(x, H)
    k = crypto_core_ed25519_scalar_reduce(sha512(prefix + H).digest())  # 5.4.2.2, as in RFC 8032
    c = _challenge(Y, H, gamma, crypto_scalarmult_ed25519_base_noclamp(k), crypto_scalarmult_ed25519_noclamp(k, H))
    s = crypto_core_ed25519_scalar_add(k, crypto_core_ed25519_scalar_mul(_scalar(c), x))
    return gamma + c + s


def verify(public: bytes, alpha: bytes, proof: bytes) -> bytes:
    """Return the 64-byte output beta of a proof (5.3), after verifying the proof.

    Raise InvalidKey if the public key is invalid (`validate_key`), InvalidProof if the proof does not verify.
    """
    validate_key(public)
    gamma, c, s = _decode_proof(proof)
    H = _encode_to_curve(public, alpha)
    try:
        U = crypto_core_ed25519_sub(
            crypto_scalarmult_ed25519_base_noclamp(s), crypto_scalarmult_ed25519_noclamp(_scalar(c), public)
        )
        V = crypto_core_ed25519_sub(
            crypto_scalarmult_ed25519_noclamp(s, H), crypto_scalarmult_ed25519_noclamp(_scalar(c), gamma)
        )
    except nacl.exceptions.RuntimeError:  # c or s is zero, as in no valid proof
        raise InvalidProof("the proof does not verify: its c or s is zero") from None
    if c != _challenge(public, H, gamma, U, V):
        raise InvalidProof("the proof does not verify under this key and input")
    return _hash_gamma(gamma)


def validate_key(public: bytes) -> None:
    """Raise InvalidKey unless a public key is in the prime-order group: else outputs could be predictable (5.4.5)."""
    signature.validate(public)


def proof_to_hash(proof: bytes) -> bytes:
    """Return the output beta of a proof (5.2) without verifying the proof; for other parties' proofs call `verify`."""
    return _hash_gamma(_decode_proof(proof)[0])


def _hash_gamma(gamma: bytes) -> bytes:
    return sha512(_SUITE + b"\x03" + _times_cofactor(gamma) + b"\x00").digest()


def _expand(private: bytes) -> tuple[bytes, bytes]:
    """Return the secret scalar x and the prefix for nonces (RFC 8032, 5.1.5)."""
    digest = sha512(private).digest()
    x = bytearray(digest[:32])
    x[0] &= 0b1111_1000
    x[31] = x[31] & 0b0111_1111 | 0b0100_0000
    return bytes(x), digest[32:]


def _encode_to_curve(salt: bytes, alpha: bytes) -> bytes:
    """Return the point to which `alpha` hashes, by try and increment (5.4.1.1); the time taken depends on `alpha`."""
    start = sha512(_SUITE + b"\x01" + salt + alpha)
    for counter in range(256):
        attempt = start.copy()
        attempt.update(bytes([counter, 0]))
        candidate = attempt.digest()[:POINT_BYTES]
        if _is_point(candidate):
            H = _times_cofactor(candidate)
            if H != _IDENTITY:
                return H
    raise InputError("alpha hashes to no point: choose another alpha")  # probability 2^-256


def _is_point(candidate: bytes) -> bool:
    """Tell whether these bytes are the canonical encoding (RFC 8032) of a point of the curve, of any order.

    libsodium's addition also accepts other encodings, but returns canonical ones.  So if the sum of `candidate` and the
    identity differs from `candidate`, then `candidate` is not canonical.
    """
    try:
        return crypto_core_ed25519_add(candidate, _IDENTITY) == candidate
    except nacl.exceptions.RuntimeError:
        return False


def _times_cofactor(point: bytes) -> bytes:
    # By doubling, because libsodium's multiplication refuses points outside the prime-order group.
    for _ in range(3):
        point = crypto_core_ed25519_add(point, point)
    return point


def _challenge(*points: bytes) -> bytes:
    return sha512(_SUITE + b"\x02" + b"".join(points) + b"\x00").digest()[:CHALLENGE_BYTES]


def _scalar(challenge: bytes) -> bytes:
    return challenge + bytes(32 - CHALLENGE_BYTES)


def _decode_proof(proof: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a proof into Gamma, c and s (5.4.4)."""
    if len(proof) != PROOF_BYTES:
        raise InvalidProof(f"a VRF proof has {PROOF_BYTES} bytes, got {len(proof)}")
    gamma, c, s = proof[:32], proof[32:48], proof[48:]
    if not crypto_core_ed25519_is_valid_point(gamma):
        raise InvalidProof("Gamma is not a point of the prime-order group")
    if int.from_bytes(s, "little") >= _ORDER:
        raise InvalidProof("s is not below the group order")
    return gamma, c, s
