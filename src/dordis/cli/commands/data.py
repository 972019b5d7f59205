"""Describe a data set: shapes, counts and clients; for a table only the names of its columns."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import DataDir, Json
from dordis.cli.output import facts_table, print_result


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
    from dordis.apps.tables.columns import SUFFIXES
    from dordis.apps.tables.csv_file import read_header

    if Path(name).suffix.lower() in SUFFIXES:
        columns = read_header(Path(name))
        described = {
            "columns": ", ".join(columns),
            "next": f"dordis init --data {name} writes a description to fill in",
        }
        print_result(as_json, described, facts_table(described, name))
        return
    folder = "" if data_dir is None else str(data_dir.resolve())
    described = load(Settings(data=name, data_dir=folder), Path.cwd()).describe()
    print_result(as_json, described, facts_table(described, name))
