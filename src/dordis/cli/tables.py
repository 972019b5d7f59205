"""What commands print: JSON for machines, tables and lines for people.  rich, which is slow to import, comes late."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table


def console(*, stderr: bool = False) -> "Console":
    """Return what prints for people: names are printed as they are, and no line is cut."""
    from rich.console import Console

    class Interruptible(Console):
        def on_broken_pipe(self) -> None:
            """Stop as at Ctrl-C where nobody reads any more, as in `dordis run | head`: a run says how to go on."""
            try:
                super().on_broken_pipe()
            except SystemExit:
                raise KeyboardInterrupt from None

    return Interruptible(stderr=stderr, soft_wrap=True, markup=False)


def show(as_json: bool, fields: object, *parts: "Table | str") -> None:
    """Print one JSON value, or else tables and lines."""
    if as_json:
        import json

        print(json.dumps(fields))
        return
    for part in parts:
        console().print(part, highlight=False)


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show on a terminal what takes long, and for how long already; what is given counts the parts that are done."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    parts = [BarColumn(), MofNCompleteColumn()] if total else []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *parts, TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def table(*heads: "str | Column", rows: Iterable[Iterable[Any]], **options: Any) -> "Table":
    """Return a table; `options` are those of rich, such as a title."""
    from rich.table import Table

    shown = Table(*heads, **options)
    for row in rows:
        shown.add_row(*row)
    return shown


def facts(rows: Mapping[str, str], title: str | None = None) -> "Table":
    """Return a table of names and their values."""
    return table("what", "value", rows=rows.items(), title=title, show_header=False)


def right(*heads: str) -> "list[Column]":
    """Return columns of numbers, which are never wrapped."""
    from rich.table import Column

    return [Column(head, justify="right", no_wrap=True) for head in heads]
