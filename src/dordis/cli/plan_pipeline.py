"""`dordis plan pipeline`: the round time for every number of chunks, the fastest number, and why it is fastest."""

from itertools import groupby
from pathlib import Path

from rich.table import Table

from dordis.cli.commands.profile import read_profile
from dordis.cli.output import print_result
from dordis.pipeline import planner
from dordis.pipeline.performance import most_chunks
from dordis.pipeline.planner import PipelinePlan, Schedule, Slot
from dordis.privacy.scaling import block_size, padded_length
from dordis.simulation.profiling import MeasuredProfile


def show_pipeline(path: Path, dim: int, as_json: bool) -> None:
    """Print the round time by number of chunks, for updates of `dim` coordinates, from the profile in `path`."""
    profiled = read_profile(path)
    model, resources = profiled.model, profiled.resources
    chunks = chunk_counts(dim)
    schedules = {
        m: planner.schedule_stages(resources, model.stage_seconds(dim, m), m, model.setup.seconds(m)) for m in chunks
    }
    best = planner.plan_chunks(resources, lambda m: model.stage_seconds(dim, m), model.setup.seconds, chunks)
    print_result(
        as_json,
        _pipeline_fields(profiled, dim, best, schedules),
        _schedule_table(profiled, dim, best, schedules),
        f"Critical path: {describe_critical_path(best.schedule)}.",
        best.explain(),
        f"The fitted model is off by at most {model.error:.1%} in any stage.",
    )


def chunk_counts(dim: int) -> range:
    """Return the numbers of chunks to compare: up to the number of blocks of an update (`dordis.privacy.scaling`)."""
    return range(1, most_chunks(padded_length(dim, block_size(dim)) // block_size(dim)) + 1)


def _schedule_table(profiled: MeasuredProfile, dim: int, best: PipelinePlan, schedules: dict[int, Schedule]) -> Table:
    """Return a table by number of chunks: seconds of a round, and the share of them that each resource is busy."""
    resources = list(dict.fromkeys(profiled.resources))
    busy = [f"{resource.value} busy" for resource in resources]
    title = f"a round of {profiled.clients} clients and {dim} coordinates"
    table = Table("chunks", "seconds", "times as fast", "set-up", *busy, title=title)
    plain = schedules[1].completion
    for m, schedule in schedules.items():
        used = schedule.utilisation()
        table.add_row(
            f"{m} (best)" if m == best.chunks else str(m),
            f"{schedule.completion:.4g}",
            f"{plain / schedule.completion:.2f}" if schedule.completion else "",
            f"{schedule.setup:.3g}",
            *(f"{used[resource]:.0%}" for resource in resources),
            style="bold" if m == best.chunks else None,
        )
    return table


def describe_critical_path(schedule: Schedule) -> str:
    """Return the stages of the critical path in order, each with its number of chunks on the path.

    >>> from dordis.protocol import Resource
    >>> describe_critical_path(planner.schedule_stages([Resource.CLIENT, Resource.SERVER], (1.0, 2.0), m=3))
    'set-up 0 s, stage 1 (c-comp) 1 s, stage 2 (s-comp) 3 x 2 s'
    """
    parts = [f"set-up {schedule.setup:.3g} s"]
    for stage, slots in groupby(schedule.critical, lambda slot: slot.stage):
        parts.append(_describe_slots(stage, list(slots)))
    return ", ".join(parts)


def _describe_slots(stage: int, slots: list[Slot]) -> str:
    times = f"{len(slots)} x " if len(slots) > 1 else ""
    return f"stage {stage + 1} ({slots[0].resource.value}) {times}{slots[0].end - slots[0].start:.3g} s"


def _pipeline_fields(
    profiled: MeasuredProfile, dim: int, best: PipelinePlan, schedules: dict[int, Schedule]
) -> dict[str, object]:
    return {
        "dim": dim,
        "clients": profiled.clients,
        "chunks": best.chunks,
        "seconds": best.schedule.completion,
        "speedup": best.speedup,
        "completions": {str(m): seconds for m, seconds in best.completions.items()},
        "setup": best.schedule.setup,
        "stage_seconds": profiled.model.stage_seconds(dim, best.chunks),
        "resources": [resource.value for resource in profiled.resources],
        "critical": [
            {"stage": slot.stage, "chunk": slot.chunk, "start": slot.start, "end": slot.end}
            for slot in best.schedule.critical
        ],
        "utilisation": {resource.value: share for resource, share in best.utilisation.items()},
        "utilisation_plain": {resource.value: share for resource, share in schedules[1].utilisation().items()},
        "bottleneck": best.bottleneck.value,
        "fit_error": profiled.model.error,
        "explanation": best.explain(),
    }
