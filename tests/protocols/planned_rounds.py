"""Parameters of a round under Skellam noise, from a plan."""

from dordis.privacy.encoding import chunk_ends
from dordis.privacy.mechanisms.skellam import DSkellam
from dordis.protocols import parameters as rules
from dordis.protocols.distributed_dp import encoding_of

ROTATION = bytes(range(32))


def agree_on(plan, *, chunks=1, bit=None, rotation=ROTATION, **options):
    """Write down a round that keeps to a plan, with the options of `parameters.agree_on`."""
    setting = plan.setting
    ends = chunk_ends(setting.kept, setting.block, chunks)
    variances = [plan.variance] * chunks
    if bit is not None:
        ends, variances = [*ends, ends[-1] + 1], [*variances, bit.variance]
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
        "encoding": encoding_of(DSkellam.of(plan), rotation, bit.scale if bit else 0),
    }
    return rules.agree_on(**settings | options)
