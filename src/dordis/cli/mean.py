"""A private mean of the columns of a CSV file, each row one client's; nothing is printed that is not private."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dordis.apps.analytics import PrivateMean
from dordis.apps.analytics import mean as private_mean
from dordis.apps.analytics.csv_file import read_columns
from dordis.apps.analytics.results import Release
from dordis.errors import InputError
from dordis.privacy.skellam import Floats

WITHIN = 1.96
"""Standard deviations within which the noise lies in 95 % of all cases."""

MOST_DIGITS = 9
"""Digits behind the point, and of the noise before it, that are written out."""

Pair = tuple[Floats, Floats]


def mean(
    path: Path,
    epsilon: float,
    delta: float | None,
    bounds: Sequence[str],
    columns: str | None,
    dropped: int,
    fidelity: str,
    as_json: bool,
) -> None:
    """Read the file, compute, and print the mean of each column."""
    table = read_columns(path, None if columns is None else [name.strip() for name in columns.split(",")])
    result = private_mean(
        table.values,
        epsilon=epsilon,
        delta=delta,
        bounds=read_bounds(bounds, len(table.names)),
        dropped=dropped,
        fidelity=fidelity,
    )
    if as_json:
        print(json.dumps(fields(table.names, result)))
        return
    console = Console(soft_wrap=True, markup=False)
    console.print(shown(table.names, result))
    print_terms(console, result)


def read_bounds(texts: Sequence[str], columns: int) -> Pair | None:
    """Read `LOW,HIGH`, given once for all columns or once for each, or not at all."""
    if not texts:
        return None
    pairs = [read_numbers(text, "--bounds") for text in texts]
    if any(len(pair) != 2 for pair in pairs) or len(pairs) not in (1, columns):
        each = f", once for all columns or {columns} times, once for each" if columns > 1 else ", once for one column"
        raise InputError(f"--bounds takes LOW,HIGH{each}")
    low, high = np.array(pairs * columns if len(pairs) == 1 else pairs).T
    return low, high


def read_numbers(text: str, option: str) -> list[float]:
    """Read numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers with commas between them, not '{text}'") from None


def shown(names: Sequence[str], result: PrivateMean) -> Table:
    """Show each mean, and how far noise may have moved it."""
    table = Table("column", title=f"Private mean over {result.clients - result.dropped} clients")
    for heading in ("mean", "± (95 %)", "clipped to"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, mean, sigma, low, high in zip(names, *_columns(result), strict=True):
        table.add_row(name, *rounded(mean, WITHIN * sigma), f"{low:g} .. {high:g}")
    table.caption = "± is the noise, not what clipping does"
    return table


def rounded(value: float, within: float) -> tuple[str, str]:
    """Write a value and how far it is off, both to the second digit of the latter.

    >>> rounded(39.7812, 0.4123)
    ('39.78', '0.41')
    """
    digits = max(0, 1 - math.floor(math.log10(within)))
    if digits > MOST_DIGITS or within >= 10**MOST_DIGITS:
        return f"{value:.6g}", f"{within:.2g}"
    return f"{round(value, digits) + 0.0:.{digits}f}", f"{within:.{digits}f}"  # + 0 makes -0 to 0


def print_terms(console: Console, result: Release) -> None:
    """Say what is proved, for whom, against whom, and what was simulated."""
    spent = f"epsilon {result.epsilon:.4g}, delta {result.delta:.3g}"
    if result.epsilon_for_bounds:
        spent += f", of which epsilon {result.epsilon_for_bounds:.3g} and half of delta found the bounds"
    gone = f", of which {result.dropped} dropped out" if result.dropped else ""
    console.print(f"{spent}; {result.clients} clients{gone}")
    for term in result.terms:
        console.print(f"  {term}", highlight=False)


def common(result: Release) -> dict[str, object]:
    """Return what every private statistic is told with, for JSON."""
    return {
        "epsilon": result.epsilon,
        "delta": result.delta,
        "epsilon_for_bounds": result.epsilon_for_bounds,
        "clients": result.clients,
        "dropped": result.dropped,
        "colluders": result.colluders,
        "mode": result.mode,
        "fidelity": result.fidelity,
        "terms": result.terms,
    }


def fields(names: Sequence[str], result: PrivateMean) -> dict[str, object]:
    """Return what is printed as JSON."""
    keys = ("mean", "sigma", "low", "high")
    rows = zip(names, *_columns(result), strict=True)
    return {"columns": [{"name": name, **dict(zip(keys, row, strict=True))} for name, *row in rows], **common(result)}


def _columns(result: PrivateMean) -> tuple[list[float], ...]:
    figures = (result.mean, result.sigma, *result.bounds)
    return tuple(np.atleast_1d(figure).tolist() for figure in figures)
