"""Predicted seconds of measured rounds: from costs of single steps, or from rounds with other numbers of chunks.

Both predictions leave out what is not aggregation: invitation, training, and the application's use of the sum.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby

from dordis.errors import InputError
from dordis.pipeline.performance_model import Profile
from dordis.pipeline.planner import schedule_stages
from dordis.protocol import ClientId, Resource
from dordis.records.run_records import RoundRecord
from reproduce.cluster.links import Link
from reproduce.costs import CHUNK_STEPS, RELEASE, SETUP_STEPS, Costs
from reproduce.costs_simulated import simulate
from reproduce.round_times import Configuration
from reproduce.round_times import Workload as Model

OTHER = ("invite", "send model", "train", "use output")
"""Stages of a record that are not aggregation; they overlap with nothing."""
STAGES = tuple(
    (resource, tuple(name for name, _ in steps) + ((RELEASE,) if resource is Resource.SERVER else ()))
    for resource, steps in groupby(CHUNK_STEPS.items(), lambda step: step[1])
)
"""Resource and steps of every stage of a chunk."""


def aggregation_seconds(record: RoundRecord) -> float:
    """Return the seconds of a round without invitation, training and use of the sum."""
    return record.seconds - sum(record.stages.get(name, 0.0) for name in OTHER)


def count_chunks(record: RoundRecord) -> int:
    """Return the number of chunks of a round."""
    return len(record.survivors)


def stage_means(stages: Mapping[str, float], m: int) -> tuple[float, list[float]]:
    """Return the seconds of the set-up, and of every stage for one of m chunks: the mean, from a record's `stages`."""
    seconds = {name.replace(" ", "_"): value for name, value in stages.items()}
    setup = sum(seconds.get(name, 0.0) for name in SETUP_STEPS)
    return setup, [sum(seconds.get(name, 0.0) for name in names) / m for _, names in STAGES]


def predict_from_rounds(rounds: Mapping[int, Mapping[str, float]], dim: int, m: int) -> float | None:
    """Predict a round of m chunks by the performance model, fitted to rounds of all other numbers of chunks.

    `rounds` has the `stages` of a record by its number of chunks.  Return None if fewer than three other numbers of
    chunks were measured: the model has three terms.
    """
    profile = Profile()
    for chunks, measured in rounds.items():
        if chunks != m:
            setup, stages = stage_means(measured, chunks)
            profile = profile.observe(dim, setup, [[seconds] * chunks for seconds in stages])
    try:
        model = profile.fit()
    except InputError:
        return None
    resources = [resource for resource, _ in STAGES]
    return schedule_stages(resources, model.stage_seconds(dim, m), m, model.setup.seconds(m)).completion


def predict_from_costs(costs: Costs, links: Sequence[Link], dim: int, lost: int, m: int, cores: int) -> float:
    """Predict a round in virtual time, from the costs of its steps and the links of its clients.

    All clients compute on the `cores` of one machine at the same time, so that each takes n / cores times as long.
    """
    n = len(links)
    configuration = Configuration(Model("measured", dim, n, 0.0), rate=Fraction(lost, n))
    crowd = max(1.0, n / cores)
    devices = {ClientId(link.client): link.device(crowd) for link in links[: n - lost]}
    return simulate(*costs.steps(configuration.shape(costs, m)), devices).completion


def relative_error(predicted: float | None, measured: float) -> float | None:
    """Return the relative difference of a prediction from the measured value."""
    return None if predicted is None else predicted / measured - 1
