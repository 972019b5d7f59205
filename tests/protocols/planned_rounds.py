"""Parameters of a round under Skellam noise, from a plan."""

from dordis.privacy.encoding import chunk_ends
from dordis.privacy.mechanisms.distributed_skellam import DSkellam
from dordis.protocols import cohort
from dordis.protocols.distributed_dp import encoding_of

ROTATION = bytes(range(32))


def agree_on(plan, *, chunks=1, further=(), rotation=ROTATION, **options):
    """Write down a round that keeps to a plan, with the options of `cohort.agree_on`."""
    setting = plan.setting
    ends = chunk_ends(setting.summed_dim, setting.block, chunks)
    variances = [plan.variance] * chunks
    for planned in further:
        ends, variances = [*ends, ends[-1] + planned.release.length], [*variances, planned.variance]
    settings = {
        "run": bytes(32),
        "index": 3,
        "clients": range(1, setting.clients + 1),
        "threshold": setting.t,
        "quorum": setting.t,
        "tolerance": setting.T,
        "colluders": setting.colluders,
        "bits": plan.bits,
        "ends": ends,
        "scheme": setting.scheme,
        "variances": variances,
        "fraction": plan.noise.fraction,
        "reserve": plan.noise.reserve,
        "encoding": encoding_of(DSkellam.from_plan(plan), rotation, [planned.release for planned in further]),
    }
    return cohort.agree_on(**settings | options)
