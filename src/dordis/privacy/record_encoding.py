"""Encode the sum of sampled records as a vector over Z_{2^b}, with a bounded sensitivity to one record.

All arithmetic after the quantisation of single records is exact, in integers.  With the gradient g_i of record i, the
clip bound c, and the largest norm C_q of a quantised record, the steps are:

1. q_i = round(C_q g_i / max(c, ||g_i||)) for each record; ||q_i|| <= C_q is checked in integers.
2. X is the sum of all q_i.
3. Y = H (signs X) for each block, with public random signs and the unnormalised Walsh-Hadamard matrix H of size B.
4. r = (Y + u) >> k with a dither u, uniform in {0 .. 2^k - 1}^d.  The result is r mod 2^b.

The dither is never drawn again, however large the norm of r is, and no record is left out because of this norm.  If the
other records are fixed, record i changes r by a stochastic rounding of H (signs q_i) / 2^k.  The norm of this vector
before rounding is at most sqrt(B) C_q / 2^k, here called s c: the clip bound times the scale s.  `sensitivity` returns
a bound on the squared norm of the change of r, which is exceeded with a probability of at most 2^-60 over the dither.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from dordis.crypto import prg
from dordis.errors import InputError, ParametersRefused
from dordis.kernels import hadamard
from dordis.kernels.reals import LEAST_LENGTH, MOST_LENGTH, MOST_SHIFT, round_with_dither
from dordis.kernels.ring import Vector
from dordis.privacy.encoding import Grid, draw_signs
from dordis.privacy.record_accounting import BETA, OVERFULL, WORD, RecordSampling
from dordis.privacy.scaling import rounded_norm

Integers = npt.NDArray[np.int64]
DITHER, SAMPLE = b"dordis/v1/record-dither", b"dordis/v1/record-sample"
FINE = 1.01
"""The scale is chosen so that rounding multiplies the sensitivity by at most this factor."""
_WORD_BYTES = 4
_ERROR = 1e-6  # absolute error of a C_q that is computed from an s c in floating point
_LARGEST = 2**62


class RecordEncoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How records are sampled and encoded in every event of a run; part of the agreed parameters.

    `sampling` is p 2^32, where p is the probability with which a record is sampled.  `length` is C_q, the largest norm
    of a quantised record, and sums are divided by 2^k with k = `shift`.  `records` is a public upper bound on the
    number of records of each client.  `events` is the number of planned events; every round has an index below this
    number.
    """

    sampling: int
    length: int
    shift: int
    records: int
    events: int

    @classmethod
    def for_scale(cls, sampled: RecordSampling, scaled_clip: float, block: int) -> "RecordEncoding":
        """Return the encoding in which a record at the clip bound has the norm `scaled_clip`, in integer units.

        `scaled_clip` must be a value that the encoding reaches exactly: sqrt(block) C_q / 2^k, where (C_q, k) is a
        result of `scale_for`.
        """
        length, shift = scale_for(scaled_clip, block)
        return cls(sampled.sampling, length, shift, sampled.records, sampled.events)

    @property
    def probability(self) -> float:
        """Return p, the probability with which a record is sampled."""
        return self.sampling / WORD

    @property
    def batch(self) -> float:
        """Return the expected sample size of a client that has the largest allowed number of records, `records`."""
        return self.probability * self.records

    @property
    def cap(self) -> int:
        """Return the largest number of records that a client adds up in one event."""
        return batch_cap(self.records, self.sampling)

    def scaled_clip(self, block: int) -> float:
        """Return s c, the norm in integer units of a record at the clip bound."""
        return math.sqrt(block) * self.length * 2.0**-self.shift

    def check(self, block: int) -> None:
        """Raise ParametersRefused if a value is out of range, or a sum in blocks of length `block` exceeds 64 bits."""
        if not 1 <= self.sampling <= WORD or self.records < 1 or self.events < 1:
            raise ParametersRefused("records need a sampling word in 1..2^32, at least 1 record and at least 1 event")
        if not LEAST_LENGTH <= self.length < MOST_LENGTH or not 0 <= self.shift <= MOST_SHIFT:
            raise ParametersRefused(f"C_q lies in 2^22..2^23 and k in 0..{MOST_SHIFT}: not {self.length}, {self.shift}")
        if math.sqrt(block) * self.cap * self.length >= _LARGEST:
            raise ParametersRefused(f"sums of {self.cap} records in blocks of {block} do not fit 64 bits")


def batch_cap(records: int, sampling: int) -> int:
    """Return m_max, the cap on the size of a sample, which a sample exceeds with a probability of at most 2^-80.

    m_max is the least number with n KL(m_max / n || p) >= 80 ln 2 (Chernoff's bound).  n is the number of a client's
    records, p = `sampling` / 2^32 the sampling probability, and KL(a || p) the Kullback-Leibler divergence of two coins
    with probabilities a and p.

    >>> batch_cap(1000, 2**31), batch_cap(1000, 2**32), batch_cap(1, 1)
    (665, 1000, 1)
    """
    p, needed = sampling / WORD, -math.log(OVERFULL)
    low, high = math.floor(records * p), records
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _divergence(records, middle, p) >= needed else (middle, high)
    return high


def _divergence(records: int, batch: int, p: float) -> float:
    """Return n KL(batch / n || p) in nats, with n = `records`, for a sample of `batch` >= n p records."""
    inside = batch * math.log(batch / (records * p))
    outside = (records - batch) * math.log((1 - batch / records) / (1 - p)) if batch < records else 0.0
    return inside + outside


def scale_for(scaled_clip: float, block: int) -> tuple[int, int]:
    """Return C_q and k with the least s c = sqrt(block) C_q / 2^k that is not below `scaled_clip`.

    C_q, the largest norm of a quantised record, is from `LEAST_LENGTH` to below `MOST_LENGTH`; sums are divided by 2^k,
    with k from 0 to `MOST_SHIFT`.  Raise InputError if there is no such pair.  For the s c of a result, the function
    returns the same result again.

    >>> scale_for(760.0, 16384)
    (6225920, 20)
    """
    if not scaled_clip > 0:
        raise InputError(f"s c is a number above 0, not {scaled_clip}")
    shift = math.floor(math.log2(MOST_LENGTH * math.sqrt(block) / scaled_clip))
    for k in (shift, shift - 1):
        length = math.ceil(scaled_clip * 2.0**k / math.sqrt(block) - _ERROR)
        if LEAST_LENGTH <= length < MOST_LENGTH and 0 <= k <= MOST_SHIFT:
            return length, k
    raise InputError(f"no quantisation of records has s c = {scaled_clip:g} in blocks of {block}")


def sensitivity(scaled_clip: float, dim: int) -> int:
    """Return Delta2^2, a bound on the squared norm of the change of a sum by one record.

    The change exceeds the bound with a probability of at most 2^-60.  The bound is
    floor(min{(s c)^2 + d/4 + sqrt(2 ln 2^60) (s c + sqrt(d)/2), (s c + sqrt d)^2}),
    where s c is `scaled_clip` and d is `dim`, the length of the sum with its padding.
    """
    return max(1, math.floor(rounded_norm(scaled_clip, dim, BETA)))


def fine_scaled_clip(dim: int) -> float:
    """Return the least s c, the clip bound in integer units, at which rounding adds at most 1 % to the sensitivity.

    >>> round(fine_scaled_clip(16384))
    760
    """
    slack = math.sqrt(-2 * math.log(BETA))
    a, b, c = FINE**2 - 1, slack, dim / 4 + slack * math.sqrt(dim) / 2
    return (b + math.sqrt(b * b + 4 * a * c)) / (2 * a)


def draw_sample(seed: bytes, sampling: int, records: int, cap: int) -> npt.NDArray[np.int64]:
    """Return the indices of the sampled records: those whose 32-bit word from the seed is below `sampling`.

    `sampling` is p 2^32, where p is the probability with which a record is sampled (`sampling_word`).  If more than
    `cap` records are sampled, a random subset of `cap` of them is returned.
    """
    stream = prg.from_seed(seed, SAMPLE)
    words = prg.read_keystream(stream, 0, 2 * _WORD_BYTES * records).view("<u4")
    chosen = np.flatnonzero(words[:records] < np.uint64(sampling))
    if chosen.size <= cap:
        return chosen
    return np.sort(chosen[np.argsort(words[records:][chosen], kind="stable")[:cap]])


def encode_sum(total: Integers, grid: Grid, shift: int, public_seed: bytes, seed: bytes) -> Vector:
    """Return X = `total`, the exact sum of quantised records, as a vector over the ring (steps 3 and 4), without noise.

    `shift` is k.  The signs come from the public seed of the round, and the dither comes from `seed`, which the client
    draws anew for each sum.  Raise InputError if the type or the length of `total` is wrong, or if the grid folds
    updates.
    """
    if total.dtype != np.int64 or total.shape != (grid.dim,) or grid.buckets:
        raise InputError(f"a sum of records has {grid.dim} 64-bit integers, and is never folded")
    dealt = grid.deal(total, 1)
    hadamard.rotate_integers(dealt, grid.block, draw_signs(public_seed, 0, grid.padded))
    words = prg.read_keystream(prg.from_seed(seed, DITHER), 0, _WORD_BYTES * grid.padded).view("<u4")
    vector = np.empty(grid.padded, np.uint32)
    round_with_dither(dealt, shift, words, 2**grid.bits - 1, vector)
    return vector
