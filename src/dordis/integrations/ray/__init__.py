"""Rounds whose clients compute in processes of a Ray cluster: `simulation.engine = "ray"` (extra `ray`).

The run starts every process, with the code installed there, so Ray unpickles nothing from a peer.  The messages of a
client still pass through the codec of dordis, in the client's process.
"""

import os

from dordis.errors import MissingExtra

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads this at import; no usage is reported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray  # noqa: F401
except ImportError:
    raise MissingExtra("ray") from None

from dordis.integrations.ray.rounds import RayRounds, choose_nodes, describe_nodes

__all__ = ["RayRounds", "choose_nodes", "describe_nodes"]
