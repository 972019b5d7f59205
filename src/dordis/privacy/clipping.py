"""Adaptive clipping: the clip bound follows a quantile of the update norms, from noisy counts of the norms below it.

Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", 2021, algorithm 1.
Each client sends one clipping bit, "the norm of my update is at most the bound", as a further release beside its
update.  At scale s the bit is encoded as +s for yes and -s for no.  An absent client adds 0, so the sensitivities
Delta2 and Delta1 are s.  If bits were encoded as 2s and 0, the sensitivities would be 2s; algorithm 1 shifts the bits
by one half for the same reason.  The number of survivors is public, so the fraction of norms below the bound follows
from the sum.  The bound of a round is computed from released sums of earlier rounds, which costs no more privacy.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from dordis.errors import InputError
from dordis.privacy.accounting import check_positive
from dordis.privacy.further_releases import FurtherRelease, FurtherSum, FurtherValue, PlannedRelease

CLIPPING_BIT = "clipping bit"
"""The name of the further release that sums the clipping bits."""


class Quantile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="quantile"):
    """The rule of adaptive clipping: how the clip bound follows a quantile of the norms of updates.

    `target` is the quantile, `start` the first bound, and `rate` the step size (eta_C in the paper on adaptive
    clipping).  The bound stays in `least` .. `most` even if the noise is large.  `share` is the part of the privacy
    budget that is spent on the clipping bits, in which clients say whether their norm is at most the bound.
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
        """Return the further releases that clipping needs: the clipping bits, or none if the bound is fixed."""
        return (FurtherValue(CLIPPING_BIT, self.rule.share),) if self.rule else ()

    def advance(self, below: float | None) -> "Clipping":
        """Return the clipping of the next round; `below` is the noisy fraction of norms up to the bound in this round.

        The bound stays the same if it is fixed or `below` is None.
        """
        if self.rule is None or below is None:
            return self
        return replace(self, bound=next_bound(self.bound, below, self.rule))


def clipping_bit(scale: int) -> FurtherRelease:
    """Return the further release of clipping bits (is the norm within the bound?), encoded as `scale` or -`scale`."""
    return FurtherRelease(CLIPPING_BIT, scale)


def bit_value(norm: float, bound: float) -> int:
    """Return a client's clipping bit: 1 if the norm of its update is at most the bound, else -1.

    `norm` is the norm of the update before clipping; infinity, of an update that diverged, is above every bound.
    """
    check_positive("the clip bound", bound)
    if not norm >= 0:
        raise InputError("the norm of an update is 0 or more")
    return 1 if norm <= bound else -1


def bit_error(bit: PlannedRelease, clients: int, kappa: Fraction) -> float:
    """Return the standard deviation of the noise on the fraction of clients whose norm is at most the bound.

    The fraction is of `clients` clients.  `kappa` is the variance of the noise left in the sum of the bits, divided by
    the planned variance.
    """
    return bit.deviation(kappa) / (2 * clients)


def fraction_below(bits: FurtherSum | None) -> float | None:
    """Return the noisy fraction of survivors whose norm is at most the bound; None if there were no clipping bits.

    The estimate has no bias, so the noise may take it below 0 or above 1.
    """
    return None if bits is None else (1 + float(bits.mean[0])) / 2


def next_bound(bound: float, below: float, quantile: Quantile) -> float:
    """Return the clip bound of the next round: C exp(-eta (b - gamma)), limited to `least` .. `most` of the rule.

    C is `bound`.  b is `below`, the noisy fraction of survivors whose norm is at most C.  eta is the rate of the rule
    `quantile`, and gamma is its target.

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
