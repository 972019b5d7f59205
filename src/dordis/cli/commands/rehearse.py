"""Rehearse a configuration for a table: run the same job on synthetic rows, which spends no privacy."""

import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dordis.cli.options import Json, Overrides
from dordis.cli.output import facts_table, print_result
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.library import RunResult


@dataclass(frozen=True)
class Rehearsal:
    """The results of two runs on the same synthetic rows: `private` with the configured noise, `clean` without."""

    private: "RunResult"
    clean: "RunResult"


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
        done = run_rehearsal(settings, Path(folder), rows)
        found: dict[str, Any] = {"plan": done.private.verdict, "rounds": str(len(done.private.history))}
        for name, value in done.private.metrics.items():
            found[name] = f"{value:.4g} with noise, {done.clean.metrics[name]:.4g} without"
        found["spent"] = "nothing: the rows are synthetic"
    print_result(as_json, found, facts_table(found, f"rehearsal of {config}"))


def run_rehearsal(settings: Any, folder: Path, each: int) -> Rehearsal:
    """Run a configuration with and without noise on `each` synthetic rows per client, written to `folder`."""
    import msgspec

    from dordis.apps.learning.settings import read_settings
    from dordis.apps.tables.csv_file import read_header
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
    return Rehearsal(private, run(changed))


def _write(path: Path, rows: dict[str, list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))
