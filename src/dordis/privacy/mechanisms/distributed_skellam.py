"""The distributed Skellam mechanism: Agarwal, Kairouz and Liu, 2021.  The default; XNoise needs it.

The protocol draws the noise from seeds, component by component, so that single components can be removed again.
"""

from typing import ClassVar

from dordis.privacy.mechanisms.mechanism import Mechanism, check_bound
from dordis.privacy.xnoise_components import Scheme


class DSkellam(Mechanism, frozen=True, tag="skellam"):
    """Distributed Skellam: clients clip, fold, rotate, scale and round updates, and the protocol adds the noise."""

    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme) - {Scheme.NONE}
    has_price_list: ClassVar[bool] = False
    may_fold: ClassVar[bool] = True
    sums_records: ClassVar[bool] = True
    description: ClassVar[str] = "distributed Skellam noise, drawn in integers"

    def __post_init__(self) -> None:
        check_bound(self)
