"""Private statistics in one line: a mean or a histogram of values at hand, each row one client's.

Each simulates a round in this process, under the noise that real clients would add together.  How many rows and columns
there are is public; nothing else of the values is looked at but through noise.
"""

from dordis.apps.analytics.queries import histogram, mean
from dordis.apps.analytics.results import PrivateHistogram, PrivateMean

__all__ = ["PrivateHistogram", "PrivateMean", "histogram", "mean"]
