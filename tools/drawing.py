"""The parts of which the pictures in docs/pictures are made: boxes, lines of text, arrows, and the style of all."""

from html import escape

WIDTH, ROW = 1080, 30
STYLE = """
:root { --paper: #ffffff; --ink: #2b333d; --faint: #8a94a1; --c-comp: #d9e8f8; --comm: #fbe3cf; --s-comp: #d3efe3;
  --gate: #b3325f; }
@media (prefers-color-scheme: dark) { :root { --paper: #171b21; --ink: #d5dbe3; --faint: #7f8997; --c-comp: #1e3f60;
  --comm: #5f3719; --s-comp: #17503c; --gate: #f08bb0; } }
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
.name { font-weight: 600; }
.note { fill: var(--faint); }
.gate { fill: var(--gate); }
.rule { stroke: var(--gate); stroke-width: 1.5; stroke-dasharray: 5 4; }
.edge { stroke: var(--faint); fill: none; }
rect { stroke: var(--faint); }
""".strip()


def draw_line(x: int, y: int, to_x: int, to_y: int, kind: str = "edge") -> str:
    """Return a line of a class of the style sheet."""
    return f'<line class="{kind}" x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"/>'


def draw_arrow(start: int, end: int, y: int) -> str:
    """Return an arrow from one column to another."""
    tip = 8 if end > start else -8
    head = f'<path class="edge" d="M {end - tip} {y - 4} L {end} {y} L {end - tip} {y + 4}" fill="none"/>'
    return draw_line(start, y, end, y) + head


def draw_bar(x: int, y: int, width: int, height: int, colour: str) -> str:
    """Return a bar; `colour` is a variable of the style sheet, or empty for a dashed outline."""
    look = f'fill="var(--{colour})"' if colour else 'fill="none" stroke-dasharray="3 3"'
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>'


def draw_box(x: int, y: int, width: int, colour: str, title: str) -> str:
    """Return a box with a title; `colour` is a variable of the style sheet."""
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{ROW - 6}" rx="4" fill="var(--{colour})"/>'
    return f"{box}\n{write(x + 8, y + 16, title, 'name')}"


def write(x: int, y: int, text: str, kind: str = "") -> str:
    """Return a line of text, of a class of the style sheet if one is named."""
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def wrap_picture(parts: list[str], height: int, title: str) -> str:
    """Return a whole SVG document of these parts."""
    body, label = "\n".join(parts), escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">\n'
        f"<style>\n{STYLE}\n</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="var(--paper)" stroke="none"/>\n{body}\n</svg>\n'
    )
