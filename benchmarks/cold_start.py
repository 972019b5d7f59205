"""Call every compiled kernel once, on little data: `python -m benchmarks.cold_start` measures a first use."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from dordis.crypto import prg, sharing
from dordis.kernels import hadamard, reals, ring
from dordis.privacy import skellam_noise

WITHOUT_HATS = Fraction(4)
WITH_HATS = Fraction(2**17)  # the least variance whose cell table has nodes further apart than one


def call_kernels() -> None:
    """Call every kernel of every family once."""
    families: tuple[Callable[[], None], ...] = (_masks, _noise, _rotation, _rounding, _packing, _sharing)
    for family in families:
        family()


def _masks() -> None:
    streams = [prg.Stream.from_bytes(bytes([number] * prg.STREAM_BYTES)) for number in range(5)]
    for bits in (8, 16, 20, 32):
        # Short vectors and long ones reach the kernels as arrays of different layout.
        for size in (40, prg.CALL):
            prg.add_masks(np.zeros(size, np.uint32), streams[:3], streams[3:], bits)


def _noise() -> None:
    acc = np.zeros(4096, np.uint32)
    for variance in (WITHOUT_HATS, WITH_HATS):
        for subtract in (False, True):
            skellam_noise.add_noise(acc, bytes(prg.SEED_BYTES), variance, subtract=subtract)


def _rotation() -> None:
    signs = np.zeros(2, np.uint8)
    for x in (np.ones(16, np.float32), np.ones(16, np.float64)):
        hadamard.rotate(x, 16, signs)
        hadamard.unrotate(x, 16, signs)


def _rounding() -> None:
    rounded = np.empty(16, np.int32)
    for x in (np.ones(16, np.float32), np.ones(16, np.float64)):
        reals.round_stochastically(x, 1.5, np.zeros(16, np.uint32), rounded)
    reals.sum_integer_squares(rounded)


def _packing() -> None:
    for bits in (20, 32):
        packed = ring.pack(np.arange(40, dtype=np.uint32), bits)
        ring.unpack(packed, bits, 40)


def _sharing() -> None:
    points = [1, 2, 3, 4]
    shares = sharing.split([bytes(sharing.SECRET_BYTES)], points, threshold=2)
    sharing.Interpolation(points, threshold=2).combine(shares)


if __name__ == "__main__":
    call_kernels()
