"""Begin a configuration: an embedded one, with its comments, as a file of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from dordis.cli.options import PRESETS, Json, preset_names
from dordis.cli.tables import show
from dordis.errors import InputError


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("dordis.toml"),
    preset: Annotated[
        str,
        typer.Option(
            help=f"What to begin with: digits, which explains every setting, {PRESETS}.", autocompletion=preset_names
        ),
    ] = "digits",
    as_json: Json = False,
) -> None:
    """Write a configuration with explanations, to be edited."""
    from dordis.simulation.embedded import preset_text

    text = preset_text(preset)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} is there already and is left alone: choose another name") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    show(as_json, {"path": str(path), "preset": preset}, f"wrote {path}; run it with: dordis run {path}")
