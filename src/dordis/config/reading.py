"""Read a configuration from a preset, a TOML file and `key=value` options; every error message is one line."""

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

from dordis.config import preset_text
from dordis.config.schema import Alerts, Config
from dordis.errors import InputError

ALERTS = "alerts"
"""Section of a configuration file with settings of the server's process.  They are not part of the run's settings."""

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


def config_from_settings(settings: dict[str, Any]) -> Config:
    """Return the configuration with these settings, and defaults for other keys; raise InputError if it is invalid."""
    return validate_settings(add_default_kinds(merge_settings(msgspec.to_builtins(Config()), settings)))


def read_config(path: Path | None = None, preset: str | None = None, keys: Sequence[str] = ()) -> Config:
    """Return the configuration: defaults, then `preset`, then the file at `path`, then `keys` of the form `key=value`.

    A later source overrides an earlier one, key by key.  A run whose name is not set takes the name of its preset or,
    without one, of its file.
    """
    settings: dict[str, Any] = msgspec.to_builtins(Config())
    if preset is not None:
        settings = merge_settings(settings, tomllib.loads(preset_text(preset)))
    elif path is not None:
        settings |= {"name": re.sub(r"[^\w.-]", "-", path.stem).lstrip(".")}
    if path is not None:
        settings = merge_settings(settings, resolve_paths(read_toml(path), path.resolve().parent))
    for key in keys:
        settings = merge_settings(settings, parse_assignment(key))
    return validate_settings(add_default_kinds(settings))


def resolve_paths(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings in which relative paths start from `folder`: those of `app.options` and of a dropout trace."""
    found = merge_settings({"app": {"folder": str(folder)}}, settings)
    trace = found.get("simulation", {}).get("dropout", {})
    if isinstance(trace, dict) and isinstance(trace.get("path"), str):
        found = merge_settings(found, {"simulation": {"dropout": trace | {"path": str(folder / trace["path"])}}})
    return found


def add_module_folders(path: Path | None) -> None:
    """Add the folder of the configuration file at `path` and the current folder to the import path."""
    for folder in (Path.cwd(), *([path.resolve().parent] if path else [])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def config_to_toml(config: Config) -> str:
    """Return a configuration as TOML with all keys, except those that are None."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(config)))


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


_KINDS = {"partition": "lda", "optimiser": "fedavg"}
"""Options of the built-in application that are tables, each with the `kind` that it has by default."""


def add_default_kinds(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which the tables `partition` and `optimiser` of the built-in application have a `kind`.

    Where it is missing, the default in `_KINDS` is added.
    """
    app = settings.get("app")
    if not isinstance(app, dict) or app.get("server") != Config().app.server or not isinstance(app["options"], dict):
        return settings
    options = {
        name: {"kind": _KINDS[name]} | value if isinstance(value, dict) and name in _KINDS else value
        for name, value in app["options"].items()
    }
    return settings | {"app": app | {"options": options}}


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None


def parse_assignment(text: str) -> dict[str, Any]:
    """Return a text `section.key=value` as nested settings; a value that is not valid TOML is taken as a string.

    >>> parse_assignment("privacy.noise.kind=orig")
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


def merge_settings(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below`, overridden key by key by `above`; a table of `above` with another `kind` is taken as a whole."""
    if "kind" in above and above["kind"] != below.get("kind"):
        return above
    result = dict(below)
    for name, value in above.items():
        known = result.get(name)
        result[name] = merge_settings(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def validate_settings(settings: dict[str, Any]) -> Config:
    """Return the configuration with these settings; raise InputError for an invalid key or value.

    The section `alerts` is checked, too, but is not part of a `Config`.
    """
    validate_alerts(settings)
    try:
        return msgspec.convert({name: value for name, value in settings.items() if name != ALERTS}, Config)
    except msgspec.ValidationError as error:
        raise InputError(explain_error(str(error))) from None


def read_alerts(path: Path | None = None, keys: Sequence[str] = ()) -> Alerts:
    """Return the section `alerts` of a configuration file, overridden by options `keys` of the form `key=value`."""
    settings = {} if path is None else read_toml(path)
    for key in keys:
        settings = merge_settings(settings, parse_assignment(key))
    return validate_alerts(settings)


def validate_alerts(settings: dict[str, Any]) -> Alerts:
    """Return the section `alerts` of settings; raise InputError for an invalid key or value."""
    try:
        return msgspec.convert(settings.get(ALERTS, {}), Alerts)
    except msgspec.ValidationError as error:
        raise InputError(explain_error(str(error), ALERTS, Alerts)) from None


def alerts_to_toml(alerts: Alerts) -> str:
    """Return alerts as TOML."""
    return tomli_w.dumps({ALERTS: msgspec.to_builtins(alerts)})


def explain_error(error: str, section: str = "", kind: type | None = None) -> str:
    """Return an error message of msgspec in words that name the wrong key, and the most similar valid key.

    The message is about a whole `Config`; if `section` is given, only about this section, which has the type `kind`.
    """
    unknown = _UNKNOWN.fullmatch(error)
    if unknown is None:
        place = _PLACE.search(error)
        if place is None:
            return f"{section}: {error}" if section else error
        path = ".".join(filter(None, (section, place["path"])))
        return f"{path}: {error[: place.start()]}{_describe_choices(place['path'], error, kind or Config)}"
    field, path = unknown["field"], ".".join(filter(None, (section, unknown["path"])))
    known = (
        section_keys(path) if kind is None else list(getattr(kind, "__struct_fields__", ())) if path == section else []
    )
    near = difflib.get_close_matches(field, known, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}" if known else ""
    whole = f"{path}.{field}" if path else field
    return f"there is no setting '{whole}'" + (f": {hint}" if hint else "")


def section_keys(path: str) -> list[str]:
    """Return the keys of the section at a dotted `path`, such as `privacy.noise`."""
    value: Any = Config()
    for name in filter(None, path.split(".")):
        value = getattr(value, name, None)
    return list(value.__struct_fields__) if isinstance(value, msgspec.Struct) else []


def _describe_choices(path: str, error: str, whole: type) -> str:
    """Return the end of an error message: the valid values of the key at a dotted `path`; empty if there is no list.

    The path starts from a struct of the type `whole`.
    """
    if not error.startswith("Invalid"):
        return ""
    kinds: list[Any] = [msgspec.inspect.type_info(whole)]
    words: list[str] = []
    for name in path.split("."):
        words = [str(kind.tag) for kind in kinds if getattr(kind, "tag_field", None) == name]
        inner = [field.type for kind in kinds for field in getattr(kind, "fields", ()) if field.encode_name == name]
        kinds = [one for kind in inner for one in getattr(kind, "types", (kind,))]
    words = words or [str(value) for kind in kinds for value in getattr(kind, "values", ())]
    least = [kind.ge for kind in kinds if isinstance(kind, msgspec.inspect.IntType)]
    words += [f"a whole number of at least {number}" for number in least if words]
    return f", it is one of {', '.join(words)}" if words else ""
