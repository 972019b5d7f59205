"""Projection: where noise dominates, most of an update cannot survive it, and fewer coordinates are summed.

The clipped update of d coordinates is folded into k buckets by public random signs: coordinate i, with its sign, is
added to bucket i mod k.  The folded vector is clipped to c again, then rotated, rounded, masked and summed.  Decoding
copies every bucket back to its coordinates, with their signs.  Over the signs that is right on average for every
coordinate; what the others of a bucket add is an error of ||sum||^2 (d/k - 1) in all.  The energy of the noise is that
of d coordinates, as before: buckets are copied with their noise.

What one client can change is bounded on the integers after folding, so that privacy holds for any signs and any k that
a server may choose.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from dordis.kernels.folding import WORD
from dordis.kernels.packing import packed_size
from dordis.privacy import scaling
from dordis.privacy.planning import Plan
from dordis.privacy.scaling import Floats
from dordis.privacy.setting import Setting

AUTO, ADAPTIVE, OFF = "auto", "adaptive", "off"
TAU = 0.04
"""Largest variance of the folding error, relative to the noise, if all updates agree: 2 % of sigma."""
KNOWN_TAU = 0.2
"""The same if the alignment of updates was estimated: 10 % of sigma."""
CONFIDENCE = 3.0
"""Standard deviations of the upper confidence bound on the alignment."""
REMEMBERED = 10
"""Rounds over which the alignment is averaged."""
LEAST_BUCKETS = 1024
"""Fewer are never chosen: they would save next to nothing, and the norm of a folded update would vary too much."""
LEAST_SAVING = 0.1
"""Least fraction of the upload that folding must save."""


def choose_buckets(setting: Setting, multiplier: float, rule: str | int, alignment: "Alignment | None" = None) -> int:
    """Return the number of buckets that a rule gives at this noise multiplier; 0: updates are not folded.

    `adaptive` is `auto` until there is an `alignment` from rounds before.

    A number is rounded up to whole blocks: padding would be sent for nothing.  Updates that are no longer stay.
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
    """Return k = d / (1 + tau d z^2 / (gamma n)^2) in whole blocks, or 0 where that saves next to nothing.

    gamma is ||sum|| / (n c): how far the updates agree.  z is the noise multiplier.

    >>> choose_buckets_automatically(11_200_000, 100, 1.8), choose_buckets_automatically(650, 50, 2.0)
    (77824, 0)
    """
    exact = dim / (1 + tau * dim * (multiplier / (gamma * clients)) ** 2)
    buckets = round_up_to_blocks(max(LEAST_BUCKETS, math.ceil(exact)))
    without = scaling.padded_length(dim, scaling.block_size(dim))
    return buckets if buckets <= (1 - LEAST_SAVING) * without and buckets < dim else 0


def round_up_to_blocks(buckets: int) -> int:
    """Return a number of buckets rounded up to whole blocks; with more of them the blocks may be larger."""
    padded = max(WORD, scaling.padded_length(buckets, scaling.block_size(buckets)))
    return padded if padded == buckets else round_up_to_blocks(padded)


class Alignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far updates agreed in the rounds so far: gamma^2 = (||sum|| / (n c))^2, estimated from the noisy sums alone.

    Noisy sums are public, so that what is made of them costs no privacy.
    """

    squared: float
    deviation: float
    """The standard deviation of the estimate."""
    rounds: int = 1

    @classmethod
    def from_sum(cls, total: Floats, kept: int, noise: float, reach: float) -> "Alignment":
        """Estimate the alignment from a decoded sum of `kept` coordinates, each with noise of variance `noise`.

        `reach` is n c.  The expected energy of the noise is subtracted; the estimate's deviation has two causes, the
        noise and the random signs.
        """
        energy = float(total @ total) * kept / total.size - kept * noise
        signal = max(0.0, energy)
        deviation = math.sqrt(2 * kept * noise**2 + 4 * signal * noise + signal**2 * 2 / kept)
        return cls(energy / reach**2, deviation / reach**2)

    def average_with(self, observed: "Alignment") -> "Alignment":
        """Return the average with one more round."""
        rounds = min(self.rounds + 1, REMEMBERED)
        weight = 1 / rounds
        squared = (1 - weight) * self.squared + weight * observed.squared
        return Alignment(squared, math.hypot((1 - weight) * self.deviation, weight * observed.deviation), rounds)

    def gamma(self, clients: int) -> float:
        """Return the upper confidence bound: at most 1, and at least that of updates that have nothing in common."""
        return math.sqrt(min(1.0, max(1 / clients, self.squared + CONFIDENCE * self.deviation)))


@dataclass(frozen=True)
class Saving:
    """What folding saves in one round, and what it costs."""

    dim: int
    buckets: int
    upload_bytes: int
    """Of one masked update."""
    unfolded_bytes: int
    """The same without folding, with as many bits."""
    error: float
    """Largest folding error of a coordinate as a fraction of sigma: that of equal updates of norm c."""

    @property
    def description(self) -> str:
        """Describe the saving in one sentence."""
        return (
            f"{self.dim:,} coordinates are folded into {self.buckets:,}: an upload is "
            f"{self.unfolded_bytes / self.upload_bytes:.3g} times smaller, and the error of a sum grows by "
            f"{self.error:.2%} at most"
        )


def estimate_saving(plan: Plan) -> Saving | None:
    """Return the savings of a plan by folding, or None if it does not fold."""
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
