"""Clients with more samples count more: by weights of at most 1, so that no client counts more than the clip bound."""

import math

import msgspec
import numpy as np

from dordis.errors import InputError
from dordis.privacy.skellam import Floats


class SampleWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="samples"):
    """Weight an update by the number of samples, up to `most`; a client with `most` or more has the weight 1.

    An update is clipped before it is weighted: its norm is at most the clip bound times the weight, so that the
    sensitivity is the clip bound, as without weights, and the mechanism clips again whatever a client says.  The mean
    is over clients and not over samples, whose number is nobody's business: `typical`, a public guess at what clients
    have, makes up for the weights.
    """

    most: int
    typical: float

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 < self.typical < math.inf:
            raise InputError("weights need most, of 1 or more samples, and typical, which is positive")

    def of(self, samples: int) -> float:
        """Return the weight of a client.

        >>> SampleWeights(100, 50.0).of(25), SampleWeights(100, 50.0).of(1000)
        (0.25, 1.0)
        """
        return min(samples, self.most) / self.most

    @property
    def restored(self) -> float:
        """Return what the mean of weighted updates is multiplied by, so that a typical client counts as it is."""
        return self.most / min(self.typical, self.most)


def clipped(update: Floats, bound: float) -> Floats:
    """Return the update, no longer than the bound."""
    norm = float(np.linalg.norm(update))
    return update if norm <= bound else update * (bound / norm)
