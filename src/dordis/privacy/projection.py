"""Projection: if noise is much longer than the signal, updates are *folded*, or projected, into fewer coordinates.

The clipped update of d coordinates is folded into k buckets by public random signs: coordinate i, with its sign, is
added to bucket i mod k.  The folded vector is clipped again, then rotated, rounded, masked and summed.  Decoding
copies every bucket back to its coordinates, with their signs.  On average over the random signs, every decoded
coordinate is right.  But the other coordinates of its bucket add an error; over all coordinates the squared norm of
this *folding error* is ||sum||^2 (d/k - 1) on average.  The squared norm of the noise is the same as without folding,
because each bucket is copied d/k times, with its noise.

The *alignment* of updates is ||sum|| / (n c), for n clients and the clip bound c: 1 if all updates are equal with norm
c, and less if they differ.  With a smaller alignment the folding error is smaller, and more folding is allowed.

The sensitivity is bounded in the integers, after folding.  So privacy holds whatever signs and k a server chooses.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from dordis.kernels.reals import BUCKET_MULTIPLE
from dordis.kernels.ring import packed_size
from dordis.privacy import scaling
from dordis.privacy.planning import Plan
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting

AUTO, ADAPTIVE, OFF = "auto", "adaptive", "off"
TAU = 0.04
"""Largest allowed variance of the folding error, divided by the variance of the noise, if all updates are equal.

The error of a sum then has a standard deviation that is 2 % larger than that of the noise alone.
"""
KNOWN_TAU = 0.2
"""Used in place of `TAU` if the alignment of updates is known: the standard deviation is then up to 10 % larger."""
CONFIDENCE = 3.0
"""The upper confidence bound on the alignment lies this many standard deviations above the estimate."""
REMEMBERED = 10
"""Rounds over which the alignment is averaged."""
LEAST_BUCKETS = 1024
"""Least number of buckets that the rules `auto` and `adaptive` choose.

Fewer would hardly save more, and the norms of folded updates would vary too much.
"""
LEAST_SAVING = 0.1
"""Least fraction of the upload that folding must save."""


def choose_buckets(setting: Setting, multiplier: float, rule: str | int, alignment: "Alignment | None" = None) -> int:
    """Return the number of buckets into which updates are folded, by the configured rule; 0 if they are not folded.

    `multiplier` is the noise multiplier.  The rule `adaptive` is the same as `auto` if `alignment` is None, because no
    earlier round gave one.  If the rule is a number, it is rounded up to whole blocks, so that no padding is sent; the
    result is 0 if there are then as many buckets as coordinates, or more.
    """
    if rule == OFF:
        return 0
    if rule == ADAPTIVE and alignment is not None:
        return choose_buckets_automatically(
            setting.dim, setting.clients, multiplier, alignment.gamma(setting.clients), KNOWN_TAU
        )
    if isinstance(rule, str):
        return choose_buckets_automatically(setting.dim, setting.clients, multiplier)
    buckets = round_up_to_blocks(rule)
    return buckets if buckets < setting.dim else 0


def choose_buckets_automatically(
    dim: int, clients: int, multiplier: float, gamma: float = 1.0, tau: float = TAU
) -> int:
    """Return the number of buckets, k = d / (1 + tau d z^2 / (gamma n)^2), rounded up; 0 if updates are not folded.

    k is rounded up to at least `LEAST_BUCKETS`, and to whole blocks.  Updates are not folded if that would save less
    than the fraction `LEAST_SAVING` of the upload.  d is `dim`, n is `clients` and z the noise multiplier.  gamma is
    the alignment of the updates, ||sum|| / (n c) with the clip bound c; tau is the allowed variance of the folding
    error divided by the variance of the noise.

    >>> choose_buckets_automatically(11_200_000, 100, 1.8), choose_buckets_automatically(650, 50, 2.0)
    (77824, 0)
    """
    exact = dim / (1 + tau * dim * (multiplier / (gamma * clients)) ** 2)
    buckets = round_up_to_blocks(max(LEAST_BUCKETS, math.ceil(exact)))
    without = scaling.padded_length(dim, scaling.block_size(dim))
    return buckets if buckets <= (1 - LEAST_SAVING) * without and buckets < dim else 0


def round_up_to_blocks(buckets: int) -> int:
    """Return a number of buckets rounded up to whole blocks; the block size depends on the number itself."""
    padded = max(BUCKET_MULTIPLE, scaling.padded_length(buckets, scaling.block_size(buckets)))
    return padded if padded == buckets else round_up_to_blocks(padded)


class Alignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The alignment of updates in earlier rounds, estimated from the noisy sums: gamma = ||sum|| / (n c).

    n is the number of clients and c the clip bound; `squared` is the estimate of gamma^2.  The estimate costs no
    privacy, because noisy sums are public.
    """

    squared: float
    deviation: float
    """The standard deviation of `squared`."""
    rounds: int = 1

    @classmethod
    def from_sum(cls, total: Floats, summed: int, noise: float, reach: float) -> "Alignment":
        """Estimate the alignment from `total`, a decoded sum.

        `summed` is the number of coordinates that were summed (buckets, if updates are folded), and `noise` the
        variance of the noise on each of them.  `reach` is n c, the number of clients times the clip bound.  From the
        squared norm of the sum its expected part from noise is subtracted.  The standard deviation of the estimate
        comes from the noise and from the random signs of the folding.
        """
        energy = float(total @ total) * summed / total.size - summed * noise
        signal = max(0.0, energy)
        deviation = math.sqrt(2 * summed * noise**2 + 4 * signal * noise + signal**2 * 2 / summed)
        return cls(energy / reach**2, deviation / reach**2)

    def average_with(self, observed: "Alignment") -> "Alignment":
        """Return the running average of this alignment and that of one more round, over at most `REMEMBERED` rounds."""
        rounds = min(self.rounds + 1, REMEMBERED)
        weight = 1 / rounds
        squared = (1 - weight) * self.squared + weight * observed.squared
        return Alignment(squared, math.hypot((1 - weight) * self.deviation, weight * observed.deviation), rounds)

    def gamma(self, clients: int) -> float:
        """Return the upper confidence bound (`CONFIDENCE`) on gamma for a round with n = `clients` clients.

        It is at most 1, as for equal updates, and at least 1 / sqrt(n), as for orthogonal updates.
        """
        return math.sqrt(min(1.0, max(1 / clients, self.squared + CONFIDENCE * self.deviation)))


@dataclass(frozen=True)
class Saving:
    """The bytes that folding saves in each upload of an update, and the error that it adds to a sum."""

    dim: int
    buckets: int
    upload_bytes: int
    """Size of one masked update that is folded."""
    unfolded_bytes: int
    """Size of one masked update without folding, with the same number of bits for each coordinate."""
    error: float
    """The largest fraction by which folding may increase the error of a sum: for equal updates at the clip bound."""

    @property
    def description(self) -> str:
        """Describe the saving in one sentence."""
        return (
            f"{self.dim:,} coordinates are folded into {self.buckets:,}: an upload is "
            f"{self.unfolded_bytes / self.upload_bytes:.3g} times smaller, and the error of a sum grows by "
            f"{self.error:.2%} at most"
        )


def estimate_saving(plan: Plan) -> Saving | None:
    """Return the bytes that folding saves under a plan, and the error that it adds; None if updates are not folded."""
    setting = plan.setting
    if not setting.buckets:
        return None
    dim, n = setting.dim, setting.clients
    noise = dim * plan.sigma**2 * float(setting.kappa)
    added = (n * setting.clip) ** 2 * (dim / setting.buckets - 1)
    without = replace(setting, buckets=0).padded
    return Saving(
        dim,
        setting.buckets,
        plan.bytes_per_client,
        packed_size(without, plan.bits),
        math.sqrt(1 + added / noise) - 1,
    )
