"""Write a built-in configuration, with its comments, to a file."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import PRESETS, Json, preset_names
from dordis.cli.output import print_result
from dordis.errors import InputError


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
    from dordis.apps.tables.config_template import write_template
    from dordis.apps.tables.csv_file import read_header
    from dordis.config.presets import preset_text

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
