"""Names of runs that are compared: what differs in their configurations tells them apart."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from dordis.federation.records import CONFIG, StoredRun

NO_MATTER = ("name", "output", "app.folder")
"""Settings that say nothing of what a run computes."""
MOST = 3
"""Settings in a name; a table lists them all."""


def labels(runs: Sequence[StoredRun]) -> list[str]:
    """Name each run: by its name, or where names repeat by its settings, by the time as well where these repeat too."""
    names = [run.manifest.name for run in runs]
    if len(set(names)) == len(names):
        return names
    told = [_settings_of(place, differences(runs)) for place in range(len(runs))]
    if len(set(names)) > 1:
        told = [f"{name}, {settings}" if settings else name for name, settings in zip(names, told, strict=True)]
    begun = [run.manifest.created[:19].replace("T", " ") for run in runs]
    known = [label or name for label, name in zip(told, names, strict=True)]
    timed = [f"{label}, {time}" if known.count(label) > 1 else label for label, time in zip(known, begun, strict=True)]
    return [f"{label} #{i + 1}" if timed.count(label) > 1 else label for i, label in enumerate(timed)]


def differences(runs: Sequence[StoredRun]) -> dict[str, tuple[str, ...]]:
    """Return the settings that are not the same in all runs, and the value of each run, "" where it has none."""
    found = [dict(flattened(_configuration(run))) for run in runs]
    keys = [key for key in dict.fromkeys(key for settings in found for key in settings) if key not in NO_MATTER]
    values = {key: tuple(settings.get(key, "") for settings in found) for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def flattened(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Return settings by their dotted keys, as text.

    >>> flattened({"privacy": {"epsilon": 6.0, "noise": {"kind": "orig"}}})
    [('privacy.epsilon', '6'), ('privacy.noise.kind', 'orig')]
    """
    parts = []
    for name, value in settings.items():
        if isinstance(value, dict):
            parts += flattened(value, f"{above}{name}.")
        else:
            parts.append((f"{above}{name}", f"{value:g}" if isinstance(value, float) else str(value)))
    return parts


def _configuration(run: StoredRun) -> dict[str, Any]:
    """Return what a run was configured with, if that can be read: without it a report has a name less."""
    try:
        return tomllib.loads((run.path / CONFIG).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _settings_of(place: int, differing: Mapping[str, tuple[str, ...]]) -> str:
    """Write the first settings of a run that most of the runs do not have."""
    kinds = [key.removesuffix("kind") for key in differing if key.endswith(".kind")]
    told = [
        _setting(key, values[place])
        for key, values in differing.items()
        if values[place] and 2 * values.count(values[place]) <= len(values)
        if key.endswith(".kind") or not any(key.startswith(kind) for kind in kinds)
    ]
    return ", ".join([*told[:MOST], *(["..."] if len(told) > MOST else [])])


def _setting(key: str, value: str) -> str:
    """Write a setting by the last words of its key and its value.

    >>> _setting("privacy.noise.kind", "orig"), _setting("app.server", "my.module:Server")
    ('noise orig', 'server Server')
    """
    return f"{key.removesuffix('.kind').rpartition('.')[2].replace('_', ' ')} {value.rpartition(':')[2]}"
