"""Orig, a baseline: even shares, as if nobody dropped out."""

from typing import ClassVar

from dordis.federation.strategies.strategy import Rule, Strategy


class Orig(Strategy, frozen=True, tag="orig"):
    """Add an even share, as if nobody dropped; the budget is overspent when someone does, and the run goes on."""

    rule: ClassVar[Rule] = Rule.COUNT
    words: ClassVar[str] = (
        "every client adds an even share of the noise, as if nobody dropped out. The share of those who do is missing: "
        "the noise falls below its target, and epsilon rises faster than planned, possibly beyond the budget."
    )
