"""What epsilon would be if clients dropped out, under each way of adding noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dordis.privacy.planning import XNOISE, Plan
from dordis.privacy.xnoise import Scheme

RATES = tuple(Fraction(tenths, 10) for tenths in range(5))


@dataclass(frozen=True)
class Outlook:
    """Hold epsilon if `dropped` clients are lost in every round, under each way of adding noise."""

    rate: Fraction
    dropped: int
    orig: float | None
    conservative: float | None
    xnoise: float | None


def forecast(plan: Plan, rates: Sequence[Fraction] = RATES) -> tuple[Outlook, ...]:
    """Return epsilon at each rate of dropout, floor(rate n) clients in every round."""
    xnoise = plan.setting.scheme if plan.setting.scheme in XNOISE else Scheme.SINGLE
    schemes = (Scheme.ORIG, Scheme.CONSERVATIVE, xnoise)
    lost = [(rate, math.floor(rate * plan.setting.clients)) for rate in rates]
    return tuple(Outlook(rate, gone, *(plan.epsilon_if(gone, scheme) for scheme in schemes)) for rate, gone in lost)
