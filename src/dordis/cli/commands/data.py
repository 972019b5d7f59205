"""Look at a data set: its shapes and counts, and whose it is."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli import tables
from dordis.cli.options import DataDir, Json


def data(
    name: Annotated[str, typer.Argument(metavar="NAME or PATH", help="Such as cifar10, or patients.csv.")],
    data_dir: DataDir = None,
    label: Annotated[str | None, typer.Option(help="Of a table: the column to be learnt.")] = None,
    client: Annotated[str | None, typer.Option(help="Of a table: the column that says whose a row is.")] = None,
    as_json: Json = False,
) -> None:
    """Look at a data set, downloading it if need be: shapes, counts, and whose it is."""
    from dordis.apps.learning.settings import Settings
    from dordis.apps.learning.sources import load

    folder = "" if data_dir is None else str(data_dir.resolve())
    found = load(Settings(data=name, data_dir=folder, client=client, label=label), Path.cwd()).describe()
    tables.show(as_json, found, tables.facts(found, name))
