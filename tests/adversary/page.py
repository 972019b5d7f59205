"""Write the tables of attacks into docs/attacks.md, from the rows: `python -m tests.adversary.page`."""

from collections import Counter
from inspect import cleandoc
from pathlib import Path

from tests.adversary.attack import Attack
from tests.adversary.participants import SPARSE
from tests.adversary.suite import THEMES

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
BEGIN, END = "<!-- written by `make pages` from tests/adversary -->\n", "<!-- end of the written part -->\n"


def shorten(names: tuple[str, ...]) -> list[str]:
    """Return names of functions without their modules, except where two of them would be the same."""
    short = [".".join(name.split(".")[-2 if name.split(".")[-2][0].isupper() else -1 :]) for name in names]
    times = Counter(short)
    return [
        f"`{own if times[own] == 1 else '.'.join(name.split('.')[-2:])}`"
        for name, own in zip(names, short, strict=True)
    ]


def format_row(attack: Attack) -> str:
    """Return an attack as a row: name, refusal, stage, and the functions without which it succeeds."""
    name = attack.name.replace("|", "\\|") + (" (SecAgg+ only)" if attack.graphs == (SPARSE,) else "")
    without = " or ".join(shorten(attack.checks)) or " and ".join(shorten(attack.overlapping))
    return f"| {name} | {attack.refused_by} | {attack.stage} | {without} |\n"


def format_tables() -> str:
    """Return the sections of all themes: heading, introduction and table."""
    sections = []
    for title, theme in THEMES.items():
        rows = "".join(map(format_row, theme.ATTACKS))
        head = "| attack | refused by | at | succeeds without |\n|---|---|---|---|\n"
        sections.append(f"## {title}\n\n{cleandoc(theme.__doc__ or '')}\n\n{head}{rows}")
    return "\n".join(sections)


def render_page(page: str) -> str:
    """Return the page with the tables between its two marks replaced."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{format_tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
