"""Federated learning with distributed differential privacy that survives client dropout."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dordis.apps.analytics import histogram, mean
    from dordis.errors import BudgetExceeded, DordisError, InputError, ProtocolError, RoundFailed
    from dordis.library import RunResult, load, run, train
    from dordis.privacy.noise import noise
    from dordis.protocols.distributed_dp import Aggregate
    from dordis.rounds.app import AppClient, AppServer, RoundInfo
    from dordis.simulation.config import Config

__version__ = "0.1.0.dev0"

_HOME = {
    "Aggregate": "dordis.protocols.distributed_dp",
    "AppClient": "dordis.rounds.app",
    "AppServer": "dordis.rounds.app",
    "BudgetExceeded": "dordis.errors",
    "Config": "dordis.simulation.config",
    "DordisError": "dordis.errors",
    "InputError": "dordis.errors",
    "ProtocolError": "dordis.errors",
    "RoundFailed": "dordis.errors",
    "RoundInfo": "dordis.rounds.app",
    "RunResult": "dordis.library",
    "histogram": "dordis.apps.analytics",
    "load": "dordis.library",
    "mean": "dordis.apps.analytics",
    "noise": "dordis.privacy.noise",
    "run": "dordis.library",
    "train": "dordis.library",
}

__all__ = [
    "Aggregate",
    "AppClient",
    "AppServer",
    "BudgetExceeded",
    "Config",
    "DordisError",
    "InputError",
    "ProtocolError",
    "RoundFailed",
    "RoundInfo",
    "RunResult",
    "histogram",
    "load",
    "mean",
    "noise",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: numpy and numba take longer than `dordis --help` may."""
    if name not in _HOME:
        raise AttributeError(f"module 'dordis' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
