"""A private mean of the columns of a CSV file, each row one client's; nothing is printed that is not private."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import CsvFile, Delta, Dropped, Epsilon, Fidelity, Json, QueryLedger, QueryLimit, SkipInvalid
from dordis.cli.tables import right, show, table, working
from dordis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from dordis.apps.analytics import PrivateMean
    from dordis.apps.analytics.results import PrivateAnswer

WITHIN = 1.96
"""Standard deviations within which the noise lies in 95 % of all cases."""

MOST_DIGITS = 9
"""Digits behind the point, and of the noise before it, that are written out."""


def mean(
    file: CsvFile,
    epsilon: Epsilon,
    delta: Delta = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOW,HIGH", help="Public bounds, for all columns or once for each; found privately if not given."
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME,...", help="Which columns: all if not given.")] = None,
    dropped: Dropped = 0,
    fidelity: Fidelity = "ideal",
    as_json: Json = False,
    ledger: QueryLedger = None,
    budget: QueryLimit = None,
    skip_invalid: SkipInvalid = False,
) -> None:
    """Compute the private mean of columns of a CSV file."""
    from dordis.apps import analytics
    from dordis.apps.analytics.csv_file import read_columns

    read = read_columns(
        file, None if columns is None else [name.strip() for name in columns.split(",")], skip_invalid=skip_invalid
    )
    limits = read_bounds(bounds or (), len(read.names))
    with working(summing(len(read.values), fidelity)):
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
    told = fields(read.names, result) | {"skipped": read.skipped}
    show(as_json, told, shown(read.names, result), *said(result), *left_out(read.skipped))


def summing(clients: int, fidelity: str) -> str:
    """Say what takes long."""
    return f"one round of {clients:,} clients, {fidelity} fidelity"


def read_bounds(texts: Sequence[str], columns: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Read `LOW,HIGH`, given once for all columns or once for each, or not at all."""
    if not texts:
        return None
    pairs = [read_numbers(text, "--bounds") for text in texts]
    if any(len(pair) != 2 for pair in pairs) or len(pairs) not in (1, columns):
        times = f", once for all columns or {columns} times, once for each" if columns > 1 else ", once for one column"
        raise InputError(f"--bounds takes LOW,HIGH{times}")
    low, high = zip(*(pairs * columns if len(pairs) == 1 else pairs), strict=True)
    return low, high


def read_numbers(text: str, option: str) -> list[float]:
    """Read numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers with commas between them, not '{text}'") from None


def shown(names: Sequence[str], result: "PrivateMean") -> "Table":
    """Show each mean, and how far noise may have moved it."""
    rows = (
        (name, *rounded(mean, WITHIN * sigma), f"{low:g} .. {high:g}")
        for name, (mean, sigma, low, high) in zip(names, _figures(result), strict=True)
    )
    title = f"Private mean over {result.clients - result.dropped} clients"
    caption = "± is the noise, not what clipping does"
    return table("column", *right("mean", "± (95 %)", "clipped to"), rows=rows, title=title, caption=caption)


def rounded(value: float, within: float) -> tuple[str, str]:
    """Write a value and how far it is off, both to the second digit of the latter.

    >>> rounded(39.7812, 0.4123)
    ('39.78', '0.41')
    """
    digits = max(0, 1 - math.floor(math.log10(within)))
    if digits > MOST_DIGITS or within >= 10**MOST_DIGITS:
        return f"{value:.6g}", f"{within:.2g}"
    return f"{round(value, digits) + 0.0:.{digits}f}", f"{within:.{digits}f}"  # + 0 makes -0 to 0


def said(result: "PrivateAnswer") -> Iterator[str]:
    """Say what is proved, for whom, against whom, and what was simulated."""
    spent = f"epsilon {result.epsilon:.4g}, delta {result.delta:.3g}"
    if result.epsilon_for_bounds:
        spent += f"; to find the bounds alone would have cost epsilon {result.epsilon_for_bounds:.3g}"
    gone = f", of which {result.dropped} dropped out" if result.dropped else ""
    yield f"{spent}; {result.clients} clients{gone}"
    yield from (f"  {term}" for term in result.terms)
    yield f"  the sum, checked for garbage: {result.sum_check}"


def left_out(skipped: int) -> Iterator[str]:
    """Say that rows were skipped, and that this is not private."""
    if skipped:
        yield f"  {skipped} rows without a finite number were left out: who they are, and how many, is not protected"


def common(result: "PrivateAnswer") -> dict[str, object]:
    """Return what every private statistic is told with, for JSON."""
    proved = ("epsilon", "delta", "epsilon_for_bounds", "clients", "dropped", "colluders", "mode")
    names = (*proved, "fidelity", "sum_check", "terms")
    return {name: getattr(result, name) for name in names}


def fields(names: Sequence[str], result: "PrivateMean") -> dict[str, object]:
    """Return what is printed as JSON."""
    columns = [
        {"name": name, "mean": mean, "sigma": sigma, "low": low, "high": high}
        for name, (mean, sigma, low, high) in zip(names, _figures(result), strict=True)
    ]
    return {"columns": columns, **common(result)}


def _figures(result: "PrivateMean") -> list[list[float]]:
    """Return mean, sigma and bounds of each column."""
    import numpy as np

    figures: list[list[float]] = np.array((result.mean, result.sigma, *result.bounds)).T.tolist()
    return figures
