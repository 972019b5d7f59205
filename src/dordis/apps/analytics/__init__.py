"""Private statistics of values in memory by one function call: a mean, a histogram, or ranges of columns.

Each function simulates one or two rounds, with the noise that all clients of a deployment would add together.  The
number of clients and the names and types of the columns are public.  Everything else is released only with noise.
"""

from dordis.apps.analytics.bounds import PrivateRanges, find_ranges
from dordis.apps.analytics.queries import PrivateHistogram, PrivateMean, histogram, mean

__all__ = ["PrivateHistogram", "PrivateMean", "PrivateRanges", "find_ranges", "histogram", "mean"]
