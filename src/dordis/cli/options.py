"""Options that several commands share, so that each has one help text."""

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dordis.errors import InputError


def preset_names(incomplete: str) -> list[str]:
    """Return the names of presets that begin with `incomplete`, for completion in a shell."""
    from dordis.config import read_presets

    return [name for name in read_presets() if name.startswith(incomplete)]


def recorded_runs(incomplete: str) -> list[str]:
    """Return run paths that begin with `incomplete`, for completion in a shell; runs of one name are newest first."""
    found = [str(path.parent) for path in Path().glob("*/*/*/manifest.json")]
    return sorted((path for path in found if path.startswith(incomplete)), reverse=True)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object for each event.")]
JsonArray = Annotated[bool, typer.Option("--json", help="Print one JSON array.")]


class LogFormat(StrEnum):
    """Form of log lines."""

    TEXT = "text"
    JSON = "json"


LogLines = Annotated[LogFormat, typer.Option("--log-format", help="Log lines on stderr as text, or as JSON objects.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Yes = Annotated[bool, typer.Option("--yes", help="Run without asking, even if noise leaves next to nothing to learn.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the seconds of each stage of a round.")]

# Evidence.
RegistryFile = Annotated[
    Path | None, typer.Option("--registry", help="The registry of the federation, whose keys verify signatures.")
]
Authority = Annotated[
    Path | None, typer.Option(help="The authority's certificate, ca.pem: the registry must be signed by it.")
]

# Configured runs.
PRESETS = (
    "chat, cifar10, cifar10-features, cifar10-features-large, cifar100, femnist, hospitals, ideal, mnist-writers, "
    "mnist-writers-cnn, paper-cifar10, paper-cifar100, paper-femnist, paper-reddit, quick, reddit, shakespeare, sparse"
)
ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="A configuration file; the preset digits if not given.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"A built-in configuration; a configuration file and -c override it: digits, {PRESETS}.",
        autocompletion=preset_names,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="The directory of the data set; it is downloaded if not given.")]
Overrides = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Override a setting: -c privacy.epsilon=3.")
]

# Private statistics.
CsvFile = Annotated[
    Path,
    typer.Argument(metavar="FILE.csv", help="One row per client; the first row may name the columns."),
]
Epsilon = Annotated[float, typer.Option(help="The privacy budget of the whole answer.")]
Delta = Annotated[float | None, typer.Option(help="Delta; min(n^-1.1, 1e-5) for n clients if not given.")]
QueryLedger = Annotated[
    Path | None,
    typer.Option("--ledger", help="Charge the answer to this ledger of all queries over the same clients."),
]
QueryLimit = Annotated[
    float | None, typer.Option("--budget", help="For a new --ledger: the epsilon that all queries together may spend.")
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Skip rows with a missing value or one that is not a finite number.")
]
Dropped = Annotated[int, typer.Option(help="Number of clients that drop out during the round, to see the effect.")]
Fidelity = Annotated[str, typer.Option(help="ideal computes the result; full sends every message, which takes long.")]


def override_settings(options: Mapping[str, str | float | None]) -> list[str]:
    """Return KEY=VALUE for each entry of `options` that is not None; raise InputError for an infinite number or NaN."""
    for key, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} must be a finite number, not {value}")
    return [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def override_data_dir(data_dir: Path | None) -> list[str]:
    """Return the setting for --data-dir as KEY=VALUE; a relative path starts from the current directory."""
    return [] if data_dir is None else [f"app.options.data_dir={json.dumps(str(data_dir.resolve()))}"]
