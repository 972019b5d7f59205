"""Charts as plain data, drawn as SVG without scripts and fonts; the style sheet has light and dark colours.

A value of None is a gap in a line.  The first series has the first colour, and so on.  `draw_inline` draws for a page
that has the style sheet `STYLE` and a heading, `draw_document` for a separate file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from dordis.report.numbers import choose_ticks, format_number, format_tick

Value = float | None
Point = tuple[float, Value]
Item = TypeVar("Item", covariant=True)


class Stretch(NamedTuple):
    """A bar of a Gantt chart: its row, start and end."""

    row: str
    start: float
    end: float


@dataclass(frozen=True)
class Mark:
    """A horizontal reference line in a chart, such as a budget or a target."""

    name: str
    level: float


@dataclass(frozen=True)
class Series(Generic[Item]):
    """Values of a chart that are drawn in one colour; `name` is the series' name in the legend."""

    name: str
    values: tuple[Item, ...]

    @property
    def is_empty(self) -> bool:
        """Tell whether all values are gaps; an empty series is not in the legend."""
        return all(value is None or (isinstance(value, tuple) and value[-1] is None) for value in self.values)


@dataclass(frozen=True)
class _Chart(Generic[Item]):
    """Common parts of all charts: title, labels of the axes, series, marks, and a note."""

    title: str
    x: str
    y: str
    series: tuple[Series[Item], ...]
    marks: tuple[Mark, ...] = field(default=(), kw_only=True)
    note: str = field(default="", kw_only=True)

    @property
    def is_empty(self) -> bool:
        """Tell whether all series are empty."""
        return all(series.is_empty for series in self.series)


@dataclass(frozen=True)
class LineChart(_Chart[Point]):
    """Lines over ascending numbers such as rounds; `zero`: the y axis starts at zero; `whole`: x ticks are integers.

    >>> LineChart("accuracy", "round", "accuracy", (Series("run", ((1, 0.5), (2, 0.75))),)).is_empty
    False
    """

    zero: bool = field(default=True, kw_only=True)
    whole: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class BarChart(_Chart[Value]):
    """Bars for every category, one bar for each series: stacked on each other if `stacked`, else side by side."""

    categories: tuple[str, ...] = field(kw_only=True)
    stacked: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class GanttChart(_Chart[Stretch]):
    """A schedule: `rows` are the names of its rows from top to bottom; each kind of work is a series."""

    rows: tuple[str, ...] = field(kw_only=True)


Chart = LineChart | BarChart | GanttChart


WIDTH, HEIGHT = 480, 290
LIGHT = ("#0b62b8", "#c2500a", "#007a5a", "#8b46b8", "#8f6400", "#b3325f", "#00728a", "#5c6470")
DARK = ("#5aa9f5", "#f59155", "#3cc79c", "#c79bf0", "#dcb13e", "#f08bb0", "#4fc3dc", "#a8b0bc")
"""Colours of the series on a light and a dark page: each has a contrast above 3, and most colour-blind readers can
tell them apart."""
PAPER = ("#ffffff", "#171b21")
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")
_LETTER, _LINE = 7.0, 19  # approximate pixels of a letter, and from one line of text to the next
_MOST_DOTS, _TOP, _RIGHT = 100, 10, 14
_ROW, _HEAD = 26, 26  # pixels of a row of a Gantt chart, and of a title above a chart


def _colours(palette: Sequence[str], paper: str, ink: str, faint: str) -> str:
    series = " ".join(f"--c{place}: {colour};" for place, colour in enumerate(palette))
    return f"{series} --paper: {paper}; --ink: {ink}; --faint: {faint};"


STYLE = f"""
:root {{ {_colours(LIGHT, PAPER[0], "#414a56", "#dde1e7")} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_colours(DARK, PAPER[1], "#b9c1cc", "#343b46")} }} }}
@media print {{ :root {{ {_colours(LIGHT, PAPER[0], "#414a56", "#dde1e7")} }} }}
.chart text {{ font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }}
.chart .title {{ font-weight: 600; font-size: 15px; }}
.chart .grid {{ stroke: var(--faint); }}
.chart .axis {{ stroke: var(--ink); }}
.chart .mark {{ stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }}
.chart .line {{ fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }}
.chart .thin {{ stroke-width: 1; }}
.chart .dot {{ stroke: transparent; stroke-width: 12; }}
.chart .dot:hover {{ stroke: var(--faint); stroke-width: 6; }}
.chart .bar {{ stroke: var(--paper); stroke-width: 0.6; }}
.chart .bar:hover {{ opacity: 0.75; }}
""" + "\n".join(
    f".chart .l{i} {{ stroke: var(--c{i}); stroke-dasharray: {_DASHES[i % 4]}; }} .chart .f{i} {{ fill: var(--c{i}); }}"
    for i in range(len(LIGHT))
)


@dataclass(frozen=True)
class _Frame:
    """The plot area: its edges in pixels, and the values `xs` and `ys` of the axes at these edges."""

    left: float
    top: float
    right: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.xs
        return self.left + (self.right - self.left) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)


def draw_inline(chart: Chart) -> str:
    """Return a chart as SVG for a page that has `STYLE`, with a description in words; all texts are escaped.

    >>> from dordis.report.charts import Series
    >>> "<circle" in draw_inline(LineChart("accuracy", "round", "", (Series("run", ((1, 0.5), (2, 0.75))),)))
    True
    """
    body, height = _body(chart, 0)
    return _svg(chart, f'viewBox="0 0 {WIDTH} {height:.0f}"', body)


def draw_document(chart: Chart) -> str:
    """Return a chart as the text of an SVG file, with title and style sheet."""
    body, height = _body(chart, _HEAD)
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    paper = f'<rect width="{WIDTH}" height="{height:.0f}" fill="var(--paper)"/>'
    head = f"<style>{STYLE}</style>{paper}{_text(WIDTH / 2, 22, chart.title, 'middle', 'title')}"
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(chart, box, body, head)


def escape_text(text: str) -> str:
    """Return text escaped for HTML and XML, with a space for every character that cannot be displayed.

    >>> escape_text('<b onload="x">')
    '&lt;b onload=&quot;x&quot;&gt;'
    """
    return escape(replace_control_characters(text), quote=True)


def replace_control_characters(text: str) -> str:
    """Return text with a space for every character that cannot be displayed."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def describe_chart(chart: Chart) -> str:
    """Return a description of a chart in words, for readers who cannot see it."""
    match chart:
        case LineChart():
            lines = [(s.name, (points[0], points[-1])) for s in chart.series if (points := _without_gaps(s.values))]
            said = [
                f"{name}: {format_number(y0)} at {format_number(x0)}, {format_number(y1)} at {format_number(x1)}."
                for name, ((x0, y0), (x1, y1)) in lines
            ]
        case BarChart():
            bars = [(s.name, vs) for s in chart.series if (vs := [v for v in s.values if v is not None])]
            said = [f"{name}: {format_number(fmean(values))} on average." for name, values in bars]
        case GanttChart():
            said = [f"{len(chart.rows)} rows until {format_number(_end(chart))} {chart.x}."]
    return " ".join([f"{chart.title}.", *said, *(f"{mark.name}: {format_number(mark.level)}." for mark in chart.marks)])


def _svg(chart: Chart, box: str, body: Iterable[str], head: str = "") -> str:
    label = escape_text(describe_chart(chart))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{label}" {box}>'
    return "\n".join([opening + head, *body, "</svg>"])


def _body(chart: Chart, head: int) -> tuple[list[str], float]:
    """Return the SVG elements of legend and plot, below a heading `head` pixels high, and the chart's height."""
    legend, top = _legend(chart, head + _TOP)
    match chart:
        case LineChart():
            return legend + _lines(chart, top), HEIGHT + top - _TOP
        case BarChart():
            return legend + _bars(chart, top), HEIGHT + top - _TOP
        case GanttChart():
            return legend + _gantt(chart, top), top + _ROW * len(chart.rows) + 52


def _legend(chart: Chart, top: float) -> tuple[list[str], float]:
    """Return the SVG elements of the legend from `top` pixels on, and the pixels at which the plot begins."""
    if len(chart.series) + len(chart.marks) < 2:
        return [], top
    parts, x, y = [], 8.0, top + 8
    lines = isinstance(chart, LineChart)
    listed = [(place, series.name) for place, series in enumerate(chart.series) if not (lines and series.is_empty)]
    for place, name in [*listed, *((None, mark.name) for mark in chart.marks)]:
        shown = name if len(name) <= 48 else name[:47] + "…"
        width = 38 + _LETTER * len(shown)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + _LINE
        if place is None or lines:
            parts.append(_rule("mark" if place is None else _stroke(place), x, x + 18, y, y))
        else:
            parts.append(f'<rect class="{_fill(place)}" x="{x + 3}" y="{y - 6}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 23, y + 4.5, shown))
        x += width
    return parts, y + _LINE


def _lines(chart: LineChart, top: float) -> list[str]:
    known = [point for series in chart.series for point in _without_gaps(series.values)]
    levels = [y for _, y in known] + [mark.level for mark in chart.marks]
    xs, low = [x for x, _ in known] or [0.0, 1.0], 0.0 if chart.zero else min(levels, default=0.0)
    frame = _frame(top, (min(xs), max(xs)), choose_ticks(min(low, *levels, low), max(levels, default=1.0)))
    parts = [*_y_axis(chart.y, frame), *_x_numbers(chart.x, frame, whole=chart.whole), *_levels(chart.marks, frame)]
    for place, series in enumerate(chart.series):
        for is_gap, run in groupby(series.values, lambda point: point[1] is None):
            piece = [] if is_gap else _without_gaps(run)
            if len(piece) > 1:
                path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece)
                parts.append(f'<polyline class="{_stroke(place)}" points="{path}"/>')
        dots = _without_gaps(series.values)
        stride = -(-len(dots) // _MOST_DOTS) or 1
        radius = 2.6 if len(dots) <= 40 else 1.2
        for x, y in dots[::-1][::stride]:
            said = f"{chart.x} {format_number(x)}, {series.name}: {format_number(y)}"
            at = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            parts.append(f'<circle class="dot {_fill(place)}" {at} r="{radius}">{_tip(said)}</circle>')
    return parts


def _without_gaps(points: Iterable[Point]) -> list[tuple[float, float]]:
    """Return the points that have a value."""
    return [(x, y) for x, y in points if y is not None]


def _bars(chart: BarChart, top: float) -> list[str]:
    columns = [[series.values[i] or 0.0 for series in chart.series] for i in range(len(chart.categories))]
    tallest = [sum(column) if chart.stacked else max(column, default=0.0) for column in columns]
    high = max([*tallest, *(mark.level for mark in chart.marks)], default=0.0) or 1.0
    frame = _frame(top, (0.0, float(max(1, len(columns)))), choose_ticks(0.0, high))
    parts = [*_y_axis(chart.y, frame), *_x_names(chart, frame)]
    for i, column in enumerate(columns):
        left, room, base = frame.x(i + 0.12), frame.x(i + 0.88) - frame.x(i + 0.12), 0.0
        width = room if chart.stacked else room / max(1, len(column))
        for place, value in enumerate(column):
            if value:
                said = f"{chart.x} {chart.categories[i]}, {chart.series[place].name}: {format_number(value)}"
                upper = frame.y(base + value)
                parts.append(_bar(place, left, upper, width, frame.y(base) - upper, said))
            if chart.stacked:
                base += value
            else:
                left += width
    return parts + _levels(chart.marks, frame)


def _gantt(chart: GanttChart, top: float) -> list[str]:
    left = min(WIDTH / 3, 16 + _LETTER * max((len(row) for row in chart.rows), default=0))
    bottom = top + _ROW * len(chart.rows) + 6
    frame = _Frame(left, top, WIDTH - _RIGHT, bottom, (0.0, _end(chart) or 1.0), (float(len(chart.rows)), 0.0))
    parts = _x_numbers(chart.x, frame, whole=False)
    parts += [_text(left - 8, top + _ROW * place + 18, row, "end") for place, row in enumerate(chart.rows)]
    for place, series in enumerate(chart.series):
        for row, start, end in series.values:
            x, y = frame.x(start), top + _ROW * chart.rows.index(row) + 3
            said = f"{row}, {series.name}: {format_number(start)} to {format_number(end)} {chart.x}"
            parts.append(_bar(place, x, y, max(0.8, frame.x(end) - x), _ROW - 6, said))
    return parts


def _end(chart: GanttChart) -> float:
    return max((stretch.end for series in chart.series for stretch in series.values), default=0.0)


def _frame(top: float, xs: tuple[float, float], ys: Sequence[float]) -> _Frame:
    """Return the plot area below `top` pixels for the x range `xs`, with room for the labels of the y ticks `ys`."""
    low, high = xs if xs[0] < xs[1] else (xs[0] - 0.5, xs[1] + 0.5)
    left = 36 + _LETTER * max(len(format_tick(y)) for y in ys)
    return _Frame(left, top + 4, WIDTH - _RIGHT, HEIGHT + top - _TOP - 46, (low, high), (ys[0], ys[-1]))


def _y_axis(name: str, frame: _Frame) -> list[str]:
    parts, middle = [], (frame.top + frame.bottom) / 2
    low, high = frame.ys
    for value in (value for value in choose_ticks(low, high) if low - 1e-9 <= value <= high + 1e-9):
        y = frame.y(value)
        parts += [
            _rule("grid", frame.left, frame.right, y, y),
            _text(frame.left - 7, y + 4.5, format_tick(value), "end"),
        ]
    turned = f'<g transform="rotate(-90 14 {middle:.1f})">{_text(14, middle + 4, name, "middle")}</g>'
    return [*parts, turned] if name else parts


def _x_axis(name: str, frame: _Frame, labels: Iterable[tuple[float, str]]) -> list[str]:
    """Return the SVG elements of the x axis: the line, labels at their x values, and the name of the axis."""
    axis = _rule("axis", frame.left, frame.right, frame.bottom, frame.bottom)
    texts = [_text(frame.x(value), frame.bottom + 19, label, "middle") for value, label in labels]
    return [axis, *texts, _text((frame.left + frame.right) / 2, frame.bottom + 38, name, "middle")]


def _x_numbers(name: str, frame: _Frame, *, whole: bool) -> list[str]:
    low, high = frame.xs
    shown = [value for value in choose_ticks(low, high, 8, whole=whole) if low - 1e-9 <= value <= high + 1e-9]
    strokes = [_rule("axis", frame.x(value), frame.x(value), frame.bottom, frame.bottom + 4) for value in shown]
    return strokes + _x_axis(name, frame, ((value, format_tick(value)) for value in shown))


def _x_names(chart: BarChart, frame: _Frame) -> list[str]:
    """Return the SVG elements of the x axis of a bar chart, with as many category names as fit."""
    count = max(1, len(chart.categories))
    room = (frame.right - frame.left) / count
    letters = max(4, int(room / _LETTER) - 1) if count <= 4 else max(map(len, chart.categories), default=0)
    stride = 1 if count <= 4 else -(-int(_LETTER * letters + 10) // max(1, int(room))) or 1
    names = [name if len(name) <= letters else name[: letters - 1] + "…" for name in chart.categories]
    return _x_axis(chart.x, frame, [(i + 0.5, name) for i, name in enumerate(names)][::stride])


def _levels(marks: Iterable[Mark], frame: _Frame) -> list[str]:
    heights = ((frame.y(mark.level), f"{mark.name}: {format_number(mark.level)}") for mark in marks)
    return [_rule("mark", frame.left, frame.right, y, y, said) for y, said in heights]


def _rule(kind: str, x1: float, x2: float, y1: float, y2: float, said: str = "") -> str:
    at = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {at}>{_tip(said)}</line>' if said else f'<line class="{kind}" {at}/>'


def _bar(place: int, x: float, y: float, width: float, height: float, said: str) -> str:
    at = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect class="bar {_fill(place)}" {at}>{_tip(said)}</rect>'


def _tip(said: str) -> str:
    return f"<title>{escape_text(said)}</title>"


def _fill(place: int) -> str:
    return f"f{place % len(LIGHT)}"


def _stroke(place: int) -> str:
    """Return the CSS class of the line of a series; series beyond the last colour reuse the colours with thin lines."""
    return f"line l{place % len(LIGHT)}" + (" thin" if place >= len(LIGHT) else "")


def _text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape_text(content)}</text>'
