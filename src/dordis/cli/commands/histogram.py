"""A private histogram of a column of a CSV file, each row one client's; nothing is printed that is not private."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.commands.mean import WITHIN, common, left_out, read_bounds, read_numbers, rounded, said, summing
from dordis.cli.options import CsvFile, Delta, Dropped, Epsilon, Fidelity, Json, QueryLedger, QueryLimit, SkipInvalid
from dordis.cli.tables import right, show, table, working
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.apps.analytics import PrivateHistogram

LONGEST = 24
"""Blocks of the longest bar."""

MOST_BINS = 200
"""Bins that are all shown; of more, only those with most clients are."""
FULLEST = 40


def histogram(
    file: CsvFile,
    epsilon: Epsilon,
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="E1,E2,...", help="Public values between the bins; the first and the last bin have no end."
        ),
    ] = None,
    bins: Annotated[int | None, typer.Option(help="Instead of edges: so many bins between the bounds.")] = None,
    bounds: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="Public bounds; found privately if not given.")
    ] = None,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="Which column, if there are several.")] = None,
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
    from dordis.apps.analytics.csv_file import read_columns

    read = read_columns(file, None if column is None else [column], skip_invalid=skip_invalid)
    if len(read.names) > 1:
        raise InputError(f"{file} has several columns: choose one with --column, of {', '.join(read.names)}")
    between = None if edges is None else read_numbers(edges, "--edges")
    limits = read_bounds([] if bounds is None else [bounds], 1)
    with working(summing(len(read.values), fidelity)):
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
    told = fields(read.names[0], result) | {"skipped": read.skipped} if as_json else None  # of many bins it is long
    show(as_json, told, shown(read.names[0], result), *said(result), *left_out(read.skipped))


def shown(name: str, result: "PrivateHistogram") -> "Table":
    """Show each count, how far noise may have moved it, and a bar for its share; of very many bins the fullest."""
    import numpy as np
    from rich.table import Column

    counts, shares = result.counts, result.frequencies
    bins = range(len(counts)) if len(counts) <= MOST_BINS else np.sort(np.argsort(counts)[-FULLEST:]).tolist()
    most = float(shares.max())
    rows = (
        (name, *rounded(float(counts[i]), WITHIN * result.sigma), f"{shares[i]:.1%}", bar(float(shares[i]) / most))
        for i, name in zip(bins, labels(result, bins), strict=True)
    )
    title = f"Private histogram of {name} over {result.clients - result.dropped} clients"
    less = f"the {FULLEST} fullest of {len(counts):,} bins; --json prints all" if len(bins) < len(counts) else None
    heads = right("bin", "clients", "± (95 %)", "share")
    return table(*heads, Column(no_wrap=True), rows=rows, title=title, caption=less)


def labels(result: "PrivateHistogram", bins: Iterable[int]) -> list[str]:
    """Name these bins by their ends, in so many digits that no two ends of a bin look alike."""
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


def bar(part: float) -> str:
    """Draw a bar to an eighth of a block.

    >>> bar(1 / 48)
    '▌'
    """
    eighths = math.floor(part * LONGEST * 8 + 0.5)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def fields(name: str, result: "PrivateHistogram") -> dict[str, object]:
    """Return what is printed as JSON."""
    return {
        "column": name,
        "counts": result.counts.tolist(),
        "frequencies": result.frequencies.tolist(),
        "sigma": result.sigma,
        "edges": result.edges.tolist(),
        "bounds": result.bounds,
        **common(result),
    }
