"""How updates are folded: signs and lengths that a server may choose so that one update counts for more."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from msgspec.structs import replace

from dordis.adversary import names
from dordis.adversary.attack import Attack, attack
from dordis.adversary.forms import enter
from dordis.adversary.invitations import begin_with
from dordis.adversary.participants import BITS, COMPLETE, forged, ring_input, words
from dordis.adversary.session import Session, foiled_unless
from dordis.kernels.rounding import squared_norm
from dordis.privacy import skellam
from dordis.privacy.encoding import PROJECTION, SEED_BYTES, Grid, centred, signs
from dordis.privacy.mechanisms.central_gaussian import CentralGaussian
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.protocols.distributed_dp import encoding_of
from dordis.protocols.parameters import Projection

LENGTH, BUCKETS, NORM = 256, 32, 1024.0
BOUND, WIDER = (skellam.sensitivity(1.0, NORM, k, folded=True).squared for k in (BUCKETS, 2 * BUCKETS))
FOLDED = DSkellam(Grid(LENGTH, 1, 1.0, BITS, BUCKETS), NORM, BOUND)
"""Eight coordinates in every bucket; blocks of one coordinate, so that nothing is mixed."""
AGREED = encoding_of(FOLDED, bytes(SEED_BYTES))
FOLDING = {"encoding": AGREED, "ends": [BUCKETS], "variances": [64]}
TWICE = Projection(LENGTH, 2 * BUCKETS)
ELSEWHERE = encoding_of(CentralGaussian(FOLDED.grid, NORM, BOUND, sigma=NORM), bytes(SEED_BYTES))
"""Noise of the server, for every coordinate that a bucket is copied to."""


def seeds() -> Iterator[bytes]:
    """Return the seeds that a server may try: as many as it likes."""
    return (number.to_bytes(SEED_BYTES, "big") for number in range(1 << 32))


def aligns(seed: bytes) -> bool:
    """Tell whether all coordinates of the first bucket have the same sign."""
    negative = np.unpackbits(signs(seed, 0, LENGTH, PROJECTION), bitorder="little")[::BUCKETS]
    return len(set(negative.tolist())) == 1


on_folded = partial(Attack, graphs=(COMPLETE,), agreed=FOLDING)


@attack(
    "signs that are chosen for one update",
    overlapping=(names.CLIP, names.BOUNDED),
    graphs=(COMPLETE,),
    agreed=FOLDING,
)
def align_signs(session: Session) -> str:
    """Try seeds until the victim's coordinates, which the server has guessed, add up instead of cancelling out."""
    update = np.zeros(LENGTH)
    update[::BUCKETS] = NORM / (LENGTH // BUCKETS) ** 0.5
    chosen = next(seed for seed in seeds() if aligns(seed))
    parameters = forged(session.parameters, encoding=replace(AGREED, rotation=chosen))
    session.apps[session.victim].update = update
    session.advertise([session.victim], {session.victim: parameters})
    counted = squared_norm(centred(ring_input(parameters, update), BITS))
    foiled_unless(counted > FOLDED.sensitivity, "encode", "the folded update is clipped again, and bounded as integers")
    return f"the victim counts for {counted}, and privacy was paid for {FOLDED.sensitivity}"


ATTACKS = (
    align_signs,
    on_folded(
        "a projection by another rule",
        "Updates are to be folded by a rule that nobody has looked at.",
        enter,
        overlapping=(names.PROJECTION, names.AGREED_MECHANISM),
        forged={"encoding": replace(AGREED, projection=Projection(LENGTH, BUCKETS, rule="the server's own"))},
    ),
    on_folded(
        "a sum delivered in other bits",
        "The sum is to be delivered in one bit a coordinate, which nobody has looked at.",
        enter,
        overlapping=(names.PROJECTION, names.AGREED_MECHANISM),
        forged={"encoding": replace(AGREED, projection=Projection(LENGTH, BUCKETS, delivered=1))},
    ),
    on_folded(
        "more buckets than are summed",
        "The sum is shorter than the folded update: the rest would be lost, or land in other clients' coordinates.",
        enter,
        overlapping=(names.PROJECTION, names.CHUNKS, names.LENGTH),
        forged={"encoding": replace(AGREED, projection=TWICE, sensitivity=WIDER)},
    ),
    on_folded(
        "more buckets than the bound is made for",
        "Twice as many buckets are summed: rounding adds more to an update than privacy is paid for.",
        enter,
        checks=(names.BOUND,),
        forged={"encoding": replace(AGREED, projection=TWICE), "ends": words(2 * BUCKETS)},
    ),
    Attack(
        "folding under noise that is not on the buckets",
        "The server's noise is drawn for every coordinate: over the copies of a bucket it would average out.",
        enter,
        checks=(names.FOLDS,),
        graphs=(COMPLETE,),
        agreed=FOLDING | {"encoding": ELSEWHERE, "variances": None},
    ),
    on_folded(
        "a projection of longer updates",
        "The round folds updates of another length than the one that the victim was invited to give.",
        partial(begin_with, encoding=replace(AGREED, projection=Projection(2 * LENGTH, BUCKETS))),
        checks=(names.AGREED_MECHANISM,),
    ),
)
