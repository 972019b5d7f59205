"""Private rounds for Flower apps: `DordisGrid` wraps the grid of a ServerApp, `dordis_mod` goes on every ClientApp.

The strategy needs no change: it sends a train message to every node and receives the private mean.  In between run the
client and the engine of `dordis.rounds`, with Flower's messages as the exchange.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dordis.errors import MissingExtra

try:
    import flwr  # noqa: F401
except ImportError:
    raise MissingExtra("flower") from None

if TYPE_CHECKING:
    from dordis.integrations.flower.grid import DordisGrid
    from dordis.integrations.flower.mod import DordisMod, dordis_mod
    from dordis.integrations.flower.training import train_step

__all__ = ["DordisGrid", "DordisMod", "dordis_mod", "train_step"]

_HOME = {"DordisGrid": "grid", "DordisMod": "mod", "dordis_mod": "mod", "train_step": "training"}


def __getattr__(name: str) -> Any:
    """Import the server's or the node's side at first use, because Flower starts a new process for each message."""
    if name not in _HOME:
        raise AttributeError(f"module 'dordis.integrations.flower' has no attribute '{name}'")
    return getattr(import_module(f"dordis.integrations.flower.{_HOME[name]}"), name)
