"""Rounds whose clients compute in processes of a Ray cluster: `simulation.engine = "ray"` (extra `ray`).

The run itself starts every process, with the code that is installed there, so Ray unpickles no object of another party.
The messages of a client are still encoded and decoded as on a network, in the client's process.
"""

import os

from dordis.errors import MissingExtra

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads this at import: no usage statistics are sent
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray  # noqa: F401
except ImportError:
    raise MissingExtra("ray") from None

from dordis.integrations.ray.rounds import RayRounds, choose_nodes, describe_nodes

__all__ = ["RayRounds", "choose_nodes", "describe_nodes"]
