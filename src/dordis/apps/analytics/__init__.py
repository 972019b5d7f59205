"""Private statistics by one function call: a mean, a histogram or the ranges of values in memory.

Each function simulates a round in this process, with the noise that real clients would add together.  The number of
clients and the number of columns are public; everything else about the values is released only with noise.
"""

from dordis.apps.analytics.bounds import PrivateRanges, find_ranges
from dordis.apps.analytics.queries import PrivateHistogram, PrivateMean, histogram, mean

__all__ = ["PrivateHistogram", "PrivateMean", "PrivateRanges", "find_ranges", "histogram", "mean"]
