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

from dordis.kernels.folding import WORD
from dordis.kernels.packing import packed_size
from dordis.privacy import skellam
from dordis.privacy.planning import Plan, Setting

AUTO, OFF = "auto", "off"
TAU = 0.04
"""What the error may be of the noise, as variances, if all updates agree: 2 % of sigma."""
LEAST_BUCKETS = 1024
"""Fewer are never chosen: they would save next to nothing, and the norm of a folded update would vary too much."""
LEAST_SAVING = 0.1
"""Part of the upload that must be saved, or nothing is folded."""


def chosen(setting: Setting, multiplier: float, rule: str | int) -> int:
    """Return the number of buckets that a rule gives at this noise multiplier; 0: updates are not folded.

    A number is rounded up to whole blocks: padding would be sent for nothing.  Updates that are no longer stay.
    """
    if rule == OFF:
        return 0
    if isinstance(rule, str):
        return automatic(setting.dim, setting.clients, multiplier)
    buckets = whole(rule)
    return buckets if buckets < setting.dim else 0


def automatic(dim: int, clients: int, multiplier: float, gamma: float = 1.0, tau: float = TAU) -> int:
    """Return k = d / (1 + tau d z^2 / (gamma n)^2) in whole blocks, or 0 where that saves next to nothing.

    gamma is ||sum|| / (n c): how far the updates agree.  z is the noise multiplier.

    >>> automatic(11_200_000, 100, 1.8), automatic(650, 50, 2.0)
    (77824, 0)
    """
    exact = dim / (1 + tau * dim * (multiplier / (gamma * clients)) ** 2)
    buckets = whole(max(LEAST_BUCKETS, math.ceil(exact)))
    without = skellam.padded_length(dim, skellam.block_size(dim))
    return buckets if buckets <= (1 - LEAST_SAVING) * without and buckets < dim else 0


def whole(buckets: int) -> int:
    """Return a number of buckets rounded up to whole blocks; with more of them the blocks may be larger."""
    padded = max(WORD, skellam.padded_length(buckets, skellam.block_size(buckets)))
    return padded if padded == buckets else whole(padded)


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
    """What is added to the noise on a coordinate at most, as part of sigma: if all updates have norm c and agree."""

    @property
    def words(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.dim:,} coordinates are folded into {self.buckets:,}: an upload is "
            f"{self.unfolded_bytes / self.upload_bytes:.3g} times smaller, and the error of a sum grows by "
            f"{self.error:.2%} at most"
        )


def saving(plan: Plan) -> Saving | None:
    """Return what a plan saves by folding, or None if it does not fold."""
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
