"""Private rounds under Flower: ours beside Flower's own SecAgg+ workflow, in one simulation of Flower."""

import statistics

from benchmarks.figure import Figure

ROUNDS = 5
"""Rounds of each side that are counted, in turn."""
SETTINGS = {"n10_d1M": (10, 1_000_000, 0.85), "n32_d100k": (32, 100_000, 0.35)}
"""Clients, coordinates, and the bar of the ratio."""
QUICK = (4, 1000)

_OURS = "XNoise, malicious server, records on the disk; median of the rounds"
_THEIRS = "flwr's SecAggPlusWorkflow and secaggplus_mod as they are, complete graph, no noise; median of the rounds"

FIGURES = {
    **{f"flower_{name}_s": Figure("s", note=_OURS) for name in SETTINGS},
    **{f"flwr_{name}_s": Figure("s", note=_THEIRS) for name in SETTINGS},
    **{
        f"flower_{name}_ratio": Figure("of flwr", at_most=bar, note="ours over theirs, rounds in turn in one run")
        for name, (_, _, bar) in SETTINGS.items()
    },
}


def run(quick: bool) -> dict[str, float]:
    """Measure, where Flower is installed with what it needs to simulate."""
    try:
        from benchmarks import flower_private_rounds
    except ImportError:
        return {}
    figures = {}
    for name, (clients, dim, _) in SETTINGS.items():
        sides = (
            flower_private_rounds.seconds(*QUICK, 1) if quick else flower_private_rounds.seconds(clients, dim, ROUNDS)
        )
        ours, theirs = (statistics.median(sides[side]) for side in ("dordis", "flower"))
        figures |= {f"flower_{name}_s": ours, f"flwr_{name}_s": theirs, f"flower_{name}_ratio": ours / theirs}
    return figures
