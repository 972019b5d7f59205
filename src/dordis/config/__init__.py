"""The configuration of a run: its schema, its reading, and the presets, which are built-in configurations.

This module reads the presets and imports little, so that `dordis init` starts fast.
"""

from importlib import resources

from dordis.errors import InputError


def read_presets() -> dict[str, str]:
    """Return the TOML texts of all presets by name."""
    folder = resources.files("dordis.config").joinpath("presets")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def preset_text(name: str) -> str:
    """Return the TOML text of a preset; raise InputError if there is none of this name."""
    known = read_presets()
    if name not in known:
        raise InputError(f"there is no preset '{name}': there are {', '.join(known)}")
    return known[name]
