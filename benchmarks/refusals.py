"""What it costs to refuse, and to know whom to blame: hostile parameters, and the hashes that make blame true."""

from collections.abc import Callable

from benchmarks.figure import Figure

Family = Callable[[bool], dict[str, float]]

FIGURES: dict[str, Figure] = {}

FAMILIES: tuple[Family, ...] = ()


def run(quick: bool) -> dict[str, float]:
    """Measure everything."""
    values: dict[str, float] = {}
    for family in FAMILIES:
        values |= family(quick)
    return values
