"""No privacy at all: rotate, scale and round whatever comes.  A sum that does not fit the ring wraps around."""

from fractions import Fraction
from typing import ClassVar, Self

from dordis.errors import InputError
from dordis.privacy.accounting import Event
from dordis.privacy.mechanisms.mechanism import Mechanism, NoiseFrom, wide_grid
from dordis.privacy.planning import Setting


class NoMechanism(Mechanism, frozen=True, tag="none"):
    """Clip nothing, bound nothing, add nothing; policies of owners refuse it by default."""

    noise_from: ClassVar[NoiseFrom] = NoiseFrom.NOBODY
    in_ring: ClassVar[bool] = False
    words: ClassVar[str] = "no noise, and no bound on an update"

    @classmethod
    def within(cls, setting: Setting, allowance: float) -> Self:
        """Return the mechanism on a grid with much room; no budget is kept."""
        return cls(wide_grid(setting, setting.clip))

    def release(self, variance: Fraction) -> Event:
        """Refuse: nothing is proved."""
        raise InputError("a release without noise proves nothing: such a round runs without a ledger")
