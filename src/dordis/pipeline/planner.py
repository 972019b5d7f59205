"""The planner: it schedules a round for each number of chunks, and chooses the fastest (paper, appendix C).

A chunk goes through stages, and each stage keeps one resource busy (paper, table 1).  `predecessors` says which stages
of which chunks must end before a stage of a chunk begins.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import msgspec

from dordis.errors import InputError
from dordis.protocol import Resource, Step

MOST_CHUNKS = 20
"""Largest number of chunks that the planner considers, as in the paper."""
ROUNDING = 1e-9
"""Completion times whose relative difference is at most this value count as equal."""

StageSeconds = Callable[[int], Sequence[float]]
"""Returns, for m chunks, the seconds of every stage for one chunk."""
SetupSeconds = Callable[[int], float]
"""Returns, for m chunks, the seconds of the set-up, which runs before the first stage."""


@dataclass(frozen=True)
class Stage:
    """Consecutive steps that keep the same resource busy; they are scheduled together."""

    resource: Resource
    steps: tuple[Step, ...]


def group_stages(workflow: Iterable[Step]) -> tuple[Stage, ...]:
    """Return the stages of a workflow: consecutive steps with the same resource.

    >>> upload, unmask, remove = (Step(print, Resource(name)) for name in ("comm", "s-comp", "s-comp"))
    >>> [(stage.resource.value, len(stage.steps)) for stage in group_stages([upload, unmask, remove])]
    [('comm', 1), ('s-comp', 2)]
    """
    return tuple(Stage(resource, tuple(steps)) for resource, steps in groupby(workflow, lambda step: step.resource))


def predecessors(resources: Sequence[Resource], m: int, s: int, c: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs (stage, chunk) that must end before stage s of chunk c, of m chunks, begins; indices are from 0.

    A chunk goes through its stages in order.  A resource serves one chunk at a time, and it serves all chunks at one
    stage before any chunk at a later stage.

    >>> five = [Resource(name) for name in ("c-comp", "comm", "s-comp", "comm", "c-comp")]
    >>> predecessors(five, m=3, s=3, c=0)
    ((2, 0), (1, 2))
    """
    before = [(s - 1, c)] if s > 0 else []
    if c > 0:
        before.append((s, c - 1))
    else:
        q = max((i for i in range(s) if resources[i] is resources[s]), default=None)
        if q is not None:
            before.append((q, m - 1))
    return tuple(before)


def step_name(step: Step) -> str:
    """Return the name of the function that a step runs."""
    run = step.run
    while isinstance(run, partial):
        run = run.func
    return str(getattr(run, "__name__", type(run).__name__))


class Slot(msgspec.Struct, frozen=True):
    """Planned start and end of a stage of one chunk, in seconds since the round began."""

    stage: int
    chunk: int
    resource: Resource
    start: float
    end: float


class Schedule(msgspec.Struct, frozen=True):
    """Planned start and end of every stage of every chunk, ordered by stage, then chunk; the set-up ends at `setup`."""

    chunks: int
    setup: float
    slots: tuple[Slot, ...]
    critical: tuple[Slot, ...]
    """The critical path: a chain of slots without a gap from the end of the set-up to the end of the round."""

    @property
    def completion(self) -> float:
        """Return the end of the last stage of the last chunk, in seconds since the round began."""
        return self.slots[-1].end

    def busy_seconds(self) -> dict[Resource, float]:
        """Return for how many seconds each resource is busy after the set-up."""
        return _seconds_by_resource(self.slots)

    def utilisation(self) -> dict[Resource, float]:
        """Return, by resource, the fraction of the time after the set-up in which it is busy."""
        length = self.completion - self.setup
        return {resource: seconds / length if length else 0.0 for resource, seconds in self.busy_seconds().items()}


class PipelinePlan(msgspec.Struct, frozen=True):
    """The chosen number of chunks, with its schedule and the completion times of the alternatives."""

    chunks: int
    completions: dict[int, float]
    """Scheduled seconds of the whole round, by number of chunks."""
    schedule: Schedule
    utilisation: dict[Resource, float]
    critical: dict[Resource, float]
    """Seconds that each resource contributes to the critical path."""
    bottleneck: Resource
    """The resource that is busy longest; no schedule with this number of chunks is shorter than its busy time."""

    @property
    def speedup(self) -> float:
        """Return the round's time with the fewest chunks considered, divided by its time with the chosen number."""
        base = self.completions[min(self.completions)]
        return base / self.schedule.completion if self.schedule.completion else 1.0

    def explain(self) -> str:
        """Explain in a few sentences why this number of chunks is best."""
        best = self.schedule.completion
        fewest = min(self.completions)
        shares = ", ".join(f"{resource.value} {share:.0%}" for resource, share in self.utilisation.items())
        path = ", ".join(f"{seconds:.3g} s of {resource.value}" for resource, seconds in self.critical.items())
        lines = [
            f"{_format_chunks(self.chunks)}: {best:.4g} s, {self.speedup:.2f} times as fast as "
            f"{_format_chunks(fewest)} ({self.completions[fewest]:.4g} s).",
            f"The critical path is {self.schedule.setup:.3g} s of set-up, then {path}.",
            f"Busy after the set-up: {shares}; the bottleneck is {self.bottleneck.value}.",
        ]
        for other, reason in ((self.chunks - 1, "less overlaps"), (self.chunks + 1, "more is spent on each chunk")):
            if other in self.completions:
                lines.append(
                    f"{_format_chunks(other)} would take {self.completions[other] - best:.3g} s more: {reason}."
                )
        return "\n".join(lines)


def plan_chunks(
    resources: Sequence[Resource],
    seconds: StageSeconds,
    setup: SetupSeconds = lambda m: 0.0,
    numbers: Sequence[int] = range(1, MOST_CHUNKS + 1),
) -> PipelinePlan:
    """Return the plan with the number of chunks, out of `numbers`, for which the round is shortest.

    Of numbers with equally short rounds, the smallest is chosen.

    >>> plan_chunks([Resource.CLIENT, Resource.SERVER], lambda m: (6 / m + 1, 6 / m + 1)).chunks
    2
    """
    if not numbers or min(numbers) < 1:
        raise InputError("name at least one number of chunks, each at least 1")
    schedules = {m: schedule_stages(resources, seconds(m), m, setup(m)) for m in sorted(numbers)}
    completions = {m: chosen.completion for m, chosen in schedules.items()}
    limit = min(completions.values()) * (1 + ROUNDING)
    chunks = min(m for m, completion in completions.items() if completion <= limit)
    best = schedules[chunks]
    busy = best.busy_seconds()
    return PipelinePlan(
        chunks=chunks,
        completions=completions,
        schedule=best,
        utilisation=best.utilisation(),
        critical=_seconds_by_resource(best.critical),
        bottleneck=max(busy, key=lambda resource: busy[resource]),
    )


def schedule_stages(resources: Sequence[Resource], seconds: Sequence[float], m: int, setup: float = 0.0) -> Schedule:
    """Return the schedule in which every stage of m chunks starts as soon as its predecessors have ended.

    `predecessors` says which stages of which chunks these are.  `resources` has the resource of each stage, `seconds`
    its duration for one chunk.  The first stage of the first chunk starts after `setup` seconds.

    >>> schedule_stages([Resource.CLIENT, Resource.SERVER], seconds=(2.0, 3.0), m=2).completion
    8.0
    """
    if len(seconds) != len(resources) or not resources:
        raise InputError(f"{len(resources)} stages need as many times, got {len(seconds)}")
    slots: dict[tuple[int, int], Slot] = {}
    for s, resource in enumerate(resources):
        for c in range(m):
            start = max((slots[before].end for before in predecessors(resources, m, s, c)), default=setup)
            slots[s, c] = Slot(s, c, resource, start, start + seconds[s])
    return Schedule(m, setup, tuple(slots.values()), _find_critical_path(resources, m, slots))


def _find_critical_path(resources: Sequence[Resource], m: int, slots: dict[tuple[int, int], Slot]) -> tuple[Slot, ...]:
    """Return the critical path: it leads from the last slot back, each time to the predecessor that ends last."""
    path = [slots[len(resources) - 1, m - 1]]
    while before := predecessors(resources, m, path[-1].stage, path[-1].chunk):
        path.append(max((slots[pair] for pair in before), key=lambda slot: slot.end))
    return tuple(reversed(path))


def _seconds_by_resource(slots: Sequence[Slot]) -> dict[Resource, float]:
    seconds = dict.fromkeys((slot.resource for slot in slots), 0.0)
    for slot in slots:
        seconds[slot.resource] += slot.end - slot.start
    return seconds


def _format_chunks(m: int) -> str:
    return "1 chunk" if m == 1 else f"{m} chunks"
