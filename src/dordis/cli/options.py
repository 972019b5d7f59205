"""Options that several commands have, each with its one help text."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from dordis.errors import InputError


def preset_names(incomplete: str) -> list[str]:
    """Complete the name of a preset."""
    from dordis.simulation.embedded import presets

    return [name for name in presets() if name.startswith(incomplete)]


def finished_runs(incomplete: str) -> list[str]:
    """Complete the directory of a run, in whichever folder of runs that is here: the newest first."""
    found = [str(path.parent) for path in Path().glob("*/*/*/manifest.json")]
    return sorted((path for path in found if path.startswith(incomplete)), reverse=True)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object for each event.")]
JsonArray = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print how long the stages of each round took.")]

# Of a configured run.
PRESETS = (
    "chat, cifar10, cifar10-features, cifar10-features-large, cifar100, femnist, ideal, mnist-writers, "
    "mnist-writers-cnn, quick, reddit, shakespeare, sparse"
)
ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="A configuration; that of the preset digits if not given.")
]
Preset = Annotated[
    str | None,
    typer.Option(help=f"One that comes with dordis, below the file's: digits, {PRESETS}.", autocompletion=preset_names),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Where the files of the data set are; they are downloaded if this is not given.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Override a setting: -c privacy.epsilon=3.")
]

# Of private statistics.
CsvFile = Annotated[
    Path, typer.Argument(metavar="FILE.csv", help="One row for each client; the first may name the columns.")
]
Epsilon = Annotated[float, typer.Option(help="The privacy budget of all that is printed.")]
Delta = Annotated[float | None, typer.Option(help="Its delta; min(n^-1.1, 1e-5) for n clients if not given.")]
QueryLedger = Annotated[
    Path | None, typer.Option("--ledger", help="Charge the answer to this file, over all queries of the same clients.")
]
QueryLimit = Annotated[
    float | None, typer.Option("--budget", help="Epsilon beyond which a new --ledger answers nothing.")
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave out rows in which a value is missing or not a finite number.")
]
Dropped = Annotated[int, typer.Option(help="How many clients vanish on the way, for trying it out.")]
Fidelity = Annotated[str, typer.Option(help="ideal, or full: every message of the protocol, which takes long.")]

# Of the paper's round times.
Costs = Annotated[Path | None, typer.Option(help="Measured costs: read from here, or measured and written here.")]
PaperOnly = Annotated[bool, typer.Option("--paper", help="Only under the paper's cost mix: measure nothing.")]
Charts = Annotated[Path | None, typer.Option(help="Write every chart as SVG into this directory.")]

# Of the paper's learning tasks.
Scale = Annotated[str, typer.Option(help="small, or paper: its models and rounds, which takes days.")]
PaperTasks = Annotated[
    list[str] | None,
    typer.Option(help="FEMNIST, CIFAR-10, Reddit or digits; all that there are data for if not given."),
]
Seed = Annotated[int, typer.Option(help="Of data, selection and dropout.")]


def as_keys(short: Mapping[str, str | float | None]) -> list[str]:
    """Return the settings that options with short names stand for."""
    for key, value in short.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} is a finite number, not {value}")
    return [f"{key}={json.dumps(value)}" for key, value in short.items() if value is not None]


def given_data(data_dir: Path | None) -> list[str]:
    """Return the setting that --data-dir stands for: a path given to a command is relative to where it is run."""
    return [] if data_dir is None else [f"app.options.data_dir={json.dumps(str(data_dir.resolve()))}"]
