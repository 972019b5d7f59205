"""Checks of a round: events left, the length of updates, clients that can afford it, and metrics."""

import math
from collections.abc import Collection, Mapping

from dordis.errors import BudgetUsedUp, EventsUsedUp, InputError
from dordis.records.run_records import is_reserved_metric
from dordis.runs.plan import RoundPlan


def check_events(index: int, design: RoundPlan) -> None:
    """Raise EventsUsedUp if a run with sampled records has used all events that it was planned for."""
    if design.sampled is not None and index >= design.sampled.events:
        raise EventsUsedUp(design.sampled.events)


def check_planned(dim: int, dims: Collection[int]) -> None:
    """Raise InputError for an update length that the application did not declare in its `dims`."""
    if dim not in dims:
        raise InputError(
            f"the application's next update has {dim} coordinates, and its `dims` are {', '.join(map(str, dims))}: "
            "name every length there"
        )


def check_able(available: int, able: int, least: int) -> None:
    """Raise BudgetUsedUp, which ends the run, if `least` clients are available but fewer can afford a round."""
    if able < least <= available:
        raise BudgetUsedUp(able, least)


def check_finite(values: object, number: int) -> dict[str, float]:
    """Return the metrics of an application after round `number`; raise InputError for a reserved name or bad value."""
    if not isinstance(values, Mapping):
        raise InputError(f"evaluate() returns a dictionary of names and numbers, not {type(values).__name__}")
    measured = {str(name): _as_number(name, value) for name, value in values.items()}
    for name, value in measured.items():
        if is_reserved_metric(name):
            reserved = "names with 'epsilon' are reserved for the ledger: choose another name"
            raise InputError(f"evaluate() returns a metric called '{name}', but {reserved}")
        if not math.isfinite(value):
            raise InputError(f"'{name}' is not finite after round {number}: training diverged, lower its learning rate")
    return measured


def _as_number(name: object, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise InputError(f"evaluate() returns a number for every name, and for '{name}' it is {kind}") from None
