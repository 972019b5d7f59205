"""Charts: the SVG says what the data says, is well-formed whatever the names are, and can be read in light and dark."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from dordis.report.charts import (
    DARK,
    LIGHT,
    PAPER,
    BarChart,
    Chart,
    GanttChart,
    LineChart,
    Mark,
    Series,
    Stretch,
    draw_document,
    draw_inline,
)
from dordis.report.numbers import choose_ticks, format_tick

SVG = "{http://www.w3.org/2000/svg}"
POINTS = ((1, 0.5), (2, None), (3, 2.0), (4, 3.0))
LINES = LineChart("t", "round", "y", (Series("a", POINTS),), marks=(Mark("top", 4.0),))
LAYERS = (Series("a", (1.0, 2.0)), Series("b", (3.0, None)))
STACKED = BarChart("t", "round", "y", LAYERS, categories=("1", "2"))
GROUPED = BarChart("t", "round", "y", LAYERS, categories=("1", "2"), stacked=False)
WORK = (Series("client", (Stretch("chunk 1", 0, 2),)), Series("network", (Stretch("chunk 2", 2, 5),)))
GANTT = GanttChart("t", "seconds", "", WORK, rows=("chunk 1", "chunk 2"))
ALL = [LINES, STACKED, GROUPED, GANTT]
HOSTILE = "<script>alert(\"'&\x00\x1b]]>"


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(draw_document(chart))  # noqa: S314


def tips(chart: Chart) -> set[str]:
    return {title.text or "" for title in parsed(chart).iter(f"{SVG}title")}


def bars(chart: Chart) -> list[tuple[float, float]]:
    """Return top and height of every bar."""
    drawn = [bar for bar in parsed(chart).iter(f"{SVG}rect") if bar.get("class", "").startswith("bar")]
    return [(float(bar.get("y", 0)), float(bar.get("height", 0))) for bar in drawn]


@pytest.mark.parametrize("chart", ALL)
def test_a_chart_is_well_formed_and_says_what_it_shows(chart: Chart) -> None:
    root = parsed(chart)
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith("t.")
    texts = [text.text for text in root.iter(f"{SVG}text")]
    names = {series.name for series in chart.series}
    assert names <= set(texts) or len(names) == 1


def test_every_value_has_its_tooltip_and_gaps_have_none() -> None:
    assert tips(LINES) == {"round 1, a: 0.5", "round 3, a: 2", "round 4, a: 3", "top: 4"}
    assert tips(STACKED) == {"round 1, a: 1", "round 1, b: 3", "round 2, a: 2"}
    assert "chunk 2, network: 2 to 5 seconds" in tips(GANTT)


def test_a_gap_cuts_a_line() -> None:
    (piece,) = parsed(LINES).iter(f"{SVG}polyline")
    assert len(piece.get("points", "").split()) == 2


def test_points_lie_where_their_values_are() -> None:
    dots = {dot[0].text: float(dot.get("cy", 0)) for dot in parsed(LINES).iter(f"{SVG}circle")}
    low, middle, high = (dots[f"round {x}, a: {y}"] for x, y in ((1, 0.5), (3, 2), (4, 3)))
    assert (low - middle) / (middle - high) == pytest.approx(1.5, rel=1e-2)


def test_layers_are_stacked_and_their_heights_are_their_values() -> None:
    (a1, h1), (b1, k1), (_, h2) = bars(STACKED)
    assert b1 + k1 == pytest.approx(a1, abs=0.02)
    assert (k1 / h1, h2 / h1) == pytest.approx((3.0, 2.0), rel=1e-3)


def test_groups_stand_side_by_side_on_the_axis() -> None:
    feet = {round(top + height, 1) for top, height in bars(GROUPED)}
    assert len(feet) == 1


@pytest.mark.parametrize("draw", [draw_document, draw_inline])
@pytest.mark.parametrize(
    "chart",
    [
        LineChart(
            HOSTILE, HOSTILE, HOSTILE, (Series(HOSTILE, ((1, 1.0),)),), marks=(Mark(HOSTILE, 1.0),), note=HOSTILE
        ),
        BarChart(HOSTILE, HOSTILE, HOSTILE, (Series(HOSTILE, (1.0,)),), categories=(HOSTILE,)),
        GanttChart(HOSTILE, HOSTILE, HOSTILE, (Series(HOSTILE, (Stretch(HOSTILE, 0, 1),)),), rows=(HOSTILE,)),
    ],
)
def test_names_are_text_whatever_they_contain(chart: Chart, draw: object) -> None:
    drawn = draw(chart)  # type: ignore[operator]
    assert "<script" not in drawn
    ET.fromstring(drawn)  # noqa: S314


@pytest.mark.parametrize(
    "chart",
    [
        LineChart("t", "x", "y", ()),
        LineChart("t", "x", "y", (Series("a", ((5, 0.0),)),)),
        LineChart("t", "x", "y", (Series("a", ((1, -2.0), (2, 1e12))),), zero=False),
        BarChart("t", "x", "y", (), categories=()),
        BarChart("t", "x", "y", (Series("a", (0.0,)),), categories=("1",), stacked=False),
        GanttChart("t", "x", "", (), rows=()),
    ],
)
def test_little_or_strange_data_is_drawn_too(chart: Chart) -> None:
    assert "nan" not in draw_document(chart)
    parsed(chart)


def test_an_empty_line_keeps_its_colour_but_is_not_in_the_legend() -> None:
    lines = Series("gone", ((1, None),)), Series("here", ((1, 1.0), (2, 2.0))), Series("too", ((1, 2.0),))
    chart = LineChart("t", "x", "y", lines)
    drawn = draw_inline(chart)
    assert ">gone<" not in drawn
    assert "line l0" not in drawn
    assert "line l1" in drawn


@pytest.mark.parametrize(("palette", "paper"), [(LIGHT, PAPER[0]), (DARK, PAPER[1])])
def test_colours_stand_out_from_the_paper(palette: tuple[str, ...], paper: str) -> None:
    for colour in palette:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 9.3), (-3, 17), (1e-7, 3e-7), (0, 4e-15), (2, 2), (0, 0), (0, 6e9)]
)
def test_ticks_enclose_the_values_are_even_and_not_too_many(low: float, high: float) -> None:
    numbers = choose_ticks(low, high)
    assert numbers[0] <= low + 1e-12
    assert numbers[-1] >= high - 1e-12
    assert 2 <= len(numbers) <= 8
    steps = {round((b - a) / (numbers[1] - numbers[0]), 3) for a, b in itertools.pairwise(numbers)}
    assert steps == {1.0}
    assert len({format_tick(value) for value in numbers}) == len(numbers)


def test_ticks_of_rounds_are_whole() -> None:
    assert all(
        math.isclose(value, round(value)) for high in (2, 3, 7, 20, 999) for value in choose_ticks(1, high, whole=True)
    )


def test_no_tick_lies_outside_the_plot():
    points = tuple((float(x), y) for x, y in zip(range(10, 15), (2.6, 2.2, 1.96, 1.71, 1.47), strict=True))
    drawn = draw_document(LineChart("loss", "round", "", (Series("run", points),), zero=False))
    assert ">1.5<" in drawn
    assert ">1<" not in drawn
