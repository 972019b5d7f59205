"""What a chart shows, as plain data: `svg` draws it, and nothing else knows how.

A value that is None is a gap.  Series get their colours by their order.
"""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Value = float | None
Point = tuple[float, Value]
Item = TypeVar("Item", covariant=True)


class Stretch(NamedTuple):
    """A bar of a Gantt chart: the row in which something runs, from when to when."""

    row: str
    start: float
    end: float


@dataclass(frozen=True)
class Mark:
    """A level to compare with, drawn across the chart: a budget, a target."""

    name: str
    level: float


@dataclass(frozen=True)
class Series(Generic[Item]):
    """Values of one colour, under the name that the legend lists."""

    name: str
    values: tuple[Item, ...]

    @property
    def is_empty(self) -> bool:
        """Tell whether all values are gaps; then the legend does not list the series, and its colour stays free."""
        return all(value is None or (isinstance(value, tuple) and value[-1] is None) for value in self.values)


@dataclass(frozen=True)
class _Chart(Generic[Item]):
    """What all charts have: a title, what the axes show (with the unit), and what has to be said about it."""

    title: str
    x: str
    y: str
    series: tuple[Series[Item], ...]
    marks: tuple[Mark, ...] = field(default=(), kw_only=True)
    note: str = field(default="", kw_only=True)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to draw."""
        return all(series.is_empty for series in self.series)


@dataclass(frozen=True)
class LineChart(_Chart[Point]):
    """Lines over a number that ascends, such as the round; from zero up, if `zero`; over whole numbers, if `whole`.

    >>> LineChart("accuracy", "round", "accuracy", (Series("run", ((1, 0.5), (2, 0.75))),)).is_empty
    False
    """

    zero: bool = field(default=True, kw_only=True)
    whole: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class BarChart(_Chart[Value]):
    """Bars for every category: the series on top of each other, the first at the bottom, or side by side."""

    categories: tuple[str, ...] = field(kw_only=True)
    stacked: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class GanttChart(_Chart[Stretch]):
    """What runs when: rows from top to bottom, a series for each kind of work."""

    rows: tuple[str, ...] = field(kw_only=True)


Chart = LineChart | BarChart | GanttChart
