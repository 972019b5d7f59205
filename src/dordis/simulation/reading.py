"""Read a configuration: a preset, a TOML file, then single keys from the command line; every mistake is one line."""

import difflib
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect
import tomli_w

from dordis.errors import InputError
from dordis.simulation.config import Config
from dordis.simulation.embedded import preset_text

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


def over_defaults(settings: dict[str, Any]) -> Config:
    """Return the configuration that settings make over the defaults."""
    return config_of(with_kinds(merged(msgspec.to_builtins(Config()), settings)))


def read(path: Path | None = None, preset: str | None = None, keys: Sequence[str] = ()) -> Config:
    """Return the configuration; later sources override earlier ones, key by key.

    A run without a name has that of its preset, or of its file.
    """
    settings: dict[str, Any] = msgspec.to_builtins(Config())
    if preset is not None:
        settings = merged(settings, tomllib.loads(preset_text(preset)))
    elif path is not None:
        settings |= {"name": re.sub(r"[^\w.-]", "-", path.stem).lstrip(".")}
    if path is not None:
        settings = merged(settings, at_home(load(path), path.resolve().parent))
    for key in keys:
        settings = merged(settings, assignment(key))
    return config_of(with_kinds(settings))


def at_home(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Let relative paths in a file begin at its folder, wherever the command is run: in the options, and of traces."""
    found = merged({"app": {"folder": str(folder)}}, settings)
    trace = found.get("simulation", {}).get("dropout", {})
    if isinstance(trace, dict) and isinstance(trace.get("path"), str):
        found = merged(found, {"simulation": {"dropout": trace | {"path": str(folder / trace["path"])}}})
    return found


def find_modules(path: Path | None) -> None:
    """Let a configuration name modules beside it, or in the current folder."""
    for folder in (Path.cwd(), *([path.resolve().parent] if path else [])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def written(config: Config) -> str:
    """Write a configuration as TOML, every key said; what is not set is left out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config)))


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


_KINDS = {"partition": "lda", "optimiser": "fedavg"}
"""What these options of our application are of, unless they say so themselves."""


def with_kinds(settings: dict[str, Any]) -> dict[str, Any]:
    """Let an option of our application be set without its kind, as `app.options.partition.alpha` may be."""
    app = settings.get("app")
    if not isinstance(app, dict) or app.get("server") != Config().app.server or not isinstance(app["options"], dict):
        return settings
    options = {
        name: {"kind": _KINDS[name]} | value if isinstance(value, dict) and name in _KINDS else value
        for name, value in app["options"].items()
    }
    return settings | {"app": app | {"options": options}}


def load(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def assignment(text: str) -> dict[str, Any]:
    """Return the setting that `section.key=value` makes; a value that is no TOML value is a text.

    >>> assignment("privacy.noise.kind=orig")
    {'privacy': {'noise': {'kind': 'orig'}}}
    """
    key, equals, value = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise InputError(f"a setting is given as section.key=value, not as '{text}'")
    try:
        setting: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        setting = value.strip()
    for name in reversed(names):
        setting = {name: setting}
    nested: dict[str, Any] = setting
    return nested


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return both, the second over the first; another kind of strategy takes nothing over from the first."""
    if "kind" in above and above["kind"] != below.get("kind"):
        return above
    result = dict(below)
    for name, value in above.items():
        known = result.get(name)
        result[name] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def config_of(settings: dict[str, Any]) -> Config:
    """Check settings key by key."""
    try:
        return msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise InputError(explained(str(error))) from None


def explained(error: str, section: str = "", kind: type | None = None) -> str:
    """Say which key is wrong and, if a name is nearly right, which one was meant.

    The settings are those of a `section` of this `kind`, if one is given.
    """
    unknown = _UNKNOWN.fullmatch(error)
    if unknown is None:
        place = _PLACE.search(error)
        if place is None:
            return f"{section}: {error}" if section else error
        path = ".".join(filter(None, (section, place["path"])))
        return f"{path}: {error[: place.start()]}{_choices(place['path'], error) if kind is None else ''}"
    field, path = unknown["field"], ".".join(filter(None, (section, unknown["path"])))
    known = fields(path) if kind is None else list(getattr(kind, "__struct_fields__", ())) if path == section else []
    near = difflib.get_close_matches(field, known, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}" if known else ""
    whole = f"{path}.{field}" if path else field
    return f"there is no setting '{whole}'" + (f": {hint}" if hint else "")


def fields(path: str) -> list[str]:
    """Return the keys of a section."""
    value: Any = Config()
    for name in filter(None, path.split(".")):
        value = getattr(value, name, None)
    return list(value.__struct_fields__) if isinstance(value, msgspec.Struct) else []


def _choices(path: str, error: str) -> str:
    """Say what a value may be, if it is one of a few words."""
    if not error.startswith("Invalid"):
        return ""
    kinds: list[Any] = [msgspec.inspect.type_info(Config)]
    words: list[str] = []
    for name in path.split("."):
        words = [str(kind.tag) for kind in kinds if getattr(kind, "tag_field", None) == name]
        inner = [field.type for kind in kinds for field in getattr(kind, "fields", ()) if field.encode_name == name]
        kinds = [one for kind in inner for one in getattr(kind, "types", (kind,))]
    words = words or [str(value) for kind in kinds for value in getattr(kind, "values", ())]
    return f", it is one of {', '.join(words)}" if words else ""
