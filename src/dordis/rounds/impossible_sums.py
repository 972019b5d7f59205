"""The check for impossible sums: sums whose norm is too large for honest updates and their noise.

The norms of updates are bounded, and the law of the noise is known.  A wrong mask or a lost seed turns a sum into
uniformly random numbers, whose norm is usually far larger.  The check reads only the released sum and public
parameters, so it costs no privacy.  It finds such random numbers; it does not find poisoned updates.  docs/limits.md
says which norms it finds.

The sum of a chunk is a + Z.  `a` is the sum of the survivors' rounded updates, with norm at most B.  Z is independent
Skellam noise of variance V in every coordinate, including excess noise that could not be removed.  Chunks differ in
survivors and V.  So every chunk, and every rotation block of a chunk (coordinates that are rotated together), is
compared with a bound of its own; each comparison is a *test*.  All bounds use the B of whole updates, because the whole
norm of an update may lie in one block.  Dealing coordinates to blocks and rotating the blocks change no norm, and
wrapping to the ring makes no norm larger.  docs/proofs/impossible_sums.md derives the bounds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dordis.errors import ImpossibleSum
from dordis.kernels.reals import sum_integer_squares
from dordis.kernels.ring import Vector
from dordis.privacy import scaling
from dordis.privacy.encoding import NEAREST, centre
from dordis.privacy.further_releases import FurtherRelease
from dordis.privacy.mechanisms import Mechanism
from dordis.privacy.planning import Plan
from dordis.privacy.skellam_noise import SKELLAM
from dordis.privacy.xnoise_components import Scheme
from dordis.protocols.encoded_sums import DistributedDP
from dordis.protocols.noise_addition_and_removal import ChunkOutput

PASSED, VACUOUS, NOT_CHECKED, IMPOSSIBLE = "passed", "vacuous", "not checked", "impossible"
"""Outcomes of the check; it is vacuous if the sum passed, but uniformly random numbers would have passed as well."""
DEVIATIONS = 6.7
"""A number x: in one test, the noise exceeds its part of the bound tau (`threshold`) with a probability of at most
2 exp(-x^2 / 2) = 3.6e-10."""
ROUNDING_EXPONENT, ACCEPTANCE_EXPONENT = 21.5, 0.933
"""The norm of the sum of all clients' rounding errors exceeds its bound E (`signal_bound`) with a probability of at
most exp(-21.5) = 4.6e-10.

A client draws a random rounding again until the norm is small enough; each draw is accepted with a probability of at
least exp(-0.933).  Because only accepted draws count, the bound on the probability grows by a factor of exp(0.933) for
each survivor, and E is chosen larger accordingly."""
LEAST_VARIANCE, LEAST_LENGTH = 64, 8
"""The closed formula of `threshold` holds from this variance and length on; a shorter sum counts as one of length 8."""
MARGIN = 1.5
"""The check is vacuous if the expected squared norm of uniformly random numbers is below 1.5 times the bound tau."""
_STEPS = 48
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class SumLaw:
    """What is known of the law of a sum: the number of survivors, the number of coordinates, and the noise variance.

    `longest` is Delta2, the largest norm of one client's encoded update.  `scaled_clip` is the clip bound times the
    scale.  It is None if clients do not round at random, or if the mechanism has an encoding of its own.
    """

    survivors: int
    length: int
    variance: float
    longest: float
    scaled_clip: float | None = None


def signal_bound(law: SumLaw, tests: int = 1) -> float:
    """Return B, a bound on the norm of the sum of honest encoded updates, without noise.

    The norm exceeds B with a probability of at most exp(-`ROUNDING_EXPONENT`) / `tests`, where `tests` is the number of
    tests in the round.  For n survivors B is n Delta2 or, if this is less, n times `scaled_clip` plus E.  E is a bound
    on the norm of the sum of all rounding errors; since these are independent, E may be far less than the sum of the
    largest norms of single errors (docs/proofs/impossible_sums.md).
    """
    n, k = law.survivors, law.length
    certain = n * law.longest
    if law.scaled_clip is None:
        return certain
    t = ACCEPTANCE_EXPONENT * n + ROUNDING_EXPONENT + math.log(tests)
    error = math.sqrt(n / 4 * (k + 2 * math.sqrt(k * t) + 2 * t))
    return min(certain, n * law.scaled_clip + error)


def threshold(law: SumLaw, tests: int = 1) -> float:
    """Return tau, a bound that the squared norm of an honest sum exceeds with probability below 1e-9 / `tests`.

    >>> law = SumLaw(survivors=100, length=1024, variance=1e4, longest=120.0, scaled_clip=100.0)
    >>> round(threshold(law) / 1e6, 1)
    131.9
    """
    bound, variance, k = signal_bound(law, tests), law.variance, max(law.length, LEAST_LENGTH)
    x = math.sqrt(DEVIATIONS**2 + 2 * math.log(tests))
    if variance < LEAST_VARIANCE:
        across = bound * _tail(variance, x * x / 2)
        return bound**2 + 2 * across + _noise_norm(variance, law.length, x * x / 2)
    across = x * bound * math.sqrt(variance) * (1 + x * x / (12 * variance))
    return bound**2 + 2 * across + variance * (k + x * math.sqrt(2 * k + k / variance) + x * x)


def further_threshold(survivors: int, release: FurtherRelease, variance: float, tests: int = 1) -> float:
    """Return tau, a bound like that of `threshold`, for the sum of a further release, such as the clipping bit.

    `variance` is the variance of the noise in this sum, in integer units; `tests` is the number of tests in the round.
    """
    most = release.scale * release.bound
    if release.length > 1:
        return threshold(SumLaw(survivors, release.length, variance, most), tests)
    return (survivors * most + _tail(variance, math.log(2 * tests) + math.log(1e9))) ** 2


def is_vacuous(tau: float, length: int, bits: int) -> bool:
    """Tell whether `length` uniformly random numbers of `bits` bits have an expected squared norm below 1.5 `tau`.

    `tau` is the bound on the squared norm of a sum of such length (`threshold`).
    """
    return length * 4.0**bits / 12 < MARGIN * tau


def plan_law(plan: Plan) -> SumLaw:
    """Return the law that one block of a planned sum has without dropout."""
    setting, n = plan.setting, plan.setting.clients
    left = float(plan.noise.variance_left(range(n), b""))
    scaled = plan.scale * setting.clip
    nearest = bool(setting.buckets) and scaling.is_fine_enough(scaled, setting.padded)
    return SumLaw(n, setting.block, left, plan.sensitivity.l2, None if nearest else scaled)


def plan_margin(plan: Plan) -> float:
    """Return the expected squared norm of a block of uniformly random numbers, divided by the block's bound, tau.

    Tau is the `threshold` of one block of a sum without dropout.  If this ratio is below `MARGIN`, such random numbers
    may pass the check.
    """
    law, blocks = plan_law(plan), plan.setting.padded // plan.setting.block
    return law.length * 4.0**plan.bits / 12 / threshold(law, blocks + (blocks > 1) + len(plan.further))


def plan_warnings(plan: Plan) -> tuple[str, ...]:
    """Return a warning if uniformly random numbers may pass the check for a sum of this plan, otherwise nothing."""
    margin = plan_margin(plan)
    if margin >= MARGIN:
        return ()
    return (
        f"a spoilt sum may go unnoticed: its squared length is {margin:.2g} times that of the longest possible sum, "
        f"and detection needs {MARGIN:g} times; use longer updates, or more clients a round",
    )


def is_checked(mechanism: Mechanism, scheme: Scheme) -> bool:
    """Tell whether sums can be checked: encoded updates are bounded, and all noise is the protocol's Skellam noise.

    With records as the unit of privacy sums are not checked; callers test this.
    """
    known = mechanism.law is SKELLAM and not mechanism.share and mechanism.sensitivity > 0
    return known and scheme is not Scheme.NONE


def chunk_law(private: DistributedDP, chunk: int, survivors: int, left: Fraction) -> SumLaw:
    """Return the law of the sum of one chunk of the update, where `left` is the variance of the noise in this sum."""
    span, mechanism = private.parameters.chunks[chunk], private.mechanism
    usual = type(mechanism).encode is Mechanism.encode and mechanism.rounding != NEAREST
    scaled = mechanism.grid.scale * mechanism.clip if usual else None
    return SumLaw(survivors, span.stop - span.start, float(left), math.sqrt(mechanism.sensitivity), scaled)


@dataclass(frozen=True)
class SumCheck:
    """The bounds on the squared norm of one chunk and of each rotation block in it."""

    whole: float
    block: float
    length: int
    """Number of coordinates of a block."""

    @classmethod
    def of_chunk(cls, private: DistributedDP, chunk: int, output: ChunkOutput) -> "SumCheck":
        """Return the bounds of a chunk.

        The probability that an honest round exceeds any bound of any of its chunks is at most 1e-9.
        """
        tests, encoding = count_tests(private), private.parameters.encoding
        if (release := private.further_release(chunk)) is not None:
            tau = further_threshold(len(output.survivors), release, float(output.left), tests)
            return cls(tau, tau, release.length)
        law = chunk_law(private, chunk, len(output.survivors), output.left)
        block = SumLaw(law.survivors, encoding.block, law.variance, law.longest, law.scaled_clip)
        return cls(threshold(law, tests), threshold(block, tests), encoding.block)

    def excess(self, total: Vector, bits: int) -> float:
        """Return the largest squared norm, divided by its bound, of chunk and blocks; above 1 the sum is impossible."""
        norms = [sum_integer_squares(block) for block in centre(total, bits).reshape(-1, self.length)]
        return max(sum(norms) / self.whole, max(norms) / self.block)


def count_tests(private: DistributedDP) -> int:
    """Return the number of tests in a round: one for each block, chunk of two or more blocks, and further release."""
    parameters, (update, *further) = private.parameters, private.parameters.release_chunks
    spans = [parameters.chunks[chunk] for chunk in update]
    blocks: list[int] = [(span.stop - span.start) // parameters.encoding.block for span in spans]
    return sum(count + (count > 1) for count in blocks) + len(further)


def check_possible(private: DistributedDP, chunk: int, output: ChunkOutput) -> None:
    """Raise ImpossibleSum if the sum of a chunk exceeds a bound; do nothing if the law of sums is not known.

    The probability that this raises in an honest round is at most 1e-9.
    """
    if private.records is not None or not is_checked(private.mechanism, Scheme(private.parameters.scheme)):
        return
    excess = SumCheck.of_chunk(private, chunk, output).excess(output.total, private.parameters.bits)
    if excess > 1:
        raise ImpossibleSum(chunk, excess, output.survivors, output.named)


def describe_check(private: DistributedDP, outputs: Sequence[ChunkOutput]) -> str:
    """Return `passed`, `vacuous` or `not checked` for a round, after `check_possible` has accepted all its chunks."""
    if private.records is not None or not is_checked(private.mechanism, Scheme(private.parameters.scheme)):
        return NOT_CHECKED
    updates = private.parameters.release_chunks[0]
    checks = [SumCheck.of_chunk(private, chunk, outputs[chunk]) for chunk in updates]
    bits = private.parameters.bits
    return VACUOUS if any(is_vacuous(check.block, check.length, bits) for check in checks) else PASSED


def _tail(variance: float, exponent: float) -> float:
    """Return a bound that Skellam noise exceeds in a given direction with probability at most exp(-exponent).

    The bound is Chernoff's: ln E exp(y a.Z) = V sum (cosh(y a_i) - 1) <= V (cosh y - 1) for noise Z of variance V and
    every direction `a` of norm 1.
    """
    return _least(lambda y: (2 * variance * math.sinh(y / 2) ** 2 + exponent) / y, 1e-9, 100.0)


def _noise_norm(variance: float, length: int, exponent: float) -> float:
    """Return Chernoff's bound on the squared norm of Skellam noise: exceeded with probability at most exp(-exponent).

    Only for variances up to `LEAST_VARIANCE`: the law of a coordinate is cut off at 12 sigma + 40, and for these
    variances the probability of a larger coordinate is below 1e-40.
    """
    logs = _log_law(variance, math.ceil(12 * math.sqrt(variance) + 40))
    squares = np.arange(logs.size, dtype=np.float64) ** 2

    def bound(rate: float) -> float:
        terms = logs + rate * squares
        peak = float(terms.max())
        return (length * (peak + math.log(float(np.exp(terms - peak).sum()))) + exponent) / rate

    return _least(bound, 1e-9, 10.0)


def _log_law(variance: float, most: int) -> scaling.Floats:
    """Return ln P(|Z| = z) for z = 0..most, by Miller's recurrence for Bessel functions; Z is Skellam(`variance`)."""
    ratio, logs = 0.0, np.zeros(most + 1)
    for z in range(most + 40, 0, -1):
        ratio = 1 / (2 * z / variance + ratio)
        if z <= most:
            logs[z] = math.log(ratio)
    logs = np.cumsum(logs)
    logs[1:] += math.log(2)
    return np.asarray(logs - math.log(float(np.exp(logs).sum())))


def _least(bound: Callable[[float], float], low: float, high: float) -> float:
    """Return about the least value of a quasi-convex function, by golden section.

    The search need not be exact: every value of `bound` is a valid bound.
    """
    a, b = math.log(low), math.log(high)
    for _ in range(_STEPS):
        c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
        a, b = (a, d) if bound(math.exp(c)) <= bound(math.exp(d)) else (c, b)
    return bound(math.exp((a + b) / 2))
