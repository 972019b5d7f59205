"""Private rounds for Flower apps: `DordisGrid` around the grid of a ServerApp, `dordis_mod` on every ClientApp.

The strategy goes on as it is: it sends a train message to every node and gets the private mean back.  What lies between
is the client and the engine of `dordis.rounds`, with Flower's messages as the exchange.
"""

from dordis.errors import MissingExtra

try:
    import flwr  # noqa: F401
except ImportError:
    raise MissingExtra("flower") from None

from dordis.integrations.flower.grid import DordisGrid
from dordis.integrations.flower.mod import DordisMod, dordis_mod

__all__ = ["DordisGrid", "DordisMod", "dordis_mod"]
