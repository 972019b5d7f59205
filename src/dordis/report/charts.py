"""What a chart shows, as plain data: `svg` draws it, and nothing else knows how.

A value that is None is a gap.  Kinds, lines and layers get their colours by their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Value = float | None


@dataclass(frozen=True)
class Mark:
    """A level to compare with, drawn across the chart: a budget, a target."""

    name: str
    level: float


@dataclass(frozen=True)
class Line:
    """A named series of points (x, y), ascending in x."""

    name: str
    points: tuple[tuple[float, Value], ...]

    @property
    def is_empty(self) -> bool:
        """Tell whether all of it is a gap; then the legend does not list it, and its colour stays free."""
        return all(y is None for _, y in self.points)


@dataclass(frozen=True)
class Layer:
    """A named series of values, one for every category."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Stretch:
    """A bar of a `Gantt` chart: what kind of work runs in which row, from when to when."""

    row: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class _Chart:
    """What all charts have: a title, what the axes show (with the unit), and what has to be said about it."""

    title: str
    x: str
    y: str
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Lines(_Chart):
    """Lines over a number, such as the round; from zero up, if `zero`, and over whole numbers, if `whole`.

    >>> Lines("accuracy", "round", "accuracy", (Line("run", ((1, 0.5), (2, 0.75))),)).is_empty
    False
    """

    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = field(default=(), kw_only=True)
    zero: bool = field(default=True, kw_only=True)
    whole: bool = field(default=True, kw_only=True)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to draw."""
        return all(line.is_empty for line in self.lines)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what the legend lists."""
        return tuple(line.name for line in self.lines)


@dataclass(frozen=True)
class _Bars(_Chart):
    categories: tuple[str, ...]
    layers: tuple[Layer, ...]
    marks: tuple[Mark, ...] = field(default=(), kw_only=True)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to draw."""
        return all(value is None for layer in self.layers for value in layer.values)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what the legend lists."""
        return tuple(layer.name for layer in self.layers)


@dataclass(frozen=True)
class Stacked(_Bars):
    """One bar for every category, made of the layers, the first at the bottom."""


@dataclass(frozen=True)
class Grouped(_Bars):
    """For every category a bar of each layer, side by side."""


@dataclass(frozen=True)
class Gantt(_Chart):
    """What runs when: rows from top to bottom in the order of `rows`, one colour for each of the `kinds`."""

    rows: tuple[str, ...]
    kinds: tuple[str, ...]
    stretches: tuple[Stretch, ...]

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to draw."""
        return not self.stretches

    @property
    def names(self) -> tuple[str, ...]:
        """Return what the legend lists."""
        return self.kinds


Bars = Stacked | Grouped
Chart = Lines | Stacked | Grouped | Gantt


def gantt(title: str, x: str, stretches: Sequence[Stretch], *, note: str = "") -> Gantt:
    """Chart some stretches, with rows and kinds in the order in which they come.

    >>> gantt("round", "seconds", [Stretch("chunk 1", "client", 0, 2), Stretch("chunk 1", "network", 2, 3)]).kinds
    ('client', 'network')
    """
    rows, kinds = (tuple(dict.fromkeys(names)) for names in zip(*((s.row, s.kind) for s in stretches), strict=True))
    return Gantt(title, x, "", rows, kinds, tuple(stretches), note=note)
