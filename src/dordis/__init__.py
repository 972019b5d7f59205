"""Federated learning with distributed differential privacy that survives client dropout."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dordis.apps.analytics import find_ranges, histogram, mean
    from dordis.apps.tables.description import Table
    from dordis.config.schema import Config
    from dordis.errors import (
        BudgetExceeded,
        DordisError,
        HopelessPlan,
        InputError,
        NothingTrained,
        ProtocolError,
        RoundFailed,
    )
    from dordis.library import RunResult, load, run, train
    from dordis.privacy.skellam_noise import noise
    from dordis.protocols.encoded_sums import Aggregate
    from dordis.rounds.app import AppClient, AppServer, RoundInfo

__version__ = "0.1.0"

_HOME = {
    "Aggregate": "dordis.protocols.encoded_sums",
    "AppClient": "dordis.rounds.app",
    "AppServer": "dordis.rounds.app",
    "BudgetExceeded": "dordis.errors",
    "Config": "dordis.config.schema",
    "DordisError": "dordis.errors",
    "HopelessPlan": "dordis.errors",
    "InputError": "dordis.errors",
    "NothingTrained": "dordis.errors",
    "ProtocolError": "dordis.errors",
    "RoundFailed": "dordis.errors",
    "RoundInfo": "dordis.rounds.app",
    "RunResult": "dordis.library",
    "Table": "dordis.apps.tables.description",
    "find_ranges": "dordis.apps.analytics",
    "histogram": "dordis.apps.analytics",
    "load": "dordis.library",
    "mean": "dordis.apps.analytics",
    "noise": "dordis.privacy.skellam_noise",
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
    "HopelessPlan",
    "InputError",
    "NothingTrained",
    "ProtocolError",
    "RoundFailed",
    "RoundInfo",
    "RunResult",
    "Table",
    "find_ranges",
    "histogram",
    "load",
    "mean",
    "noise",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import and return a public name at its first use, so that `dordis --help` need not wait for numpy and numba."""
    if name not in _HOME:
        raise AttributeError(f"module 'dordis' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
