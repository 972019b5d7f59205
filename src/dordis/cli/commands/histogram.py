"""A private histogram of a column of a CSV file with one row per client; everything printed is private."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.commands.mean import (
    Z_95,
    answer_fields,
    describe_answer,
    describe_task,
    read_bounds,
    read_numbers,
    round_to_noise,
)
from dordis.cli.options import CsvFile, Delta, Dropped, Epsilon, Fidelity, Json, QueryLedger, QueryLimit, SkipInvalid
from dordis.cli.output import make_table, number_columns, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.apps.analytics import PrivateHistogram

BAR_WIDTH = 24
"""Length of the longest bar, in characters."""

MOST_BINS = 200
FULLEST = 40
"""A histogram of more than MOST_BINS bins is printed with the FULLEST bins of the largest counts only."""


def histogram(
    file: CsvFile,
    epsilon: Epsilon,
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="E1,E2,...", help="Public values that separate the bins; the first and the last bin are open."
        ),
    ] = None,
    bins: Annotated[int | None, typer.Option(help="Instead of edges: the number of bins between the bounds.")] = None,
    bounds: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="Public bounds; found privately if not given.")
    ] = None,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="The column, if there are several.")] = None,
    delta: Delta = None,
    dropped: Dropped = 0,
    fidelity: Fidelity = "ideal",
    as_json: Json = False,
    ledger: QueryLedger = None,
    budget: QueryLimit = None,
    skip_invalid: SkipInvalid = False,
) -> None:
    """Count privately how many clients have a value in each bin."""
    from dordis.apps import analytics
    from dordis.apps.tables.csv_file import read_columns

    read = read_columns(file, None if column is None else [column], skip_invalid=skip_invalid)
    if len(read.names) > 1:
        raise InputError(f"{file} has several columns: choose one with --column, of {', '.join(read.names)}")
    between = None if edges is None else read_numbers(edges, "--edges")
    limits = read_bounds([] if bounds is None else [bounds], 1)
    with show_progress(describe_task(len(read.values), fidelity)):
        result = analytics.histogram(
            read.values[:, 0],
            bins,
            epsilon=epsilon,
            edges=between,
            bounds=limits,
            delta=delta,
            dropped=dropped,
            fidelity=fidelity,
            ledger=ledger,
            budget=budget,
            clients=read.rows,
        )
    fields = _histogram_fields(read.names[0], result) | {"skipped": read.skipped} if as_json else None  # may be long
    print_result(as_json, fields, _histogram_table(read.names[0], result), *describe_answer(result, read.skipped))


def _histogram_table(name: str, result: "PrivateHistogram") -> "Table":
    """Return a table of the bins: count, 95 % range of its noise, share, and a bar.

    Of more than MOST_BINS bins, only the FULLEST with the largest counts are listed.
    """
    import numpy as np
    from rich.table import Column

    counts, shares = result.counts, result.frequencies
    bins = range(len(counts)) if len(counts) <= MOST_BINS else np.sort(np.argsort(counts)[-FULLEST:]).tolist()
    most = float(shares.max())
    rows = (
        (name, *round_to_noise(float(counts[i]), Z_95 * result.sigma), f"{shares[i]:.1%}", draw_bar(shares[i] / most))
        for i, name in zip(bins, _bin_labels(result, bins), strict=True)
    )
    title = f"Private histogram of {name} over {result.clients - result.dropped} clients"
    less = f"the {FULLEST} fullest of {len(counts):,} bins; --json prints all" if len(bins) < len(counts) else None
    heads = number_columns("bin", "clients", "± (95 %)", "share")
    return make_table(*heads, Column(no_wrap=True), rows=rows, title=title, caption=less)


def _bin_labels(result: "PrivateHistogram", bins: Iterable[int]) -> list[str]:
    """Return labels of these bins: the two ends of each, with enough digits that they differ."""
    import numpy as np

    ends = np.hstack((-np.inf, result.edges, np.inf))
    if result.bounds is not None:
        ends[[0, -1]] = result.bounds
    largest, narrowest = np.abs(result.edges).max(), np.diff(ends).min()
    digits = min(max(6, math.ceil(math.log10(max(largest / narrowest, 1.0))) + 1), 15)

    def name(below: float, above: float) -> str:
        if math.isinf(below):
            return f"below {above:.{digits}g}"
        return f"{below:.{digits}g} and above" if math.isinf(above) else f"{below:.{digits}g} .. {above:.{digits}g}"

    return [name(float(ends[i]), float(ends[i + 1])) for i in bins]


def draw_bar(part: float) -> str:
    """Return a bar whose length is the fraction `part` of BAR_WIDTH, to an eighth of a character.

    >>> draw_bar(1 / 48)
    '▌'
    """
    eighths = math.floor(part * BAR_WIDTH * 8 + 0.5)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _histogram_fields(name: str, result: "PrivateHistogram") -> dict[str, object]:
    return {
        "column": name,
        "counts": result.counts.tolist(),
        "frequencies": result.frequencies.tolist(),
        "sigma": result.sigma,
        "edges": result.edges.tolist(),
        "bounds": result.bounds,
        **answer_fields(result),
    }
