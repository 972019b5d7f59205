"""The texts of the built-in configurations; apart from `reading`, whose imports would slow `dordis init` down."""

from importlib import resources

from dordis.errors import InputError


def presets() -> dict[str, str]:
    """Return the texts of all presets by name."""
    folder = resources.files("dordis.config").joinpath("presets")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def preset_text(name: str) -> str:
    """Return the text of a preset."""
    known = presets()
    if name not in known:
        raise InputError(f"there is no preset '{name}': there are {', '.join(known)}")
    return known[name]
