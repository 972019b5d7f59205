"""Records of rounds that follow the performance model exactly."""

from dordis.pipeline.planner import schedule_stages
from dordis.records.run_records import RoundRecord
from reproduce.cluster.prediction import STAGES
from reproduce.costs import SETUP_STEPS

DIM = 1_000_000
LAWS = ((1e-6, 0.01, 0.1), (4e-6, 0.02, 0.2), (1e-6, 0.0, 0.3), (4e-6, 0.01, 0.1), (5e-7, 0.0, 0.1))
"""Seconds of every stage: per coordinate of a chunk, per chunk of the round, and constant."""
OTHER = {"invite": 1.0, "send model": 0.5, "train": 3.0}
USE = 0.25


def stage_law(s: int, m: int) -> float:
    """Return the seconds of a stage for one of m chunks."""
    partition, intervention, constant = LAWS[s]
    return partition * DIM / m + intervention * m + constant


def make_record(m: int, clients: int = 4, lost: int = 0) -> RoundRecord:
    """Return the record of a round of m chunks."""
    stages = dict(OTHER) | {name.replace("_", " "): 0.2 for name in SETUP_STEPS}
    for s, (_, steps) in enumerate(STAGES):
        stages |= {name.replace("_", " "): m * stage_law(s, m) / len(steps) for name in steps}
    seconds = [stage_law(s, m) for s in range(len(STAGES))]
    whole = schedule_stages([resource for resource, _ in STAGES], seconds, m, 0.6).completion
    return RoundRecord(
        number=1,
        index=0,
        started="",
        seconds=whole + sum(OTHER.values()) + USE,
        stages=stages | {"use output": USE},
        clients=tuple(range(1, clients + 1)),
        survivors=(clients - lost,) * m,
        dropped={},
        up=0,
        down=0,
        wanted=None,
        left=None,
        charged=None,
        epsilon=None,
        dim=DIM,
    )
