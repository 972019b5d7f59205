"""A private histogram of a column of a CSV file, each row one client's; nothing is printed that is not private."""

import json
import math
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dordis.apps.analytics import PrivateHistogram
from dordis.apps.analytics import histogram as private_histogram
from dordis.apps.analytics.csv_file import read_columns
from dordis.cli.mean import WITHIN, common, print_terms, read_bounds, read_numbers, rounded
from dordis.errors import InputError

LONGEST = 24
"""Blocks of the longest bar."""


def histogram(
    path: Path,
    epsilon: float,
    delta: float | None,
    edges: str | None,
    bins: int | None,
    bounds: str | None,
    column: str | None,
    dropped: int,
    fidelity: str,
    as_json: bool,
) -> None:
    """Read the file, compute, and print how many clients are in each bin."""
    table = read_columns(path, None if column is None else [column])
    if len(table.names) > 1:
        raise InputError(f"{path} has several columns: choose one with --column, of {', '.join(table.names)}")
    result = private_histogram(
        table.values[:, 0],
        bins,
        epsilon=epsilon,
        edges=None if edges is None else read_numbers(edges, "--edges"),
        bounds=read_bounds([] if bounds is None else [bounds], 1),
        delta=delta,
        dropped=dropped,
        fidelity=fidelity,
    )
    if as_json:
        print(json.dumps(fields(table.names[0], result)))
        return
    console = Console(soft_wrap=True, markup=False)
    console.print(shown(table.names[0], result))
    print_terms(console, result)


def shown(name: str, result: PrivateHistogram) -> Table:
    """Show each count, how far noise may have moved it, and a bar for its share."""
    table = Table(title=f"Private histogram of {name} over {result.clients - result.dropped} clients")
    for heading in ("bin", "clients", "± (95 %)", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    shares = result.frequencies.tolist()
    most = max(shares)
    for label, count, share in zip(labels(result), result.counts.tolist(), shares, strict=True):
        table.add_row(label, *rounded(count, WITHIN * result.sigma), f"{share:.1%}", bar(share / most))
    return table


def labels(result: PrivateHistogram) -> list[str]:
    """Name the bins by their ends."""
    texts = [f"{edge:g}" for edge in result.edges.tolist()]
    if result.bounds is not None:
        low, high = result.bounds
        ends = [f"{low:g}", *texts, f"{high:g}"]
        return [f"{one} .. {other}" for one, other in pairwise(ends)]
    between = [f"{one} .. {other}" for one, other in pairwise(texts)]
    return [f"below {texts[0]}", *between, f"{texts[-1]} and above"]


def bar(part: float) -> str:
    """Draw a bar to an eighth of a block.

    >>> bar(1 / 48)
    '▌'
    """
    eighths = math.floor(part * LONGEST * 8 + 0.5)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def fields(name: str, result: PrivateHistogram) -> dict[str, object]:
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
