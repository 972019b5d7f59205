"""How many chunks a round should have, from a profile: the time of every number, the best one, and why."""

from itertools import groupby
from pathlib import Path

from rich.table import Table

from dordis.cli.commands.profile import read
from dordis.cli.tables import show
from dordis.errors import InputError
from dordis.pipeline import planner
from dordis.pipeline.planner import PipelinePlan, Schedule, Slot
from dordis.pipeline.profile import most
from dordis.privacy.skellam import block_size, padded_length
from dordis.simulation.profiling import Profiled


def plan(path: Path | None, dim: int | None, as_json: bool) -> None:
    """Plan the pipeline for updates of `dim` coordinates, and print it."""
    if path is None or dim is None:
        raise InputError("plan --pipeline needs --profile, a file of 'dordis profile', and --dim")
    profiled = read(path)
    schedules = every(profiled, dim)
    best = chosen(profiled, dim)
    show(
        as_json,
        fields(profiled, dim, best, schedules),
        table(profiled, dim, best, schedules),
        f"Critical path: {path_of(best.schedule)}.",
        best.explain(),
        f"The model misses what it was fitted to by {profiled.model.error:.1%} at most, stage by stage.",
    )


def numbers(dim: int) -> range:
    """Return the numbers of chunks that a vector can have: no more than it has blocks."""
    return range(1, most(padded_length(dim, block_size(dim)) // block_size(dim)) + 1)


def chosen(profiled: Profiled, dim: int) -> PipelinePlan:
    """Return the best number of chunks and what speaks for it."""
    model = profiled.model
    return planner.plan(profiled.resources, lambda m: model.stage_seconds(dim, m), model.setup.seconds, numbers(dim))


def every(profiled: Profiled, dim: int) -> dict[int, Schedule]:
    """Return the schedule for every number of chunks."""
    model, resources = profiled.model, profiled.resources
    return {
        m: planner.schedule(resources, model.stage_seconds(dim, m), m, model.setup.seconds(m)) for m in numbers(dim)
    }


def table(profiled: Profiled, dim: int, best: PipelinePlan, schedules: dict[int, Schedule]) -> Table:
    """Show every number of chunks: the seconds of a round, and how busy each resource is."""
    resources = list(dict.fromkeys(profiled.resources))
    busy = [f"{resource.value} busy" for resource in resources]
    title = f"a round of {profiled.clients} clients and {dim} coordinates"
    shape = Table("chunks", "seconds", "times as fast", "set-up", *busy, title=title)
    plain = schedules[1].completion
    for m, schedule in schedules.items():
        used = schedule.utilisation()
        shape.add_row(
            f"{m} (best)" if m == best.chunks else str(m),
            f"{schedule.completion:.4g}",
            f"{plain / schedule.completion:.2f}" if schedule.completion else "",
            f"{schedule.setup:.3g}",
            *(f"{used[resource]:.0%}" for resource in resources),
            style="bold" if m == best.chunks else None,
        )
    return shape


def path_of(schedule: Schedule) -> str:
    """Write the critical path: the stages in order, and how many chunks of each lie on it.

    >>> from dordis.protocol import Resource
    >>> path_of(planner.schedule([Resource.CLIENT, Resource.SERVER], (1.0, 2.0), m=3))
    'set-up 0 s, stage 1 (c-comp) 1 s, stage 2 (s-comp) 3 x 2 s'
    """
    parts = [f"set-up {schedule.setup:.3g} s"]
    for stage, slots in groupby(schedule.critical, lambda slot: slot.stage):
        parts.append(_part(stage, list(slots)))
    return ", ".join(parts)


def _part(stage: int, slots: list[Slot]) -> str:
    times = f"{len(slots)} x " if len(slots) > 1 else ""
    return f"stage {stage + 1} ({slots[0].resource.value}) {times}{slots[0].end - slots[0].start:.3g} s"


def fields(profiled: Profiled, dim: int, best: PipelinePlan, schedules: dict[int, Schedule]) -> dict[str, object]:
    """Return what is printed as JSON."""
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
