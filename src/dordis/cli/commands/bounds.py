"""Find the ranges of a table's numeric columns privately, and print lines to paste into its configuration."""

import math
from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import Json, Overrides
from dordis.cli.output import print_result, show_progress
from dordis.errors import InputError


def bounds(
    config: Annotated[Path, typer.Argument(help="A configuration with [app.options.table], as dordis init writes it.")],
    ledger: Annotated[Path, typer.Option(help="The ledger of the data set, which is charged.")],
    share: Annotated[
        float, typer.Option(help="The part of privacy.epsilon to spend; the rest is left for a run.")
    ] = 0.1,
    budget: Annotated[
        float | None, typer.Option(help="For a new --ledger: the epsilon that all runs and queries may spend together.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Columns; all numeric features without a range if not given.")
    ] = None,
    setting: Overrides = None,
    as_json: Json = False,
) -> None:
    """Find ranges of numeric columns privately.

    The ends of a range are 0 or powers of two with a sign. Some hundreds of clients are needed. If you know a range
    without looking at the rows, write it yourself: that costs no privacy.
    """
    import msgspec

    from dordis.apps.analytics.ranges import find_ranges
    from dordis.apps.learning.settings import read_settings
    from dordis.apps.tables.columns import as_columns
    from dordis.apps.tables.description import template
    from dordis.config import reading

    settings = reading.read_config(config, None, setting or ())
    options = read_settings(settings.app.options)
    if options.table is None:
        raise InputError(f"{config} has no [app.options.table]: write one with dordis init FILE --data TABLE.csv")
    total = settings.privacy.epsilon
    rows = as_columns(Path(settings.app.folder) / options.data, options.data)
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    with show_progress(f"one round over {len(rows):,} rows"):
        found = find_ranges(
            rows, options.table, epsilon=total, share=share, columns=wanted, delta=settings.privacy.delta,
            ledger=ledger, budget=budget,
        )  # fmt: skip
    left = math.floor(1000 * found.epsilon_left) / 1000
    names = [*found.table.feature_names(rows.names, rows.where), *found.table.labels]
    open_ = [name for name in names if found.table.range(name) is None and name not in found.table.categories]
    lines = [
        f"# Ranges of {found.clients} clients found with epsilon {found.epsilon:.4g}, delta {found.delta:.3g}; charged",
        f"# to {ledger}. Paste them into {config} in place of its table, and run it with --ledger {ledger}.",
        template(found.table, open_, rows.has_numbers),
        "",
        "[privacy]",
        f"epsilon = {left:g}  # what is left of {total:g}",
    ]
    if found.not_found:
        lines.insert(0, f"# Noise hides the range of {', '.join(found.not_found)}: give a public one.")
    fields = msgspec.to_builtins(found) | {"epsilon_left": left, "ledger": str(ledger)}
    print_result(as_json, fields, "\n".join(lines))
