"""Noise strategies: ours and the paper's baselines.  A new one is a file of this package and an entry of this table."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from dordis.federation.strategies.central import Central
from dordis.federation.strategies.conservative import Conservative
from dordis.federation.strategies.early import Early
from dordis.federation.strategies.local import Local
from dordis.federation.strategies.none import NoNoise
from dordis.federation.strategies.orig import Orig
from dordis.federation.strategies.rebasing import Rebasing
from dordis.federation.strategies.strategy import Strategy
from dordis.federation.strategies.xnoise import XNoise

TABLE = (XNoise, Orig, Early, Conservative, Rebasing, Central, Local, NoNoise)

if TYPE_CHECKING:
    AnyStrategy = Strategy
else:
    AnyStrategy = reduce(or_, TABLE)
    """Any strategy of the table, to be read from a configuration by its `kind`."""
