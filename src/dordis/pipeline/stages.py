"""The stages of a chunk, each with its resource, and the predecessors of a stage (paper, table 1, appendix C)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from dordis.protocol import Resource, Step


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
