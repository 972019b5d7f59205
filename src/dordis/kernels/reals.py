"""Round real vectors to integers, at random without bias or to the nearest; add, fold and unfold them; compute norms.

Gradients of single records are clipped, quantised and added in exact integers.  In a floating-point sum the rounding
error of one record depends on the other records: in float32, leaving out one of a thousand records may change the sum
of the others by a tenth of the clip bound.  Here every record is quantised by itself before it is added.
"""

import math
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dordis.errors import InputError
from dordis.kernels.compiler import check_array, kernel

_LANES = 32  # independent partial sums: four vector registers, so that additions need not wait for each other

Reals = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Real = TypeVar("Real", npt.NDArray[np.float32], npt.NDArray[np.float64])


def add_weighted(total: npt.NDArray[np.float64], x: Reals, weight: float) -> None:
    """Add weight * x[i] to total[i], in place."""
    total = check_array("total", total, np.float64, written=True)
    x = check_array("x", x, np.float32, np.float64)
    if total.size != x.size:
        raise InputError(f"total and x must be equally long: got {total.size} and {x.size}")
    if not math.isfinite(weight):
        raise InputError(f"weight must be finite: got {weight}")
    _add_weighted(total, x, float(weight))


@kernel
def _add_weighted(total: npt.NDArray[np.float64], x: Reals, weight: float) -> None:
    for i in range(total.size):
        total[i] += weight * np.float64(x[i])


def sum_squares(x: Reals) -> float:
    """Return the sum of squares of x, added in the same order on every machine; NaN or infinite if a coordinate is."""
    return float(_sum_squares(check_array("x", x, np.float32, np.float64)))


@kernel
def _sum_squares(x: Reals) -> float:
    sums = np.zeros(_LANES)
    whole = x.size // _LANES * _LANES
    for start in range(0, whole, _LANES):
        part = x[start : start + _LANES]
        for lane in range(_LANES):
            sums[lane] += np.float64(part[lane]) * np.float64(part[lane])
    total = 0.0
    for lane in range(_LANES):
        total += sums[lane]
    for i in range(whole, x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


def is_finite(x: npt.NDArray[Any]) -> bool:
    """Tell whether all numbers in an array are finite."""
    # The sum of squares takes a fraction of the time of `np.isfinite`, which is needed only if the sum overflows.
    with np.errstate(all="ignore"):
        squares = np.vdot(x, x)
    return bool(np.isfinite(squares)) or bool(np.isfinite(x).all())


_LEAST = -(2.0**31)
_MOST = 2.0**31 - 1.0


def round_stochastically(
    x: Reals,
    scale: float,
    randomness: npt.NDArray[np.uint32],
    out: npt.NDArray[np.int32],
) -> None:
    """Set out[i] to y = x[i] * scale, in float64, rounded up with probability frac(y) and down otherwise.

    y is rounded up if randomness[i] / 2^32 < frac(y); `randomness` is uniform, secret and used once.  So the
    probability of rounding up is frac(y), or higher by less than 2^-32.  If a result does not fit 32 bits, InputError
    is raised, and `out` is zero.
    """
    x = check_array("x", x, np.float32, np.float64)
    randomness = check_array("randomness", randomness, np.uint32)
    out = check_array("out", out, np.int32, written=True)
    if not x.size == randomness.size == out.size:
        raise InputError(f"x, randomness and out must be equally long: got {x.size}, {randomness.size}, {out.size}")
    if not math.isfinite(scale):
        raise InputError(f"scale must be finite: got {scale}")
    if not _round_stochastically(x, float(scale), randomness, out):
        out.fill(0)
        raise InputError("x must be finite and must fit 32-bit integers once scaled and rounded")


def round_to_nearest(x: Reals, scale: float, out: npt.NDArray[np.int32]) -> None:
    """Set out[i] to x[i] * scale, rounded to the nearest integer; raise InputError if a result does not fit 32 bits."""
    x = check_array("x", x, np.float32, np.float64)
    out = check_array("out", out, np.int32, written=True)
    if x.size != out.size:
        raise InputError(f"x and out must be equally long: got {x.size}, {out.size}")
    if not _round_to_nearest(x, float(scale), out):
        out.fill(0)
        raise InputError("x must be finite and must fit 32-bit integers once scaled and rounded")


def sum_integer_squares(x: npt.NDArray[np.int32]) -> int:
    """Return the exact sum of squares of a vector of integers."""
    high, low = _sum_integer_squares(check_array("x", x, np.int32))
    return (int(high) << 32) + int(low)


@kernel
def _round_stochastically(
    x: Reals,
    scale: float,
    randomness: npt.NDArray[np.uint32],
    out: npt.NDArray[np.int32],
) -> bool:
    """Write `scale` x, rounded at random, to `out`; if a result is no int32, write 0 for it and return False."""
    misfits = 0
    for i in range(x.size):
        y = np.float64(x[i]) * scale
        down = np.floor(y)  # stays a float, so that NaN and infinity reach the comparison below
        rounded = down + (1.0 if np.float64(randomness[i]) * 2.0**-32 < y - down else 0.0)
        fits = _LEAST <= rounded <= _MOST  # false for NaN
        misfits += 0 if fits else 1
        out[i] = np.int32(rounded if fits else 0.0)
    return misfits == 0


@kernel
def _round_to_nearest(x: Reals, scale: float, out: npt.NDArray[np.int32]) -> bool:
    """Write `scale` x, rounded to nearest, to `out`; if a result is no int32, write 0 for it and return False."""
    misfits = 0
    for i in range(x.size):
        rounded = np.rint(np.float64(x[i]) * scale)
        fits = _LEAST <= rounded <= _MOST  # false for NaN
        misfits += 0 if fits else 1
        out[i] = np.int32(rounded if fits else 0.0)
    return misfits == 0


@kernel
def _sum_integer_squares(x: npt.NDArray[np.int32]) -> tuple[np.uint64, np.uint64]:
    """Return the sums of the high and of the low halves of all squares x[i]^2: 32 bits each, of up to 2^32 numbers."""
    high = np.uint64(0)
    low = np.uint64(0)
    for i in range(x.size):
        square = np.uint64(np.int64(x[i]) * np.int64(x[i]))
        high += square >> np.uint64(32)
        low += square & np.uint64(0xFFFFFFFF)
    return high, low


LEAST_LENGTH, MOST_LENGTH = 2**22, 2**23
"""Range of C_q, the largest norm of a quantised record: from LEAST_LENGTH to below MOST_LENGTH."""
MOST_SHIFT = 32
_SHRINKING = 1 - 2.0**-10
_TRIES = 64
_PIECE = 1024  # coordinates between two comparisons of the norm: 2^10 squares below 2^48 do not overflow


def add_records(
    rows: Reals, used: npt.NDArray[np.bool_], clip: float, length: int, total: npt.NDArray[np.int64]
) -> int:
    """Add the `used` rows, quantised, to `total`, in place.

    Return the number of rows with a norm up to `clip` minus the number of rows with a larger norm.

    A row g becomes q = round(C_q g / max(c, ||g||)) with c = `clip` and C_q = `length`.  While the exact norm of q
    exceeds C_q, the factor of g is reduced by 2^-10 of itself.  Rows with a NaN or infinite norm are neither added nor
    counted.
    """
    total = check_array("total", total, np.int64, written=True)
    if rows.shape != (used.size, total.size) or used.dtype != np.bool_:
        raise InputError(
            f"rows must have the shape {(used.size, total.size)} and used be boolean: got {rows.shape} and {used.dtype}"
        )
    flat = check_array("rows", rows.reshape(-1), np.float32, np.float64)
    if not LEAST_LENGTH <= length < MOST_LENGTH:
        raise InputError(f"length, the norm of quantised records, must be from 2^22 to below 2^23: got {length}")
    if not 0 < clip < math.inf:
        raise InputError(f"the clip bound must be finite and above 0: got {clip}")
    return int(_add_records(flat, np.array(used), float(clip), length, total))


def round_with_dither(
    x: npt.NDArray[np.int64], shift: int, words: npt.NDArray[np.uint32], mask: int, out: npt.NDArray[np.uint32]
) -> None:
    """Set out[i] to ((x[i] + u) >> shift) modulo mask + 1; u is the upper `shift` bits of the uniform words[i]."""
    if not x.size == words.size == out.size or not 0 <= shift <= MOST_SHIFT:
        raise InputError(
            f"shift must be from 0 to {MOST_SHIFT}, and x, words and out equally long: got {shift}, "
            f"{x.size}, {words.size}, {out.size}"
        )
    _round_with_dither(x, shift, words, np.uint32(mask), out)


@kernel
def _add_records(
    rows: Reals, used: npt.NDArray[np.bool_], clip: float, length: int, total: npt.NDArray[np.int64]
) -> int:
    below = 0
    for i in range(used.size):
        if not used[i]:
            continue
        row = rows[i * total.size : (i + 1) * total.size]
        norm = np.sqrt(_square_in_lanes(row))
        if not norm < np.inf:  # NaN too
            continue
        below += 1 if norm <= clip else -1
        factor = length / max(clip, norm)
        for _ in range(_TRIES):
            if _fits(row, factor, length):
                _add(row, factor, total)
                break
            factor *= _SHRINKING
    return below


@kernel
def _square_in_lanes(row: Reals) -> float:
    """Return the sum of squares of a row, added in eight partial sums in an order that depends on its length alone."""
    lanes = np.zeros(8)
    whole = row.size >> 3 << 3
    for j in range(0, whole, 8):
        for lane in range(8):
            lanes[lane] += np.float64(row[j + lane]) * np.float64(row[j + lane])
    for j in range(whole, row.size):
        lanes[j - whole] += np.float64(row[j]) * np.float64(row[j])
    return float(lanes.sum())


@kernel
def _fits(row: Reals, factor: float, length: int) -> bool:
    """Tell whether factor * row, rounded to integers, has a norm of at most `length`; the norm is computed exactly."""
    bound, squared = length * length, np.int64(0)
    for start in range(0, row.size, _PIECE):
        part = row[start : start + _PIECE]
        for j in range(part.size):
            scaled = abs(np.rint(np.float64(part[j]) * factor))
            q = np.int64(min(scaled, length + 1.0))  # capped: still above the bound, and its square does not overflow
            squared += q * q
        if squared > bound:
            return False
    return True


@kernel
def _add(row: Reals, factor: float, total: npt.NDArray[np.int64]) -> None:
    for j in range(row.size):
        total[j] += np.int64(np.rint(np.float64(row[j]) * factor))


@kernel
def _round_with_dither(
    x: npt.NDArray[np.int64], shift: int, words: npt.NDArray[np.uint32], mask: np.uint32, out: npt.NDArray[np.uint32]
) -> None:
    unused = np.uint64(32 - shift)
    for i in range(x.size):
        dither = np.int64(np.uint64(words[i]) >> unused)
        out[i] = np.uint32((x[i] + dither) >> shift) & mask


BUCKET_MULTIPLE = 32
"""The number k of buckets is a multiple of this: then the signs of coordinates 0, k, 2k, .. start at 32-bit words."""


def fold(x: Reals, buckets: int, signs: npt.NDArray[np.uint8], factor: float = 1.0) -> Reals:
    """Return x folded into buckets: each bucket is `factor` times the sum of its coordinates, with their `signs`.

    Coordinate i belongs to bucket i mod `buckets`.  It is negated if its bit of `signs`, bit i % 8 of byte i // 8, is
    set.  NaN and infinity are not detected.
    """
    x = check_array("x", x, np.float32, np.float64)
    signs = _check_signs(x.size, buckets, signs)
    folded: Reals = np.zeros(buckets, x.dtype)
    _fold(x, signs, x.dtype.type(factor), folded)
    return folded


def unfold(folded: Real, size: int, signs: npt.NDArray[np.uint8]) -> Real:
    """Return `size` coordinates: i is bucket i mod len(folded), negated if bit i of `signs` (see `fold`) is set."""
    folded = check_array("folded", folded, np.float32, np.float64)
    signs = _check_signs(size, folded.size, signs)
    x = np.empty(size, folded.dtype)
    _unfold(folded, signs, x)
    return cast("Real", x)


def _check_signs(size: int, buckets: int, signs: npt.NDArray[np.uint8]) -> Any:
    if type(buckets) is not int or buckets < BUCKET_MULTIPLE or buckets % BUCKET_MULTIPLE:
        raise InputError(f"the number of buckets must be a multiple of {BUCKET_MULTIPLE}: got {buckets!r}")
    signs = check_array("signs", signs, np.uint8)
    if signs.size != (size + 7) // 8:
        raise InputError(f"{size} coordinates take {(size + 7) // 8} bytes of signs: got {signs.size}")
    return signs


@kernel
def _fold(x: Reals, signs: npt.NDArray[np.uint8], factor: np.floating[Any], folded: Reals) -> None:
    for start in range(0, x.size, folded.size):
        row = x[start : start + folded.size]
        octets = signs[start >> 3 :]
        words = row.size >> 5
        for word in range(words):
            part, sums = row[32 * word : 32 * word + 32], folded[32 * word : 32 * word + 32]
            bits = _word(octets[4 * word : 4 * word + 4])
            for place in range(32):
                scaled = part[place] * factor
                sums[place] += -scaled if (bits >> np.uint32(place)) & np.uint32(1) else scaled
        for i in range(32 * words, row.size):
            scaled = row[i] * factor
            folded[i] += -scaled if (octets[i >> 3] >> (i & 7)) & 1 else scaled


@kernel
def _unfold(folded: Reals, signs: npt.NDArray[np.uint8], x: Reals) -> None:
    for start in range(0, x.size, folded.size):
        row = x[start : start + folded.size]
        octets = signs[start >> 3 :]
        words = row.size >> 5
        for word in range(words):
            part, sums = row[32 * word : 32 * word + 32], folded[32 * word : 32 * word + 32]
            bits = _word(octets[4 * word : 4 * word + 4])
            for place in range(32):
                part[place] = -sums[place] if (bits >> np.uint32(place)) & np.uint32(1) else sums[place]
        for i in range(32 * words, row.size):
            row[i] = -folded[i] if (octets[i >> 3] >> (i & 7)) & 1 else folded[i]


@kernel
def _word(octets: npt.NDArray[np.uint8]) -> np.uint32:
    bits = np.uint32(0)
    for place in range(4):
        bits |= np.uint32(octets[place]) << np.uint32(8 * place)
    return bits
