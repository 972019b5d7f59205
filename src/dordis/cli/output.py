"""Output of commands: JSON for programs, tables and lines for people, and exit codes.

The package `rich` takes long to import, so each function that uses it imports it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

DONE, FOUND, REFUSED, OVER_BUDGET, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = {
    DONE: "done",
    FOUND: "found a problem: a leak, or a missing part of this installation",
    REFUSED: "refused, with one line on stderr",
    OVER_BUDGET: "the privacy budget is exceeded, or would have been",
    INTERRUPTED: "interrupted, or nobody reads the output",
}
"""Exit codes of all commands, as `dordis --help` prints them."""


def make_console(*, stderr: bool = False) -> "Console":
    """Return a console that prints text unchanged, without markup and without cutting lines."""
    from rich.console import Console

    class Interruptible(Console):
        def on_broken_pipe(self) -> None:
            """Raise KeyboardInterrupt if the program that reads the output has ended, as in `dordis run | head`.

            A run then stops as at Ctrl-C, and prints how to resume it.
            """
            try:
                super().on_broken_pipe()
            except SystemExit:
                raise KeyboardInterrupt from None

    return Interruptible(stderr=stderr, soft_wrap=True, markup=False)


def print_result(as_json: bool, fields: object, *parts: "Table | str") -> None:
    """Print `fields` as one JSON value if `as_json`, otherwise the tables and lines in `parts`."""
    if as_json:
        import json

        print(json.dumps(fields))
        return
    for part in parts:
        make_console().print(part, highlight=False)


@contextmanager
def show_progress(task: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Show a task and its elapsed time on a terminal, during the block.

    If the task has `total` parts, the block calls the yielded function after each part.
    """
    screen = make_console(stderr=True)
    if not screen.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    parts = [BarColumn(), MofNCompleteColumn()] if total else []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *parts, TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        row = progress.add_task(task, total=total)
        yield lambda: progress.advance(row)


def make_table(*heads: "str | Column", rows: Iterable[Iterable[Any]], **options: Any) -> "Table":
    """Return a table; `options` are those of `rich.table.Table`, such as a title."""
    from rich.table import Table

    table = Table(*heads, **options)
    for row in rows:
        table.add_row(*row)
    return table


def facts_table(rows: Mapping[str, str], title: str | None = None) -> "Table":
    """Return a table with two columns: the keys and the values of `rows`."""
    return make_table("name", "value", rows=rows.items(), title=title, show_header=False)


def number_columns(*heads: str) -> "list[Column]":
    """Return right-aligned columns that are never wrapped."""
    from rich.table import Column

    return [Column(head, justify="right", no_wrap=True) for head in heads]


def finite(epsilon: float | None) -> float | None:
    """Return `epsilon`, or None if it is infinite, which JSON cannot express."""
    return None if epsilon is None or math.isinf(epsilon) else epsilon
