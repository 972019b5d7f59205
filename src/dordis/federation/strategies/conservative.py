"""Con-r, a baseline: even shares, as if a fixed part of the clients dropped out."""

import math
from fractions import Fraction
from typing import Annotated, ClassVar

import msgspec

from dordis.federation.strategies.strategy import Strategy
from dordis.privacy.xnoise import Scheme


class Conservative(Strategy, frozen=True, tag="conservative"):
    """Add an even share, as if a fixed part of the clients dropped; stop before the budget is passed."""

    rate: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2

    words: ClassVar[str] = (
        "every client adds an even share of the noise, as if {rate:.4g} of the clients dropped out. If fewer do there "
        "is more noise than is needed. If more do the noise falls below its target, epsilon rises faster than planned, "
        "and the run ends before the round that would pass the budget."
    )

    @property
    def division(self) -> Scheme:
        """Return even shares that provide for dropouts."""
        return Scheme.CONSERVATIVE

    def reserve(self, clients: int) -> int:
        """Return the fixed part of the clients."""
        return math.floor(Fraction(str(self.rate)) * clients)
