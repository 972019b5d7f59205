"""Shamir secret sharing of many 32-byte secrets at once.

A secret is divided into nine little-endian limbs: eight of 30 bits and one of 16.  Each limb is shared modulo
p = 2^31 - 1, so a share of a secret is nine numbers below p.  All secrets of one call are shared among the same points,
so that sharing takes one matrix product, and so does recovery.
"""

import secrets as os_random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dordis.errors import InputError, SharingError
from dordis.kernels.field import PRIME, lagrange, multiply, vandermonde

SECRET_BYTES = 32
LIMBS = 9
SHARE_BYTES = 4 * LIMBS

Shares = NDArray[np.uint32]

_LIMB_BITS = 30
_LAST_LIMB_BITS = 8 * SECRET_BYTES - (LIMBS - 1) * _LIMB_BITS
_LIMB_RANGE = np.array([2**_LIMB_BITS] * (LIMBS - 1) + [2**_LAST_LIMB_BITS], np.uint32)


def split(
    secrets: Sequence[bytes],
    points: Sequence[int],
    threshold: int,
    entropy: Callable[[int], bytes] = os_random.token_bytes,
) -> Shares:
    """Return a share of every secret for every point, shape (points, secrets, 9).

    `threshold` shares of a secret recover it, and fewer reveal nothing about it.  Coefficients of the polynomials
    are drawn in the order degree, secret, limb.

    >>> shares = split([bytes(range(32))], points=[1, 2, 3], threshold=2)
    >>> Interpolation([3, 1], threshold=2).combine(shares[[2, 0]]) == (bytes(range(32)),)
    True
    """
    at = _check_points(points)
    if not 1 <= threshold <= len(points):
        raise InputError(f"threshold is {threshold}; pass one from 1 to the number of points, {len(points)}")
    width = LIMBS * len(secrets)
    coefficients = np.empty((threshold, width), np.uint32)
    coefficients[0] = _to_limbs(secrets).ravel()
    coefficients[1:] = _draw_elements((threshold - 1) * width, entropy).reshape(threshold - 1, width)
    return multiply(vandermonde(at, threshold), coefficients).reshape(len(points), len(secrets), LIMBS)


@dataclass(frozen=True)
class Interpolation:
    """Recovers secrets from their shares at fixed points; the Lagrange weights are computed once for all calls.

    >>> shares = split([bytes(32), bytes(range(32))], points=[1, 2, 3, 4], threshold=2)
    >>> Interpolation([4, 2], threshold=2).combine(shares[[3, 1]])[1] == bytes(range(32))
    True
    """

    points: Sequence[int]
    threshold: int

    def __post_init__(self) -> None:
        """Check points and threshold; raise `SharingError` if there are fewer points than the threshold."""
        object.__setattr__(self, "points", tuple(self.points))
        _check_points(self.points)
        if self.threshold < 1:
            raise InputError(f"threshold is {self.threshold}; pass at least 1")
        if len(self.points) < self.threshold:
            raise SharingError(f"{len(self.points)} shares are fewer than the threshold {self.threshold}")

    def combine(self, shares: Shares) -> tuple[bytes, ...]:
        """Return the secrets of shares of shape (points, secrets, 9), computed from the first `threshold` points.

        Wrong shares give wrong secrets, or raise SharingError.  So callers check the hashes of others' shares first.
        """
        columns = self._columns(shares)[: self.threshold]
        return _to_secrets(multiply(self._weights, columns).reshape(-1, LIMBS))

    @cached_property
    def _at(self) -> Shares:
        return np.array(self.points, np.uint32)

    @cached_property
    def _weights(self) -> Shares:
        return lagrange(self._at[: self.threshold], np.zeros(1, np.uint32))

    def _columns(self, shares: Shares) -> Shares:
        """Check shares, and return them as a matrix: a row for each point, a column for each limb of each secret."""
        _check_shares(shares, dimensions=3)
        if len(shares) != len(self.points):
            raise InputError(f"got shares of {len(shares)} points; pass one row for each of the {len(self.points)}")
        # A writable copy, because the kernel would be compiled again for read-only arrays.
        return np.require(shares, requirements=["C", "W"]).reshape(len(self.points), shares.shape[1] * LIMBS)


def to_bytes(shares: Shares) -> bytes:
    """Serialise shares of shape (count, 9), 36 bytes each, little-endian."""
    _check_shares(shares, dimensions=2)
    return shares.astype("<u4").tobytes()


def from_bytes(data: bytes, count: int = 1) -> Shares:
    """Parse `count` shares that another party sent, to shape (count, 9); raise `SharingError` if they are malformed."""
    if len(data) != count * SHARE_BYTES:
        raise SharingError(f"{count} shares take {count * SHARE_BYTES} bytes, got {len(data)}")
    shares = np.frombuffer(data, "<u4").astype(np.uint32).reshape(count, LIMBS)
    if (shares >= PRIME).any():
        raise SharingError("a share is out of range: every limb must be below 2^31 - 1")
    return shares


def _check_points(points: Sequence[int]) -> Shares:
    if not all(0 < point < PRIME for point in points):
        raise InputError("a point is out of range: pass points from 1 to 2^31 - 2")
    if len(set(points)) != len(points):
        raise InputError("points repeat: pass each once")
    return np.array(points, np.uint32)


def _check_shares(shares: Shares, dimensions: int) -> None:
    if shares.dtype != np.uint32 or shares.ndim != dimensions or shares.shape[-1] != LIMBS:
        raise InputError(
            f"got shares of type {shares.dtype} and shape {shares.shape};"
            f" pass uint32 in {dimensions} dimensions, the last of {LIMBS} limbs"
        )
    if (shares >= PRIME).any():
        raise InputError("a share is out of range: pass limbs below 2^31 - 1")


def _draw_elements(count: int, entropy: Callable[[int], bytes]) -> Shares:
    """Draw uniform field elements: four little-endian bytes each, with the top bit cleared; p itself is rejected."""
    accepted = np.empty(0, np.uint32)
    while accepted.size < count:
        missing = count - accepted.size
        drawn = np.frombuffer(entropy(4 * missing), "<u4", missing) & np.uint32(PRIME)
        accepted = np.concatenate([accepted, drawn[drawn != PRIME]], dtype=np.uint32)
    return accepted


def _to_limbs(secrets: Sequence[bytes]) -> Shares:
    """Return the limbs of every secret, shape (secrets, 9)."""
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise InputError(f"a secret has the wrong length: pass {SECRET_BYTES} bytes each")
    octets = np.frombuffer(b"".join(secrets), np.uint8).reshape(len(secrets), SECRET_BYTES)
    bits = np.zeros((len(secrets), LIMBS * _LIMB_BITS), np.uint8)
    bits[:, : 8 * SECRET_BYTES] = np.unpackbits(octets, axis=1, bitorder="little")
    words = np.zeros((len(secrets), LIMBS, 32), np.uint8)
    words[:, :, :_LIMB_BITS] = bits.reshape(len(secrets), LIMBS, _LIMB_BITS)
    limbs = np.packbits(words, axis=2, bitorder="little").view("<u4")
    return limbs.reshape(len(secrets), LIMBS).astype(np.uint32)


def _to_secrets(limbs: Shares) -> tuple[bytes, ...]:
    """Return the secrets of limbs of shape (secrets, 9); raise `SharingError` if a limb is out of range."""
    outside = np.flatnonzero((limbs >= _LIMB_RANGE).any(axis=1))
    if outside.size:
        raise SharingError(f"secret {outside[0]}: the shares do not give a secret of {SECRET_BYTES} bytes")
    octets = limbs.astype("<u4").view(np.uint8).reshape(len(limbs), LIMBS, 4)
    words = np.unpackbits(octets, axis=2, bitorder="little")
    bits = words[:, :, :_LIMB_BITS].reshape(len(limbs), LIMBS * _LIMB_BITS)[:, : 8 * SECRET_BYTES]
    return tuple(row.tobytes() for row in np.packbits(bits, axis=1, bitorder="little"))
