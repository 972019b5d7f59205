"""Draw charts as SVG: no scripts, no fonts, no colours but those of one style sheet, which knows light and dark.

`drawing` is for a page that has the style sheet `STYLE` and a heading; `document` stands for itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from dordis.report.charts import Bars, Chart, Gantt, Lines, Mark, Stacked
from dordis.report.numbers import number, short, ticks

WIDTH, HEIGHT = 480, 290
LIGHT = ("#0b62b8", "#c2500a", "#007a5a", "#8b46b8", "#8f6400", "#b3325f", "#00728a", "#5c6470")
DARK = ("#5aa9f5", "#f59155", "#3cc79c", "#c79bf0", "#dcb13e", "#f08bb0", "#4fc3dc", "#a8b0bc")
"""Colours of the series, each with a contrast above 3 to the paper and told apart by most colour-blind readers."""
PAPER = ("#ffffff", "#171b21")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_LETTER, _LINE = 7.0, 19  # pixels of a letter of the size below, about, and from one line of text to the next
_MOST_DOTS, _TOP, _RIGHT = 100, 10, 14
_ROW, _HEAD = 26, 26  # of a Gantt chart, and above a chart that has a title


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
.chart .dot {{ stroke: transparent; stroke-width: 12; }}
.chart .dot:hover {{ stroke: var(--faint); stroke-width: 6; }}
.chart .bar {{ stroke: var(--paper); stroke-width: 0.6; }}
.chart .bar:hover {{ opacity: 0.75; }}
""" + "\n".join(
    f".chart .l{i} {{ stroke: var(--c{i}); }} .chart .f{i} {{ fill: var(--c{i}); }}" for i in range(len(LIGHT))
)


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie: the pixels of the plot, and the numbers at its edges."""

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


def drawing(chart: Chart) -> str:
    """Draw a chart for a page with `STYLE`; names are escaped, and what it shows is said in words too.

    >>> from dordis.report.charts import Line
    >>> "<circle" in drawing(Lines("accuracy", "round", "", (Line("run", ((1, 0.5), (2, 0.75))),)))
    True
    """
    return _svg(chart)


def document(chart: Chart) -> str:
    """Draw a chart as a file of its own, with title, note and style."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(chart, _HEAD)


def escaped(text: str) -> str:
    """Write text from anywhere so that it is text, in a page as in a file of XML.

    >>> escaped('<b onload="x">')
    '&lt;b onload=&quot;x&quot;&gt;'
    """
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=True)


def _svg(chart: Chart, head: int = 0) -> str:
    legend, below = _legend(chart, head + _TOP)
    match chart:
        case Lines():
            body, height = _lines(chart, below)
        case Gantt():
            body, height = _gantt(chart, below)
        case _:
            body, height = _bars(chart, below)
    first = f"<style>{STYLE}</style>" if head else ""
    if head:
        first += f'<rect width="{WIDTH}" height="{height:.0f}" fill="var(--paper)"/>'
        first += _text(WIDTH / 2, 22, chart.title, "middle", "title")
    box = f'viewBox="0 0 {WIDTH} {height:.0f}"' + (f' width="{WIDTH}" height="{height:.0f}"' if head else "")
    label = escaped(describe(chart))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{label}" {box}>'
    return "\n".join([opening + first, *legend, *body, "</svg>"])


def describe(chart: Chart) -> str:
    """Say in words what a chart shows, for who cannot see it."""
    said = [f"{chart.title}."]
    match chart:
        case Lines():
            for line in chart.lines:
                known = [(x, y) for x, y in line.points if y is not None]
                if known:
                    (x0, y0), (x1, y1) = known[0], known[-1]
                    said.append(f"{line.name}: {number(y0)} at {number(x0)}, {number(y1)} at {number(x1)}.")
        case Gantt():
            end = max((stretch.end for stretch in chart.stretches), default=0.0)
            said.append(f"{len(chart.rows)} rows until {number(end)} {chart.x}.")
        case _:
            for layer in chart.layers:
                values = [value for value in layer.values if value is not None]
                if values:
                    said.append(f"{layer.name}: {number(sum(values) / len(values))} on average.")
    return " ".join([*said, *(f"{mark.name}: {number(mark.level)}." for mark in _marks(chart))])


def _marks(chart: Chart) -> tuple[Mark, ...]:
    return () if isinstance(chart, Gantt) else chart.marks


def _legend(chart: Chart, top: float) -> tuple[list[str], float]:
    """List the names, in as many lines as they take; return where the plot may begin, too."""
    marks = [mark.name for mark in _marks(chart)]
    if len(chart.names) + len(marks) < 2:
        return [], top
    parts, x, y = [], 8.0, top + 8
    empty = {place for place, line in enumerate(chart.lines) if line.is_empty} if isinstance(chart, Lines) else set()
    for place, name in enumerate([*chart.names, *marks]):
        if place in empty:
            continue
        shown = name if len(name) <= 48 else name[:47] + "…"
        width = 38 + _LETTER * len(shown)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + _LINE
        if place >= len(chart.names):
            parts.append(f'<line class="mark" x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}"/>')
        elif isinstance(chart, Lines):
            parts.append(f'<line {_stroke(place)} x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}"/>')
        else:
            parts.append(f'<rect class="{_fill(place)}" x="{x + 3}" y="{y - 6}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 23, y + 4.5, shown))
        x += width
    return parts, y + _LINE


def _lines(chart: Lines, top: float) -> tuple[list[str], float]:
    known = [(x, y) for line in chart.lines for x, y in line.points if y is not None]
    levels = [y for _, y in known] + [mark.level for mark in chart.marks]
    xs, low = [x for x, _ in known] or [0.0, 1.0], 0.0 if chart.zero else min(levels, default=0.0)
    frame = _frame(top, (min(xs), max(xs)), ticks(min(low, *levels, low), max(levels, default=1.0)))
    parts = [*_y_axis(chart.y, frame), *_x_numbers(chart.x, frame, whole=chart.whole), *_levels(chart.marks, frame)]
    for place, line in enumerate(chart.lines):
        for piece in _pieces(line.points):
            path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece)
            parts.append(f'<polyline {_stroke(place)} points="{path}"/>')
        dots = [(x, y) for x, y in line.points if y is not None]
        stride = -(-len(dots) // _MOST_DOTS) or 1
        for x, y in dots[::-1][::stride]:
            said = f"{chart.x} {number(x)}, {line.name}: {number(y)}"
            at = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            radius = 2.6 if len(dots) <= 40 else 1.2
            parts.append(f'<circle class="dot {_fill(place)}" {at} r="{radius}">{_tip(said)}</circle>')
    return parts, HEIGHT + top - _TOP


def _pieces(points: Iterable[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Cut a line at its gaps; a piece has two points or more."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if len(piece) > 1]


def _bars(chart: Bars, top: float) -> tuple[list[str], float]:
    columns = [[layer.values[i] or 0.0 for layer in chart.layers] for i in range(len(chart.categories))]
    tallest = [sum(column) if isinstance(chart, Stacked) else max(column, default=0.0) for column in columns]
    high = max([*tallest, *(mark.level for mark in chart.marks)], default=0.0) or 1.0
    frame = _frame(top, (0.0, float(max(1, len(columns)))), ticks(0.0, high))
    parts = [*_y_axis(chart.y, frame), *_x_names(chart, frame)]
    for i, column in enumerate(columns):
        left, room = frame.x(i + 0.12), frame.x(i + 0.88) - frame.x(i + 0.12)
        base, share = 0.0, room if isinstance(chart, Stacked) else room / max(1, len(column))
        for place, value in enumerate(column):
            if value:
                said = f"{chart.x} {chart.categories[i]}, {chart.layers[place].name}: {number(value)}"
                upper = frame.y(base + value)
                parts.append(_bar(place, left, upper, share, frame.y(base) - upper, said))
            if isinstance(chart, Stacked):
                base += value
            else:
                left += share
    return [*parts, *_levels(chart.marks, frame)], HEIGHT + top - _TOP


def _gantt(chart: Gantt, top: float) -> tuple[list[str], float]:
    left = min(WIDTH / 3, 16 + _LETTER * max((len(row) for row in chart.rows), default=0))
    end = max((stretch.end for stretch in chart.stretches), default=1.0) or 1.0
    bottom = top + _ROW * len(chart.rows) + 6
    frame = _Frame(left, top, WIDTH - _RIGHT, bottom, (0.0, end), (float(len(chart.rows)), 0.0))
    parts = _x_numbers(chart.x, frame, whole=False)
    parts += [_text(left - 8, top + _ROW * place + 18, row, "end") for place, row in enumerate(chart.rows)]
    for stretch in chart.stretches:
        x, y = frame.x(stretch.start), top + _ROW * chart.rows.index(stretch.row) + 3
        said = f"{stretch.row}, {stretch.kind}: {number(stretch.start)} to {number(stretch.end)} {chart.x}"
        kind = chart.kinds.index(stretch.kind)
        parts.append(_bar(kind, x, y, max(0.8, frame.x(stretch.end) - x), _ROW - 6, said))
    return parts, bottom + 46


def _frame(top: float, xs: tuple[float, float], ys: Sequence[float]) -> _Frame:
    """Leave room for the numbers of the axes; `ys` are the ticks."""
    low, high = xs if xs[0] < xs[1] else (xs[0] - 0.5, xs[1] + 0.5)
    left = 36 + _LETTER * max(len(short(y)) for y in ys)
    return _Frame(left, top + 4, WIDTH - _RIGHT, HEIGHT + top - _TOP - 46, (low, high), (ys[0], ys[-1]))


def _y_axis(name: str, frame: _Frame) -> list[str]:
    parts, middle = [], (frame.top + frame.bottom) / 2
    for value in ticks(*frame.ys):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(frame.left - 7, y + 4.5, short(value), "end"))
    turned = f'<g transform="rotate(-90 14 {middle:.1f})">{_text(14, middle + 4, name, "middle")}</g>'
    return [*parts, turned] if name else parts


def _x_numbers(name: str, frame: _Frame, *, whole: bool) -> list[str]:
    parts, (low, high) = [_baseline(frame)], frame.xs
    for value in ticks(low, high, 8, whole=whole):
        if low - 1e-9 <= value <= high + 1e-9:
            x = frame.x(value)
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom}" y2="{frame.bottom + 4}"/>')
            parts.append(_text(x, frame.bottom + 19, short(value), "middle"))
    return [*parts, _text((frame.left + frame.right) / 2, frame.bottom + 38, name, "middle")]


def _x_names(chart: Bars, frame: _Frame) -> list[str]:
    """Name as many of the categories as there is room for."""
    parts, count = [_baseline(frame)], max(1, len(chart.categories))
    room = (frame.right - frame.left) / count
    letters = max(4, int(room / _LETTER) - 1) if count <= 4 else max(map(len, chart.categories), default=0)
    stride = 1 if count <= 4 else -(-int(_LETTER * letters + 10) // max(1, int(room))) or 1
    for i, name in list(enumerate(chart.categories))[::stride]:
        shown = name if len(name) <= letters else name[: letters - 1] + "…"
        parts.append(_text(frame.x(i + 0.5), frame.bottom + 19, shown, "middle"))
    return [*parts, _text((frame.left + frame.right) / 2, frame.bottom + 38, chart.x, "middle")]


def _baseline(frame: _Frame) -> str:
    return f'<line class="axis" x1="{frame.left:.1f}" x2="{frame.right}" y1="{frame.bottom}" y2="{frame.bottom}"/>'


def _levels(marks: Iterable[Mark], frame: _Frame) -> list[str]:
    parts = []
    for mark in marks:
        y, said = frame.y(mark.level), f"{mark.name}: {number(mark.level)}"
        at = f'x1="{frame.left:.1f}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line class="mark" {at}>{_tip(said)}</line>')
    return parts


def _bar(place: int, x: float, y: float, width: float, height: float, said: str) -> str:
    at = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect class="bar {_fill(place)}" {at}>{_tip(said)}</rect>'


def _tip(said: str) -> str:
    return f"<title>{escaped(said)}</title>"


def _fill(place: int) -> str:
    return f"f{place % len(LIGHT)}"


def _stroke(place: int) -> str:
    dashes = _DASHES[place % len(_DASHES)]
    return f'class="line l{place % len(LIGHT)}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def _text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escaped(content)}</text>'
