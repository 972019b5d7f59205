"""Discrete Gaussian noise from a seed, by inversion of its distribution in integers.

The masses are floor(2^127 p(x)), computed in fixed point without floating point, and what the floors leave out goes
to 0: the law of a sample is exactly masses / 2^127, at a total variation distance of at most 2^-105 to the discrete
Gaussian.  Unlike Skellam noise it is never removed again, so it has no format that outlives a release, and unlike
`dordis.privacy.noise` it is not made for speed.  Look-ups are not constant-time in the sample.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dordis.crypto import prg
from dordis.errors import InputError
from dordis.privacy.cell_table import check_variance
from dordis.privacy.discrete_gaussian import LEAST_SCALE

LONGEST = 2**31
_TOTAL_BITS = 127
_POINT = 384  # bits behind the point: the masses are good to more than 2^-300
_WORDS = 2  # of 64 bits, for each sample: 127 bits of chance and a sign
_STEP = prg.CALL // 8 // _WORDS

Words = npt.NDArray[np.uint64]


def discrete_gaussian_noise(seed: bytes, variance: Fraction | int, dim: int) -> npt.NDArray[np.int32]:
    """Return `dim` samples, a function of the seed: x has a mass proportional to exp(-x^2 / (2 variance)).

    `variance` is the square of the scale g, a multiple of 2^-20 from 1/4 to 10^10; that of the samples is a little
    less: by 14 % at 1/4, by 10^-6 at 1.

    >>> discrete_gaussian_noise(bytes(range(32)), 4, 8).tolist()
    [-2, -4, -3, 3, -1, 2, -2, 3]
    """
    if not 0 <= dim <= LONGEST:
        raise InputError(f"a noise vector has 0 to 2^31 samples, not {dim}")
    context = prg.start(prg.from_seed(seed, b"dordis/v1/discrete-gaussian"))
    highs, lows = _cumulative(_checked(variance))
    samples = np.empty(dim, np.int32)
    words = np.empty((min(_STEP, dim), _WORDS), "<u8")
    for at in range(0, dim, _STEP):
        piece = samples[at : at + _STEP]
        used = words[: piece.size]
        prg.generate(context, used.view(np.uint8).reshape(-1))
        piece[:] = _invert(highs, lows, used[:, 0] >> np.uint64(1), used[:, 1])
        np.negative(piece, out=piece, where=used[:, 0] & np.uint64(1) == 1)
    return samples


def masses(variance: Fraction | int) -> list[int]:
    """Return the masses of 0, 1, 2, .. up to the last that is positive, out of 2^127.

    p(x + 1) / p(x) = q^(2 x + 1) with q = exp(-1 / (2 variance)).
    """
    weights = list(_weights(_checked(variance)))
    total = weights[0] + 2 * sum(weights[1:])
    shares = [(weight << _TOTAL_BITS) // total for weight in weights]
    while not shares[-1]:
        shares.pop()
    shares[0] += (1 << _TOTAL_BITS) - shares[0] - 2 * sum(shares[1:])
    return shares


def _weights(variance: Fraction) -> Iterator[int]:
    """Yield exp(-x^2 / (2 variance)) in fixed point, until it no longer counts."""
    q = _exp_minus(1 / (2 * variance))
    squared, ratio, weight = q * q >> _POINT, q, 1 << _POINT
    while weight >> (_POINT - _TOTAL_BITS - 8):
        yield weight
        weight = weight * ratio >> _POINT
        ratio = ratio * squared >> _POINT


def _exp_minus(z: Fraction) -> int:
    """Return exp(-z) in fixed point, for z up to 2, by its power series."""
    total = term = 1 << _POINT
    k = 0
    while term:
        k += 1
        term = term * z.numerator // (z.denominator * k)
        total += -term if k % 2 else term
    return total


@lru_cache(maxsize=4)
def _cumulative(variance: Fraction) -> tuple[Words, Words]:
    """Return the chance of a magnitude of at most 0, 1, 2, .. out of 2^127, as high and low words."""
    zero, *others = masses(variance)
    sums = list(accumulate((zero, *(2 * mass for mass in others))))
    highs = np.array([value >> 64 for value in sums], np.uint64)
    lows = np.array([value & (2**64 - 1) for value in sums], np.uint64)
    return highs, lows


def _invert(highs: Words, lows: Words, high: Words, low: Words) -> npt.NDArray[np.int64]:
    """Return, for each chance u out of 2^127, the least x whose cumulative mass exceeds it."""
    x = np.searchsorted(highs, high)
    while True:  # ties in the high word are rare: one chance in 2^63 for each magnitude
        beyond = (highs[x] == high) & (lows[x] <= low)
        if not beyond.any():
            return x
        x += beyond


def _checked(variance: Fraction | int) -> Fraction:
    exact = check_variance(variance)
    if exact < Fraction(LEAST_SCALE) ** 2:
        raise InputError(f"the scale of a discrete Gaussian is at least {LEAST_SCALE}: its square is not {variance}")
    return exact
