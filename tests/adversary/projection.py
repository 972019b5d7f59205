"""The server chooses the signs and buckets of folding (docs/projection.md) so that one client counts for more.

The server gains nothing: the folded update is clipped again, and the bound is enforced on the integers."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from msgspec.structs import replace

from dordis.kernels.reals import sum_integer_squares
from dordis.privacy import scaling
from dordis.privacy.encoding import PROJECTION, SEED_BYTES, Grid, centre, draw_signs
from dordis.privacy.mechanisms.central_and_local_noise import CentralGaussian
from dordis.privacy.mechanisms.skellam_and_ddgauss import DSkellam
from dordis.protocols.encoded_sums import encoding_of
from dordis.protocols.parameters import Projection
from tests.adversary import names
from tests.adversary.attack import Attack, attack
from tests.adversary.forms import enter
from tests.adversary.invitations import begin_with
from tests.adversary.participants import BITS, COMPLETE, forged, ring_input, words
from tests.adversary.session import Session, foiled_unless

LENGTH, BUCKETS, NORM = 256, 32, 1024.0
BOUND, WIDER = (scaling.sensitivity(1.0, NORM, k, folded=True).squared for k in (BUCKETS, 2 * BUCKETS))
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
    negative = np.unpackbits(draw_signs(seed, 0, LENGTH, PROJECTION), bitorder="little")[::BUCKETS]
    return len(set(negative.tolist())) == 1


on_folded = partial(Attack, graphs=(COMPLETE,), agreed=FOLDING)


@attack(
    "signs chosen for one update",
    refused_by="encode",
    stage="AdvertiseKeys",
    overlapping=(names.CLIP, names.BOUNDED),
    graphs=(COMPLETE,),
    agreed=FOLDING,
)
def align_signs(session: Session) -> str:
    """Try seeds until the victim's coordinates, which the server guessed, add up instead of cancelling out."""
    update = np.zeros(LENGTH)
    update[::BUCKETS] = NORM / (LENGTH // BUCKETS) ** 0.5
    chosen = next(seed for seed in seeds() if aligns(seed))
    parameters = forged(session.parameters, encoding=replace(AGREED, rotation=chosen))
    session.apps[session.victim].update = update
    session.advertise([session.victim], {session.victim: parameters})
    counted = sum_integer_squares(centre(ring_input(parameters, update), BITS))
    foiled_unless(counted > FOLDED.sensitivity, "encode", "the folded update is clipped again, and bounded as integers")
    return f"the victim counts for {counted}, and privacy was paid for {FOLDED.sensitivity}"


ATTACKS = (
    align_signs,
    on_folded(
        "a projection by an unknown rule",
        "Updates would be folded by a rule whose sensitivity is not known.",
        enter,
        refused_by="check_projection (ParametersRefused)",
        stage="AdvertiseKeys",
        overlapping=(names.PROJECTION, names.AGREED_MECHANISM),
        forged={"encoding": replace(AGREED, projection=Projection(LENGTH, BUCKETS, rule="the server's own"))},
    ),
    on_folded(
        "a sum delivered in another number of bits",
        "The sum would be delivered in one bit a coordinate, to which clients did not agree.",
        enter,
        refused_by="check_projection (ParametersRefused)",
        stage="AdvertiseKeys",
        overlapping=(names.PROJECTION, names.AGREED_MECHANISM),
        forged={"encoding": replace(AGREED, projection=Projection(LENGTH, BUCKETS, delivered=1))},
    ),
    on_folded(
        "more buckets than are summed",
        "The sum is shorter than the folded update: the rest would be lost or land in other coordinates.",
        enter,
        refused_by="check_projection (ParametersRefused)",
        stage="AdvertiseKeys",
        overlapping=(names.PROJECTION, names.CHUNKS, names.LENGTH),
        forged={"encoding": replace(AGREED, projection=TWICE, sensitivity=WIDER)},
    ),
    on_folded(
        "more buckets than the bound allows for",
        "Twice as many buckets are summed: rounding adds more to the norm than the bound allows for.",
        enter,
        refused_by="check_bound (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.BOUND,),
        forged={"encoding": replace(AGREED, projection=TWICE), "ends": words(2 * BUCKETS)},
    ),
    Attack(
        "folding with noise on coordinates instead of buckets",
        "Noise is drawn for every coordinate: over the coordinates of a bucket it would average out.",
        enter,
        refused_by="check_folding (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.FOLDS,),
        graphs=(COMPLETE,),
        agreed=FOLDING | {"encoding": ELSEWHERE, "variances": None},
    ),
    on_folded(
        "a projection of longer updates",
        "The parameters fold updates of another length than the invitation stated.",
        partial(begin_with, encoding=replace(AGREED, projection=Projection(2 * LENGTH, BUCKETS))),
        refused_by="check_agreed (ParametersRefused)",
        stage="AdvertiseKeys",
        checks=(names.AGREED_MECHANISM,),
    ),
)
