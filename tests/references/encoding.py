"""Encoding and decoding as their definition reads: one coordinate, one matrix row, one fraction at a time."""

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.references import masks, transforms


@dataclass(frozen=True)
class Reference:
    """The encoding of one round."""

    dim: int
    block: int
    scale: float
    bits: int
    clip: float
    bound: int
    public_seed: bytes

    @property
    def blocks(self) -> int:
        return math.ceil(self.dim / self.block)

    def place(self, i: int) -> int:
        """Return where coordinate i goes: block i mod B, place i // B in it."""
        return (i % self.blocks) * self.block + i // self.blocks

    def signs(self) -> bytes:
        stream = _stream(self.public_seed, b"dordis/v1/rotation")
        return masks.keystream(stream, 0, math.ceil(self.blocks * self.block / 8))

    def rotated(self, update: Sequence[float]) -> npt.NDArray[np.float64]:
        """Clip, deal and rotate, in real units."""
        norm = math.hypot(*update)
        x = np.zeros(self.blocks * self.block)
        for i, value in enumerate(update):
            x[self.place(i)] = value * min(1.0, self.clip / norm) if norm else 0.0
        return transforms.rotate(x, self.block, self.signs())

    def encode(self, update: Sequence[float], secret: bytes) -> list[int]:
        """Scale, round until the norm is kept, and wrap."""
        x = self.rotated(update).tolist()
        for draw in range(1000):
            stream = _stream(secret, b"dordis/v1/rounding/%d" % draw)
            words = np.frombuffer(masks.keystream(stream, 0, 4 * len(x)), "<u4").tolist()
            rounded = transforms.round_stochastically(x, self.scale, words)
            if transforms.squared_norm(rounded) <= self.bound:
                return [value % 2**self.bits for value in rounded]
        raise AssertionError("no draw keeps the norm")

    def decode(self, total: Sequence[int]) -> npt.NDArray[np.float64]:
        """Centre, divide by the scale, rotate back, collect."""
        half = 2 ** (self.bits - 1)
        x = np.array([((value + half) % 2**self.bits - half) / self.scale for value in total])
        turned = transforms.unrotate(x, self.block, self.signs())
        return np.array([turned[self.place(i)] for i in range(self.dim)])


@dataclass(frozen=True)
class Folding:
    """Folding before the encoding of one round, and rounding to the nearest after it."""

    dim: int
    buckets: int
    inner: Reference
    """The encoding of what is folded."""

    def sign(self, i: int) -> int:
        stream = _stream(self.inner.public_seed, b"dordis/v1/projection")
        octets = masks.keystream(stream, 0, math.ceil(self.dim / 8))
        return -1 if octets[i // 8] >> (i % 8) & 1 else 1

    def folded(self, update: Sequence[float]) -> list[float]:
        """Clip, and add every coordinate, with its sign, to its bucket."""
        norm = math.hypot(*update)
        buckets = [0.0] * self.buckets
        for i, value in enumerate(update):
            buckets[i % self.buckets] += self.sign(i) * value * min(1.0, self.inner.clip / norm)
        return buckets

    def encode(self, update: Sequence[float]) -> list[int]:
        """Fold, clip again, rotate, and take the nearest integers, for updates that need no shrinking."""
        x = self.inner.rotated(self.folded(update))
        rounded = [round(self.inner.scale * value) for value in x.tolist()]
        assert transforms.squared_norm(rounded) <= self.inner.bound
        return [value % 2**self.inner.bits for value in rounded]

    def decode(self, total: Sequence[int]) -> list[float]:
        """Decode the buckets, and copy them with their signs."""
        buckets = self.inner.decode(total)
        return [self.sign(i) * float(buckets[i % self.buckets]) for i in range(self.dim)]


def _stream(seed: bytes, info: bytes) -> masks.Stream:
    """Expand a seed by HKDF-SHA256 without salt, one block of it: 16 bytes of key, 12 of nonce."""
    key = hmac.digest(bytes(32), seed, hashlib.sha256)
    derived = hmac.digest(key, info + b"\1", hashlib.sha256)
    return derived[:16], derived[16:28]
