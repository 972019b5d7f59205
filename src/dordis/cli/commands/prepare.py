"""Prepare a run: write a configuration, describe data, find ranges of a table privately, rehearse on synthetic rows."""

import csv
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dordis.cli.options import PRESETS, DataDir, Json, Overrides, preset_names
from dordis.cli.output import facts_table, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.library import RunResult


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("dordis.toml"),
    preset: Annotated[
        str,
        typer.Option(
            help=f"The preset to copy: digits, which explains every setting, {PRESETS}.",
            autocompletion=preset_names,
        ),
    ] = "digits",
    data: Annotated[
        Path | None, typer.Option(help="A CSV or Parquet file: write a template for it, from its header alone.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a commented configuration to edit."""
    from dordis.apps.tables.columns import read_header
    from dordis.apps.tables.description import write_template
    from dordis.config import preset_text

    text = preset_text(preset) if data is None else write_template(data, read_header(data))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists and is not overwritten: choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    told = {"path": str(path), "preset": preset} if data is None else {"path": str(path), "data": str(data)}
    step = "run it with" if data is None else "fill in its ranges and categories, then check it with"
    print_result(as_json, told, f"wrote {path}; {step}: dordis run {path}{'' if data is None else ' --dry-run'}")


def data(
    name: Annotated[
        str, typer.Argument(metavar="NAME or PATH", help="A data set such as cifar10, or a file such as patients.csv.")
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Describe a data set: shapes, counts, clients.

    A data set that is not on this machine is downloaded.
    """
    from dordis.apps.learning.settings import Settings
    from dordis.apps.learning.sources import load
    from dordis.apps.tables.columns import SUFFIXES, read_header

    if Path(name).suffix.lower() in SUFFIXES:
        columns = read_header(Path(name))
        described = {
            "columns": ", ".join(column or "'' (the column without a name)" for column in columns),
            "next": f"dordis init --data {name} writes a description to fill in",
        }
        print_result(as_json, described, facts_table(described, name))
        return
    folder = "" if data_dir is None else str(data_dir.resolve())
    described = load(Settings(data=name, data_dir=folder), Path.cwd()).describe()
    print_result(as_json, described, facts_table(described, name))


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

    Each end of a range is 0, a power of two, or minus a power of two.  Some hundreds of clients are needed.  If you
    know a range without looking at the rows, write it yourself: that costs no privacy.
    """
    import msgspec

    from dordis.apps.analytics.bounds import find_ranges
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


def rehearse(
    config: Annotated[Path, typer.Argument(help="A configuration with [app.options.table].")],
    setting: Overrides = None,
    rows: Annotated[int, typer.Option(min=1, help="Synthetic rows of each client.")] = 1,
    as_json: Json = False,
) -> None:
    """Run a job on synthetic rows.

    Rows are drawn from the ranges and categories of the table. The table itself is not read beyond its header, and
    no epsilon is spent.
    """
    from dordis.config import reading

    settings = reading.read_config(config, None, setting or ())
    with tempfile.TemporaryDirectory() as folder:
        private, clean = run_rehearsal(settings, Path(folder), rows)
        found: dict[str, Any] = {"plan": private.verdict, "rounds": str(len(private.history))}
        for name, value in private.metrics.items():
            found[name] = f"{value:.4g} with noise, {clean.metrics[name]:.4g} without"
        found["spent"] = "nothing: the rows are synthetic"
    print_result(as_json, found, facts_table(found, f"rehearsal of {config}"))


def run_rehearsal(settings: Any, folder: Path, each: int) -> "tuple[RunResult, RunResult]":
    """Run a configuration twice on the same synthetic rows, with its noise and without noise; return both results.

    Each client has `each` rows.  All files are written to `folder`.
    """
    import msgspec

    from dordis.apps.learning.settings import read_settings
    from dordis.apps.tables.columns import read_header
    from dordis.apps.tables.synthetic import draw_rows
    from dordis.library import run

    options = read_settings(settings.app.options)
    if options.table is None:
        raise InputError("a rehearsal draws rows from [app.options.table]: for other data use dordis run --dry-run")
    names, clients = read_header(Path(settings.app.folder) / options.data), settings.federation.clients
    held = max(200, clients // 4)
    drawn = draw_rows(options.table, names, clients + held, each, seed=0)
    _write(folder / "rows.csv", {name: values[: clients * each] for name, values in drawn.items()})
    _write(folder / "test.csv", {name: values[clients * each :] for name, values in drawn.items()})
    changed = msgspec.to_builtins(settings)
    changed["app"]["options"] |= {"data": "rows.csv", "test": "test.csv", "own_files": False}
    changed["app"]["folder"] = changed["output"] = str(folder)
    changed["simulation"]["fidelity"] = "ideal"
    changed["deployment"] = {}
    private = run(changed, accept_hopeless=True)
    changed["privacy"] |= {"noise": {"kind": "none"}, "mechanism": None}
    return private, run(changed)


def _write(path: Path, rows: dict[str, list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))


TOP_LEVEL = (init, data, bounds, rehearse)
