"""Adaptive clipping: the clip bound follows a quantile of the update norms, from noisy counts of the norms below it.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", 2021, algorithm 1.
Each client sends one bit, "my norm is at most the bound", as a further release beside its update: +s or -s in the
ring, without rounding.  Without the client the sum has neither, so Delta2 = Delta1 = s: half of the sensitivity that 2s
and 0 would have, which is the paper's shift by one half.  The number of survivors is public and undoes the shift.  The
bound of a round is computed from released sums of earlier rounds, which costs no more privacy.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from dordis.errors import InputError
from dordis.privacy.accounting import check_positive
from dordis.privacy.further_releases import FurtherRelease, FurtherSum, FurtherValue, PlannedRelease

CLIPPING_BIT = "clipping bit"
"""The name of the release."""


class Quantile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="quantile"):
    """Adaptive clipping: the quantile of the norms that the bound follows, its start, rate and limits.

    `rate` is eta_C of the geometric update.  The bound stays in `least` .. `most` even if the noise is large.
    `share` is the part of the privacy budget that is spent on the bits.
    """

    target: float = 0.5
    rate: float = 0.2
    least: float = 1e-6
    most: float = 1e6
    start: float = 1.0
    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.target <= 1:
            raise InputError(f"a quantile lies in 0..1, not at {self.target}")
        check_positive("the rate of adaptive clipping", self.rate)
        check_positive("the least clip bound", self.least)
        check_positive("the largest clip bound", self.most)
        if self.least > self.most:
            raise InputError(f"the least clip bound {self.least} is above the largest, {self.most}")
        if not self.least <= self.start <= self.most:
            raise InputError(f"the first clip bound lies in {self.least}..{self.most}, not at {self.start}")
        if not 0 < self.share < 1:
            raise InputError(
                f"the bits of adaptive clipping get a part of the budget between 0 and 1, not {self.share}"
            )


@dataclass(frozen=True)
class Clipping:
    """The clip bound of the next round, and the rule that adapts it; without a rule the bound is fixed."""

    bound: float
    rule: Quantile | None = None

    @classmethod
    def from_config(cls, clip: float | Quantile) -> "Clipping":
        """Return the clipping of the first round from a configured bound or rule."""
        return cls(clip.start, clip) if isinstance(clip, Quantile) else cls(clip)

    @property
    def further(self) -> tuple[FurtherValue, ...]:
        """Return the bits as the one further release, or nothing if the bound is fixed."""
        return (FurtherValue(CLIPPING_BIT, self.rule.share),) if self.rule else ()

    def advance(self, below: float | None) -> "Clipping":
        """Return the clipping of the next round, from the fraction of norms below the bound in this round."""
        if self.rule is None or below is None:
            return self
        return replace(self, bound=next_bound(self.bound, below, self.rule))


def clipping_bit(scale: int) -> FurtherRelease:
    """Return the release of the bits, at a scale s."""
    return FurtherRelease(CLIPPING_BIT, scale)


def bit_value(norm: float, bound: float) -> int:
    """Return a client's summand: 1 if its norm is at most the bound, else -1.

    `norm` is the norm of the update before clipping; infinity, of an update that diverged, is above every bound.
    """
    check_positive("the clip bound", bound)
    if not norm >= 0:
        raise InputError("the norm of an update is 0 or more")
    return 1 if norm <= bound else -1


def bit_error(bit: PlannedRelease, clients: int, kappa: Fraction) -> float:
    """Return the standard deviation of the noisy fraction of clients below the bound."""
    return bit.deviation(kappa) / (2 * clients)


def fraction_below(bits: FurtherSum | None) -> float | None:
    """Return the fraction of clients in U3 with a norm of at most the bound; None if the round had no bits.

    The estimate has no bias, so the noise may take it below 0 or above 1.
    """
    return None if bits is None else (1 + float(bits.mean[0])) / 2


def next_bound(bound: float, below: float, quantile: Quantile) -> float:
    """Return the clip bound of the next round: C exp(-eta (b - gamma)), within its limits.

    >>> next_bound(1.0, below=0.9, quantile=Quantile(target=0.5)) < 1 < next_bound(1.0, 0.1, Quantile(target=0.5))
    True
    """
    check_positive("the clip bound", bound)
    if math.isnan(below):
        raise InputError("the fraction of norms below the bound is a number")
    step = math.log(bound) - quantile.rate * (below - quantile.target)
    if step <= math.log(quantile.least):
        return quantile.least
    return quantile.most if step >= math.log(quantile.most) else math.exp(step)
