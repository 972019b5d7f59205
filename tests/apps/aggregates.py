"""Aggregates as a round would give them, without a round."""

import numpy as np

from dordis.protocols.encoded_sums import Aggregate


def summed(vectors) -> Aggregate:
    """Return the exact sum of some clients' vectors."""
    return Aggregate(np.sum(vectors, axis=0), (len(vectors),), np.array([len(vectors)]))
