"""Draw charts with matplotlib, for papers: the same charts as `svg`, in the extra `plots`."""

import io
from collections.abc import Sequence
from typing import Any

from dordis.errors import MissingExtra
from dordis.report.charts import Bars, Chart, Gantt, Lines, Stacked
from dordis.report.svg import LIGHT

DPI = 200
_STYLES = ("-", "--", ":", "-.")


def check_plots() -> None:
    """Raise `MissingExtra` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("plots") from None


def picture(chart: Chart) -> bytes:
    """Draw a chart as PNG."""
    check_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(_literal(chart.title), fontsize=11)
    axes.set_xlabel(_literal(chart.x))
    axes.set_ylabel(_literal(chart.y))
    axes.spines[["top", "right"]].set_visible(False)
    match chart:
        case Lines():
            _lines(axes, chart)
        case Gantt():
            _gantt(axes, chart)
        case _:
            _bars(axes, chart)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    data = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(data, dpi=DPI, format="png")
    return data.getvalue()


def _lines(axes: Any, chart: Lines) -> None:
    axes.grid(axis="y", alpha=0.3)
    for place, line in enumerate(chart.lines):
        xs, ys = [x for x, _ in line.points], [float("nan") if y is None else y for _, y in line.points]
        style: dict[str, Any] = {"color": _colour(place), "linestyle": _STYLES[place % len(_STYLES)]}
        axes.plot(xs, ys, label="_" if line.is_empty else _literal(line.name), **style)
    _marks(axes, chart)
    if chart.whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if chart.zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _bars(axes: Any, chart: Bars) -> None:
    axes.grid(axis="y", alpha=0.3)
    count, base = len(chart.categories), [0.0] * len(chart.categories)
    width = 0.76 if isinstance(chart, Stacked) else 0.76 / max(1, len(chart.layers))
    for place, layer in enumerate(chart.layers):
        heights = [value or 0.0 for value in layer.values]
        shift = 0.0 if isinstance(chart, Stacked) else (place - (len(chart.layers) - 1) / 2) * width
        at = [i + shift for i in range(count)]
        axes.bar(at, heights, width, bottom=base, label=_literal(layer.name), color=_colour(place))
        if isinstance(chart, Stacked):
            base = [low + height for low, height in zip(base, heights, strict=True)]
    stride = -(-count // 10) or 1
    axes.set_xticks(range(0, count, stride), [_literal(name) for name in chart.categories[::stride]])
    _marks(axes, chart)


def _gantt(axes: Any, chart: Gantt) -> None:
    for place, kind in enumerate(chart.kinds):
        mine = [stretch for stretch in chart.stretches if stretch.kind == kind]
        rows = [chart.rows.index(stretch.row) for stretch in mine]
        lengths, starts = [stretch.end - stretch.start for stretch in mine], [stretch.start for stretch in mine]
        axes.barh(rows, lengths, left=starts, height=0.7, label=_literal(kind), color=_colour(place))
    axes.set_yticks(range(len(chart.rows)), [_literal(row) for row in chart.rows])
    axes.invert_yaxis()


def _marks(axes: Any, chart: Lines | Bars) -> None:
    for mark in chart.marks:
        axes.axhline(mark.level, color="0.3", linewidth=1, linestyle=(0, (5, 4)), label=_literal(mark.name))


def _colour(place: int, palette: Sequence[str] = LIGHT) -> str:
    return palette[place % len(palette)]


def _literal(text: str) -> str:
    """Write text that is not taken for mathematics, nor for a label to be left out."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")
    return " " + shown if shown.startswith("_") else shown
