"""A measured figure: its unit, its bar, and a note on how it was obtained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """Describe one measured number; a bar is a limit from below, from above or both, or there is none."""

    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def bar(self) -> str:
        """Return the bar as people write it."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def has_bar(self) -> bool:
        """Say whether the figure is held to anything."""
        return bool(self.bar)

    def met_by(self, value: float) -> bool:
        """Say whether a value clears the bar."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


class Suite(Protocol):
    """Name what a module of measurements offers."""

    @property
    def FIGURES(self) -> Mapping[str, Figure]:  # noqa: N802
        """Describe every figure that a run may return."""

    def run(self, quick: bool) -> dict[str, float]:
        """Measure, and return name -> number."""
