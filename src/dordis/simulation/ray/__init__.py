"""Rounds whose clients compute in processes of a cluster of Ray: `simulation.engine = "ray"` (extra `ray`).

Every process is one that this run has started, with code that is installed there; what Ray pickles between them comes
from no peer.  A client's messages still go through our own codec, beside the client.
"""

import os

from dordis.errors import MissingExtra

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported: nothing is reported to anyone
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray  # noqa: F401
except ImportError:
    raise MissingExtra("ray") from None

from dordis.simulation.ray.rounds import RayRounds, places, where

__all__ = ["RayRounds", "places", "where"]
