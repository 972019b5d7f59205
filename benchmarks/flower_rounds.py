"""Private rounds under Flower: ours beside Flower's own SecAgg+ workflow, and SecAgg beside assisted rounds.

The first are in one simulation of Flower, the second over a SuperLink and SuperNodes.
"""

import statistics

from benchmarks.figure import Figure

ROUNDS = 5
"""Rounds of each side that are counted, in turn."""
SETTINGS = {"n10_d1M": (10, 1_000_000, 0.85), "n32_d100k": (32, 100_000, 0.35)}
"""Clients, coordinates, and the bar of the ratio."""
QUICK = (4, 1000)

_OURS = "XNoise, malicious server, records on the disk; median of the rounds"
_THEIRS = "flwr's SecAggPlusWorkflow and secaggplus_mod as they are, complete graph, no noise; median of the rounds"
_DEPLOYED = "enrolment included, over a SuperLink and three SuperNodes on this machine, semi-honest"

FIGURES = {
    **{f"flower_{name}_s": Figure("s", note=_OURS) for name in SETTINGS},
    **{f"flwr_{name}_s": Figure("s", note=_THEIRS) for name in SETTINGS},
    **{
        f"flower_{name}_ratio": Figure("of flwr", at_most=bar, note="ours over theirs, rounds in turn in one run")
        for name, (_, _, bar) in SETTINGS.items()
    },
    "flower_deployed_secagg_s": Figure("s", note=f"a round of SecAgg, {_DEPLOYED}"),
    "flower_deployed_assisted_s": Figure("s", note=f"an assisted round, {_DEPLOYED}, which are helpers too: (3, 1)"),
    "flower_deployed_ratio": Figure("of SecAgg", at_most=0.75, note="the same; one run after the other"),
}


def run(quick: bool) -> dict[str, float]:
    """Measure, where Flower is installed with what it needs to simulate."""
    try:
        from benchmarks import flower_deployment, flower_private_rounds
    except ImportError:
        return {}
    figures = {}
    for name, (clients, dim, _) in SETTINGS.items():
        sides = (
            flower_private_rounds.seconds(*QUICK, 1) if quick else flower_private_rounds.seconds(clients, dim, ROUNDS)
        )
        ours, theirs = (statistics.median(sides[side]) for side in ("dordis", "flower"))
        figures |= {f"flower_{name}_s": ours, f"flwr_{name}_s": theirs, f"flower_{name}_ratio": ours / theirs}
    if not quick:
        deployed = flower_deployment.seconds()
        figures |= {f"flower_deployed_{protocol}_s": seconds for protocol, seconds in deployed.items()}
        figures["flower_deployed_ratio"] = deployed["assisted"] / deployed["secagg"]
    return figures
