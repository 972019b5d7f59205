"""Private statistics of a CSV file with one row per client: means and a histogram, to which noise is added."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import CsvFile, Delta, Dropped, Epsilon, Fidelity, Json, QueryLedger, QueryLimit, SkipInvalid
from dordis.cli.output import make_console, make_table, number_columns, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.apps.analytics import PrivateHistogram, PrivateMean
    from dordis.apps.analytics.queries import PrivateAnswer


Z_95 = 1.96
"""The noise lies within this many standard deviations of zero with a probability of 95 %."""

MOST_DIGITS = 9
"""Largest number of digits before or after the decimal point; numbers with more are printed as 1.2e+10."""


def mean(
    file: CsvFile,
    epsilon: Epsilon,
    delta: Delta = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Public bounds, for all columns or once per column; found privately if not given.",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="The columns to average; all if not given.")
    ] = None,
    dropped: Dropped = 0,
    fidelity: Fidelity = "ideal",
    as_json: Json = False,
    ledger: QueryLedger = None,
    budget: QueryLimit = None,
    skip_invalid: SkipInvalid = False,
) -> None:
    """Compute the private mean of columns of a CSV file."""
    from dordis.apps import analytics
    from dordis.apps.tables.columns import read_columns

    read = read_columns(
        file, None if columns is None else [name.strip() for name in columns.split(",")], skip_invalid=skip_invalid
    )
    limits = read_bounds(bounds or (), len(read.names))
    with show_progress(describe_task(len(read.values), fidelity)):
        result = analytics.mean(
            read.values,
            epsilon=epsilon,
            delta=delta,
            bounds=limits,
            dropped=dropped,
            fidelity=fidelity,
            ledger=ledger,
            budget=budget,
            clients=read.rows,
        )
    fields = _mean_fields(read.names, result) | {"skipped": read.skipped}
    print_result(as_json, fields, _mean_table(read.names, result), *describe_answer(result, read.skipped))


def describe_task(clients: int, fidelity: str) -> str:
    """Return the line that is shown while a private statistic is computed."""
    return f"one round of {clients:,} clients, {fidelity} fidelity"


def read_bounds(texts: Sequence[str], columns: int) -> list[list[float]] | None:
    """Return the bounds of each column, a pair, from the values LOW,HIGH of the options --bounds; None without options.

    There may be one option for all columns, or one per column.
    """
    if not texts:
        return None
    pairs = [read_numbers(text, "--bounds") for text in texts]
    if any(len(pair) != 2 for pair in pairs) or len(pairs) not in (1, columns):
        times = f", once for all columns or once for each of {columns}" if columns > 1 else ", once for one column"
        raise InputError(f"--bounds takes LOW,HIGH{times}")
    return pairs * columns if len(pairs) == 1 else pairs


def read_numbers(text: str, option: str) -> list[float]:
    """Read numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, not '{text}'") from None


def _mean_table(names: Sequence[str], result: "PrivateMean") -> "Table":
    """Return a table with a row for each column: mean, 95 % range of its noise, bounds to which values are clipped."""
    rows = (
        (name, *round_to_noise(mean, Z_95 * sigma), f"{low:g} .. {high:g}")
        for name, (mean, sigma, low, high) in zip(names, _figures(result), strict=True)
    )
    title = f"Private mean over {result.clients - result.dropped} clients"
    caption = "± covers the noise, not the effect of clipping"
    return make_table(
        "column", *number_columns("mean", "± (95 %)", "clipped to"), rows=rows, title=title, caption=caption
    )


def round_to_noise(value: float, within: float) -> tuple[str, str]:
    """Format a value and `within`, its error, both to the second significant digit of the error.

    >>> round_to_noise(39.7812, 0.4123)
    ('39.78', '0.41')
    """
    digits = max(0, 1 - math.floor(math.log10(within)))
    if digits > MOST_DIGITS or within >= 10**MOST_DIGITS:
        return f"{value:.6g}", f"{within:.2g}"
    return f"{round(value, digits) + 0.0:.{digits}f}", f"{within:.{digits}f}"  # + 0 turns -0 into 0


def describe_answer(result: "PrivateAnswer", skipped: int) -> Iterator[str]:
    """Yield lines about a private statistic: epsilon, clients, terms of the guarantee, sum check, skipped rows."""
    spent = f"epsilon {result.epsilon:.4g}, delta {result.delta:.3g}"
    if result.epsilon_for_bounds:
        spent += f"; finding the bounds alone would have cost epsilon {result.epsilon_for_bounds:.3g}"
    gone = f", of which {result.dropped} dropped out" if result.dropped else ""
    yield f"{spent}; {result.clients} clients{gone}"
    yield from (f"  {term}" for term in result.terms)
    yield f"  check for impossible sums: {result.sum_check}"
    if skipped:
        yield f"  {skipped} rows without a finite number were skipped: which rows, and how many, is not protected"


def answer_fields(result: "PrivateAnswer") -> dict[str, object]:
    """Return the JSON fields that all private statistics have."""
    proved = ("epsilon", "delta", "epsilon_for_bounds", "clients", "dropped", "colluders", "mode")
    names = (*proved, "fidelity", "sum_check", "terms")
    return {name: getattr(result, name) for name in names}


def _mean_fields(names: Sequence[str], result: "PrivateMean") -> dict[str, object]:
    columns = [
        {"name": name, "mean": mean, "sigma": sigma, "low": low, "high": high}
        for name, (mean, sigma, low, high) in zip(names, _figures(result), strict=True)
    ]
    return {"columns": columns, **answer_fields(result)}


def _figures(result: "PrivateMean") -> list[list[float]]:
    """Return for each column its mean, the standard deviation of the noise on it, and its low and high bound."""
    import numpy as np

    figures: list[list[float]] = np.array((result.mean, result.sigma, *result.bounds)).T.tolist()
    return figures


BAR_WIDTH = 24
"""Length of the longest bar, in characters."""

MOST_BINS = 200
FULLEST = 40
"""Of a histogram with more than MOST_BINS bins, only the FULLEST bins with the largest counts are printed."""


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
    from dordis.apps.tables.columns import read_columns

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

    If there are more than MOST_BINS bins, the table lists only FULLEST of them, those with the largest counts.
    """
    import numpy as np
    from rich.table import Column

    counts, shares = result.counts, result.frequencies
    bins = range(len(counts)) if len(counts) <= MOST_BINS else np.sort(np.argsort(counts)[-FULLEST:]).tolist()
    most = float(shares.max())
    numbers = [
        (name, *round_to_noise(float(counts[i]), Z_95 * result.sigma), f"{shares[i]:.1%}")
        for i, name in zip(bins, _bin_labels(result, bins), strict=True)
    ]
    title = f"Private histogram of {name} over {result.clients - result.dropped} clients"
    less = f"the {FULLEST} fullest of {len(counts):,} bins; --json prints all" if len(bins) < len(counts) else None
    heads = number_columns("bin", "clients", "± (95 %)", "share")
    for head, *cells in zip(heads, *numbers, strict=True):
        head.min_width = max(map(len, (str(head.header), *cells)))
    used = sum(head.min_width or 0 for head in heads) + 3 * (len(heads) + 1) + 1  # with the space around each cell
    width = min(max(make_console().width - used, 1), BAR_WIDTH)
    rows = ((*row, draw_bar(shares[i] / most, width)) for i, row in zip(bins, numbers, strict=True))
    return make_table(*heads, Column(no_wrap=True), rows=rows, title=title, caption=less)


def _bin_labels(result: "PrivateHistogram", bins: Iterable[int]) -> list[str]:
    """Return the labels of the bins with these indices: the two ends of each bin, with enough digits to differ."""
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


def draw_bar(part: float, width: int = BAR_WIDTH) -> str:
    """Return a bar whose length is the fraction `part` of `width` characters, to an eighth of a character.

    >>> draw_bar(1 / 48)
    '▌'
    """
    eighths = math.floor(part * width * 8 + 0.5)
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


TOP_LEVEL = (mean, histogram)
