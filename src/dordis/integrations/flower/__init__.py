"""Private rounds for Flower apps: `DordisGrid` wraps the grid of a ServerApp, `dordis_mod` goes on every ClientApp.

Flower's strategy needs no change: it sends a train message to every node and receives the private mean.  Between these
two steps, the round engine and the clients of `dordis.rounds` exchange their messages inside Flower messages.
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
    """Return an exported name; its module is imported at first use, since Flower starts a process for each message."""
    if name not in _HOME:
        raise AttributeError(f"module 'dordis.integrations.flower' has no attribute '{name}'")
    return getattr(import_module(f"dordis.integrations.flower.{_HOME[name]}"), name)
