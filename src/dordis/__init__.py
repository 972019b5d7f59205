"""Federated learning with distributed differential privacy that survives client dropout."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dordis.apps.analytics import histogram, mean
    from dordis.errors import DordisError, InputError
    from dordis.privacy.noise import noise

__version__ = "0.1.0.dev0"

__all__ = ["DordisError", "InputError", "histogram", "mean", "noise"]

_HOME = {
    "DordisError": "dordis.errors",
    "InputError": "dordis.errors",
    "histogram": "dordis.apps.analytics",
    "mean": "dordis.apps.analytics",
    "noise": "dordis.privacy.noise",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: numpy and numba take longer than `dordis --help` may."""
    if name not in _HOME:
        raise AttributeError(f"module 'dordis' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
