"""Rotation, rounding and packing as their definitions read: matrices, fractions and strings of bits."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import scipy.linalg


def sign_factors(signs: bytes, length: int) -> npt.NDArray[np.float64]:
    """Return -1 where the bit is set, 1 elsewhere; bit i is bit i % 8 of byte i // 8."""
    return np.array([-1.0 if signs[i // 8] >> (i % 8) & 1 else 1.0 for i in range(length)])


def rotate(x: npt.NDArray[np.float64], block: int, signs: bytes) -> npt.NDArray[np.float64]:
    """Multiply each block by the matrix H diag(signs) / sqrt(block)."""
    matrix = scipy.linalg.hadamard(block) / math.sqrt(block)
    flipped = (x * sign_factors(signs, x.size)).reshape(-1, block)
    return np.concatenate([matrix @ row for row in flipped])


def unrotate(x: npt.NDArray[np.float64], block: int, signs: bytes) -> npt.NDArray[np.float64]:
    """Multiply each block by the transpose of the matrix of `rotate`."""
    matrix = scipy.linalg.hadamard(block) / math.sqrt(block)
    return np.concatenate([matrix.T @ row for row in x.reshape(-1, block)]) * sign_factors(signs, x.size)


def round_stochastically(x: Sequence[float], scale: float, randomness: Sequence[int]) -> list[int]:
    """Round the float64 product up where the random fraction is below its fractional part."""
    rounded = []
    for value, word in zip(x, randomness, strict=True):
        y = Fraction(value * scale)
        down = math.floor(y)
        rounded.append(down + (Fraction(word, 2**32) < y - down))
    return rounded


def squared_norm(x: Sequence[int]) -> int:
    """Return the sum of squares."""
    return sum(value * value for value in x)


def pack(values: Sequence[int], bits: int) -> bytes:
    """Write each value's bits, least significant first, after those of the one before; cut into bytes."""
    stream = "".join(format(value, f"0{bits}b")[::-1] for value in values)
    stream += "0" * (-len(stream) % 8)
    return bytes(int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8))


def unpack(data: bytes, bits: int, count: int) -> list[int]:
    """Read the bits back in the same order."""
    stream = "".join(format(byte, "08b")[::-1] for byte in data)
    return [int(stream[i * bits : (i + 1) * bits][::-1], 2) for i in range(count)]
